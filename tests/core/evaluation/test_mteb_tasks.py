"""Tests of mteb's own tasks: chosen by name, scored as mteb scores them, each text encoded once."""

from __future__ import annotations

import json
import random
import shutil

import datasets
import mteb
import numpy as np
import pytest
from mteb.cache import ResultCache
from mteb.models.models_protocols import EncoderProtocol
from mteb_folder import OWN_TASKS, make_mteb_folder
from tiny_models import tiny_sentence_transformer

from domain_embeddings.core.encoders import batching
from domain_embeddings.core.encoders.loading import describe
from domain_embeddings.core.encoders.store import EmbeddingStore
from domain_embeddings.core.errors import DataError, ParameterError
from domain_embeddings.core.evaluation import mteb_tasks
from domain_embeddings.core.evaluation.metrics import METRIC_NAME
from domain_embeddings.core.evaluation.mteb_tasks import (
    MTEB_COLUMNS,
    EvaluatedModel,
    PrefixEncoder,
    RememberedTexts,
    mteb_prompt,
    require_data,
    score_tasks,
    select_tasks,
    snake_case,
)
from domain_embeddings.parameters import MtebParameters, check_parameters

WIDTHS = [8, 32]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_sentence_transformer(tmp_path_factory.mktemp("tiny"), width=32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_mteb_folder(tmp_path_factory.mktemp("hub"))


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    """Keep what `datasets` prepares out of the home of whoever runs the tests."""
    before = datasets.config.HF_DATASETS_CACHE
    datasets.config.HF_DATASETS_CACHE = tmp_path_factory.mktemp("cache")
    yield
    datasets.config.HF_DATASETS_CACHE = before


def chosen(folder, *names, **fields):
    return MtebParameters(tasks=list(names), folder=str(folder), **fields)


class Counting(RememberedTexts):
    """Keep what was asked for and what was encoded."""

    def __init__(self, model):
        super().__init__(model, 4_096, show_progress=False)
        self.asked, self.encoded = [], []

    def __call__(self, texts, prompt):
        self.asked += [prompt + text for text in texts]
        encode = batching.encode

        def counted(model, texts, **options):
            self.encoded += texts
            return encode(model, texts, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(batching, "encode", counted)
            return super().__call__(texts, prompt)


@pytest.fixture(scope="module")
def scored(model, folder):
    embed = Counting(model)
    random.seed(5)
    state = random.getstate()
    frame, results = score_tasks(
        {"reference": EvaluatedModel(embed, describe(model), "reference")},
        select_tasks(chosen(folder, *OWN_TASKS)),
        WIDTHS,
        show_progress=False,
    )
    assert random.getstate() == state, "the global generator was touched"
    return frame, results, embed


@pytest.mark.parametrize("name", OWN_TASKS)
def test_full_width_equals_what_plain_mteb_says_about_the_model(model, folder, scored, name):
    [task] = select_tasks(chosen(folder, name))
    plain = mteb.evaluate(
        model, task, cache=None, show_progress_bar=False, co2_tracker=False
    ).task_results[0]
    frame = scored[0]
    [row] = frame[(frame["task"] == name) & (frame["width"] == 32)].to_dict("records")
    assert row["value"] == pytest.approx(plain.get_score(), abs=1e-6)
    assert 0.02 < row["value"] < 1.0, "the comparison says nothing at the extremes"


MOCKS = (
    "MockBitextMiningTask", "MockClassificationTask", "MockInstructionReranking",
    "MockInstructionRetrieval", "MockMultilabelClassification", "MockMultilingualBitextMiningTask",
    "MockMultilingualPairClassificationTask", "MockMultilingualSTSTask", "MockRegressionTask",
    "MockRetrievalDialogTask", "MockSummarizationTask", "MockTextZeroShotClassificationTask",
    "MockAggregatedTask",
)  # fmt: skip


@pytest.mark.parametrize("name", MOCKS)
def test_tasks_of_every_other_kind_score_as_in_plain_mteb(model, name):
    from mteb.mocks import mock_tasks

    def main(encoder):
        task = getattr(mock_tasks, name)()
        found = mteb.evaluate(encoder, task, cache=None, show_progress_bar=False, co2_tracker=False)
        return task, found.task_results[0].get_score()

    task, expected = main(model)
    texts = RememberedTexts(model, 4_096, show_progress=False)
    evaluated = EvaluatedModel(texts, describe(model), "reference")
    frame, [narrow, full] = score_tasks(
        {"reference": evaluated}, [task], WIDTHS, show_progress=False
    )
    assert full.result.get_score() == pytest.approx(expected, abs=1e-6)
    assert frame["n"].gt(0).all()
    assert narrow.model.experiment_name == "embed_dim_8"


def test_a_narrower_width_equals_plain_mteb_with_a_truncated_model(model, folder, scored):
    cut = tiny_copy(model)
    [task] = select_tasks(chosen(folder, "STS12"))
    plain = mteb.evaluate(cut, task, cache=None, show_progress_bar=False, co2_tracker=False)
    frame = scored[0]
    [value] = frame.loc[(frame["task"] == "STS12") & (frame["width"] == 8), "value"]
    assert value == pytest.approx(plain.task_results[0].get_score(), abs=1e-6)


def tiny_copy(model):
    from copy import copy

    cut = copy(model)
    cut.truncate_dim = 8
    return cut


def test_every_text_is_encoded_once_for_all_widths(scored):
    _, _, embed = scored
    assert len(embed.encoded) == len(set(embed.encoded))
    assert set(embed.encoded) == set(embed.asked)
    assert len(embed.asked) >= len(WIDTHS) * len(embed.encoded)


def test_vectors_in_the_store_are_not_encoded_again(model, tmp_path, monkeypatch):
    space = EmbeddingStore(tmp_path).space(model)
    texts = ["card", "money", "card"]
    first = RememberedTexts(model, 4_096, space=space, show_progress=False)(texts, "Q ")
    monkeypatch.setattr(batching, "encode", lambda *a, **k: pytest.fail("encoded"))
    again = RememberedTexts(model, 4_096, space=space, show_progress=False)
    np.testing.assert_array_equal(again(texts, "Q "), first)
    again.forget()
    np.testing.assert_array_equal(again(texts, "Q "), first)
    assert again([], "Q ").shape == (0, 32)


def test_rows_have_the_columns_of_the_scores_and_the_revision(scored):
    frame, _, _ = scored
    assert list(frame.columns) == list(MTEB_COLUMNS)
    own = frame[frame["task"] != "mean"]
    assert set(own["task"]) == set(OWN_TASKS)
    assert set(own["revision"]) == {"local"}
    assert set(own["type"]) == {
        "classification", "sts", "pair_classification", "retrieval", "reranking", "summarization",
    }  # fmt: skip
    assert all(METRIC_NAME.fullmatch(metric) for metric in frame["metric"])
    assert not own.duplicated(["model", "task", "width"]).any()
    counts = own.drop_duplicates("task").set_index("task")["n"]
    assert counts["SciFact"] == 30
    assert counts["Banking77Classification"] == 40


def test_the_mean_is_that_of_the_tasks(scored):
    frame, _, _ = scored
    for width in WIDTHS:
        at = frame[frame["width"] == width]
        own = at.loc[at["task"] != "mean", "value"]
        [mean] = at.loc[at["task"] == "mean", "value"]
        assert mean == pytest.approx(own.mean(), abs=1e-12)


def test_scores_do_not_depend_on_the_order_of_the_widths(model, folder, scored, caplog, recwarn):
    embed = RememberedTexts(model, 4_096, show_progress=False)
    frame, _ = score_tasks(
        {"reference": EvaluatedModel(embed, describe(model), "reference")},
        select_tasks(chosen(folder, "Banking77Classification")),
        WIDTHS[::-1],
        show_progress=False,
    )
    said = "mteb's task 'Banking77Classification' is superseded by 'Banking77Classification.v2'"
    assert caplog.text.count(said) == 1
    assert not [warned for warned in recwarn if "superseded" in str(warned.message)]
    first = scored[0]
    for width in WIDTHS:
        [again] = frame.loc[(frame["width"] == width) & (frame["task"] != "mean"), "value"]
        rows = (first["task"] == "Banking77Classification") & (first["width"] == width)
        assert [again] == first.loc[rows, "value"].tolist()


def test_the_pinned_revision_is_that_of_mteb_unless_one_is_given():
    [task] = select_tasks(MtebParameters(tasks=["STS12"]))
    assert task.metadata.revision == mteb.get_task("STS12").metadata.revision
    [task] = select_tasks(MtebParameters(tasks=["STS12"], revisions={"STS12": "abc"}))
    assert task.metadata.revision == "abc"
    assert mteb.get_task("STS12").metadata.revision != "abc"


def test_a_benchmark_gives_its_tasks_each_once():
    names = [t.metadata.name for t in mteb.get_benchmark("ChemTEB").tasks]
    tasks = select_tasks(MtebParameters(tasks=[names[-1]], benchmark="ChemTEB"))
    assert sorted(task.metadata.name for task in tasks) == sorted(set(names))
    assert tasks[0].metadata.name == names[-1]


@pytest.mark.parametrize("name", ["MTEB(Code, v1)", "ChemTEB"])
def test_the_benchmarks_of_the_presets_can_be_chosen(name):
    assert select_tasks(MtebParameters(benchmark=name))


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({"tasks": ["Bankin77Classification"]}, "did you mean Banking77Classification"),
        ({"tasks": ["nothing of this kind at all"]}, "is not a task of mteb"),
        ({"tasks": ["STS12", "STS12"]}, "tasks: STS12 is named twice"),
        ({"benchmark": "MTEB(Cod, v1)"}, "did you mean MTEB(Code, v1)"),
        ({"tasks": ["STS12"], "revisions": {"STS13": "x"}}, "revisions: 'STS13' is not among"),
        ({"tasks": ["STS12"], "languages": ["deu"]}, "languages: "),
        ({"tasks": ["CIFAR10"]}, "CIFAR10 is not about text alone"),
        ({"task": ["STS12"]}, "unknown parameter; allowed: tasks, benchmark"),
    ],
)
def test_what_cannot_be_chosen_is_refused_with_the_parameters(own, expected):
    with pytest.raises(ParameterError) as caught:
        check_parameters({"evaluation": {"mteb": own}})
    assert "evaluation.mteb" in str(caught.value)
    assert expected in str(caught.value)


def test_tasks_without_data_are_all_named_with_what_to_do(tmp_path):
    tasks = select_tasks(MtebParameters(tasks=["STS12", "SciFact"]))
    with pytest.raises(DataError) as caught:
        require_data(tasks)
    message = str(caught.value)
    for part in (
        "mteb's task 'STS12' has no data: mteb/sts12-sts at the revision",
        tasks[0].metadata.revision,
        "'SciFact'",
        "HF_HOME",
        "evaluation.mteb.folder",
    ):
        assert part in message


def test_data_in_a_folder_need_no_hub(folder, monkeypatch):
    monkeypatch.setattr(mteb_tasks, "_answers", lambda address: pytest.fail("asked the hub"))
    require_data(select_tasks(chosen(folder, *OWN_TASKS)))


def plant(root, revision):
    """Put STS12 into the cache of `datasets`, as if it had been loaded from the hub."""
    place = root / "mteb___sts12-sts/default/0.0.0" / revision
    rows = {"sentence1": ["card", "money"], "sentence2": ["bank", "money"], "score": [1.0, 5.0]}
    data = datasets.Dataset.from_dict(rows)
    data.save_to_disk(place)
    (place / "data-00000-of-00001.arrow").rename(place / "sts12-sts-test.arrow")
    info = {
        "builder_name": "json",
        "dataset_name": "sts12-sts",
        "config_name": "default",
        "version": {"version_str": "0.0.0", "major": 0, "minor": 0, "patch": 0},
        "features": data.features.to_dict(),
        "splits": {"test": {"name": "test", "num_examples": 2, "dataset_name": "sts12-sts"}},
    }
    (place / "dataset_info.json").write_text(json.dumps(info))


def test_without_a_hub_its_local_cache_is_used_and_the_hub_asked_once(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    asked = []
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(mteb_tasks, "_answers", asked.append)
    [task] = select_tasks(MtebParameters(tasks=["STS12"]))
    plant(tmp_path, task.metadata.revision)
    require_data([task])
    assert len(asked) == 1
    mteb_tasks.load(task)
    assert task.dataset["test"]["score"][:] == [1.0, 5.0]
    assert datasets.config.HF_HUB_OFFLINE is False


def test_another_revision_in_the_local_cache_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr(mteb_tasks, "_answers", lambda address: False)
    [task] = select_tasks(MtebParameters(tasks=["STS12"]))
    plant(tmp_path, "0" * 40)
    for check in (require_data, lambda tasks: mteb_tasks.load(tasks[0])):
        with pytest.raises(DataError, match=f"'STS12' has no data.*holds the revision {'0' * 40}"):
            check([task])
    [task] = select_tasks(MtebParameters(tasks=["STS12"], revisions={"STS12": "0" * 40}))
    require_data([task])


def test_reranking_without_candidates_is_refused(folder, tmp_path):
    place = tmp_path / OWN_TASKS["AskUbuntuDupQuestions"]
    shutil.copytree(folder / OWN_TASKS["AskUbuntuDupQuestions"], place)
    card = (place / "README.md").read_text()
    (place / "README.md").write_text(card.partition("- config_name: top_ranked")[0] + "---\n")
    [task] = select_tasks(chosen(tmp_path, "AskUbuntuDupQuestions"))
    for check in (require_data, lambda tasks: mteb_tasks.load(tasks[0])):
        with pytest.raises(DataError, match="which documents are the candidates of a query"):
            check([task])


def test_an_aggregate_is_all_of_its_tasks_and_their_revisions_can_be_set():
    own = MtebParameters(
        tasks=["CQADupstackRetrieval"], revisions={"CQADupstackEnglishRetrieval": "abc"}
    )
    [task] = select_tasks(own)
    found = {part.metadata.name: part.metadata.revision for part in mteb_tasks.parts(task)}
    assert len(found) == 12
    assert found["CQADupstackEnglishRetrieval"] == "abc"
    pinned = mteb.get_task("CQADupstackEnglishRetrieval").metadata.revision
    assert pinned != "abc"


def test_a_broken_folder_is_named_when_the_task_is_loaded(tmp_path):
    place = tmp_path / OWN_TASKS["SciFact"]
    place.mkdir(parents=True)
    (place / "corpus.jsonl").write_text('{"_id": "d1", "text": "x"}\n')
    [task] = select_tasks(chosen(tmp_path, "SciFact"))
    with pytest.raises(DataError, match="mteb's task 'SciFact' has no data"):
        mteb_tasks.load(task)


@pytest.mark.parametrize(
    ("prompts", "kind", "expected"),
    [
        ({}, None, ""),
        ({"query": "Q ", "document": "D "}, mteb.types.PromptType.query, "Q "),
        ({"query": "Q ", "document": "D "}, mteb.types.PromptType.document, "D "),
        ({"query": "Q ", "passage": "P "}, mteb.types.PromptType.document, "P "),
        ({"query": "Q ", "document": "D "}, None, ""),
        ({"STS": "S ", "query": "Q "}, None, "S "),
        ({"STS12": "T ", "STS": "S "}, mteb.types.PromptType.query, "T "),
        ({"STS12-query": "A ", "STS12": "T "}, mteb.types.PromptType.query, "A "),
        ({"query": None}, mteb.types.PromptType.query, ""),
    ],
)
def test_prompts_are_chosen_as_mteb_and_sentence_transformers_do(prompts, kind, expected):
    assert mteb_prompt(prompts, mteb.get_task("STS12").metadata, kind) == expected


def test_the_default_prompt_of_a_model_is_the_last_resort():
    metadata = mteb.get_task("STS12").metadata
    assert mteb_prompt({"mine": "M "}, metadata, None, "mine") == "M "


def test_the_encoder_follows_the_protocol_of_mteb():
    encoder = PrefixEncoder(lambda texts, prompt: np.zeros((len(texts), 4)), {}, 2, None)
    assert isinstance(encoder, EncoderProtocol)


def test_types_are_spelt_as_in_this_project():
    assert snake_case("PairClassification") == "pair_classification"
    assert snake_case("STS") == "sts"


def test_results_are_read_by_mteb_as_they_were_written(tmp_path, scored):
    _, results, _ = scored
    writer = ResultCache(tmp_path)
    for item in results:
        writer.save_to_cache(item.result, item.model)
    found = ResultCache(tmp_path).load_results(include_remote=False, load_experiments="match_name")
    assert {r.experiment_name for r in found.model_results} == {None, "embed_dim_8"}
    frame = scored[0]
    for result in found.model_results:
        width = 8 if result.experiment_name else 32
        at = frame[frame["width"] == width].set_index("task")["value"]
        assert {r.task_name for r in result.task_results} == set(OWN_TASKS)
        for task in result.task_results:
            assert task.get_score() == pytest.approx(at[task.task_name], abs=2e-6)
