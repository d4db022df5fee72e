"""mteb's encoder protocol served from an embedding bank: nothing is encoded twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from mteb.models.model_meta import ModelMeta, ScoringFunction
from mteb.similarity_functions import cos_sim, pairwise_cos_sim
from mteb.types import PromptType

from domain_embeddings.core.encoders.bank import EmbeddingBank
from domain_embeddings.core.encoders.prefix import prefix
from domain_embeddings.core.encoders.prompts import Role, prompt_for
from domain_embeddings.core.encoders.quantisation import FLOAT32, Quantiser
from domain_embeddings.core.evaluation.transforms import Transform

TaskPrompts = Mapping[str, Mapping[Role, str]]

# Bounds the similarities that are in memory at once to this many queries times the corpus.
_QUERIES = 256


def task_prompts(
    specs: Sequence[Mapping[str, Any]], model_prompts: Mapping[str, str | None]
) -> dict[str, dict[Role, str]]:
    """Resolve the prompt of each side of each task.

    Args:
        specs: Task specifications.
        model_prompts: Prompts saved with the model.

    Returns:
        Prompts by task name and role.
    """
    roles: tuple[Role, Role] = ("anchor", "positive")
    return {
        str(spec["name"]): {role: prompt_for(spec, role, model_prompts) for role in roles}
        for spec in specs
    }


class BankEncoder:
    """An encoder for mteb that transforms, truncates and quantises stored embeddings.

    It also follows mteb's search protocol: mteb's own search would rewrite the corpus as a new data
    set for every encoder, which takes longer than the search.

    Args:
        bank: Full-width embeddings of every text of the tasks.
        prompts: Prompts by task name and role, as used when the bank was built.
        transform: Applied at full width, before the prefix is taken.
        width: Number of leading coordinates that are kept.
        quantiser: What vectors go through before they are compared.
        name: Model name for mteb, of the form ``organisation/model``.
    """

    def __init__(  # noqa: PLR0913 - the vectors, their prompts, and what is done to them
        self,
        bank: EmbeddingBank,
        prompts: TaskPrompts,
        transform: Transform,
        width: int,
        quantiser: Quantiser | None = None,
        *,
        name: str = "local/bank",
    ) -> None:
        """Keep the bank; vectors are looked up when mteb asks."""
        self.bank = bank
        self.prompts = prompts
        self.transform = transform
        self.width = width
        self.quantiser = quantiser or Quantiser()
        self._meta = ModelMeta.create_empty(
            overwrites={
                "name": name,
                "revision": str(bank.header.get("weight_hash", "local")),
                "embed_dim": width,
                "similarity_fn_name": ScoringFunction.COSINE,
            }
        )

    @property
    def mteb_model_meta(self) -> ModelMeta:
        """Metadata of the model."""
        return self._meta

    def encode(
        self,
        inputs: Any,
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        prompt_type: PromptType | None = None,
        **kwargs: Any,
    ) -> np.ndarray:
        """Return the embeddings of the texts of a data loader.

        Args:
            inputs: mteb's data loader; only the column ``text`` of its data set is read.
            task_metadata: Metadata whose name selects the prompts.
            hf_split: Ignored.
            hf_subset: Ignored.
            prompt_type: ``document`` for the documents of a retrieval task, else the anchor's side.
            **kwargs: Ignored; there is nothing to compute in batches.

        Returns:
            Unit vectors of shape (n, width), float32.
        """
        role: Role = "positive" if prompt_type == PromptType.document else "anchor"
        # The slice reads the column at once; iterating over it would read it row by row.
        return self.embed(inputs.dataset["text"][:], task_metadata.name, role)

    def embed(self, texts: Sequence[str], task: str, role: Role) -> np.ndarray:
        """Return the embeddings of texts of a task.

        Args:
            texts: Texts without prompt.
            task: Name of the task, which selects the prompts.
            role: Side of the task, which selects the prompt.

        Returns:
            Unit vectors of shape (n, width), float32.
        """
        vectors = self.bank.lookup(texts, self.prompts[task][role])
        cut = np.asarray(prefix(self.transform.apply(vectors), self.width), dtype=np.float32)
        if self.quantiser.precision == FLOAT32:
            return cut
        # The cosine does not need length 1, but the probes compare lengths as well.
        return prefix(self.quantiser.restore(cut), self.width)

    def index(self, corpus: Any, *, task_metadata: Any, **kwargs: Any) -> None:
        """Embed the documents that the next search looks through.

        Args:
            corpus: Data set with the columns id and text.
            task_metadata: Metadata whose name selects the prompts.
            **kwargs: Ignored.
        """
        vectors = self.embed(corpus["text"][:], task_metadata.name, "positive")
        self._documents = list(corpus["id"][:]), torch.from_numpy(vectors)

    def search(
        self,
        queries: Any,
        *,
        task_metadata: Any,
        top_k: int,
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        **kwargs: Any,
    ) -> dict[str, dict[str, float]]:
        """Find the most similar documents of every query.

        Args:
            queries: Data set with the columns id and text.
            task_metadata: Metadata whose name selects the prompts.
            top_k: Number of documents per query.
            top_ranked: Candidates per query; without them the whole corpus is searched.
            **kwargs: Ignored.

        Returns:
            Cosine similarity by query and document; of equal similarities the larger id is kept.
        """
        names, documents = self._documents
        asked = torch.from_numpy(self.embed(queries["text"][:], task_metadata.name, "anchor"))
        ids = list(queries["id"][:])
        if top_ranked is None:
            return {
                query: _best(similar, names, top_k)
                for start in range(0, len(ids), _QUERIES)
                for query, similar in zip(
                    ids[start : start + _QUERIES],
                    self.similarity(asked[start : start + _QUERIES], documents),
                    strict=True,
                )
            }
        places = {name: row for row, name in enumerate(names)}
        results: dict[str, dict[str, float]] = {}
        for query, vector in zip(ids, asked, strict=True):
            own = list(top_ranked.get(query, ()))
            rows = [places[name] for name in own]
            results[query] = _best(self.similarity(vector[None], documents[rows])[0], own, top_k)
        return results

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return the cosine similarity of all pairs of rows."""
        return cos_sim(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return the cosine similarity of corresponding rows."""
        return pairwise_cos_sim(embeddings1, embeddings2)


def _best(similar: torch.Tensor, names: Sequence[str], top_k: int) -> dict[str, float]:
    """Keep the most similar documents, in falling order."""
    # One more, as mteb takes it: among equals the larger id stays, not the one that came first.
    values, rows = torch.topk(similar, min(top_k + 1, len(names)))
    ranked = sorted(zip(values.tolist(), (names[row] for row in rows.tolist())), reverse=True)
    return {name: value for value, name in ranked[:top_k]}
