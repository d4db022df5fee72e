from __future__ import annotations

import json

import pandas as pd
import pytest

from domain_embeddings.core.errors import DataError
from domain_embeddings.core.tasks.records import RECORD_COLUMNS, RawTasks
from domain_embeddings.core.tasks.spec import REQUIRED_COLUMNS, parse_specs


def read(root, **task):
    specs = parse_specs([{"name": "mine", **task}])
    return RawTasks(tuple(specs), root).read()


def write(folder, name, rows):
    path = folder / name
    if name.endswith(".jsonl"):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif name.endswith(".parquet"):
        pd.DataFrame(rows).to_parquet(path)
    else:
        sep = "\t" if name.endswith(".tsv") else ","
        pd.DataFrame(rows, dtype="object").to_csv(path, index=False, sep=sep)
    return name


STS = [{"text1": f"a {n}", "text2": f"b {n}", "score": n / 4, "unused": n} for n in range(5)]


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet"])
def test_every_format_gives_the_same_records(tmp_path, suffix):
    expected, _ = read(tmp_path, type="sts", files={"train": write(tmp_path, "t.jsonl", STS)})
    found, _ = read(tmp_path, type="sts", files={"train": write(tmp_path, f"t.{suffix}", STS)})
    pd.testing.assert_frame_equal(found.drop(columns="origin"), expected.drop(columns="origin"))
    assert {name: str(kind) for name, kind in found.dtypes.items()} == RECORD_COLUMNS


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_integer_labels_are_the_same_text_in_every_format(tmp_path, suffix):
    rows = [{"text": "x", "label": 3}, {"text": "y", "label": None}]
    files = {"train": write(tmp_path, f"t.{suffix}", rows)}
    frame, report = read(tmp_path, type="classification", uses=["train"], files=files)
    assert frame["label"].tolist() == ["3"]
    assert report["tasks"]["mine"]["splits"]["train"]["dropped"] == {"missing label": 1}


def test_columns_are_found_by_name_whatever_their_order(tmp_path):
    shuffled = [{key: row[key] for key in ("score", "unused", "text2", "text1")} for row in STS]
    first, _ = read(tmp_path, type="sts", files={"train": write(tmp_path, "t.csv", STS)})
    second, _ = read(tmp_path, type="sts", files={"train": write(tmp_path, "t.csv", shuffled)})
    pd.testing.assert_frame_equal(first, second)


def test_renamed_columns(tmp_path):
    rows = [{"utterance": "hi", "intent": "greet"}]
    frame, _ = read(
        tmp_path,
        type="clustering",
        files={"train": write(tmp_path, "t.csv", rows)},
        columns={"text": "utterance", "label": "intent"},
    )
    assert frame.loc[0, ["text", "label"]].tolist() == ["hi", "greet"]


@pytest.mark.parametrize(
    ("task_type", "row", "expected"),
    [
        ("sts", {"text1": "a", "text2": "b", "score": "high"}, "must be a finite number, got 'hi"),
        ("sts", {"text1": "a", "text2": "b", "score": float("nan")}, "must be a finite number"),
        ("sts", {"text1": "a", "text2": "b", "score": None}, "must be a finite number, got None"),
        ("sts", {"text1": "a", "text2": "b"}, "no column 'score'; available: text1, text2"),
        ("pair_classification", {"text1": "a", "text2": "b", "label": 2}, "must be 0 or 1"),
        ("pair_classification", {"text1": "a", "text2": "b", "label": ""}, "must be 0 or 1"),
        ("unlabelled", {"text": ["a"]}, "column 'text' must be text, got list"),
    ],
)
def test_bad_values_name_task_file_and_line(tmp_path, task_type, row, expected):
    good = {"text1": "a", "text2": "b", "score": 1, "label": 1, "text": "a"}
    files = {"train": write(tmp_path, "t.jsonl", [good, row])}
    with pytest.raises(DataError) as caught:
        read(tmp_path, type=task_type, files=files)
    assert str(caught.value).startswith("Task 'mine': t.jsonl:2: ")
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("task_type", "role"),
    [(kind, role) for kind, roles in REQUIRED_COLUMNS.items() for role in roles],
)
def test_a_missing_column_of_any_type_is_named_with_those_there_are(tmp_path, task_type, role):
    row = {name: "1" for name in REQUIRED_COLUMNS[task_type].values() if name != role}
    files = {"train": write(tmp_path, "t.jsonl", [{**row, "other": "x"}])}
    with pytest.raises(DataError, match=rf"t.jsonl:1: no column '{role}'; available: .*other"):
        read(tmp_path, type=task_type, uses=["train"], files=files)


def test_boolean_pair_labels_count_as_0_and_1(tmp_path):
    rows = [{"text1": "a", "text2": "b", "label": value} for value in (True, False)]
    for name in ("t.jsonl", "t.csv", "t.parquet"):
        frame, _ = read(
            tmp_path, type="pair_classification", files={"train": write(tmp_path, name, rows)}
        )
        assert frame["label"].tolist() == ["1", "0"]


def test_empty_texts_are_dropped_and_counted_per_file(tmp_path):
    rows = [{"text": "a"}, {"text": " "}, {"text": None}, {"text": "b"}]
    files = {"train": [write(tmp_path, "t.jsonl", rows), write(tmp_path, "u.jsonl", rows[:1])]}
    frame, report = read(tmp_path, type="unlabelled", files=files)
    assert frame["text"].tolist() == ["a", "b", "a"]
    assert frame["row"].tolist() == [0, 1, 2]
    assert report["tasks"]["mine"]["splits"]["train"] == {
        "files": {"t.jsonl": 4, "u.jsonl": 1},
        "read": 5,
        "kept": 3,
        "dropped": {"empty text": 2},
        "distractors": 0,
    }


def test_max_rows_does_not_depend_on_the_order_of_the_file(tmp_path):
    rows = [{"text": f"text {n}", "label": n // 50} for n in range(100)]
    kept = []
    for ordered in (rows, rows[::-1]):
        files = {"train": write(tmp_path, "t.csv", ordered)}
        frame, report = read(tmp_path, type="clustering", files=files, max_rows=20)
        kept.append(set(frame["text"]))
        assert len(frame) == 20
        assert report["tasks"]["mine"]["splits"]["train"]["dropped"] == {"max_rows": 80}
        assert frame["label"].nunique() == 2
    assert kept[0] == kept[1]


def test_max_rows_keeps_all_documents_of_a_query(tmp_path):
    rows = [{"query": f"q {n % 10}", "document": f"d {n}"} for n in range(40)]
    files = {"test": write(tmp_path, "t.csv", rows)}
    frame, _ = read(tmp_path, type="retrieval", files=files, max_rows={"test": 3})
    assert frame.groupby("text").size().tolist() == [4, 4, 4]


def test_one_file_is_split_the_same_way_whatever_the_order(tmp_path):
    rows = [{"text": f"text {n}"} for n in range(400)]
    splits = []
    for ordered in (rows, rows[::-1]):
        files = {"all": write(tmp_path, "t.csv", ordered)}
        frame, _ = read(tmp_path, type="unlabelled", files=files)
        splits.append(dict(zip(frame["text"], frame["split"], strict=True)))
    assert splits[0] == splits[1]
    sizes = pd.Series(splits[0].values()).value_counts()
    assert sizes["test"] == pytest.approx(80, abs=30)
    assert sizes["dev"] == pytest.approx(40, abs=25)


def test_a_group_stays_in_one_split(tmp_path):
    rows = [{"text": f"text {n}", "customer": n % 25} for n in range(200)]
    files = {"all": write(tmp_path, "t.csv", rows), "split": {"test": 0.4, "by": "customer"}}
    frame, _ = read(tmp_path, type="unlabelled", files=files)
    customer = frame["text"].map(lambda text: int(text.split()[1]) % 25)
    assert frame["split"].groupby(customer).nunique().max() == 1
    assert frame["split"].nunique() > 1


def test_a_missing_group_column_is_named(tmp_path):
    files = {"all": write(tmp_path, "t.csv", [{"text": "a"}]), "split": {"by": "customer"}}
    with pytest.raises(DataError, match=r"t.csv:2: no column 'customer'; available: text"):
        read(tmp_path, type="unlabelled", files=files)


def test_equal_texts_share_an_id(tmp_path):
    rows = [("q1", "d1"), ("q1", "d2"), ("q2", "d1")]
    table = [{"query": query, "document": document} for query, document in rows]
    frame, _ = read(tmp_path, type="retrieval", files={"test": write(tmp_path, "t.csv", table)})
    assert frame["text_id"].nunique() == 2
    assert frame["text2_id"].nunique() == 2
    assert frame["score"].tolist() == [1.0, 1.0, 1.0]
    assert not set(frame["text_id"]) & set(frame["text2_id"])


def test_corpus_beside_pairs_gives_distractors(tmp_path):
    pairs = write(tmp_path, "t.jsonl", [{"query": "q", "document": "d1"}])
    corpus = write(tmp_path, "c.jsonl", [{"id": "1", "text": "d1"}, {"id": "2", "text": "d2"}])
    files = {"train": pairs, "test": pairs, "corpus": corpus}
    frame, report = read(tmp_path, type="retrieval", files=files)
    extra = frame[frame["text"].isna()]
    assert extra[["split", "text2", "origin"]].values.tolist() == [["test", "d2", "c.jsonl:2"]]
    assert report["tasks"]["mine"]["splits"]["test"]["distractors"] == 1


def test_hard_negatives_become_rows_of_relevance_0(tmp_path):
    rows = [{"query": "q", "document": "d", "negative": ["n1", "n2"]}]
    frame, _ = read(
        tmp_path,
        type="retrieval",
        files={"train": write(tmp_path, "t.jsonl", rows)},
        columns={"negative": "negative"},
    )
    assert frame[["text2", "score"]].values.tolist() == [["d", 1.0], ["n1", 0.0], ["n2", 0.0]]


def beir(folder, relevance):
    write(folder, "c.jsonl", [{"_id": "d1", "title": "T", "text": "x"}, {"_id": "d2", "text": "y"}])
    write(folder, "q.jsonl", [{"_id": "q1", "text": "ask"}])
    columns = ["query-id", "corpus-id", "score"]
    rows = [dict(zip(columns, row, strict=True)) for row in relevance]
    write(folder, "r.tsv", rows)
    return {"corpus": "c.jsonl", "queries": "q.jsonl", "relevance": {"test": "r.tsv"}}


def test_corpus_queries_and_relevance_are_joined(tmp_path):
    frame, _ = read(tmp_path, type="retrieval", files=beir(tmp_path, [("q1", "d1", 2)]))
    assert frame.loc[0, ["text", "text2", "score", "text_id", "text2_id"]].tolist() == [
        "ask",
        "T x",
        2.0,
        "q1",
        "d1",
    ]
    assert frame.loc[1, ["text2", "text2_id"]].tolist() == ["y", "d2"]
    assert pd.isna(frame.loc[1, "text"])


@pytest.mark.parametrize(
    ("relevance", "expected"),
    [
        (("q9", "d1", 1), "r.tsv:2: query id 'q9' is not among the 1 of its file"),
        (("q1", "d9", 1), "r.tsv:2: document id 'd9' is not among the 2 of its file"),
        (("q1", "d1", "x"), "r.tsv:2: column 'score' must be a finite number, got 'x'"),
    ],
)
def test_broken_relevance_names_file_and_line(tmp_path, relevance, expected):
    with pytest.raises(DataError) as caught:
        read(tmp_path, type="retrieval", files=beir(tmp_path, [relevance]))
    assert expected in str(caught.value)


def test_one_id_with_two_texts_is_refused(tmp_path):
    files = beir(tmp_path, [("q1", "d1", 1)])
    write(tmp_path, "q.jsonl", [{"_id": "q1", "text": "ask"}, {"_id": "q1", "text": "other"}])
    with pytest.raises(DataError, match=r"q.jsonl:2: id 'q1' has another text at q.jsonl:1"):
        read(tmp_path, type="retrieval", files=files)


def test_no_file_is_opened_before_reading(tmp_path):
    specs = parse_specs([{"name": "mine", "type": "sts", "files": {"train": "none.csv"}}])
    raw = RawTasks(tuple(specs), tmp_path)
    with pytest.raises(DataError, match=r"Task 'mine': none.csv: no such file"):
        raw.read()


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_several_labels_are_a_list_or_text_with_a_separator(tmp_path, suffix):
    lists = [{"text": "x", "label": ["b", "a", "b"]}, {"text": "y", "label": ["c"]}]
    text = [{"text": "x", "label": "b; a;b"}, {"text": "y", "label": "c"}]
    files = {"train": write(tmp_path, f"lists.{suffix}", lists)}
    found, _ = read(tmp_path, type="multilabel", uses=["train"], files=files)
    files = {"train": write(tmp_path, "text.csv", text)}
    same, _ = read(tmp_path, type="multilabel", uses=["train"], files=files, separator=";")
    assert found["label"].tolist() == same["label"].tolist() == ['["a", "b"]', '["c"]']


def test_no_label_is_not_the_same_as_a_missing_one(tmp_path):
    rows = [{"text": "x", "label": []}, {"text": "y", "label": None}, {"text": "z", "label": ""}]
    files = {"train": write(tmp_path, "t.jsonl", rows)}
    frame, report = read(tmp_path, type="multilabel", uses=["train"], files=files)
    assert frame[["text", "label"]].values.tolist() == [["x", "[]"]]
    assert report["tasks"]["mine"]["splits"]["train"]["dropped"] == {"missing label": 2}


@pytest.mark.parametrize("label", [["a", None], ["a", float("nan")], ["a", ["b"]], [" "]])
def test_what_is_no_label_in_a_list_is_named(tmp_path, label):
    rows = [{"text": "x", "label": ["a"]}, {"text": "y", "label": label}]
    files = {"train": write(tmp_path, "t.jsonl", rows)}
    with pytest.raises(DataError, match=r"t.jsonl:2: column 'label' must be a list of labels"):
        read(tmp_path, type="multilabel", uses=["train"], files=files)


def test_a_summary_without_score_is_a_reference(tmp_path):
    rows = [
        {"text": "t", "summary": "s", "score": 3},
        {"text": "t", "summary": "r", "score": None},
        {"text": "t", "summary": "r2", "score": " "},
    ]
    files = {"train": write(tmp_path, "t.jsonl", rows)}
    columns = {"score": "score"}
    frame, _ = read(tmp_path, type="summarization", files=files, columns=columns)
    assert frame["score"].isna().tolist() == [False, True, True]


def test_all_summaries_of_a_text_come_into_one_split_and_are_kept_together(tmp_path):
    rows = [
        {"text": f"text {n}", "summary": f"s {n} {k}", "score": k}
        for n in range(60)
        for k in range(3)
    ]
    files = {"all": write(tmp_path, "t.csv", rows)}
    options = {"type": "summarization", "files": files, "columns": {"score": "score"}}
    frame, _ = read(tmp_path, **options)
    assert frame["split"].groupby(frame["text"]).nunique().max() == 1
    assert frame["split"].nunique() == 3
    frame, _ = read(tmp_path, **options, max_rows=5)
    assert set(frame.groupby("text").size()) == {3}
    assert frame["text"].nunique() <= 15


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        ("query", [("1", "ask", "a", "x"), ("1", "other", "b", "y")]),
        ("document", [("1", "ask", "a", "x"), ("2", "other", "a", "y")]),
    ],
)
def test_an_id_that_stands_for_two_texts_is_refused(tmp_path, kind, rows):
    names = ("qid", "query", "did", "document")
    table = [dict(zip(names, row, strict=True)) for row in rows]
    files = {"test": write(tmp_path, "t.jsonl", table)}
    columns = {"query_id": "qid", "document_id": "did"}
    with pytest.raises(DataError, match=rf"t.jsonl:2: {kind} id '.' has another text at t.jsonl:1"):
        read(tmp_path, type="retrieval", files=files, columns=columns)
