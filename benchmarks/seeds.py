"""Put the runs of several seeds side by side: differences with their intervals, and the spread.

make run; make run ARGS="--params seed=1"; make run ARGS="--params seed=2"
python -m benchmarks.seeds [--data data]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

CONTRASTS = {
    "adapted_minus_reference": "adapted - untouched",
    "adapted_minus_reference_pca": "adapted - (untouched + pca)",
    "adapted_minus_adapted_pca": "adapted - (adapted + pca)",
    "adapted_minus_full_width": "adapted - adapted at full width",
}


def load(data: Path) -> pd.DataFrame:
    """Return the mean rows of the newest run of every seed."""
    paths = sorted((data / "07_model_output/truncation_scores.parquet").glob("*/*.parquet"))
    frames = [pd.read_parquet(path).assign(run=path.parent.name) for path in paths]
    scores = pd.concat(frames)
    newest = scores.groupby("seed")["run"].transform("max")
    rows = (scores["run"] == newest) & (scores["task"] == "mean") & (scores["transform"] == "none")
    return scores[rows & (scores["precision"] == "float32")]


def table(scores: pd.DataFrame) -> str:
    """Render scores and differences in points of 100, by width."""
    found = sorted(map(int, scores["seed"].unique()))
    seeds = len(found)
    lines = [f"Mean over tasks, points of 100, seeds {found}"]
    for name in ("reference", "adapted"):
        values = scores[scores["model"] == name].groupby("width")["value"].agg(["mean", "std"])
        shown = [f"{w}: {m * 100:.1f} ±{s * 100:.1f}" for w, m, s in values.itertuples()]
        lines.append(f"{name:34}" + "  ".join(shown))
    for name, label in CONTRASTS.items():
        lines.append(f"\n{label}")
        for width, rows in scores[scores["model"] == name].groupby("width"):
            each = [
                f"{r.value * 100:+.2f} [{r.low * 100:+.2f}, {r.high * 100:+.2f}]"
                for r in rows.sort_values("seed").itertuples()
            ]
            above = int((rows["low"] > 0).sum())
            lines.append(
                f"  {width:4d}  mean {rows['value'].mean() * 100:+.2f}  "
                f"interval above 0 in {above} of {seeds}   {'  '.join(each)}"
            )
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="data", type=Path)
    print(table(load(parser.parse_args().data)))


if __name__ == "__main__":
    main()
