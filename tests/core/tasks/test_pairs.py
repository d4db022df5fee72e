from __future__ import annotations

import json

import pandas as pd
import pytest

from domain_embeddings.core.errors import DataError
from domain_embeddings.core.tasks.pairs import PAIR_COLUMNS, build_pairs, select_evaluation
from domain_embeddings.core.tasks.records import Record, concat_records, records_frame
from domain_embeddings.core.tasks.spec import parse_specs

FILES = {"train": "train.csv", "dev": "dev.csv", "test": "test.csv"}


def specs(*raw):
    tasks = [{"name": f"task_{number}", "files": FILES, **item} for number, item in enumerate(raw)]
    return {spec.name: spec for spec in parse_specs(tasks)}


def built(kind, records, seed=0, max_pairs=None, **fields):
    frame = records_frame("task_0", records)
    return build_pairs(frame, specs({"type": kind, **fields}), seed=seed, max_pairs=max_pairs)


def sides(table):
    return list(zip(table["anchor"], table["positive"], strict=True))


def labelled(*rows):
    return [Record("train", f"t:{n}", text, label=label) for n, (text, label) in enumerate(rows)]


def paired(*rows, **fields):
    return [Record("train", f"t:{n}", a, b, **fields) for n, (a, b) in enumerate(rows)]


def scored(*rows):
    return [Record("train", f"t:{n}", a, b, score=s) for n, (a, b, s) in enumerate(rows)]


def query(text, document, score=1.0):
    return Record("train", "t:1", text, document, None, score, f"q_{text}", f"d_{document}")


@pytest.mark.parametrize("kind", ["classification", "clustering"])
def test_a_text_is_paired_with_the_description_of_its_label(kind):
    rows = labelled(("hi", "say_hello"), ("bye", "leave"))
    table, _ = built(kind, rows, label_text={"leave": "The person goes"})
    assert sides(table) == [("hi", "say hello"), ("bye", "The person goes")]
    assert table["label"].tolist() == ["say_hello", "leave"]


def test_a_text_is_paired_once_with_each_of_its_labels():
    rows = labelled(("both", '["say_hello", "leave"]'), ("bye", '["leave"]'), ("none", "[]"))
    table, report = built("multilabel", rows, label_text={"leave": "The person goes"})
    assert sides(table) == [
        ("both", "say hello"),
        ("both", "The person goes"),
        ("bye", "The person goes"),
    ]
    assert table["label"].tolist() == ["say_hello", "leave", "leave"]
    assert report["tasks"]["task_0"]["dropped"] == {"no label applies": 1}
    assert report["tasks"]["task_0"]["labels"] == 2


def test_texts_that_share_one_of_their_labels_are_paired():
    rows = labelled(("ab", '["a", "b"]'), ("a", '["a"]'), ("b", '["b"]'), ("c", '["c"]'))
    table, report = built("multilabel", rows, pairing="same_label")
    found = {frozenset(pair) for pair in sides(table)}
    assert found == {frozenset({"ab", "a"}), frozenset({"ab", "b"})}
    assert report["tasks"]["task_0"]["dropped"]["only text of its label"] == 1


def test_probe_rows_hold_enough_of_every_label_of_several():
    train = labelled(*((f"text {n}", json.dumps(["a", "b"][: 1 + n % 2])) for n in range(60)))
    frame = records_frame("task_0", [*train, Record("test", "t:1", "x", label='["a"]')])
    chosen = select_evaluation(frame, specs({"type": "multilabel"}), "test", 2)
    probe = chosen[chosen["split"] == "train"]
    assert 8 <= len(probe) <= 16
    assert sum("b" in text for text in probe["label"]) == 8
    assert sum("a" in text for text in probe["label"]) >= 8


def test_descriptions_of_unknown_labels_are_reported():
    rows = labelled(("hi", "a"), ("bye", "b"))
    _, report = built("clustering", rows, label_text={"c": "x"})
    assert report["tasks"]["task_0"]["label_text_without_rows"] == ["c"]


def test_same_label_pairs_stay_within_a_label_and_use_every_text():
    rows = labelled(*[(f"text {n}", f"label {n % 3}") for n in range(30)], ("lone", "z"))
    table, report = built("classification", rows, pairing="same_label")
    label_of = {record.text: record.label for record in rows}
    assert all(label_of[anchor] == label_of[positive] for anchor, positive in sides(table))
    assert set(table["anchor"]) == set(table["positive"]) == {f"text {n}" for n in range(30)}
    assert report["tasks"]["task_0"]["dropped"] == {"only text of its label": 1}


def test_two_texts_of_a_label_give_one_pair_and_not_its_mirror():
    table, report = built(
        "classification",
        labelled(("a", "x"), ("b", "x"), ("c", "y"), ("d", "y")),
        pairing="same_label",
    )
    assert len(table) == 2
    assert report["tasks"]["task_0"]["dropped"] == {"repeats another pair": 2}


def test_several_relevant_documents_give_several_pairs():
    table, _ = built("retrieval", [query("q", "d1"), query("q", "d2", 2.0), query("r", "d1")])
    assert sides(table) == [("q", "d1"), ("q", "d2"), ("r", "d1")]
    assert table["label"].isna().all()


def test_documents_of_relevance_0_are_negatives_of_their_query():
    rows = [query("q", "d"), query("q", "n1", 0.0), query("r", "e"), query("s", "n2", 0.0)]
    table, report = built("reranking", rows)
    assert table["negatives"].tolist() == [["n1"], []]
    assert report["tasks"]["task_0"]["with_negatives"] == 1
    assert report["tasks"]["task_0"]["dropped"] == {
        "not relevant (kept as a negative)": 1,
        "query without a relevant document": 1,
    }


def test_a_negative_that_equals_the_positive_is_not_one():
    table, _ = built("retrieval", [query("q", "d"), query("q", "D.", 0.0), query("r", "e")])
    assert table["negatives"].tolist() == [[], []]


def test_only_positive_pairs_train():
    rows = paired(("a", "b"), ("c", "d"), label="1") + paired(("e", "f"), label="0")
    table, report = built("pair_classification", rows)
    assert sides(table) == [("a", "b"), ("c", "d")]
    assert report["tasks"]["task_0"]["dropped"] == {"label 0": 1}


def test_sts_keeps_the_upper_fifth_of_the_range_by_default():
    rows = scored(*[(f"a{n}", f"b{n}", n / 2) for n in range(11)])
    table, report = built("sts", rows)
    assert report["tasks"]["task_0"]["positive_score"] == pytest.approx(4.0)
    assert sides(table) == [("a8", "b8"), ("a9", "b9"), ("a10", "b10")]


def test_positive_score_can_be_given():
    rows = scored(("a", "b", 0.1), ("c", "d", 0.5), ("e", "f", 0.9))
    table, _ = built("sts", rows, positive_score=0.5)
    assert sides(table) == [("c", "d"), ("e", "f")]


def test_bitext_pairs_are_all_kept_and_summaries_without_scores_too():
    rows = paired(("a", "b"), ("c", "d"))
    assert sides(built("bitext_mining", rows)[0]) == [("a", "b"), ("c", "d")]
    assert sides(built("summarization", rows)[0]) == [("a", "b"), ("c", "d")]


def test_unlabelled_text_is_its_own_positive():
    table, _ = built("unlabelled", [Record("train", "t:1", "a"), Record("train", "t:2", "b")])
    assert sides(table) == [("a", "a"), ("b", "b")]


def test_equal_sides_and_repeated_pairs_are_dropped_and_counted():
    rows = paired(("a", "A."), ("b", "c"), ("C", "b"), ("d", "e"))
    table, report = built("bitext_mining", rows)
    assert sides(table) == [("b", "c"), ("d", "e")]
    assert report["tasks"]["task_0"]["dropped"] == {
        "both sides equal": 1,
        "repeats another pair": 1,
    }


def test_the_report_counts_and_measures():
    _, report = built("bitext_mining", paired(("aa", "bbb"), ("cccc", "ddddd")))
    assert report["total"] == 2
    assert report["tasks"]["task_0"] == {
        "type": "bitext_mining",
        "pairs": 2,
        "dropped": {},
        "mean_anchor_characters": 3.0,
        "mean_positive_characters": 4.0,
        "with_negatives": 0,
        "labels": 0,
    }
    json.dumps(report)


def test_the_table_has_the_columns_and_types_of_the_contract(tmp_path):
    table, _ = built("bitext_mining", paired(("a", "b"), ("c", "d")))
    assert {name: str(kind) for name, kind in table.dtypes.items()} == PAIR_COLUMNS
    assert table["pair_id"].tolist() == [0, 1]
    table.to_parquet(tmp_path / "p.parquet")
    again = pd.read_parquet(tmp_path / "p.parquet")
    assert [list(item) for item in again["negatives"]] == [[], []]


def test_the_limit_keeps_order_and_follows_the_seed():
    rows = paired(*[(f"a {n}", f"b {n}") for n in range(50)])
    first, report = built("bitext_mining", rows, seed=1, max_pairs=10)
    again, _ = built("bitext_mining", rows, seed=1, max_pairs=10)
    other, _ = built("bitext_mining", rows, seed=2, max_pairs=10)
    pd.testing.assert_frame_equal(first, again)
    assert set(first["anchor"]) != set(other["anchor"])
    numbers = [int(text.split()[1]) for text in first["anchor"]]
    assert numbers == sorted(numbers)
    assert report["tasks"]["task_0"]["dropped"] == {"max_pairs_per_task": 40}


def test_same_label_pairs_follow_the_seed():
    rows = labelled(*[(f"text {n}", "x") for n in range(20)], *[(f"other {n}", "y") for n in "ab"])
    tables = [built("classification", rows, seed=s, pairing="same_label")[0] for s in (1, 1, 2)]
    pd.testing.assert_frame_equal(tables[0], tables[1])
    assert sides(tables[0]) != sides(tables[2])


def test_held_out_rows_and_tasks_that_only_evaluate_give_no_pairs():
    rows = paired(("a", "b"), ("c", "d"))
    test = [Record("test", "t:9", "x", "y")]
    frame = concat_records([records_frame(f"task_{n}", rows + test) for n in range(2)])
    table, report = build_pairs(
        frame, specs({"type": "bitext_mining"}, {"type": "bitext_mining", "uses": ["evaluate"]})
    )
    assert set(table["task"]) == {"task_0"}
    assert "x" not in set(table["anchor"])
    assert list(report["tasks"]) == ["task_0"]


def test_fewer_than_two_pairs_are_refused_with_the_reasons():
    rows = paired(("a", "b"), label="1") + paired(("e", "f"), label="0")
    with pytest.raises(DataError, match=r"1 training pairs in all.*'label 0': 1"):
        built("pair_classification", rows)


def evaluation_records():
    train = labelled(*[(f"train {n}", "xy"[n % 2]) for n in range(100)])
    held_out = [
        Record(split, "t:1", f"{split} {n}", label="xy"[n % 2])
        for split in ("dev", "test")
        for n in range(4)
    ]
    corpus = [query("q", "d"), Record("test", "c:1", "q2", "d2"), Record("test", "c:2", None, "d3")]
    return concat_records(
        [records_frame("task_0", train + held_out), records_frame("task_1", corpus)]
    )


def test_evaluation_takes_one_split_the_corpus_and_a_few_probe_rows():
    records = evaluation_records()
    frame = select_evaluation(
        records, specs({"type": "classification"}, {"type": "retrieval"}), "test", 2
    )
    assert frame.groupby(["task", "split"]).size().to_dict() == {
        ("task_0", "test"): 4,
        ("task_0", "train"): 16,
        ("task_1", "test"): 2,
    }
    probe = frame[(frame["split"] == "train")]
    assert probe["label"].value_counts().to_dict() == {"x": 8, "y": 8}
    assert frame["text2"].dropna().tolist() == ["d2", "d3"]


def test_a_task_without_the_split_is_refused_with_the_ways_out():
    with pytest.raises(DataError) as caught:
        select_evaluation(
            evaluation_records(), specs({"type": "classification"}, {"type": "retrieval"}), "dev", 2
        )
    assert str(caught.value) == (
        "Task 'task_1' has no rows in split 'dev', which 'evaluation.split' asks for (dev.csv). "
        "Give it rows, choose another split, or set 'uses: [train]'."
    )
