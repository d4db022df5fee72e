from __future__ import annotations

import pytest

from domain_embeddings.core.errors import DataError
from domain_embeddings.core.tasks.curation import curate
from domain_embeddings.core.tasks.records import Record, concat_records, records_frame
from domain_embeddings.core.tasks.spec import load_specs, parse_specs

FILES = {"train": "train.csv", "dev": "dev.csv", "test": "test.csv"}


def spec(task_type="classification", **fields):
    raw = {"name": "mine", "type": task_type, "files": FILES, **fields}
    return load_specs(item.model_dump(mode="json") for item in parse_specs([raw]))


def single(split, *rows):
    return [
        Record(split, f"{split}.csv:{line}", text, label=label)
        for line, (text, label) in enumerate(rows, start=2)
    ]


def pairs(split, *rows, label=None, score=float("nan")):
    return [
        Record(split, f"{split}.csv:{line}", text, text2, label=label, score=score)
        for line, (text, text2) in enumerate(rows, start=2)
    ]


def run(specs, *groups, **options):
    records = [record for group in groups for record in group]
    return curate(records_frame("mine", records), specs, **options)


GOOD = single("train", ("a", "x"), ("b", "y"), ("c", "x"), ("d", "y"))
GOOD_TEST = single("test", ("e", "x"), ("f", "y"))


def test_clean_records_are_left_alone():
    frame, report = run(spec(), GOOD, GOOD_TEST)
    assert len(frame) == 6
    assert report["tasks"]["mine"]["train"] == {"read": 4, "kept": 4, "dropped": {}}


def test_duplicates_conflicts_and_lonely_labels_are_counted_by_split():
    more = single(
        "train", ("a ", "x"), ("odd", "x"), ("odd", "y"), ("lone", "z"), ("longer  one", "x")
    )
    held_out = single("test", ("g", "z"), ("h", "w"))
    frame, report = run(spec(), GOOD, more, GOOD_TEST, held_out)
    assert report["tasks"]["mine"]["train"]["dropped"] == {
        "same text with another label or score": 2,
        "duplicate": 1,
        "label with a single row": 1,
    }
    assert report["tasks"]["mine"]["test"]["dropped"] == {"label absent from training": 2}
    assert frame["text"].tolist() == ["a", "b", "c", "d", "longer  one", "e", "f"]


def test_texts_below_the_minimum_length_are_dropped():
    short = single(
        "train", ("  \u200a ab ", "x"), ("abc", "x"), ("abcd", "y"), ("abce", "y"), ("abcf", "x")
    )
    _, report = run(
        spec(), short, single("test", ("test 1", "x"), ("test 2", "y")), min_characters=3
    )
    assert report["tasks"]["mine"]["train"]["dropped"] == {"too short": 1}


def test_swapped_pairs_are_duplicates():
    rows = pairs("train", ("a", "b"), ("b", "a"), ("c", "d"), label="1")
    test = pairs("test", ("e", "f"), label="1") + pairs("test", ("e", "g"), label="0")
    _, report = run(spec("pair_classification"), rows, test)
    assert report["tasks"]["mine"]["train"]["dropped"] == {"duplicate": 1}


def test_a_pair_with_two_scores_is_a_conflict():
    rows = pairs("train", ("a", "b"), score=1) + pairs("train", ("b", "a"), score=2)
    rows += pairs("train", ("c", "d"), ("e", "f"), score=3)
    test = pairs("test", ("g", "h"), score=1) + pairs("test", ("i", "j"), score=2)
    frame, report = run(spec("sts"), rows, test)
    assert report["tasks"]["mine"]["train"]["dropped"]["same text with another label or score"] == 2
    assert len(frame) == 4


def test_a_query_and_its_documents_are_not_symmetric():
    rows = pairs("train", ("a", "b"), ("b", "a"), ("a", "c"), ("a", "b"), score=1)
    test = pairs("test", ("q", "d"), ("r", "e"), score=1)
    frame, report = run(spec("retrieval"), rows, test)
    assert report["tasks"]["mine"]["train"]["dropped"] == {"duplicate": 1}
    assert (frame["split"] == "train").sum() == 3


def test_repeated_distractors_are_dropped_and_not_the_relevant_document():
    test = [Record("test", "c:1", None, "d ", text2_id="x"), Record("test", "c:2", None, "e")]
    test += [Record("test", "c:3", None, "e")]
    test += pairs("test", ("q", "d"), ("r", "f"), score=1)
    frame, report = run(spec("retrieval", uses=["evaluate"]), test)
    assert report["tasks"]["mine"]["test"]["dropped"] == {"document already in the corpus": 2}
    assert frame["text2"].tolist() == ["e", "d", "f"]


def queries(split, *rows):
    return [
        Record(split, "t.csv:1", query, document, None, score, f"q_{query}", f"d_{document}")
        for query, document, score in rows
    ]


@pytest.mark.parametrize("task_type", ["retrieval", "reranking"])
def test_a_held_out_query_without_a_relevant_document_is_dropped_and_counted(task_type):
    test = queries(
        "test", ("a", "x", 1), ("a", "y", 0), ("b", "y", 0), ("b", "z", 0), ("c", "x", 1)
    )
    train = queries("train", ("d", "x", 1), ("e", "z", 0))
    frame, report = run(spec(task_type), train, test)
    held_out = frame[frame["split"] == "test"]
    assert set(held_out["text"].dropna()) == {"a", "c"}
    # The documents stay in the corpus, once.
    assert set(held_out["text2"]) == {"x", "y", "z"}
    assert report["tasks"]["mine"]["test"]["dropped"] == {
        "query without a relevant document": 1,
        "document already in the corpus": 1,
    }
    assert set(frame.loc[frame["split"] == "train", "text"]) == {"d", "e"}


@pytest.mark.parametrize(
    ("task_type", "groups", "expected"),
    [
        ("classification", [GOOD], "no test rows are left to evaluate (test.csv)"),
        ("classification", [GOOD_TEST], "no test rows are left to evaluate (test.csv)"),
        ("classification", [GOOD, single("test", ("e", "x"))], "one row only in split 'test' (t"),
        (
            "classification",
            [GOOD, single("test", ("e", "x"), ("f", "x"))],
            "one label only ('x') in split 'test' (test.csv)",
        ),
        (
            "clustering",
            [single("train", ("e", "x"), ("f", "x")), GOOD_TEST],
            "one label only ('x') in split 'train' (train.csv)",
        ),
        ("clustering", [GOOD_TEST], "no rows are left in split 'train' (train.csv)"),
        (
            "sts",
            [pairs("train", *"ab cd".split(), score=1), pairs("test", *"ab cd".split(), score=2)],
            "one score only (2) in split 'test' (test.csv)",
        ),
        (
            "pair_classification",
            [
                pairs("train", *"ab cd".split(), label="1"),
                pairs("test", *"ab cd".split(), label="1"),
            ],
            "one label only ('1') in split 'test' (test.csv)",
        ),
        (
            "multilabel",
            [
                single("train", ("a", '["x"]'), ("b", '["x"]')),
                single("test", ("c", '["x", "y"]'), ("d", "[]")),
            ],
            "one label only ('x') in split 'train' (train.csv)",
        ),
        (
            "multilabel",
            [
                single("train", ("a", '["x"]'), ("b", '["y"]')),
                single("test", ("c", "[]"), ("d", "[]")),
            ],
            "no label at all in split 'test' (test.csv)",
        ),
        (
            "classification",
            [GOOD, single("test", ("e", "z"), ("f", "z"))],
            "no test rows are left to evaluate (test.csv); dropped: 2 label absent from training",
        ),
        (
            "sts",
            [
                pairs("train", *"ab cd".split(), score=1),
                pairs("test", *"ab ab ef".split(), score=2),
            ],
            "one score only (2) in split 'test' (test.csv); dropped: 1 duplicate",
        ),
        (
            "retrieval",
            [pairs("train", *"ab cd".split(), score=1), pairs("test", *"ab cd".split(), score=0)],
            "no relevant document (score above 0) in split 'test' (test.csv)",
        ),
        (
            "retrieval",
            [pairs("train", *"ab cd".split(), score=0), pairs("test", *"ab cd".split(), score=1)],
            "no relevant document (score above 0) in split 'train' (train.csv)",
        ),
    ],
)
def test_a_task_that_cannot_be_used_is_refused_with_its_file(task_type, groups, expected):
    with pytest.raises(DataError) as caught:
        run(spec(task_type), *groups)
    assert f"Task 'mine': {expected}" in str(caught.value)


def test_every_unusable_task_is_listed():
    raw = [{"name": name, "type": "unlabelled", "files": {"train": f"{name}.csv"}} for name in "ab"]
    specs = load_specs(item.model_dump(mode="json") for item in parse_specs(raw))
    frame = concat_records([records_frame("a", []), records_frame("b", [])])
    with pytest.raises(DataError) as caught:
        curate(frame, specs)
    assert str(caught.value).split("\n") == [
        "Task 'a': no rows are left in split 'train' (a.csv)",
        "Task 'b': no rows are left in split 'train' (b.csv)",
    ]


def test_summaries_that_all_have_one_score_cannot_be_evaluated():
    rated = spec("summarization", columns={"score": "score"})
    train = pairs("train", "ab", "cd", score=1)
    with pytest.raises(DataError, match="no text with summaries of different scores in split 'te"):
        run(rated, train, pairs("test", "ab", "ac", "de", score=2))
    run(rated, train, pairs("test", "ab", score=2), pairs("test", "ac", score=3))
