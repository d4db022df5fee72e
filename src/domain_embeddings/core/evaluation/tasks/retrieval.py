"""Documents ranked for queries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, cast

import numpy as np
import pandas as pd
from datasets import Dataset
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData

from domain_embeddings.core.encoders.prompts import Role
from domain_embeddings.core.evaluation.metrics import metric_name
from domain_embeddings.core.evaluation.resampling import Statistic, mean_statistic
from domain_embeddings.core.evaluation.tasks.base import LocalTask


class RetrievalTask(LocalTask, AbsTaskRetrieval):
    """Documents of a corpus ranked for each query by cosine similarity."""

    mteb_type = "Retrieval"
    reported: ClassVar[Mapping[str, str]] = {
        "ndcg@10": "ndcg_at_10",
        "recall@10": "recall_at_10",
        "mrr@10": "mrr_at_10",
    }
    # The largest cut-off bounds how many documents mteb keeps per query. Nothing here looks deeper
    # than 10; the margin keeps documents of equal score from dropping out at the edge.
    k_values = (1, 10, 20)

    def check(self) -> None:
        """Require a query with a relevant document."""
        super().check()
        if not self._judged().any():
            self.refuse("has no query with a relevant document (text, text2 and score > 0)")

    def _judged(self) -> pd.Series:
        return self.rows["text"].notna() & self.rows["text2"].notna() & (self.rows["score"] > 0)

    def make_dataset(self) -> Any:
        """Return corpus, queries and relevance; a record without query is a distractor."""
        rows = self.rows
        # mteb strips documents before it encodes them.
        documents = rows[rows["text2"].notna()].drop_duplicates("text2_id")
        corpus = Dataset.from_dict(
            {
                "id": [str(name) for name in documents["text2_id"]],
                "text": [str(text).strip() for text in documents["text2"]],
            }
        )
        judged = rows[self._judged()]
        asked = judged.drop_duplicates("text_id")
        queries = Dataset.from_dict(
            {"id": [str(name) for name in asked["text_id"]], "text": list(asked["text"])}
        )
        relevant: dict[str, dict[str, int]] = {}
        for query, document, score in zip(
            judged["text_id"], judged["text2_id"], judged["score"], strict=True
        ):
            relevant.setdefault(str(query), {})[str(document)] = max(1, round(score))
        self._query_ids = list(relevant)
        split = RetrievalSplitData(
            corpus=corpus,
            queries=queries,
            relevant_docs=relevant,
            top_ranked=self._candidates(),
        )
        return {"default": {self.split: split}}

    def _candidates(self) -> dict[str, list[str]] | None:
        return None

    @property
    def count(self) -> int:
        """Number of queries."""
        return len(self._query_ids)

    def texts(self) -> Iterator[tuple[Role, str]]:
        """Yield queries and the documents of the corpus."""
        split = cast("Any", self.dataset)["default"][self.split]
        yield from (("anchor", text) for text in split["queries"]["text"])
        yield from (("positive", text) for text in split["corpus"]["text"])

    def task_specific_scores(
        self,
        scores: dict[str, dict[str, float]],
        qrels: Any,
        results: dict[str, dict[str, float]],
        hf_split: str,
        hf_subset: str,
    ) -> dict[str, float]:
        """Keep the scores of every query, where mteb lets a task add scores of its own."""
        self._captured = scores
        return {}

    def _save_task_predictions(self, *args: Any, **kwargs: Any) -> None:
        """Keep no rankings: the scores per query are all that is needed."""

    def statistics(self, scores: Mapping[str, Any]) -> dict[str, Statistic]:
        """Return nDCG@10 and recall@10 as means over queries.

        Raises:
            DataError: The mean over queries is not mteb's score, which is rounded to 5 decimals.
        """
        found = {}
        for own, theirs in (("ndcg@10", "ndcg_cut_10"), ("recall@10", "recall_10")):
            values = np.array([self._captured[query][theirs] for query in self._query_ids])
            if abs(values.mean() - scores[metric_name(own)]) > 6e-6:  # noqa: PLR2004
                self.refuse(f"was scored on other queries than its own ({own})")
            found[own] = mean_statistic(values)
        return found


class RerankingTask(RetrievalTask):
    """The candidates of each query, relevant or not, ranked by cosine similarity."""

    mteb_type = "Reranking"

    def _candidates(self) -> dict[str, list[str]] | None:
        pairs = self.rows[self.rows["text"].notna() & self.rows["text2"].notna()]
        asked = set(self._query_ids)
        candidates: dict[str, dict[str, None]] = {}
        for query, document in zip(pairs["text_id"], pairs["text2_id"], strict=True):
            if str(query) in asked:
                candidates.setdefault(str(query), {})[str(document)] = None
        return {query: list(documents) for query, documents in candidates.items()}
