"""How the geometry of training text changed from the reference model to the adapted one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from domain_embeddings.core.bundle import Bundle, require_same
from domain_embeddings.core.encoders.bank import EmbeddingBank
from domain_embeddings.core.encoders.prefix import prefix
from domain_embeddings.core.evaluation.sampling import fit_pairs, fit_vectors
from domain_embeddings.core.statistics import isotropy
from domain_embeddings.core.statistics.eigenspace import Eigenspace

REFERENCE = "reference"
# Uniformity compares every text with every other.
MOST_PAIRS = 2_000
ALL = "all"
COLUMNS = ("model", "measure", "source", "width", "value")

# Vectors come from the same model under the same conditions.
_SAME_MODEL = ("weight_hash", "prompts", "max_length", "width")

Row = tuple[str, str, int, float]


@dataclass(frozen=True)
class _Sides:
    """Embeddings of the sampled pairs and of their distinct texts, by one model."""

    anchors: np.ndarray
    positives: np.ndarray
    texts: np.ndarray


def geometry_scores(  # noqa: PLR0913, PLR0917 - the pairs seen by two models and by REZE
    banks: Mapping[str, Bundle],
    pairs: pd.DataFrame,
    specs: Sequence[Mapping[str, Any]],
    widths: Sequence[int],
    relation_eigenspace: Bundle,
    shrinkage: Bundle,
) -> pd.DataFrame:
    """Measure the geometry of training text under every model (docs/method.md, section 6).

    Args:
        banks: Embedding banks by model name, ``reference`` among them.
        pairs: Sampled training pairs; their texts are in every bank.
        specs: Task specifications, for the prompts.
        widths: Prefix widths.
        relation_eigenspace: Eigenspace of the reference relation vectors.
        shrinkage: What REZE moves; its directions are also looked at alone.

    Returns:
        Columns model, measure, source, width, value. Per width: isoscore (on ``isoscore_rows``
        vectors), effective_rank, uniformity, alignment, cv, cross_correlation_max and _mean. At
        full width: source_bias per source and its mean (source ``all``), source_bias_shrunk the
        same in the directions that REZE moves; against the reference shift (also per source) and
        cka. A rotation that a model carries is undone for the measures at full width, because a
        change of basis alone changes no cosine.

    Raises:
        ProvenanceError: The eigenspace is not of this reference model.
    """
    require_same(banks[REFERENCE].header, relation_eigenspace.header, _SAME_MODEL)
    sides = {name: _sides(EmbeddingBank(bundle), pairs, specs) for name, bundle in banks.items()}
    spaces = _eigenspaces(relation_eigenspace, shrinkage)
    sources = [str(name) for name in relation_eigenspace.header["sources"]]
    source = pairs["task"].map({name: i for i, name in enumerate(sources)}).to_numpy(dtype=int)
    relations = {
        name: _relations(side, _to_reference_basis(banks[name], banks[REFERENCE]))
        for name, side in sides.items()
    }
    rows: list[tuple[str, str, str, int, float]] = []
    for name, side in sides.items():
        found = [
            *_by_width(side, widths),
            *_biases(relations[name], source, sources, spaces),
            *_changes(relations[name], relations[REFERENCE], source, sources),
        ]
        rows += [(name, *row) for row in found]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _sides(bank: EmbeddingBank, pairs: pd.DataFrame, specs: Sequence[Mapping[str, Any]]) -> _Sides:
    fitted = fit_pairs(bank, pairs, specs)
    return _Sides(fitted.anchors, fitted.positives, fit_vectors(bank, pairs, specs))


def _by_width(side: _Sides, widths: Sequence[int]) -> Iterator[Row]:
    """Yield the measures of every prefix."""
    crossed = isotropy.cross_correlation(side.texts, widths)
    for width in widths:
        texts = prefix(side.texts, width)
        iso = isotropy.iso_score(texts)
        measures = {
            "isoscore": iso.value,
            "isoscore_rows": float(iso.rows),
            "effective_rank": isotropy.effective_rank(texts),
            "uniformity": isotropy.uniformity(texts),
            "alignment": isotropy.alignment(
                prefix(side.anchors, width), prefix(side.positives, width)
            ),
            "cv": isotropy.variance_cv(texts),
        }
        if width in crossed:
            measures["cross_correlation_max"] = crossed[width].largest
            measures["cross_correlation_mean"] = crossed[width].mean
        yield from ((measure, ALL, width, value) for measure, value in measures.items())


def _biases(
    relations: np.ndarray,
    source: np.ndarray,
    sources: Sequence[str],
    spaces: Mapping[str, Eigenspace],
) -> Iterator[Row]:
    """Yield how far the mean of each source is from the median source."""
    width = relations.shape[1] // 2
    for measure, space in spaces.items():
        bias = isotropy.source_bias(relations, source, len(sources), space)
        yield measure, ALL, width, float(np.nanmean(bias))
        yield from (
            (measure, name, width, float(value))
            for name, value in zip(sources, bias, strict=True)
            if np.isfinite(value)
        )


def _changes(
    relations: np.ndarray, reference: np.ndarray, source: np.ndarray, sources: Sequence[str]
) -> Iterator[Row]:
    """Yield how far relation vectors moved from those of the reference model."""
    width = relations.shape[1] // 2
    yield "shift", ALL, width, isotropy.mean_shift(relations, reference)
    yield "cka", ALL, width, isotropy.linear_cka(relations, reference)
    for index, name in enumerate(sources):
        rows = source == index
        if rows.any():
            yield "shift", name, width, isotropy.mean_shift(relations[rows], reference[rows])


def _relations(side: _Sides, basis: np.ndarray | None) -> np.ndarray:
    """Concatenate r = [a ; p], shape (n, 2d), in the basis of the reference model."""
    halves = [half if basis is None else half @ basis for half in (side.anchors, side.positives)]
    return np.hstack(halves)


def _to_reference_basis(bundle: Bundle, reference: Bundle) -> np.ndarray | None:
    """Return the orthogonal map from a model's basis to that of the reference, if they differ."""
    own, target = bundle.arrays.get("rotation"), reference.arrays.get("rotation")
    if bundle is reference or (own is None and target is None):
        return None
    width = bundle["vectors"].shape[1]
    undo = np.eye(width) if own is None else np.asarray(own, dtype=np.float64).T
    return undo if target is None else undo @ np.asarray(target, dtype=np.float64)


def _eigenspaces(relation_eigenspace: Bundle, shrinkage: Bundle) -> dict[str, Eigenspace]:
    """Return the eigenspace with its active directions, and with those that REZE moves."""
    space = Eigenspace(
        **{
            name: np.asarray(relation_eigenspace[name])
            for name in ("eigenvalues", "eigenvectors", "mean", "active")
        }
    )
    spaces = {"source_bias": space}
    columns = np.asarray(shrinkage["columns"], dtype=np.int64)
    if columns.size:
        moved = np.zeros(len(space.active), dtype=bool)
        moved[columns] = True
        spaces["source_bias_shrunk"] = replace(space, active=moved)
    return spaces
