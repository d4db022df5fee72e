"""Tests of the nodes of the evaluation stage, on tiny models."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from mteb_folder import make_mteb_folder
from task_data import pairs, records, specs
from tiny_models import tiny_sentence_transformer

from domain_embeddings.core.bundle import Bundle
from domain_embeddings.core.encoders import batching
from domain_embeddings.core.encoders.rotation import rotate_model
from domain_embeddings.core.errors import DataError, ParameterError, ProvenanceError
from domain_embeddings.hooks import SERIES, score_metrics
from domain_embeddings.parameters import (
    ClassificationProbe,
    ClusteringProbe,
    CostParameters,
    EvaluationParameters,
    MtebParameters,
    StoreParameters,
)
from domain_embeddings.pipelines.evaluation import create_pipeline
from domain_embeddings.pipelines.evaluation.nodes import (
    embed_adapted,
    embed_reference,
    fit_quantisation,
    measure_costs,
    measure_geometry,
    score,
    score_mteb,
)

WIDTH = 32
SPECS = specs("classification", "clustering", "retrieval", "sts")
SPECS[1]["uses"] = ["train"]
EVALUATED = {"classification", "retrieval", "sts"}
PARAMETERS = EvaluationParameters(
    store=None,
    fit_pairs=20,
    bootstrap=50,
    classification=ClassificationProbe(samples_per_label=3, experiments=2),
    clustering=ClusteringProbe(documents=30, experiments=2),
)
INPUTS = (records(), pairs(), SPECS)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return [
        tiny_sentence_transformer(tmp_path_factory.mktemp(f"tiny{seed}"), WIDTH, seed=seed)
        for seed in (0, 1)
    ]


@pytest.fixture(scope="module")
def banks(models):
    reference = embed_reference(models[0], *INPUTS, PARAMETERS, [4, 8], 3)
    models[1].trained_widths = [8, WIDTH]
    return reference, embed_adapted(models[1], *INPUTS, PARAMETERS, [4, 8], 3)


def ranges(banks) -> Bundle:
    return fit_quantisation(*banks, *INPUTS[1:], PARAMETERS, [4, 8], 3)


def eigenspace(header) -> Bundle:
    width = 2 * WIDTH
    arrays = {
        "eigenvalues": np.ones(width),
        "eigenvectors": np.eye(width),
        "mean": np.zeros(width),
        "active": np.ones(width, dtype=bool),
    }
    return Bundle(arrays, {**header, "sources": ["classification", "clustering"]})


def test_both_models_embed_the_same_texts(banks):
    reference, adapted = banks
    np.testing.assert_array_equal(reference["keys"], adapted["keys"])
    assert not np.allclose(reference["vectors"], adapted["vectors"])
    assert reference.header["widths"] == []
    assert adapted.header["widths"] == [8, WIDTH]
    assert reference.header["weight_hash"] != adapted.header["weight_hash"]


def test_only_the_evaluated_split_what_probes_draw_and_sampled_pairs_are_embedded(banks):
    frame = records()
    every = set(frame["text"].dropna()) | set(frame["text2"].dropna().str.strip())
    trained = frame[(frame["split"] == "train") & (frame["task"] == "clustering")]
    # 2 probes of 3 rows for each of 4 labels, 20 pairs of 2 texts.
    evaluated = frame[(frame["split"] == "test") & frame["task"].isin(EVALUATED)]
    texts = set(evaluated["text"].dropna()) | set(evaluated["text2"].dropna().str.strip())
    assert len(texts) < len(banks[0]["keys"]) <= len(texts) + 2 * 3 * 4 + 2 * 20
    assert len(banks[0]["keys"]) < len(every) - len(trained) + 100


def test_texts_are_encoded_once_however_many_widths_are_scored(banks, monkeypatch):
    def fail(*args, **kwargs):
        pytest.fail("scoring encodes")

    monkeypatch.setattr(batching, "encode", fail)
    inputs = (*banks, ranges(banks), *INPUTS, PARAMETERS)
    scores, replicates = score(*inputs, {"method": "mic"}, [4, 8], 3)
    # Two models, as they are in three precisions and after two rotations, at three widths.
    assert len(replicates.header["rows"]) == 2 * 5 * 3 * (len(EVALUATED) + 1)
    assert sorted(scores["width"].unique()) == [4, 8, WIDTH]
    assert set(scores["transform"]) == {"none", "pca", "contrastive"}
    assert set(scores["precision"]) == {"float32", "int8", "binary"}
    assert set(scores.loc[scores["model"] == "adapted", "method"]) == {"mic"}
    assert set(scores["task"]) == {*EVALUATED, "mean"}


def test_a_later_run_finds_its_texts_in_the_store_and_gets_the_same_bank(
    models, banks, tmp_path, monkeypatch
):
    kept = StoreParameters(folder=str(tmp_path / "store"))
    parameters = PARAMETERS.model_copy(update={"store": kept})
    run = (models[0], *INPUTS, parameters, [4, 8], 3)
    first = embed_reference(*run)
    monkeypatch.setattr(batching, "encode", lambda *_, **__: pytest.fail("encoded twice"))
    second = embed_reference(*run)
    for bank in (first, second):
        assert bank.header == banks[0].header
        for name in ("keys", "vectors"):
            np.testing.assert_array_equal(bank[name], banks[0][name])


def test_ranges_are_those_of_the_sampled_training_text(banks):
    found = ranges(banks)
    assert set(found.arrays) == {f"{m}_{w}" for m in ("reference", "adapted") for w in (4, 8, 32)}
    assert found.header["models"]["adapted"]["weight_hash"] == banks[1].header["weight_hash"]
    assert found.header["texts"]["adapted"] <= 2 * PARAMETERS.fit_pairs
    swapped = Bundle(found.arrays, {**found.header, "models": {"reference": {"weight_hash": "x"}}})
    with pytest.raises(ProvenanceError, match="of other weights than the vectors of 'reference'"):
        score(*banks, swapped, *INPUTS, PARAMETERS, {"method": "mic"}, [4, 8], 3)


@pytest.fixture(scope="module")
def scored(banks):
    return score(*banks, ranges(banks), *INPUTS, PARAMETERS, {"method": "mic"}, [4, 8], 3)


def test_costs_cover_every_width_precision_and_search(banks, scored):
    short = CostParameters(vectors=60, queries=5, repeats=1)
    parameters = PARAMETERS.model_copy(update={"costs": short})
    costs = measure_costs(
        banks[1], ranges(banks), scored[1], INPUTS[0], SPECS, parameters, [4, 8], 3
    )
    assert len(costs) == 3 * 3 + 3 * 3 - 1
    assert costs[["queries_per_s", "recall", "retrieval"]].notna().all(axis=None)
    assert set(costs["corpus"]) == {60}


def test_every_score_has_a_tracked_series_of_its_own(scored):
    scores, _ = scored
    tracked = [(name, step) for name, _, step in score_metrics(scores)]
    as_is = (scores["precision"] == "float32") & (scores["transform"] == "none")
    shown = scores["main"] & ((as_is & scores["model"].isin(SERIES)) | (scores["task"] == "mean"))
    assert len(tracked) == len(set(tracked)) == shown.sum() + 3
    assert all(re.fullmatch(r"[\w./ -]+", name) for name, _ in tracked)
    for name in (
        "score_by_width/sts",
        "score_gain_by_width/mean",
        "score_other_by_width/adapted_minus_full_width",
        "score_other_by_width/adapted_minus_reference.pca",
        "score_other_by_width/adapted_minus_reference_pca",
        "score_other_by_width/adapted_minus_float32.int8",
        "score_other_by_width/adapted.binary",
    ):
        assert (name, 4) in tracked


def test_the_whole_stage_is_reproducible(banks):
    parameters = PARAMETERS.model_copy(update={"transforms": ["pca"]})
    (first, one), (second, two) = (
        score(*banks, ranges(banks), *INPUTS, parameters, {"method": "reze_mic"}, [WIDTH], 3)
        for _ in range(2)
    )
    assert first.equals(second)
    np.testing.assert_array_equal(one["replicates"], two["replicates"])


def test_geometry_covers_all_widths_and_both_models(banks):
    reference, adapted = banks
    shrinkage = Bundle({"columns": np.array([0, 1])}, {})
    scores = measure_geometry(
        *(reference, adapted, INPUTS[1], SPECS, eigenspace(reference.header), shrinkage),
        *(PARAMETERS, [4, 8], 3),
    )
    assert set(scores["model"]) == {"reference", "adapted"}
    assert set(scores["width"]) == {4, 8, WIDTH}
    assert set(scores["source"]) == {"all", "classification", "clustering"}


def test_a_rotated_model_is_only_turned(models, tmp_path):
    turned = tiny_sentence_transformer(tmp_path, WIDTH, seed=0)
    basis = np.linalg.qr(np.random.default_rng(0).normal(size=(WIDTH, WIDTH)))[0]
    rotate_model(turned, basis, np.zeros(WIDTH))
    reference, adapted = (
        embed_reference(model, *INPUTS, PARAMETERS, [4], 3) for model in (models[0], turned)
    )
    np.testing.assert_allclose(adapted["rotation"], basis, atol=1e-6)
    scores = measure_geometry(
        *(reference, adapted, INPUTS[1], SPECS, eigenspace(reference.header)),
        *(Bundle({"columns": np.array([], dtype=int)}, {}), PARAMETERS, [4], 3),
    )
    shift = scores[(scores["measure"] == "shift") & (scores["model"] == "adapted")]
    assert shift["value"].abs().max() < 1e-5


def test_embedding_leaves_the_global_generators_alone(models):
    torch.manual_seed(4)
    expected = torch.rand(1).item()
    torch.manual_seed(4)
    embed_reference(models[0], *INPUTS, PARAMETERS, [4], 3)
    assert torch.rand(1).item() == expected


@pytest.mark.parametrize("embed", [embed_reference, embed_adapted])
def test_a_width_beyond_the_model_is_refused_before_encoding(models, monkeypatch, embed):
    monkeypatch.setattr(batching, "encode", lambda *a, **k: pytest.fail("encoded"))
    with pytest.raises(ParameterError, match=rf"widths: \[64\].*allowed: 1 to {WIDTH}"):
        embed(models[0], *INPUTS, PARAMETERS, [4, 64], 3)


def test_own_tasks_of_mteb_are_scored_and_all_results_come_in_its_format(
    models, banks, tmp_path, monkeypatch
):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    own = MtebParameters(tasks=["STS12"], folder=str(make_mteb_folder(tmp_path / "hub")))
    parameters = PARAMETERS.model_copy(update={"mteb": own, "transforms": ["none"]})
    report = {"method": "mic"}
    local, replicates = score(*banks, ranges(banks), *INPUTS, parameters, report, [4], 3)
    table, results = score_mteb(*models, local, replicates, parameters, report, [4])
    rows = table[table["task"] == "STS12"].set_index(["model", "width"])
    assert set(rows.index) == {(m, w) for m in ("reference", "adapted") for w in (4, WIDTH)}
    assert rows.loc[("adapted", 4), "method"] == "mic"
    names = Counter(item.result.task_name for item in results)
    # Two models at two widths; local tasks in three precisions.
    assert names == {**dict.fromkeys(EVALUATED, 12), "STS12": 4}
    revisions = {bank.header["weight_hash"] for bank in banks}
    assert {item.model.revision for item in results} == revisions
    rows = replicates.header["test_rows"]
    digests = {item.result.task_name: item.result.dataset_revision for item in results}
    assert digests == {**{task: rows[task] for task in EVALUATED}, "STS12": "local"}


def test_without_own_tasks_of_mteb_there_is_an_empty_table_with_columns(models, banks):
    report = {"method": "mic"}
    local, replicates = score(*banks, ranges(banks), *INPUTS, PARAMETERS, report, [4], 3)
    table, results = score_mteb(*models, local, replicates, PARAMETERS, report, [4])
    assert table.empty
    assert {"model", "task", "width", "value", "revision"} <= set(table.columns)
    assert results


def test_a_task_that_cannot_be_scored_is_refused_before_encoding(models, monkeypatch):
    monkeypatch.setattr(batching, "encode", lambda *a, **k: pytest.fail("encoded"))
    frame = records()
    frame.loc[frame["task"] == "sts", "score"] = 1.0
    with pytest.raises(DataError, match="Task 'sts'"):
        embed_reference(models[0], frame, *INPUTS[1:], PARAMETERS, [4], 3)


def test_the_pipeline_connects_banks_scores_and_geometry():
    pipeline = create_pipeline()
    outputs = {"vector_costs", "geometry_scores", "mteb_scores", "mteb_results"}
    assert pipeline.outputs() == outputs
    assert {"reference_model", "adapted_model", "relation_eigenspace"} <= pipeline.inputs()
    assert len(pipeline.nodes) == 7


def test_importing_the_pipeline_loads_nothing_heavy():
    code = (
        "import sys, domain_embeddings.pipelines.evaluation;"
        "heavy = {'torch', 'mteb', 'sklearn', 'scipy', 'datasets', 'transformers'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
