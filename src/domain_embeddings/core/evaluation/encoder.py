"""mteb's encoder protocol served from an embedding bank: nothing is encoded twice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mteb.models.model_meta import ModelMeta, ScoringFunction
from mteb.types import PromptType

from domain_embeddings.core.encoders.bank import EmbeddingBank
from domain_embeddings.core.encoders.prefix import prefix
from domain_embeddings.core.encoders.prompts import Role, prompt_for
from domain_embeddings.core.encoders.quantisation import BINARY, FLOAT32, Quantiser
from domain_embeddings.core.evaluation.nested import NestedSearch, pair_similarities
from domain_embeddings.core.evaluation.protocol import CosineEncoder
from domain_embeddings.core.evaluation.transforms import Transform

TaskPrompts = Mapping[str, Mapping[Role, str]]

# Documents whose vectors, and texts whose keys, are in memory at once.
BLOCK_ROWS = 16_384
# Transformed vectors of a task are kept for the next width up to this size.
_KEPT_BYTES = 256 * 1024 * 1024
NAME = "local/bank"


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


@dataclass(frozen=True)
class _Corpus:
    """Documents that are searched: the data set, their names, larger ones first, and bank rows."""

    dataset: Any
    names: list[str]
    rows: np.ndarray


class BankView:
    """The transformed embeddings of a model, looked up once for the encoders of all widths.

    What is kept is of one task at a time: `forget` it before the next one.

    Args:
        bank: Full-width embeddings of every text of the tasks.
        prompts: Prompts by task name and role, as used when the bank was built.
        transform: Applied at full width, before the prefix is taken.
    """

    def __init__(self, bank: EmbeddingBank, prompts: TaskPrompts, transform: Transform) -> None:
        """Keep the bank; vectors are looked up when an encoder asks."""
        self.bank = bank
        self.prompts = prompts
        self.transform = transform
        self.forget()

    def forget(self) -> None:
        """Drop what is kept of a task, and its encoders."""
        self.encoders: list[BankEncoder] = []
        self._vectors: dict[tuple[str, int, int], np.ndarray] = {}
        self._corpus: _Corpus | None = None
        self._found: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}

    def vectors(self, texts: Sequence[str], task: str, role: Role) -> np.ndarray:
        """Return the transformed embeddings of texts: shape (n, d), float32."""
        prompt = self.prompts[task][role]
        key = (prompt, len(texts), hash(tuple(texts)))
        if key not in self._vectors:
            found = self.transform.apply(self.bank.lookup(texts, prompt))
            if sum(kept.nbytes for kept in self._vectors.values()) + found.nbytes > _KEPT_BYTES:
                return found
            self._vectors[key] = found
        return self._vectors[key]

    def index(self, dataset: Any, task: str) -> _Corpus:
        """Find the documents of a data set with the columns id and text in the bank."""
        if self._corpus is None or self._corpus.dataset is not dataset:
            prompt = self.prompts[task]["positive"]
            # Never all texts at once: the data set has them already.
            rows = [
                self.bank.rows(dataset["text"][start : start + BLOCK_ROWS], prompt)
                for start in range(0, len(dataset), BLOCK_ROWS)
            ]
            names = list(dataset["id"][:])
            # Of equal similarities the larger id wins, as in mteb, so it has to come first.
            order = np.array(sorted(range(len(names)), key=names.__getitem__, reverse=True))
            self._corpus = _Corpus(dataset, [names[i] for i in order], np.concatenate(rows)[order])
            self._found = {}
        return self._corpus

    def search(
        self, encoder: BankEncoder, queries: np.ndarray, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Find the nearest documents of the indexed corpus.

        The encoders of this view are all answered in one pass; each of the others finds its answer
        when it asks the same.

        Args:
            encoder: The one that asks.
            queries: Transformed embeddings, shape (q, d).
            k: Number of documents per query.

        Returns:
            Cosine similarities and numbers of documents, as `NestedSearch.result` gives them.
        """
        asked = hash((k, queries.shape, queries.tobytes()))
        if (asked, id(encoder)) not in self._found:
            together = self.encoders if encoder in self.encoders else [encoder]
            self._found = {
                (asked, id(each)): found
                for each, found in zip(together, self._search(together, queries, k), strict=True)
            }
        return self._found.pop((asked, id(encoder)))

    def _search(
        self, encoders: Sequence[BankEncoder], queries: np.ndarray, k: int
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Compare all queries with all documents, block by block."""
        corpus = self._indexed()
        k = min(k, len(corpus.rows))
        exact = [encoder for encoder in encoders if encoder.exact]
        nested = NestedSearch(queries, sorted({encoder.width for encoder in exact}), k)
        coded = {
            id(encoder): NestedSearch(encoder.codes(queries), [encoder.width], k)
            for encoder in encoders
            if not encoder.exact
        }
        for start in range(0, len(corpus.rows), BLOCK_ROWS):
            block = self._block(corpus.rows[start : start + BLOCK_ROWS])
            if exact:
                nested.add(block)
            for encoder in encoders:
                if not encoder.exact:
                    coded[id(encoder)].add(encoder.codes(block))
        return [coded.get(id(encoder), nested).result(encoder.width) for encoder in encoders]

    def compare(
        self, encoder: BankEncoder, queries: np.ndarray, candidates: Sequence[Sequence[str]]
    ) -> list[np.ndarray]:
        """Return the cosine similarity of every query with each of its candidates.

        Args:
            encoder: The one that asks.
            queries: Transformed embeddings, shape (q, d).
            candidates: Names of indexed documents by query.
        """
        corpus = self._indexed()
        places = dict(zip(corpus.names, corpus.rows.tolist(), strict=True))
        rows = np.array([places[name] for own in candidates for name in own], dtype=np.int64)
        lengths = [len(own) for own in candidates]
        query = np.repeat(np.arange(len(candidates)), lengths)
        asked = encoder.codes(queries)
        parts = [np.empty(0, dtype=np.float32)]
        for start in range(0, len(rows), BLOCK_ROWS):
            part = slice(start, start + BLOCK_ROWS)
            documents = encoder.codes(self._block(rows[part]))
            parts.append(pair_similarities(asked[query[part]], documents))
        return np.split(np.concatenate(parts), np.cumsum(lengths)[:-1])

    def _indexed(self) -> _Corpus:
        if self._corpus is None:
            msg = "index a corpus before it is searched"
            raise ValueError(msg)
        return self._corpus

    def _block(self, rows: np.ndarray) -> np.ndarray:
        return self.transform.apply(self.bank.take(rows))


class BankEncoder(CosineEncoder):
    """An encoder for mteb that transforms, truncates and quantises stored embeddings.

    It also follows mteb's search protocol: mteb's own search would rewrite the corpus as a new data
    set for every encoder, which takes longer than the search.

    Args:
        view: The transformed embeddings, which encoders of other widths may share.
        width: Number of leading coordinates that are kept.
        quantiser: What vectors go through before they are compared.
        name: Model name for mteb, of the form ``organisation/model``.
    """

    def __init__(
        self, view: BankView, width: int, quantiser: Quantiser | None = None, *, name: str = NAME
    ) -> None:
        """Keep the view; vectors are looked up when mteb asks."""
        self.view = view
        self.width = width
        self.quantiser = quantiser or Quantiser()
        view.encoders.append(self)
        super().__init__(
            ModelMeta.create_empty(
                overwrites={
                    "name": name,
                    "revision": str(view.bank.header.get("weight_hash", "local")),
                    "embed_dim": width,
                    "similarity_fn_name": ScoringFunction.COSINE,
                }
            )
        )

    def _encode(
        self, texts: Sequence[str], task_metadata: Any, prompt_type: PromptType | None
    ) -> np.ndarray:
        # Only the documents of a retrieval task are the other side.
        role: Role = "positive" if prompt_type == PromptType.document else "anchor"
        return self.embed(texts, task_metadata.name, role)

    def embed(self, texts: Sequence[str], task: str, role: Role) -> np.ndarray:
        """Return the embeddings of texts of a task.

        Args:
            texts: Texts without prompt.
            task: Name of the task, which selects the prompts.
            role: Side of the task, which selects the prompt.

        Returns:
            Unit vectors of shape (n, width), float32.
        """
        return self.cut(self.view.vectors(texts, task, role))

    @property
    def exact(self) -> bool:
        """Whether prefixes are compared as they are."""
        return self.quantiser.precision == FLOAT32

    def cut(self, vectors: np.ndarray) -> np.ndarray:
        """Return what is compared of transformed embeddings (n, d): shape (n, width), float32."""
        # The cosine does not need length 1, but the probes compare lengths as well.
        return prefix(self.codes(vectors), self.width)

    def codes(self, vectors: np.ndarray) -> np.ndarray:
        """Return `cut` without its last normalisation: signs are 1 and -1, whose sums are exact."""
        cut = np.asarray(prefix(vectors, self.width), dtype=np.float32)
        if self.exact:
            return cut
        restored = self.quantiser.restore(cut)
        return np.sign(restored) if self.quantiser.precision == BINARY else restored

    def index(self, corpus: Any, *, task_metadata: Any, **kwargs: Any) -> None:
        """Find the documents that the next search looks through in the bank.

        Args:
            corpus: Data set with the columns id and text.
            task_metadata: Metadata whose name selects the prompts.
            **kwargs: Ignored.
        """
        self._names = self.view.index(corpus, task_metadata.name).names

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
        if top_ranked is None:
            return self.nearest(queries, task_metadata.name, top_k)
        return self.rank(queries, task_metadata.name, top_k, top_ranked)

    def nearest(self, queries: Any, task: str, top_k: int) -> dict[str, dict[str, float]]:
        """Find the most similar documents of all that are indexed; see `search`."""
        asked = self.view.vectors(queries["text"][:], task, "anchor")
        values, rows = self.view.search(self, asked, top_k)
        return {
            query: {self._names[row]: value for row, value in zip(own, best, strict=True)}
            for query, own, best in zip(
                queries["id"][:], rows.tolist(), values.tolist(), strict=True
            )
        }

    def rank(
        self, queries: Any, task: str, top_k: int, candidates: Mapping[str, Iterable[str]]
    ) -> dict[str, dict[str, float]]:
        """Find the most similar ones of the candidates of every query; see `search`."""
        asked = self.view.vectors(queries["text"][:], task, "anchor")
        ids = list(queries["id"][:])
        own = [list(candidates.get(query, ())) for query in ids]
        similar = self.view.compare(self, asked, own)
        return {
            query: _best(values, names, top_k)
            for query, values, names in zip(ids, similar, own, strict=True)
        }


class ShortlistEncoder(BankEncoder):
    """Documents found by small vectors and ranked by full ones.

    Args:
        full: Ranks the candidates.
        small: Finds them; of the same bank.
        candidates: How many documents per query are ranked.
    """

    def __init__(self, full: BankEncoder, small: BankEncoder, candidates: int) -> None:
        """Become the full encoder with another search."""
        super().__init__(full.view, full.width, full.quantiser)
        self.small = small
        self.candidates = candidates

    def index(self, corpus: Any, *, task_metadata: Any, **kwargs: Any) -> None:
        """Embed the documents twice; see `BankEncoder.index`."""
        super().index(corpus, task_metadata=task_metadata, **kwargs)
        self.small.index(corpus, task_metadata=task_metadata, **kwargs)

    def nearest(self, queries: Any, task: str, top_k: int) -> dict[str, dict[str, float]]:
        """Find candidates and rank them; see `BankEncoder.search`."""
        found = self.small.nearest(queries, task, max(self.candidates, top_k))
        return self.rank(queries, task, top_k, found)


def _best(values: np.ndarray, names: Sequence[str], top_k: int) -> dict[str, float]:
    """Keep the most similar documents, in falling order; of equal ones those with larger ids."""
    ranked = sorted(zip(values.tolist(), names, strict=True), reverse=True)
    return {name: value for value, name in ranked[:top_k]}
