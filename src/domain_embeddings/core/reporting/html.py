"""The adaptation report: one HTML file that needs nothing but a browser.

Its figures are inline SVG rather than an interactive library: the file stays below a megabyte,
opens offline, prints, follows the light or dark setting of the reader, and every number of a figure
is in a table as well. Interactive versions of the figures are catalog entries (``plots.py``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from domain_embeddings.core.bundle import Bundle
from domain_embeddings.core.reporting import (
    frames,
    palette,
    recommend,
    retention,
    sections,
    static,
    wording,
)

_MAP_POINTS = 600
_PACKAGES = ("sentence-transformers", "transformers", "torch", "mteb", "kedro", "numpy")
_TONES = {
    wording.BETTER: "good",
    wording.WORSE: "bad",
    wording.NOISE: "open",
    wording.SAME: "open",
    wording.UNCORRECTED: "open",
    wording.UNKNOWN: "open",
}
_UNIT_OF_A_NUMBER = re.compile(r"(?<=\d) (?=(?:B|kB|MB|GB|TB|%|points)(?!\w))")
_HYPHEN_OF_A_NUMBER = re.compile(r"(?<![\w-])-(?=\d)")
_MARKS = {"good": "\N{BLACK UP-POINTING TRIANGLE}", "bad": "\N{BLACK DOWN-POINTING TRIANGLE}"}


@dataclass(frozen=True)
class ReportInputs:
    """Everything the report is written from; field names are those of the catalog.

    Args:
        width_recommendation: The result of ``recommend_width``.
        truncation_scores: Scores by model, transform, task and width.
        vector_costs: What storing and searching vectors costs.
        geometry_scores: Measures of geometry before and after.
        mteb_scores: Scores of mteb's own tasks; may be empty.
        training_history: Loss components by step; may be empty.
        training_report: Facts of the training.
        relation_vectors: Relation vectors of the untouched model.
        relation_eigenspace: Their eigenspace.
        task_variance: Variance between sources.
        shrinkage: What was shrunk.
        task_specs: The tasks.
        data_reports: Title of a step that may drop rows to its report entry.
        leakage_report: Training rows found again in a held-out split.
        leakage_policy: What was done with them.
        settings: What is worth repeating in the provenance, by name.
        confidence: Mass of the intervals (0..1).
        seed: The one seed.
    """

    width_recommendation: Mapping[str, Any]
    truncation_scores: pd.DataFrame
    vector_costs: pd.DataFrame
    geometry_scores: pd.DataFrame
    mteb_scores: pd.DataFrame
    training_history: pd.DataFrame
    training_report: Mapping[str, Any]
    relation_vectors: Bundle
    relation_eigenspace: Bundle
    task_variance: Bundle
    shrinkage: Bundle
    task_specs: list[dict[str, Any]]
    data_reports: Mapping[str, Any]
    leakage_report: Mapping[str, Any]
    leakage_policy: str
    settings: Mapping[str, Any]
    confidence: float
    seed: int


def render_report(inputs: ReportInputs) -> str:
    """Write the report.

    Args:
        inputs: Everything it is written from.

    Returns:
        One self-contained HTML document.

    Raises:
        DataError: If there is no main metric.
    """
    answer = inputs.width_recommendation
    main = frames.main_scores(inputs.truncation_scores)
    width, full = answer["recommended_width"], answer["full_width"]
    method = str(inputs.training_report.get("method", answer.get("method", "unknown")))
    reze_words, reze_table = sections.reze(
        inputs.relation_eigenspace,
        inputs.task_variance,
        inputs.shrinkage,
        frames.source_bias(inputs.geometry_scores, "source_bias_shrunk"),
        method,
    )
    training_facts, training_notes = sections.facts(inputs.training_report)
    leakage, leakage_tables = sections.leakage(inputs.leakage_report, inputs.leakage_policy)
    changes = sections.task_changes(main, width, full)
    groups = _groups(changes)
    rivals = sections.rivals(main, width, full)
    return template("report.html.j2").render(
        answer=answer,
        tone=_tone(answer) if changes else "open",
        **styles(),
        method=method,
        confidence=f"{100 * inputs.confidence:g} %",
        correction=wording.correction(answer["tests"], inputs.confidence)
        if answer["tests"]
        else "",
        retention=retention.table(main),
        changes=changes,
        groups=groups,
        tally=_tally(groups) if changes else "",
        rivals=rivals,
        asides=recommend.asides(answer),
        stronger=_stronger(rivals, frames.cheap_rival(main, width)),
        rival_name=recommend.rival_name(answer),
        scores=sections.all_scores(main),
        mteb=sections.mteb(inputs.mteb_scores),
        costs=sections.costs(inputs.vector_costs, answer),
        shortlists=sections.shortlists(inputs.vector_costs),
        measured=inputs.vector_costs.iloc[0].to_dict(),
        geometry=sections.geometry(inputs.geometry_scores),
        geometry_by_width=sections.geometry_by_width(inputs.geometry_scores),
        reze_words=reze_words,
        reze_table=reze_table,
        tasks=_task_table(inputs.task_specs),
        data=[
            (title, sections.report_tables(title, entry))
            for title, entry in inputs.data_reports.items()
        ],
        leakage=leakage,
        leakage_tables=leakage_tables,
        training=training_facts,
        training_notes=training_notes,
        provenance=_provenance(inputs),
        parameters=sections.pairs(sections.flatten(inputs.settings)),
        figures=_figures(inputs, width, has_changes=bool(changes)),
    )


def _figures(inputs: ReportInputs, width: int, *, has_changes: bool) -> dict[str, str]:
    """Draw every figure; what has nothing to show is left out."""
    scores = inputs.truncation_scores
    drawn = {
        "mean": (static.quality_mean(scores), "Mean score by width"),
        "costs": (
            static.quality_by_bytes(inputs.vector_costs, inputs.width_recommendation),
            "Mean score by bytes per vector",
        ),
        "tasks": (static.quality_tasks(scores), "Score by width for every task"),
        "general": (
            static.quality_tasks(scores, general=True),
            "Score by width for every general task and their mean",
        ),
        "differences": (
            static.differences(scores, width) if has_changes else None,
            f"Adapted minus untouched per task at width {width}",
        ),
        "spectrum": (
            static.eigen_spectrum(inputs.relation_eigenspace, inputs.shrinkage),
            "Eigenvalues of the relation vectors by rank",
        ),
        "bias": (static.task_variance(inputs.geometry_scores), "Source bias before and after"),
        "map": (
            static.relation_map(inputs.relation_vectors, _MAP_POINTS, inputs.seed),
            "Relation vectors on two principal directions, and by t-SNE",
        ),
        "losses": (static.loss_curves(inputs.training_history), "Loss components by step"),
    }
    return {
        name: Markup(static.to_svg(figure, name, title))  # noqa: S704 - matplotlib escapes text
        for name, (figure, title) in drawn.items()
        if figure is not None
    }


def _groups(changes: list[dict[str, Any]]) -> list[tuple[str, str, list[dict[str, Any]]]]:
    """Sort the tasks under what may be said about them."""
    titles = [
        ("Got better", "good", {wording.BETTER}),
        ("Got worse", "bad", {wording.WORSE}),
        ("Not shown to differ", "open", {wording.NOISE, wording.SAME, wording.UNCORRECTED}),
        ("No interval", "open", {wording.UNKNOWN}),
    ]
    groups = [
        (title, tone, [row for row in changes if row["here"]["verdict"] in verdicts])
        for title, tone, verdicts in titles
    ]
    # An empty list of losses is news; an empty list of the unknown is not.
    return [group for group in groups if group[2] or group[1] in _MARKS]


def _task_table(specs: list[dict[str, Any]]) -> sections.Table:
    """List the tasks and what they were used for."""
    rows = [
        [
            spec["name"],
            spec["type"],
            " and ".join(spec.get("uses", [])),
            spec.get("description", ""),
        ]
        for spec in specs
    ]
    return sections.Table(["task", "type", "used to", "description"], rows)


def _provenance(inputs: ReportInputs) -> sections.Table:
    """List what is needed to repeat the result."""
    header = inputs.relation_vectors.header
    scores = inputs.truncation_scores
    model = {
        "untouched model": header.get("model"),
        "revision": header.get("revision"),
        "hash of its weights": header.get("weight_hash"),
        "pooling": header.get("pooling"),
        "maximal length (tokens)": header.get("max_length"),
        "prompts": sections.text(
            [
                f"{name}: {prompt!r}"
                for name, prompt in (header.get("prompts") or {}).items()
                if prompt
            ]
        )
        or "none",
        "hash of the training pairs": header.get("pair_table_hash"),
        "evaluated split": ", ".join(scores["split"].unique()),
        "seed": inputs.seed,
    }
    versions = {f"version of {name}": _version(name) for name in _PACKAGES}
    return sections.pairs({**model, **versions})


def _typeset(shown: object) -> str:
    """Give numbers a true minus and keep them on one line with their unit."""
    text = _HYPHEN_OF_A_NUMBER.sub("\N{MINUS SIGN}", str(shown))
    return _UNIT_OF_A_NUMBER.sub("\N{NO-BREAK SPACE}", text)


def _evidence(shown: str) -> Markup:
    """Mark up interval and p-value so that a line breaks between them only."""
    bounds, comma, p = _typeset(shown).rpartition(", p")
    parts = [f"{bounds},", f"p{p}"] if comma else [p]
    spans = Markup(" ").join(Markup('<span class="keep">{}</span>').format(part) for part in parts)
    return Markup('<span class="ci">{}</span>').format(spans)


def _tally(groups: list[tuple[str, str, list[dict[str, Any]]]]) -> str:
    """Count what may be said per task, and name the losses."""
    counts = {title: [row["task"] for row in rows] for title, _, rows in groups}
    better, worse = counts.get("Got better", []), counts.get("Got worse", [])
    total = sum(len(names) for names in counts.values())
    lost = f"worse on {len(worse)} ({wording.join(worse)})" if worse else "worse on none"
    tally = f"better on {len(better)} of {wording.plural(total, 'task')}, {lost}"
    rest = total - len(better) - len(worse)
    return f"{tally}, no difference shown on {rest}." if rest else f"{tally}."


def _tone(answer: Mapping[str, Any]) -> str:
    """Colour the answer: good only if it beats the cheap rival too, where that was scored."""
    tones = [_TONES[answer["verdict"]]]
    if answer["rival"]:
        tones.append(_TONES[answer["rival_verdict"]])
    return "bad" if "bad" in tones else "open" if "open" in tones else "good"


def _stronger(rivals: list[dict[str, Any]], cheap: str) -> dict[str, Any] | None:
    """Find the best of the rivals that beat the recommended vectors, if another aside says less.

    Args:
        rivals: The result of ``sections.rivals``.
        cheap: Rotation of the cheap rival.

    Returns:
        The rival with the highest mean score among those shown to be better at the recommended
        width; None if there is none or if it is the cheap rival, which has an aside of its own.
    """
    chosen = next(row for row in rivals if row["chosen"])
    better = [
        row
        for row in rivals
        if row["width"] == chosen["width"] and row["compared"] == wording.BETTER
    ]
    best = max(better, key=lambda row: float(row["value"]), default=None)
    named = (frames.REFERENCE, cheap)
    return None if best is None or (best["model"], best["transform"]) == named else best


def _version(package: str) -> str | None:
    """Version of an installed package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _variables(column: int) -> str:
    """Write the palette as CSS variables: column 1 for light pages, 2 for dark ones."""
    return " ".join(f"--{entry[0]}: {entry[column]};" for entry in palette.CSS)


def styles() -> dict[str, Markup]:
    """Return the colours of light and dark pages under the names that the style sheet uses."""
    light, dark = (Markup(_variables(column)) for column in (1, 2))  # noqa: S704 - constants
    return {"css_light": light, "css_dark": dark}


def template(name: str) -> Template:
    """Load a template; an undefined name is an error, every text is escaped."""
    environment = Environment(
        loader=PackageLoader("domain_embeddings.core.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "points": wording.points,
        "signed": wording.signed,
        "percent": wording.percent,
        "storage": wording.storage,
        "typeset": _typeset,
        "evidence": _evidence,
    }
    environment.globals |= {
        "interval": wording.interval,
        "evidence": wording.evidence,
        "tone_of": lambda verdict: _TONES.get(verdict, "open"),
        "mark_of": lambda tone: _MARKS.get(tone, ""),
    }
    return environment.get_template(name)
