"""What vectors cost and what they are worth: bytes, queries per second, recall, quality.

One row for every width, precision and way to search. Speed and recall are measured here, on the
stored embeddings of the evaluation; quality comes from its bootstrap replicates, so that losses are
paired.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from tqdm.auto import tqdm

from domain_embeddings.core.bundle import Bundle
from domain_embeddings.core.encoders.bank import EmbeddingBank
from domain_embeddings.core.encoders.quantisation import (
    FLOAT32,
    Quantiser,
    bytes_per_vector,
    quantiser,
)
from domain_embeddings.core.evaluation.encoder import (
    BankEncoder,
    BankView,
    ShortlistEncoder,
    task_prompts,
)
from domain_embeddings.core.evaluation.replicates import restore
from domain_embeddings.core.evaluation.resampling import draw_counts, mean_statistic
from domain_embeddings.core.evaluation.scores import (
    AS_IS,
    Measurement,
    Vectors,
    mean_measurement,
    measure,
    task_draws,
)
from domain_embeddings.core.evaluation.search import (
    INDEXES,
    FlatIndex,
    Shortlist,
    single_thread,
)
from domain_embeddings.core.evaluation.tasks import LocalTask
from domain_embeddings.core.evaluation.transforms import Transform
from domain_embeddings.core.statistics.bootstrap import interval, resample_indices

EXACT = "exact"
SHORTLIST = "shortlist"
RETRIEVAL = "retrieval"
TOP = 10
MILLION = 1_000_000


@dataclass(frozen=True)
class CostSettings:
    """What is measured, and how long.

    Args:
        widths: Prefix widths, increasing, the full one last.
        precisions: Names of precisions, float32 among them.
        candidates: Documents per query that a shortlist rescores; None measures no shortlists.
        shortlist_widths: Widths of the shortlists; None for all.
        vectors: Most vectors of the corpus that is searched.
        queries: Most queries.
        repeats: Timed rounds.
        replicates: Bootstrap resamples; 0 leaves the bounds empty.
        confidence: Mass of the intervals.
        seed: Seed of the draws.
    """

    widths: Sequence[int]
    precisions: Sequence[str]
    candidates: int | None = 100
    shortlist_widths: Sequence[int] | None = None
    vectors: int = 50_000
    queries: int = 200
    repeats: int = 5
    replicates: int = 1_000
    confidence: float = 0.95
    seed: int = 0


@dataclass(frozen=True)
class Storage:
    """What an index holds, and how it is searched.

    Args:
        width: Prefix width of what is searched.
        precision: Its precision.
        search: ``exact``, or ``shortlist`` with rescoring by full float32 vectors.
    """

    width: int
    precision: str
    search: str = EXACT


@dataclass(frozen=True)
class Subject:
    """The model whose vectors are measured.

    Args:
        name: Its name, as in ``ranges`` and the scores.
        bank: Its embeddings.
        ranges: ``quantisation_ranges``.
        specs: Task specifications, for the prompts.
    """

    name: str
    bank: EmbeddingBank
    ranges: Bundle
    specs: Sequence[Mapping[str, Any]]

    def quantiser(self, kind: Storage) -> Quantiser:
        """Return what vectors go through."""
        weights = self.bank.header.get("weight_hash")
        return quantiser(kind.precision, self.name, kind.width, self.ranges, weight_hash=weights)

    def view(self) -> BankView:
        """Return what encoders of one task share."""
        prompts = task_prompts(self.specs, self.bank.header["prompts"])
        return BankView(self.bank, prompts, Transform(AS_IS))

    def encoder(self, kind: Storage, view: BankView) -> BankEncoder:
        """Return an encoder for tasks."""
        return BankEncoder(view, kind.width, self.quantiser(kind))


def storages(settings: CostSettings) -> list[Storage]:
    """List what is measured, full float32 vectors first.

    A shortlist of full float32 vectors would be the exact search itself, so there is none.
    """
    full = settings.widths[-1]
    exact = [
        Storage(width, precision)
        for precision in sorted(settings.precisions, key=lambda name: name != FLOAT32)
        for width in reversed(settings.widths)
    ]
    if settings.candidates is None:
        return exact
    wanted = settings.shortlist_widths or settings.widths
    return exact + [
        Storage(kind.width, kind.precision, SHORTLIST)
        for kind in exact
        if kind.width in wanted and (kind.width, kind.precision) != (full, FLOAT32)
    ]


def vector_costs(
    subject: Subject,
    tasks: Sequence[LocalTask],
    replicates: Bundle,
    settings: CostSettings,
    *,
    show_progress: bool = True,
) -> pd.DataFrame:
    """Measure what it costs to store and search the vectors of a model, and what they are worth.

    Args:
        subject: The model.
        tasks: The evaluated tasks; those of type ``retrieval`` are searched by shortlist.
        replicates: ``score_replicates``: the scores of all widths and precisions.
        settings: What is measured.
        show_progress: Whether to draw a progress bar.

    Returns:
        One row per `Storage`:

        * ``model``, ``width``, ``precision``, ``search``, ``candidates`` (0 for an exact search)
        * ``bytes_per_vector``, ``bytes_per_million``: of what is searched; ``rescoring_bytes``: per
          vector, of the full float32 vectors that a shortlist needs beside it, on any disk
        * ``index``, ``corpus``, ``queries``, ``threads``, and ``queries_per_s`` with ``_low`` and
          ``_high``: median, smallest and largest of the rounds, one query at a time
        * ``recall``, ``recall_low``, ``recall_high``: share of the 10 nearest by full float32
          vectors that are found, with its bootstrap interval over queries
        * ``quality``, ``loss`` (bounds likewise): mean main score over the domain's tasks, and full
          width in float32 minus that; empty for a shortlist, which only search tasks can use
        * ``retrieval``, ``retrieval_loss``: the same of the retrieval tasks alone, for all rows
    """
    kinds = storages(settings)
    with tqdm(disable=not show_progress) as bar:
        found = _searched(subject, kinds, settings, bar)
        scored = _scored(subject, tasks, replicates, kinds, settings, bar)
    rows = [
        {"model": subject.name} | _size(kind, settings) | found[kind] | scored[kind]
        for kind in kinds
    ]
    return pd.DataFrame(rows)


def _size(kind: Storage, settings: CostSettings) -> dict[str, Any]:
    """Describe a storage by its bytes."""
    size = bytes_per_vector(kind.width, kind.precision)
    shortlist = kind.search == SHORTLIST
    return {
        "width": kind.width,
        "precision": kind.precision,
        "search": kind.search,
        "candidates": settings.candidates if shortlist else 0,
        "bytes_per_vector": size,
        "bytes_per_million": size * MILLION,
        "rescoring_bytes": bytes_per_vector(settings.widths[-1], FLOAT32) if shortlist else 0,
    }


def split_vectors(vectors: np.ndarray, settings: CostSettings) -> tuple[np.ndarray, np.ndarray]:
    """Draw queries and a corpus from stored embeddings; no vector is in both.

    Args:
        vectors: All embeddings of the evaluation, shape (n, d); may be memory-mapped.
        settings: Caps and seed. A small bank gives at most a tenth of it as queries.

    Returns:
        Corpus and queries, float32.
    """
    order = np.random.default_rng(settings.seed).permutation(len(vectors))
    asked = min(settings.queries, max(1, len(vectors) // 10))
    rows = order[: asked + settings.vectors]
    queries, corpus = np.sort(rows[:asked]), np.sort(rows[asked:])
    return (
        np.asarray(vectors[corpus], dtype=np.float32),
        np.asarray(vectors[queries], dtype=np.float32),
    )


def _searched(
    subject: Subject, kinds: Sequence[Storage], settings: CostSettings, bar: Any
) -> dict[Storage, dict[str, Any]]:
    """Measure speed and recall; the rounds alternate, so that a busy moment hits all kinds."""
    corpus, queries = split_vectors(subject.bank.vectors, settings)
    seconds: dict[Storage, list[float]] = {kind: [] for kind in kinds}
    with single_thread():
        searches: dict[Storage, FlatIndex | Shortlist] = {}
        for kind in kinds:
            # The exact search comes first in the list, and its index serves the shortlist too.
            flat = searches.get(Storage(kind.width, kind.precision))
            if isinstance(flat, FlatIndex):
                searches[kind] = Shortlist(flat, corpus, settings.candidates or TOP)
            else:
                searches[kind] = FlatIndex(corpus, kind.width, subject.quantiser(kind))
        prepared = {kind: search.prepare(queries) for kind, search in searches.items()}
        k = min(TOP, len(corpus))
        results = {kind: search.search(prepared[kind], k) for kind, search in searches.items()}
        for _ in range(settings.repeats):
            bar.set_description("timing searches")
            for kind, search in searches.items():
                seconds[kind].append(_time(search, prepared[kind], k))
            bar.update()
    nearest = results[kinds[0]]
    draws = _query_draws(len(queries), settings)
    return {
        kind: {
            "index": INDEXES[kind.precision],
            "corpus": len(corpus),
            "queries": len(queries),
            "threads": 1,
            **_spread(len(queries), seconds[kind]),
            **_numbers("recall", _recall(results[kind], nearest, draws), settings.confidence),
        }
        for kind in kinds
    }


def _time(search: FlatIndex | Shortlist, prepared: Any, k: int) -> float:
    """Take the seconds of all queries, asked one by one as a service would."""
    single = [prepared[row : row + 1] for row in range(len(prepared))]
    start = time.perf_counter()
    for query in single:
        search.search(query, k)
    return time.perf_counter() - start


def _spread(queries: int, seconds: Sequence[float]) -> dict[str, float]:
    """Turn the seconds of the rounds into queries per second."""
    rates = queries / np.asarray(seconds)
    return {
        "queries_per_s": float(np.median(rates)),
        "queries_per_s_low": float(rates.min()),
        "queries_per_s_high": float(rates.max()),
    }


def _query_draws(queries: int, settings: CostSettings) -> np.ndarray:
    """Draw the resamples of the queries, the same for all kinds."""
    return draw_counts(resample_indices(queries, settings.replicates, settings.seed))


def _recall(found: np.ndarray, nearest: np.ndarray, draws: np.ndarray) -> Measurement:
    """Share of the nearest that were found, by query, resampled over queries."""
    shares = [
        len(set(mine) & set(wanted)) / len(wanted)
        for mine, wanted in zip(found.tolist(), nearest.tolist(), strict=True)
    ]
    return Measurement(float(np.mean(shares)), mean_statistic(shares)(draws))


def _scored(  # noqa: PLR0913, PLR0917 - who is measured, by which tasks, and what is known already
    subject: Subject,
    tasks: Sequence[LocalTask],
    replicates: Bundle,
    kinds: Sequence[Storage],
    settings: CostSettings,
    bar: Any,
) -> dict[Storage, dict[str, float]]:
    """Look up the quality of exact searches; measure that of shortlists."""
    known = read_replicates(replicates, subject.name)
    searched = [task for task in tasks if task.name in known.retrieval]
    shortlists = _shortlists(subject, searched, kinds, settings, bar)
    whole, searches = known.mean(kinds[0]), known.mean(kinds[0], known.retrieval)
    rows: dict[Storage, dict[str, float]] = {}
    for kind in kinds:
        if kind.search == EXACT:
            quality, retrieval = known.mean(kind), known.mean(kind, known.retrieval)
        else:
            quality, retrieval = None, _mean(shortlists[kind])
        rows[kind] = {
            **_with_loss("quality", "loss", quality, whole, settings),
            **_with_loss("retrieval", "retrieval_loss", retrieval, searches, settings),
        }
    return rows


def _shortlists(
    subject: Subject,
    tasks: Sequence[LocalTask],
    kinds: Sequence[Storage],
    settings: CostSettings,
    bar: Any,
) -> dict[Storage, list[Measurement]]:
    """Score the tasks by shortlists; the small vectors of all of them are searched in one pass."""
    found: dict[Storage, list[Measurement]] = {
        kind: [] for kind in kinds if kind.search == SHORTLIST
    }
    for task in tasks:
        bar.set_description(f"shortlists of {task.name}")
        draws = task_draws(task, settings.replicates)
        view = subject.view()
        full = subject.encoder(kinds[0], view)
        small = {kind: subject.encoder(kind, view) for kind in found}
        for kind, encoder in small.items():
            both = ShortlistEncoder(full, encoder, settings.candidates or TOP)
            found[kind].append(next(iter(measure(task.run(both), draws).values())))
        bar.update()
    return found


@dataclass(frozen=True)
class Known:
    """The main scores of a model on the tasks of its domain.

    Args:
        cells: Measurements by vectors and task.
        tasks: The tasks that the mean is taken over.
        retrieval: Those of them that are searched.
        model: The model.
    """

    cells: Mapping[tuple[Vectors, str], Measurement]
    tasks: Sequence[str]
    retrieval: Sequence[str]
    model: str

    def mean(self, kind: Storage, tasks: Sequence[str] | None = None) -> Measurement | None:
        """Average the scores of exact searches; None if one of them is absent or there is none."""
        vectors = Vectors(self.model, AS_IS, kind.width, kind.precision)
        names = self.tasks if tasks is None else tasks
        if not all((vectors, name) in self.cells for name in names):
            return None
        return _mean([self.cells[vectors, name] for name in names])


def read_replicates(replicates: Bundle, model: str) -> Known:
    """Read the scores of a model from ``score_replicates``.

    Args:
        replicates: See ``core.evaluation.replicates.replicates_bundle``.
        model: Name of the model.

    Returns:
        Its scores on the tasks that count for the mean, without the general ones.
    """
    rows = replicates.header["rows"]
    drawn = restore(replicates)
    own = [
        (position, row)
        for position, row in enumerate(rows)
        if row["model"] == model and not row["general"] and row["type"] != "mean"
    ]
    cells = {
        (
            Vectors(model, row["transform"], int(row["width"]), row["precision"]),
            str(row["task"]),
        ): Measurement(float(replicates["values"][position]), drawn[position])
        for position, row in own
    }
    types = {str(row["task"]): str(row["type"]) for _, row in own}
    searched = [name for name, kind in types.items() if kind == RETRIEVAL]
    return Known(cells, list(types), searched, model)


def _mean(parts: Sequence[Measurement]) -> Measurement | None:
    """Average, where there is something."""
    return mean_measurement(parts) if parts else None


def _with_loss(
    name: str,
    loss: str,
    own: Measurement | None,
    full: Measurement | None,
    settings: CostSettings,
) -> dict[str, float]:
    """Return a score and its paired loss, with bounds."""
    lost = None if own is None or full is None else full - own
    return {
        **_numbers(name, own, settings.confidence),
        **_numbers(loss, lost, settings.confidence),
    }


def _numbers(name: str, measured: Measurement | None, confidence: float) -> dict[str, float]:
    """Return value and bounds of a measurement; empty where there is none."""
    low = high = float("nan")
    if measured is not None and measured.replicates.size:
        low, high = interval(measured.replicates, confidence)
    value = float("nan") if measured is None else measured.value
    return {name: value, f"{name}_low": low, f"{name}_high": high}
