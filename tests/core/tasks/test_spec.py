from __future__ import annotations

import pytest

from domain_embeddings.core.errors import ParameterError
from domain_embeddings.core.tasks.spec import (
    REQUIRED_COLUMNS,
    TASK_TYPES,
    load_specs,
    parse_specs,
)

FILES = {"train": "train.csv", "test": "test.csv"}


def one(**fields):
    return parse_specs([{"name": "tickets", "type": "classification", "files": FILES, **fields}])[0]


def problems(*tasks) -> str:
    with pytest.raises(ParameterError) as caught:
        parse_specs(list(tasks))
    return str(caught.value)


def test_a_short_entry_is_enough():
    spec = one()
    assert spec.uses == ["train", "evaluate"]
    assert (spec.column("text"), spec.column("label")) == ("text", "label")
    assert spec.source.splits() == ("train", "test")


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_every_type_has_default_columns_and_can_be_declared(task_type):
    spec = one(type=task_type)
    assert set(REQUIRED_COLUMNS[task_type]) <= set(spec.column_roles())


def test_json_form_reads_back_as_the_same_spec():
    tasks = [
        {"name": "tickets", "type": "classification", "files": FILES, "max_rows": {"train": 5}},
        {"name": "faq", "type": "retrieval", "files": "faq.jsonl", "columns": {"query": "q"}},
        {"name": "hub_set", "type": "sts", "hub": {"path": "a/b", "revision": "abc"}},
        {"name": "names", "builtin": "name_to_docstring"},
    ]
    specs = parse_specs(tasks)
    dumped = [spec.model_dump(mode="json") for spec in specs]
    assert list(load_specs(dumped).values()) == specs


def test_a_single_file_is_split_into_three():
    spec = one(files="all.csv")
    assert spec.source.splits() == ("train", "dev", "test")
    assert one(files={"all": "a.csv", "split": {"dev": 0, "test": 0.5}}).source.splits() == (
        "train",
        "test",
    )


def test_uses_follow_the_splits_that_are_given():
    assert one(type="sts", files={"test": "t.csv"}).uses == ["evaluate"]
    assert one(type="sts", files={"train": "t.csv"}).uses == ["train"]
    assert one(type="unlabelled").uses == ["train"]


def test_builtin_brings_type_and_descriptions_which_the_user_may_override():
    spec = parse_specs([{"name": "code", "builtin": "package_of_docstring", "max_rows": 7}])[0]
    assert spec.type == "classification"
    assert spec.label_text["numpy"].startswith("numpy")
    assert spec.row_limit("test") == 7


def test_all_problems_of_all_tasks_are_listed_at_once():
    message = problems(
        {"name": "Bad Name", "type": "classification", "files": FILES},
        {"name": "b", "type": "clasification", "files": FILES},
        {"name": "c", "type": "sts", "files": FILES, "wieght": 2},
        {"name": "d", "type": "sts", "files": FILES, "columns": {"text": "x"}},
        {"name": "e", "type": "sts", "files": FILES, "weight": -1},
        {"name": "f", "type": "sts", "files": FILES, "hub": {"path": "a"}},
        {"name": "g", "type": "sts", "files": {"train": "data.xlsx"}},
        {"name": "h", "files": FILES},
    )
    expected = [
        "raw_tasks.tasks[0].name: must be snake case",
        "raw_tasks.tasks[1].type: Input should be 'classification', 'multilabel'",
        "raw_tasks.tasks[2].wieght: unknown key; allowed: files, hub, builtin, name, type",
        "raw_tasks.tasks[3].columns.text: not a column of a sts task; allowed: text1, text2, score",
        "raw_tasks.tasks[4].weight: Input should be greater than or equal to 0 (got -1)",
        "raw_tasks.tasks[5].source: give exactly one of files, hub, builtin; got files, hub",
        "raw_tasks.tasks[6].files: 'data.xlsx' must end in one of .jsonl, .csv, .tsv, .parquet",
        "raw_tasks.tasks[7].type: is required; allowed: classification, multilabel",
    ]
    for line in expected:
        assert line in message


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"uses": ["evaluate"], "files": {"train": "a.csv"}}, "uses: 'evaluate' needs a dev or"),
        ({"uses": ["train"], "type": "sts", "files": {"test": "a.csv"}}, "uses: 'train' needs"),
        ({"files": {"test": "a.csv"}}, "uses: classification is evaluated by a probe"),
        ({"type": "unlabelled", "uses": ["evaluate"]}, "uses: an unlabelled task has nothing"),
        ({"positive_score": 4.0}, "positive_score: applies to sts, summarization only"),
        ({"type": "sts", "pairing": "same_label"}, "pairing: applies to classification"),
        ({"type": "sts", "label_text": {"a": "b"}}, "label_text: applies to classification"),
        ({"files": {**FILES, "corpus": "c.jsonl"}}, "corpus: applies to retrieval, reranking only"),
        ({"files": {**FILES, "all": "c.csv"}}, "files: give either files per split"),
        ({"files": {**FILES, "split": {"test": 0.5}}}, "files: 'split' applies to 'all' only"),
        ({"files": {"relevance": {"test": "q.tsv"}}}, "files: 'queries' and 'relevance' go"),
        ({"files": {"all": "a.csv", "split": {"dev": 0.5, "test": 0.5}}}, "files.split: dev + tes"),
        ({"files": {**FILES, "trian": "a.csv"}}, "files.trian: unknown key; allowed: train, dev"),
        ({"max_rows": 0}, "max_rows: Input should be greater than or equal to 1"),
        ({"name": "mean"}, "name: 'mean' is a row of the score tables"),
        ({"name": "a" * 61}, "name: must be snake case"),
        ({"prompts": {"qury": "q: "}}, "prompts.qury: unknown key; allowed: query, document"),
    ],
)
def test_a_bad_entry_is_refused_with_its_key(fields, expected):
    task = {"name": "tickets", "type": "classification", "files": FILES, **fields}
    assert f"raw_tasks.tasks[0].{expected}" in problems(task)


def test_names_must_differ():
    task = {"name": "a", "type": "sts", "files": FILES}
    message = problems(task, task)
    assert "raw_tasks.tasks[0].name: 'a' is used more than once" in message
    assert "raw_tasks.tasks[1].name: 'a' is used more than once" in message


def test_unknown_builtin_is_refused_with_the_known_ones():
    message = problems({"name": "a", "builtin": "code"})
    assert "raw_tasks.tasks[0].builtin.task: Input should be 'docstring_to_code'" in message


@pytest.mark.parametrize("raw", [None, [], {}, "tasks"])
def test_a_list_of_tasks_is_required(raw):
    with pytest.raises(ParameterError, match=r"raw_tasks.tasks: must be a list"):
        parse_specs(raw)


def test_a_task_that_is_not_a_mapping_is_refused():
    assert "raw_tasks.tasks[0]" in problems("tickets")


def test_summaries_without_scores_are_for_training_only():
    assert one(type="summarization").uses == ["train"]
    assert one(type="summarization", columns={"score": "s"}).uses == ["train", "evaluate"]
    task = {"name": "sums", "type": "summarization", "files": FILES, "uses": ["train", "evaluate"]}
    assert "uses: summarization is evaluated on the scores of summaries" in problems(task)


def test_several_labels_need_training_rows_for_their_probe():
    task = {"name": "tags", "type": "multilabel", "files": {"test": "test.csv"}}
    assert "multilabel is evaluated by a probe on training rows" in problems(task)
