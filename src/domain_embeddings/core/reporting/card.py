"""The model card: what a stranger needs to use the adapted model and to doubt it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from domain_embeddings.core.reporting import frames, palette, recommend, sections, wording

_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[\w.-]+$")


@dataclass(frozen=True)
class CardInputs:
    """Everything the card is written from.

    Args:
        width_recommendation: The result of ``recommend_width``.
        truncation_scores: Scores by model, transform, task and width.
        training_report: Facts of the training.
        task_specs: The tasks.
        model: Header of the relation vectors: the untouched model.
        widths: Trained widths; empty if the objective looked at the full width only.
        settings: Parameters of the training, by name.
        seed: The one seed.
    """

    width_recommendation: Mapping[str, Any]
    truncation_scores: pd.DataFrame
    training_report: Mapping[str, Any]
    task_specs: Sequence[Mapping[str, Any]]
    model: Mapping[str, Any]
    widths: Sequence[int]
    settings: Mapping[str, Any]
    seed: int


def render_card(inputs: CardInputs) -> str:
    """Write the model card in Markdown.

    Args:
        inputs: Everything it is written from.

    Returns:
        Markdown that starts with YAML front matter in the form that model hubs read. Licence and
        languages are left out, because nothing in a run says them.

    Raises:
        DataError: If there is no main metric.
    """
    parts = [
        _front_matter(inputs),
        _opening(inputs),
        _usage(inputs),
        _widths(inputs),
        _tasks(inputs),
        _training(inputs),
        _limitations(inputs),
    ]
    return "\n\n".join(parts) + "\n"


def card_of_width(card: str, width: int, prompts: Mapping[str, str], max_length: int) -> str:
    """Rewrite a model card for a folder whose model gives vectors of one width.

    Args:
        card: The result of `render_card`.
        width: Width of the vectors of the folder.
        prompts: Prompts of the model, by name.
        max_length: Longest input in tokens.

    Returns:
        The card with another title and usage; everything that was measured stays.
    """
    head, *parts = re.split(r"^(?=## )", card, flags=re.MULTILINE)
    head = re.sub(r"^# .*$", f"# Domain embeddings, width {width}", head, flags=re.MULTILINE)
    usage = f"""## Usage

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("path/to/this/folder")
vectors = model.encode(["a text", "another text"])  # {width} coordinates, length 1
```

The cut to {width} coordinates and the normalisation behind it are part of this model: do not set
`truncate_dim`, and compare vectors by their dot product. {_prompts(prompts)} Texts are cut at
{max_length} tokens. `embedding.json` holds the same facts for programs.

"""
    kept = [usage if part.startswith("## Usage\n") else part for part in parts]
    return head + "".join(kept)


def _prompts(prompts: Mapping[str, str]) -> str:
    """Say which prompts the model has."""
    named = [f"`prompt_name={name!r}` (`{text}`)" for name, text in prompts.items() if text]
    if not named:
        return "The model itself has no prompts."
    return (
        "The model was trained and scored with prompts, so pass them: " + wording.join(named) + "."
    )


def _front_matter(inputs: CardInputs) -> str:
    """Write the metadata; values are JSON strings, which YAML reads as they are."""
    source = str(inputs.model.get("model") or "")
    # A hub can only link a base model that has a hub id; a package or a folder has none.
    base = [f"base_model: {json.dumps(source)}"] if _HUB_ID.match(source) else []
    tags = ["sentence-transformers", "sentence-similarity", "feature-extraction", "matryoshka"]
    return "\n".join(
        [
            "---",
            "library_name: sentence-transformers",
            "pipeline_tag: sentence-similarity",
            *base,
            "tags:",
            *[f"- {tag}" for tag in tags],
            "---",
        ]
    )


def _opening(inputs: CardInputs) -> str:
    """Say what this is."""
    answer = inputs.width_recommendation
    revision = inputs.model.get("revision")
    origin = f"`{inputs.model.get('model', 'unknown')}`" + (f" at `{revision}`" if revision else "")
    told = "\n\n".join([answer["sentence"], *recommend.asides(answer)])
    return (
        f"# Domain embeddings, recommended width {answer['recommended_width']}\n\n"
        f"{told}\n\n"
        f"Adapted from {origin} (hash of its weights "
        f"`{inputs.model.get('weight_hash', 'unknown')}`)."
    )


def _usage(inputs: CardInputs) -> str:
    """Show how to encode at the recommended width."""
    width = inputs.width_recommendation["recommended_width"]
    told = _prompts(inputs.model.get("prompts") or {})
    own = [name for spec in inputs.task_specs if (name := _own_prompts(spec))]
    if own:
        told += f" Tasks with prompts of their own: {'; '.join(own)}."
    return f"""## Usage

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("path/to/this/folder", truncate_dim={width})
vectors = model.encode(["a text", "another text"], normalize_embeddings=True)
```

Truncation takes the first {width} coordinates, and a cut vector no longer has length 1. Keep
`normalize_embeddings=True`, or normalise again after any cut of your own; every score below was
measured that way. {told} Texts are cut at {inputs.model.get("max_length", "unknown")} tokens."""


def _own_prompts(spec: Mapping[str, Any]) -> str:
    """Name the prompts that a task brings along."""
    prompts = {side: text for side, text in (spec.get("prompts") or {}).items() if text}
    shown = ", ".join(f"{side} `{text}`" for side, text in prompts.items())
    return f"{spec['name']} ({shown})" if shown else ""


def _widths(inputs: CardInputs) -> str:
    """Tabulate the widths."""
    header = [
        "width",
        "per million vectors (float32)",
        "mean score",
        "loss against full width",
        "against the untouched model",
        "verdict",
        f"against the untouched model {recommend.rival_name(inputs.width_recommendation)}",
        "verdict",
    ]
    rows = []
    for row in inputs.width_recommendation["widths"]:
        bounds = wording.interval(row["low"], row["high"])
        lost = wording.interval(row["loss_low"], row["loss_high"])
        gap, rival = (
            wording.evidence(row[f"{name}_low"], row[f"{name}_high"], row[f"{name}_p"])
            for name in ("difference", "rival")
        )
        width = f"**{row['width']}**" if row["recommended"] else str(row["width"])
        rows.append(
            [
                width,
                wording.storage(row["bytes_per_million"]),
                f"{wording.points(row['score'])} {bounds}".strip(),
                f"{wording.points(row['loss'])} {lost}".strip(),
                f"{wording.signed(row['difference'])} {gap}".strip(),
                str(row["verdict"]),
                f"{wording.signed(row['rival_difference'])} {rival}".strip(),
                str(row["rival_verdict"]),
            ]
        )
    trained = ", ".join(map(str, inputs.widths))
    told = (
        f"Trained widths: {trained}. Other widths work, but were not part of the objective."
        if inputs.widths
        else "The objective looked at the full width only; smaller widths were never trained."
    )
    return (
        "## Widths\n\n"
        f"{told}\n\n"
        f"{_table(header, rows)}\n\n"
        "Scores are points of 100, the mean of the main metric over the tasks below; brackets hold "
        "confidence intervals, those of a difference taken on the same test rows for both sides. "
        f"Rule of the recommendation: {inputs.width_recommendation['rule']}"
    )


def _tasks(inputs: CardInputs) -> str:
    """Tabulate the data and what happened on each task."""
    answer = inputs.width_recommendation
    main = frames.main_scores(inputs.truncation_scores)
    changes = {
        row["task"]: row
        for row in sections.task_changes(main, answer["recommended_width"], answer["full_width"])
    }
    rows = []
    for spec in inputs.task_specs:
        change = changes.get(spec["name"])
        shown = ["", "", ""]
        if change:
            here = change["here"]
            shown = [change["metric"], f"{here['gap']} {here['evidence']}".strip(), here["verdict"]]
        rows.append([spec["name"], spec["type"], " and ".join(spec.get("uses", [])), *shown])
    header = ["task", "type", "used to", "metric", "difference to untouched", "verdict"]
    return (
        f"## Data and results\n\nSplit: {answer['split']}; differences at width "
        f"{answer['recommended_width']}.\n\n{_table(header, rows)}"
    )


def _training(inputs: CardInputs) -> str:
    """List method and parameters."""
    report = inputs.training_report
    facts, notes = sections.facts(report)
    settings = [
        [name, sections.text(value)]
        for name, value in sections.flatten(inputs.settings).items()
        if value is not None
    ]
    told = "".join(f"\n- {note}" for note in notes)
    return (
        f"## Training\n\nMethod `{report.get('method', 'unknown')}`, seed {inputs.seed}.\n\n"
        f"{_table(['fact', 'value'], facts.rows)}\n\n{_table(['parameter', 'value'], settings)}"
        + (f"\n{told}" if told else "")
    )


def _limitations(inputs: CardInputs) -> str:
    """Say what has not been shown."""
    answer = inputs.width_recommendation
    main = frames.main_scores(inputs.truncation_scores)
    changes = sections.task_changes(main, answer["recommended_width"], answer["full_width"])
    lines = []
    named = {
        verdict: [row["task"] for row in changes if row["here"]["verdict"] == verdict]
        for verdict in (wording.WORSE, wording.NOISE, wording.UNCORRECTED, wording.UNKNOWN)
    }
    width = answer["recommended_width"]
    if named[wording.WORSE]:
        lines.append(
            f"At width {width} it is worse than the untouched model on "
            f"{wording.join(named[wording.WORSE])}."
        )
    undecided = named[wording.NOISE] + named[wording.UNCORRECTED]
    if undecided:
        lines.append(f"No difference has been shown on {wording.join(undecided)}.")
    if named[wording.UNKNOWN]:
        lines.append(
            "Without confidence interval, so without claim: "
            f"{wording.join(named[wording.UNKNOWN])}."
        )
    if recommend.recommended_row(answer)["verdict"] != wording.BETTER:
        lines.append("No gain of the mean score over the untouched model has been shown.")
    if answer["rival"] and answer["rival_verdict"] != wording.BETTER:
        rotation = palette.transform_name(recommend.recommended_row(answer)["rival_transform"])
        lines.append(
            f"No gain of the mean score over the untouched model {rotation}, which changes no "
            "weight, has been shown."
        )
    if answer["tests"]:
        lines.append(wording.correction(answer["tests"], answer["confidence"]))
    lines.append(
        answer["retention"]["sentence"]
        if answer["retention"]
        else "What training did to general text was not measured: no task is marked as general."
    )
    lines += [
        "Intervals hold the uncertainty of the test rows (for clustering, of the repeated runs) "
        f"with one run of seed {inputs.seed}; another seed may move the scores further.",
        "Nothing is shown for tasks, languages or text lengths that are not in the table.",
        "Sizes and scores are those of float32 vectors where no other precision is named.",
    ]
    return "## Limitations\n\n" + "\n".join(f"- {line}" for line in lines)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(text: str) -> str:
    """Keep a bar or a line break from ending the cell."""
    return str(text).replace("|", "\\|").replace("\n", " ")
