"""Stored bootstrap replicates: what later comparisons, also between runs, are made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from domain_embeddings.core.bundle import Bundle
from domain_embeddings.core.errors import DataError
from domain_embeddings.core.statistics.comparison import SeedScores

METHOD = "paired percentile bootstrap over test rows, drawn by the name of the task alone"


def replicates_bundle(
    rows: Sequence[tuple[Mapping[str, Any], float, np.ndarray]], settings: Mapping[str, Any]
) -> Bundle:
    """Pack scores and their replicates.

    Args:
        rows: Per score what it is, its value, and its replicates (R,), all of one R; NaN where a
            resample has no score.
        settings: What the header says beside the rows.

    Returns:
        Arrays ``values`` (k,) float64, ``replicates`` (k, R) float32 and ``undefined`` (u, 2)
        int32: row and column of the replicates without a score, which hold the value of their row
        instead, as a bundle holds no NaN. Header: ``rows``, ``method`` and the settings.
    """
    values = np.array([value for _, value, _ in rows], dtype=np.float64)
    count = len(rows[0][2]) if rows else 0
    replicates = np.array([drawn for *_, drawn in rows], dtype=np.float64).reshape(len(rows), count)
    missing = np.isnan(replicates)
    filled = np.where(missing, values[:, None], replicates)
    return Bundle(
        {
            "values": values,
            "replicates": filled.astype(np.float32),
            "undefined": np.argwhere(missing).astype(np.int32),
        },
        {"rows": [dict(about) for about, *_ in rows], "method": METHOD, **settings},
    )


def restore(bundle: Bundle) -> np.ndarray:
    """Return the replicates as they were packed: shape (k, R), float64, NaN where undefined."""
    drawn = bundle["replicates"].astype(np.float64)
    rows, columns = bundle["undefined"].T
    drawn[rows, columns] = np.nan
    return drawn


def seed_scores(bundles: Sequence[Bundle], **key: Any) -> SeedScores:
    """Read one score from the replicates of one or several seeds.

    Args:
        bundles: ``score_replicates`` of runs that differ in their seed only.
        key: Fields of a row: model, transform, precision, width, task.

    Returns:
        The score of every seed, in the order of the bundles.

    Raises:
        DataError: If a bundle does not have exactly one such row.
    """
    values, replicates = [], []
    for bundle in bundles:
        rows = bundle.header["rows"]
        found = [
            k
            for k, row in enumerate(rows)
            if all(row.get(name) == value for name, value in key.items())
        ]
        if len(found) != 1:
            msg = f"score_replicates: {len(found)} rows of {key}, one is needed"
            raise DataError(msg)
        values.append(float(bundle["values"][found[0]]))
        replicates.append(restore(bundle)[found[0]])
    return SeedScores(np.array(values), np.stack(replicates))
