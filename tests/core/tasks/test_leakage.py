from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain_embeddings.core.errors import DataError
from domain_embeddings.core.tasks.leakage import find_leakage, without_leakage
from domain_embeddings.core.tasks.records import Record, concat_records, records_frame
from domain_embeddings.core.tasks.spec import parse_specs


def specs(**types):
    files = {"train": "train.csv", "dev": "dev.csv", "test": "test.csv"}
    raw = [{"name": name, "type": kind, "files": files} for name, kind in types.items()]
    return {spec.name: spec for spec in parse_specs(raw)}


def frame(**tasks):
    return concat_records(
        records_frame(
            name,
            [
                Record(split, f"{name}_{split}.csv:{line}", *texts)
                for line, (split, *texts) in enumerate(rows, start=1)
            ],
        )
        for name, rows in tasks.items()
    )


def leaking(report):
    return {name: task["train_rows"] for name, task in report["tasks"].items()}


@pytest.mark.parametrize("other", ["my card", "My  CARD.", '"My card?"', "\tmy card\n"])
@pytest.mark.parametrize("split", ["dev", "test"])
def test_planted_overlap_is_found_with_the_origin_of_both_rows(split, other):
    records = frame(a=[("train", "fine"), ("train", "My card"), (split, other), (split, "new")])
    report = find_leakage(records, specs(a="classification"))
    assert report["total"] == 1
    assert report["tasks"]["a"] == {
        "train_rows": [1],
        "by_held_out": {f"a/{split}": 1},
        "shared_texts": 0,
        "examples": [
            {
                "task": "a",
                "train": "a_train.csv:2",
                "held_out_task": "a",
                "split": split,
                "held_out": f"a_{split}.csv:3",
                "text": "My card",
            }
        ],
    }
    json.dumps(report)


@pytest.mark.parametrize("kind", ["sts", "pair_classification", "bitext_mining"])
def test_swapped_sides_of_a_pair_are_found_and_one_shared_side_is_information(kind):
    records = frame(a=[("train", "a", "b"), ("train", "a", "c"), ("test", "B.", "A")])
    report = find_leakage(records, specs(a=kind))
    assert leaking(report) == {"a": [0]}
    assert report["tasks"]["a"]["shared_texts"] == 2


def test_a_query_is_leakage_and_a_shared_document_is_information():
    records = frame(
        a=[
            ("train", "Ask me?", "doc 1"),
            ("train", "other", "doc 2"),
            ("train", "third", "far"),
            ("test", "ask me", "doc 3"),
            ("test", "new", "doc 2"),
            ("test", None, "far"),
        ]
    )
    report = find_leakage(records, specs(a="retrieval"))
    assert leaking(report) == {"a": [0]}
    assert report["tasks"]["a"]["shared_texts"] == 2


def test_overlap_across_tasks_is_found():
    records = frame(
        a=[("train", "one"), ("train", "two"), ("test", "three")],
        b=[("train", "x", "three"), ("train", "x", "y"), ("test", "Two", "z"), ("test", "y", "X")],
        c=[("train", "ask", "three"), ("train", "one", "doc"), ("test", "q", "d")],
    )
    report = find_leakage(records, specs(a="clustering", b="sts", c="retrieval"))
    # a is no pair of b; b trains on a side that a tests, and on its own swapped pair; a document
    # of c that a tests is shared only.
    assert leaking(report) == {"a": [], "b": [0, 1], "c": []}
    assert report["tasks"]["b"]["by_held_out"] == {"a/test": 1, "b/test": 1}
    assert report["tasks"]["c"]["shared_texts"] == 0


def test_probe_rows_of_an_evaluated_task_reach_no_other_task():
    types = specs(a="classification", b="classification")
    types["a"] = types["a"].model_copy(update={"uses": ["evaluate"]})
    records = frame(
        a=[("train", "b test"), ("train", "a test"), ("test", "a test")],
        b=[("train", "fine"), ("test", "b test")],
    )
    assert leaking(find_leakage(records, types)) == {"a": [1], "b": []}


def test_a_task_that_is_not_evaluated_has_no_held_out_rows():
    types = specs(a="classification")
    types["a"] = types["a"].model_copy(update={"uses": ["train"]})
    assert find_leakage(frame(a=[("train", "x"), ("test", "x")]), types)["total"] == 0


def leaky():
    records = frame(
        a=[("train", f"text {n}") for n in range(8)] + [("test", f"Text {n}") for n in range(7)]
    )
    return records, find_leakage(records, specs(a="clustering"))


def test_stop_names_the_first_examples_and_how_to_continue():
    records, report = leaky()
    with pytest.raises(DataError) as caught:
        without_leakage(records, report, "stop")
    message = str(caught.value)
    assert message.startswith("7 training rows are also in a held-out split")
    assert "a_train.csv:1 (train of 'a') repeats a_test.csv:9 (test of 'a'): 'text 0'" in message
    assert "... and 2 more" in message
    assert "'curation.leakage: drop'" in message


def test_drop_removes_exactly_the_training_rows():
    records, report = leaky()
    kept, removed = without_leakage(records, report, "drop")
    assert removed == {"a": 7}
    assert kept.loc[kept["split"] == "train", "text"].tolist() == ["text 7"]
    assert (kept["split"] == "test").sum() == 7
    assert find_leakage(kept, specs(a="clustering"))["total"] == 0


def test_allow_keeps_everything():
    records, report = leaky()
    kept, removed = without_leakage(records, report, "allow")
    assert len(kept) == len(records)
    assert removed == {}


def test_stop_lets_clean_records_pass():
    records = frame(a=[("train", "x"), ("test", "y")])
    report = find_leakage(records, specs(a="clustering"))
    assert len(without_leakage(records, report, "stop")[0]) == 2


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from("abcdef"), min_size=1),
    st.lists(st.sampled_from("abcdef"), min_size=1),
)
def test_rows_found_are_those_of_a_plain_double_loop(train, test):
    records = frame(a=[("train", t) for t in train] + [("test", t.upper() + "!") for t in test])
    expected = [number for number, text in enumerate(train) if text in test]
    assert leaking(find_leakage(records, specs(a="clustering"))) == {"a": expected}
