"""What is tracked, and what is refused, without running anything."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pandas as pd
import pytest
from kedro.io import DataCatalog, MemoryDataset
from kedro.pipeline import Pipeline, node
from tiny_models import tiny_sentence_transformer

from domain_embeddings import hooks
from domain_embeddings.core.errors import DataError, ParameterError
from domain_embeddings.datasets.encoder import ReferenceModelDataset

VALID_NAME = re.compile(r"^[/\w.\- :]+$")


def scores() -> pd.DataFrame:
    difference = "adapted_minus_reference"
    rows = [
        {
            "model": model,
            "transform": transform,
            "precision": "float32",
            "task": task,
            "width": width,
            "main": True,
        }
        for model in ("reference", "adapted", difference, f"{difference}_pca")
        for transform in ("none", "pca")
        for task in ("tickets", "mean")
        for width in (16, 32)
    ]
    other = {**rows[0], "main": False, "value": 0.99}
    return pd.DataFrame([{**row, "value": k / 100} for k, row in enumerate(rows)] + [other])


def test_models_and_their_difference_are_tracked_by_task_and_the_rest_by_its_mean():
    metrics = list(hooks.score_metrics(scores()))
    keys = [(name, step) for name, _, step in metrics]
    names = {name for name, _ in keys}
    assert names == {
        *(f"{section}/{task}" for section in hooks.SERIES.values() for task in ("tickets", "mean")),
        "score_other_by_width/adapted.pca",
        "score_other_by_width/reference.pca",
        "score_other_by_width/adapted_minus_reference.pca",
        "score_other_by_width/adapted_minus_reference_pca",
        "score_other_by_width/adapted_minus_reference_pca.pca",
        "score_dim_16",
        "score_dim_32",
    }
    assert len(keys) == len(set(keys)) == 2 * (6 + 5) + 2
    assert all(VALID_NAME.match(name) for name in names)
    assert 0.99 not in [value for _, value, _ in metrics]


def test_of_quantised_scores_the_mean_is_tracked_under_the_name_of_the_precision():
    table = scores()[lambda rows: (rows["model"] == "adapted") & (rows["transform"] == "none")]
    names = {name for name, _, _ in hooks.score_metrics(table.assign(precision="int8"))}
    assert names == {"score_other_by_width/adapted.int8"}


def test_only_the_mean_of_the_adapted_model_gets_a_metric_per_width():
    table = scores()
    named = {n: v for n, v, _ in hooks.score_metrics(table) if n.startswith("score_dim_")}
    chosen = table[
        (table["model"] == "adapted") & (table["transform"] == "none") & (table["task"] == "mean")
    ]
    assert named == {f"score_dim_{row.width}": row.value for row in chosen.itertuples()}


def test_reports_are_tracked_by_their_numbers_only():
    report = {"steps": 3, "pairs_per_s": 1.5, "method": "mic", "flag": True, "truncated": {}}
    assert list(hooks.report_metrics(report)) == [
        ("training/steps", 3.0, 0),
        ("training/pairs_per_s", 1.5, 0),
    ]


def test_geometry_is_tracked_over_all_sources():
    frame = pd.DataFrame(
        {
            "model": "adapted",
            "measure": "cv",
            "source": ["all", "tickets"],
            "width": 16,
            "value": [0.1, 0.2],
        }
    )
    assert list(hooks.geometry_metrics(frame)) == [("vectors_by_width/cv", 0.1, 16)]


def test_costs_are_tracked_by_precision_and_search_over_widths():
    row = {"width": 16, "bytes_per_vector": 2, "queries_per_s": 900.0, "recall": 0.5}
    kinds = [("float32", "exact"), ("binary", "exact"), ("binary", "shortlist")]
    frame = pd.DataFrame([{**row, "precision": p, "search": s} for p, s in kinds])
    metrics = list(hooks.cost_metrics(frame))
    assert metrics[:3] == [
        ("serving_by_width/float32.bytes", 2, 16),
        ("serving_by_width/float32.queries_per_s", 900.0, 16),
        ("serving_by_width/float32.recall_at_10", 0.5, 16),
    ]
    names = {name for name, _, _ in metrics}
    assert "serving_by_width/binary.shortlist.recall_at_10" in names
    assert len(names) == len(metrics) == 9
    assert all(VALID_NAME.match(name) for name in names)


def test_history_is_tracked_by_step():
    frame = pd.DataFrame({"step": [5], "epoch": [0.1], "component": ["reze"], "value": [2.0]})
    assert list(hooks.history_metrics(frame)) == [("train/reze", 2.0, 5)]


def test_nested_parameters_become_dotted_names():
    nested = {"a": 1, "b": {"c": None, "d": {"e": [1, 2]}}}
    assert hooks.flatten(nested) == {"a": 1, "b.c": None, "b.d.e": [1, 2]}


def test_figures_that_are_not_numbers_are_left_out_and_long_ones_sent_in_batches(monkeypatch):
    import mlflow

    sent = []
    monkeypatch.setattr(
        mlflow, "active_run", lambda: SimpleNamespace(info=SimpleNamespace(run_id="r"))
    )
    monkeypatch.setattr(
        mlflow.MlflowClient, "log_batch", lambda self, run_id, metrics: sent.append(metrics)
    )
    hooks._log_metrics([("a", float("nan"), 0), *[("b", 1.0, k) for k in range(1_500)]])
    assert [len(batch) for batch in sent] == [1_000, 500]
    assert {metric.key for batch in sent for metric in batch} == {"b"}


def test_long_reasons_are_shortened_to_one_line():
    assert hooks._reason(ValueError("a\n  b")) == "a b"
    assert hooks._reason(ValueError()) == "ValueError"
    assert len(hooks._reason(ValueError("x" * 1_000))) == hooks.MAX_REASON + len(" ...")


def test_the_commit_outside_git_is_none(tmp_path):
    assert hooks._commit(tmp_path) == "none"


def parameters_hook(**raw: object) -> hooks.ParametersHook:
    hook = hooks.ParametersHook()
    loader = {"parameters": raw}
    hook.after_context_created(SimpleNamespace(config_loader=loader))
    return hook


def pipeline(*inputs: str) -> Pipeline:
    return Pipeline([node(lambda *_: None, list(inputs), "out", name="use")])


def test_invalid_parameters_are_refused_when_the_context_is_made():
    with pytest.raises(ParameterError, match=r"speed: unknown parameter"):
        parameters_hook(speed=1)


def test_widths_are_compared_with_the_model_only_where_the_model_is_used(tmp_path):
    (tmp_path / "modules.json").write_text('[{"path": ""}]', encoding="utf-8")
    (tmp_path / "config.json").write_text('{"hidden_size": 16}', encoding="utf-8")
    model = ReferenceModelDataset(source=str(tmp_path))
    catalog = DataCatalog({"reference_model": model, "other": MemoryDataset(1)})
    hook = parameters_hook(widths=[8, 32])
    with pytest.raises(ParameterError, match=r"widths: 32 is wider than the model.*1 to 16"):
        hook.before_pipeline_run(pipeline("reference_model"), catalog)
    hook.before_pipeline_run(pipeline("other"), catalog)
    parameters_hook(widths=[8, 16]).before_pipeline_run(pipeline("reference_model"), catalog)


def test_what_training_would_refuse_is_refused_before_the_first_node(tmp_path):
    tiny_sentence_transformer(tmp_path, width=32, layers=2)
    model = ReferenceModelDataset(source=str(tmp_path / "model"))
    catalog = DataCatalog({"reference_model": model})
    trains = Pipeline([node(lambda _: None, "reference_model", "adapted_model", name="train")])
    # No checkpoints, whose folder would be made.
    hook = parameters_hook(widths=[8], training={"layers": [3], "steps": 3, "batch_size": 8})
    with pytest.raises(ParameterError, match=r"training\.layers: \[3\]"):
        hook.before_pipeline_run(trains, catalog)
    hook = parameters_hook(widths=[8], training={"layers": [2], "steps": 3, "batch_size": 8})
    hook.before_pipeline_run(trains, catalog)
    hook.after_dataset_saved("training_pairs", range(8))
    with pytest.raises(ParameterError, match=r"training\.batch_size: 8"):
        hook.after_dataset_saved("training_pairs", range(7))
    hook.before_pipeline_run(pipeline("reference_model"), catalog)
    hook.after_dataset_saved("training_pairs", range(7))


def test_inputs_that_nothing_has_made_are_named_with_their_stages():
    catalog = DataCatalog({"shrinkage": MemoryDataset(), "task_specs": MemoryDataset([])})
    with pytest.raises(DataError) as error:
        parameters_hook().before_pipeline_run(pipeline("shrinkage", "task_specs"), catalog)
    message = str(error.value)
    assert message.startswith("shrinkage: ")
    assert "--pipelines=reze," in message


def test_scores_of_own_tasks_of_mteb_are_a_series_over_widths():
    frame = pd.DataFrame(
        {"model": "adapted", "task": ["STS12", "mean"], "width": [16, 16], "value": [0.5, 0.25]}
    )
    assert list(hooks.mteb_metrics(frame)) == [
        ("score_mteb_by_width/STS12", 0.5, 16),
        ("score_mteb_by_width/mean", 0.25, 16),
    ]
    assert all(VALID_NAME.match(name) for name, _, _ in hooks.mteb_metrics(frame))


def test_own_tasks_of_mteb_without_data_are_refused_before_the_first_node(tmp_path):
    own = {"tasks": ["STS12"], "folder": str(tmp_path)}
    hook = parameters_hook(evaluation={"mteb": own})
    scoring = Pipeline([node(lambda x: x, "other", "mteb_scores", name="score_mteb")])
    catalog = DataCatalog({"other": MemoryDataset(1)})
    with pytest.raises(DataError, match="mteb's task 'STS12' has no data"):
        hook.before_pipeline_run(scoring, catalog)
    hook.before_pipeline_run(pipeline("other"), catalog)
    (tmp_path / "mteb/sts12-sts").mkdir(parents=True)
    row = '{"sentence1": "a", "sentence2": "b", "score": 1.0}\n'
    (tmp_path / "mteb/sts12-sts/test.jsonl").write_text(row)
    hook.before_pipeline_run(scoring, catalog)
