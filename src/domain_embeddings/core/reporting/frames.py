"""Reading the tidy result frames: the few selections that every figure and table is made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from domain_embeddings.core.bundle import Bundle
from domain_embeddings.core.errors import DataError
from domain_embeddings.core.reporting import wording

ADAPTED = "adapted"
REFERENCE = "reference"
ROTATION = "rotation"
DIFFERENCE = "adapted_minus_reference"
RIVAL_TRANSFORM = "pca"
LEARNED = "contrastive"
RIVALS = (RIVAL_TRANSFORM, "shared", LEARNED)
"""Rotations of the untouched model, which change none of its weights: the cheap rivals."""
FULL_WIDTH = "full_width"
MEAN = "mean"
GENERAL_MEAN = "general_mean"
AS_IS = "none"
FLOAT32 = "float32"

_CURVE = ["model", "transform", "task", "type", "general", "width", "metric"]
_FEWEST_POINTS = 8
_TSNE_DIMENSIONS = 30
_LAST_COMPONENTS = ("learning_rate", "grad_norm")


def main_scores(scores: pd.DataFrame, precision: str = FLOAT32) -> pd.DataFrame:
    """Select the main metric of every task, one row per (model, transform, task, width).

    Several seeds become one row: the mean value with the widest bounds and the largest p-value, so
    that nothing looks surer than in any single seed.

    Args:
        scores: The tidy frame ``truncation_scores``; values between 0 and 1.
        precision: How the vectors are stored.

    Returns:
        Columns model, transform, task, type, general, width, metric, value, low, high, p_holm,
        confidence, n.

    Raises:
        DataError: If there is no main metric at all.
    """
    # Scores of runs before there were precisions have no such column.
    if "precision" in scores:
        scores = scores[scores["precision"] == precision]
    main = scores[scores["main"].astype(bool)]
    if (main["method"] == ROTATION).any():
        # It is the untouched model after learned axes, and no rival of itself.
        itself = (main["model"] == REFERENCE) & (main["transform"] == LEARNED)
        main = main[~itself & (main["model"] != contrast(ADAPTED, REFERENCE, LEARNED))]
    if main.empty:
        msg = "truncation_scores has no row of a main metric: run the stage 'evaluation' first"
        raise DataError(msg)
    merged = main.groupby(_CURVE, sort=False, as_index=False).agg(
        value=("value", "mean"),
        low=("low", "min"),
        high=("high", "max"),
        p_holm=("p_holm", "max"),
        confidence=("confidence", "max"),
        n=("n", "max"),
    )
    return merged.sort_values(["task", "model", "transform", "width"], ignore_index=True)


def curve(main: pd.DataFrame, model: str, transform: str = AS_IS, task: str = MEAN) -> pd.DataFrame:
    """Select one line of the quality plot, ordered by width.

    Args:
        main: The result of :func:`main_scores`.
        model: ``adapted``, ``reference`` or the name of a paired comparison.
        transform: ``none`` for the vectors as they are, or a post-hoc transform.
        task: A task name or ``mean``.

    Returns:
        The rows by rising width, indexed by width; empty if there are none.
    """
    chosen = main[
        (main["model"] == model) & (main["transform"] == transform) & (main["task"] == task)
    ]
    return chosen.sort_values("width").set_index("width", drop=False)


def cheap_rival(main: pd.DataFrame, width: int) -> str:
    """Name the strongest rotation of the untouched model at a width.

    It is chosen by the very scores that it is compared on, which favours the rival and never the
    trained model.

    Args:
        main: The result of :func:`main_scores`.
        width: A width.

    Returns:
        One of ``RIVALS``; the first of equals, and where none was scored.
    """
    values = {name: curve(main, REFERENCE, name)["value"].to_dict() for name in RIVALS}
    return max(RIVALS, key=lambda name: values[name].get(width, -np.inf))


def precisions(scores: pd.DataFrame) -> list[str]:
    """List the precisions that were scored, float32 first."""
    found = set(scores["precision"]) if "precision" in scores else {FLOAT32}
    return sorted(found, key=lambda name: (name != FLOAT32, name != "int8", name))


BYTE_TICKS = [2, 8, 32, 128, 512, 2048, 8192, 32768]
"""Sizes of a vector that an axis may show."""


def byte_ticks(costs: pd.DataFrame) -> list[int]:
    """Choose the ticks of a logarithmic axis of bytes per vector."""
    sizes = costs["bytes_per_vector"]
    return [tick for tick in BYTE_TICKS if sizes.min() / 2 <= tick <= 2 * sizes.max()]


def marked(costs: pd.DataFrame, answer: Mapping[str, Any]) -> list[tuple[str, pd.DataFrame]]:
    """Find the points of the recommended width and of the cheapest storage.

    Args:
        costs: The tidy frame ``vector_costs``.
        answer: The result of ``recommend_width``.

    Returns:
        Label and row (one, or none where it was not measured); one entry where both are the same.
    """
    cheapest = answer["cheapest"]
    wanted = {
        (answer["recommended_width"], FLOAT32): "recommended width",
        (cheapest["width"], cheapest["precision"]): "cheapest by the rule",
    }
    if len(wanted) == 1:
        wanted = dict.fromkeys(wanted, "recommended and cheapest")
    rows = exact(costs)
    return [
        (label, rows[(rows["width"] == width) & (rows["precision"] == precision)])
        for (width, precision), label in wanted.items()
    ]


def lowest_allowed(answer: Mapping[str, Any]) -> float | None:
    """Return the score that the rule of the recommendation asks for; None if it is unknown."""
    full = answer["widths"][-1]["score"]
    if full is None:
        return None
    if answer["quality_floor"] is not None:
        return float(full * answer["quality_floor"])
    return float(full - answer["tolerated"])


def exact(costs: pd.DataFrame) -> pd.DataFrame:
    """Select the exact searches of ``vector_costs`` that have a quality."""
    return costs[(costs["search"] == "exact") & costs["quality"].notna()]


def frontier(costs: pd.DataFrame) -> pd.DataFrame:
    """Keep the exact searches that no other one beats or equals in both bytes and quality.

    Args:
        costs: The tidy frame ``vector_costs``.

    Returns:
        Rows by rising bytes, and so by rising quality.
    """
    rows = exact(costs).sort_values(["bytes_per_vector", "quality"], ascending=[True, False])
    best = rows["quality"].cummax().shift(fill_value=-np.inf)
    return rows[rows["quality"] > best]


def task_names(main: pd.DataFrame, *, general: bool = False) -> list[str]:
    """List the tasks of the domain (or the general ones), without their mean, in order of name."""
    chosen = main[main["general"].astype(bool) == general]
    return sorted(set(chosen["task"]) - {MEAN, GENERAL_MEAN})


def transforms(main: pd.DataFrame) -> list[str]:
    """List the transforms that were scored, the vectors as they are first."""
    return sorted(set(main["transform"]), key=lambda name: (name != AS_IS, name))


def evaluated_widths(main: pd.DataFrame) -> list[int]:
    """List the widths that were scored, rising."""
    return sorted({int(width) for width in main["width"]})


def shipped_model(main: pd.DataFrame) -> str:
    """Name the model a recommendation is about: the adapted one, where one was scored."""
    return ADAPTED if (main["model"] == ADAPTED).any() else REFERENCE


def contrast(model: str, other: str, transform: str = AS_IS) -> str:
    """Name the paired comparison of a model, as it is, with another one after a transform."""
    return f"{model}_minus_{other}" + ("" if transform == AS_IS else f"_{transform}")


def claim(rows: pd.DataFrame, width: int) -> dict[str, Any]:
    """Read a paired difference at one width, with all that decides what may be said about it.

    Args:
        rows: The result of :func:`curve` for a paired comparison.
        width: The width.

    Returns:
        value, low, high, p (corrected; all None where unknown) and verdict (words).
    """
    cells = rows.to_dict("index").get(width, {})
    names = {"value": "value", "low": "low", "high": "high", "p": "p_holm"}
    known = {key: number(cells.get(name)) for key, name in names.items()}
    return {**known, "verdict": wording.verdict(**known, confidence=cells.get("confidence", 0.95))}


def opposite(difference: dict[str, Any]) -> dict[str, Any]:
    """Look at the result of :func:`claim` from the other side."""
    turned = {
        "value": _negative(difference["value"]),
        "low": _negative(difference["high"]),
        "high": _negative(difference["low"]),
    }
    swapped = {wording.BETTER: wording.WORSE, wording.WORSE: wording.BETTER}
    verdict = difference["verdict"]
    return {**difference, **turned, "verdict": swapped.get(verdict, verdict)}


def family(main: pd.DataFrame) -> int:
    """Count the comparisons with the untouched model that are corrected together."""
    rows = main[(main["model"] == DIFFERENCE) & (main["transform"] == AS_IS)]
    return int((rows["p_holm"].notna() & ~rows["general"].astype(bool)).sum())


def number(value: Any) -> float | None:
    """Turn a cell into a JSON number; None where there is none."""
    if value is None:
        return None
    value = float(value)
    return value if np.isfinite(value) else None


def _negative(value: float | None) -> float | None:
    """Change the sign of what is known; zero stays without one."""
    return None if value is None else 0.0 - value


def source_bias(geometry: pd.DataFrame, measure: str = "source_bias") -> pd.DataFrame:
    """Arrange the bias of every source before and after training.

    Args:
        geometry: The tidy frame ``geometry_scores``.
        measure: ``source_bias``, or ``source_bias_shrunk`` for the shrunk directions alone.

    Returns:
        Indexed by source, one column per model (``reference`` first), the largest bias first;
        empty if the measure is absent.
    """
    rows = geometry[(geometry["measure"] == measure) & (geometry["source"] != "all")]
    if rows.empty:
        return pd.DataFrame()
    rows = rows[rows["width"] == rows["width"].max()]
    table = rows.pivot_table(index="source", columns="model", values="value", aggfunc="mean")
    order = [model for model in (REFERENCE, ADAPTED) if model in table.columns]
    return table[order].sort_values(order[0], ascending=False)


def spectrum(eigenspace: Bundle, shrinkage: Bundle) -> pd.DataFrame:
    """Arrange the eigenvalues by rank (docs/method.md, section 1).

    Args:
        eigenspace: ``relation_eigenspace``: eigenvalues (D,), active (D,).
        shrinkage: ``shrinkage``: shrunk (S, D).

    Returns:
        Columns rank (from 1), eigenvalue, share (cumulative, 0..1), active, shrunk (bool).
    """
    values = np.asarray(eigenspace["eigenvalues"], dtype=np.float64)
    clipped = np.clip(values, 0.0, None)
    total = clipped.sum()
    shrunk = np.asarray(shrinkage["shrunk"], dtype=bool)
    return pd.DataFrame(
        {
            "rank": np.arange(1, len(values) + 1),
            # A rounding error below zero has no place on a logarithmic axis.
            "eigenvalue": np.where(values > 0, values, np.nan),
            "share": np.cumsum(clipped) / total if total > 0 else np.zeros(len(values)),
            "active": np.asarray(eigenspace["active"], dtype=bool),
            "shrunk": shrunk.any(axis=0) if len(shrunk) else np.zeros(len(values), dtype=bool),
        }
    )


def relation_points(vectors: Bundle, points: int, seed: int) -> tuple[pd.DataFrame, list[float]]:
    """Project a sample of relation vectors on a plane, in two ways.

    Every source gives the same number of rows as far as it has them, so a small source stays
    visible; the density of points therefore says nothing about the size of a source.

    Args:
        vectors: ``relation_vectors``: vectors (N, D), source (N,); may be memory-mapped.
        points: How many points at most, over all sources.
        seed: Seed of the sample and of t-SNE.

    Returns:
        Columns x, y (principal directions), u, v (t-SNE: only who is near whom has a meaning) and
        source (name); and the share of the sample's variance of x and of y (0..1).
    """
    names = [str(name) for name in vectors.header["sources"]]
    source = np.asarray(vectors["source"])
    rows = _sample_rows(source, len(names), points, np.random.default_rng(seed))
    x = np.asarray(vectors["vectors"][rows], dtype=np.float64)
    x = x - x.mean(axis=0) if len(x) else x
    plane, shares = _plane(x)
    frame = pd.DataFrame(plane, columns=["x", "y"])
    frame[["u", "v"]] = _neighbours(x, seed)
    frame["source"] = [names[k] for k in source[rows]]
    return frame, shares


def _neighbours(x: np.ndarray, seed: int) -> np.ndarray:
    """Place rows by t-SNE so that near ones stay near; zeros where there is nothing to place."""
    if len(x) < _FEWEST_POINTS or not x.any():
        return np.zeros((len(x), 2))
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    # Few dimensions, few iterations and one thread: seconds, and the same picture every time.
    count = min(_TSNE_DIMENSIONS, *x.shape)
    model = TSNE(
        perplexity=min(30.0, (len(x) - 1) / 3),
        init="pca",
        max_iter=400,
        random_state=seed,
        n_jobs=1,
    )
    with threadpool_limits(1):
        reduced = PCA(count, svd_solver="covariance_eigh").fit_transform(x)
        return np.asarray(model.fit_transform(reduced.astype(np.float32)))


def _sample_rows(
    source: np.ndarray, sources: int, points: int, rng: np.random.Generator
) -> np.ndarray:
    """Draw the same number of rows of every source, in rising order for a memory-mapped read."""
    share = max(1, points // max(1, sources))
    chosen = []
    for k in range(sources):
        rows = np.flatnonzero(source == k)
        chosen.append(rng.permutation(rows)[:share])
    return np.sort(np.concatenate(chosen)) if chosen else np.empty(0, dtype=np.int64)


def _plane(x: np.ndarray) -> tuple[np.ndarray, list[float]]:
    """Project centred rows on two principal directions with a reproducible sign."""
    plane = np.zeros((len(x), 2))
    shares = [0.0, 0.0]
    total = float((x**2).sum())
    if total == 0.0:
        return plane, shares
    _, singular, directions = np.linalg.svd(x, full_matrices=False)
    for k, direction in enumerate(directions[:2]):
        sign = np.sign(direction[np.argmax(np.abs(direction))])
        plane[:, k] = x @ direction * sign
        shares[k] = float(singular[k] ** 2 / total)
    return plane, shares


def loss_components(history: pd.DataFrame) -> list[str]:
    """List the components that have a curve: the total first, optimiser figures last."""
    names = list(dict.fromkeys(history["component"])) if len(history) else []
    # Measured once: they stand in the facts of the training.
    names = [name for name in names if not name.startswith("gradient_norm_")]
    return sorted(names, key=lambda name: (name in _LAST_COMPONENTS, name != "loss"))


def loss_series(history: pd.DataFrame, component: str) -> pd.DataFrame:
    """Select one component by step and smooth it.

    Args:
        history: The tidy frame ``training_history``.
        component: A name in its column ``component``.

    Returns:
        Columns step, value, smooth: a centred moving mean over a tenth of the logged steps.
    """
    rows = history[history["component"] == component].sort_values("step")
    series = rows[["step", "value"]].reset_index(drop=True)
    window = max(1, len(series) // 10)
    series["smooth"] = series["value"].rolling(window, center=True, min_periods=1).mean()
    return series


def finite(*values: float) -> bool:
    """Say whether all of these numbers are there."""
    return bool(np.isfinite(np.asarray(values, dtype=np.float64)).all())


def records(rows: Sequence[object] | pd.DataFrame) -> list[dict[str, Any]]:
    """Turn a frame, or a list that may already be one of dicts, into a list of dicts."""
    if isinstance(rows, pd.DataFrame):
        return [{str(key): value for key, value in row.items()} for row in rows.to_dict("records")]
    return [dict(row) for row in rows if isinstance(row, dict)]
