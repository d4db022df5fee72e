"""The embedded general set, as the installed mteb gives it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from domain_embeddings.core.tasks import data_set_prose as module
from domain_embeddings.core.tasks.normalise import comparison_key
from domain_embeddings.core.tasks.records import RawTasks
from domain_embeddings.core.tasks.spec import SPLITS, TaskSpec, parse_specs


@pytest.fixture(scope="module")
def prose() -> module.Prose:
    return module.collect()


def test_it_is_large_enough_to_tell_and_small_enough_to_encode(prose):
    specs = [TaskSpec.model_validate({"name": n, "builtin": n}) for n in module.PROSE_TASKS]
    frame, report = RawTasks(tuple(specs), Path()).read()
    test = frame[frame["split"] == "test"]
    assert test.groupby("task").size().min() >= 100
    # Everything an evaluation may encode, probes included.
    assert len(set(frame["text"]) | set(frame["text2"].dropna())) < 1_500
    assert report["data_set_prose"]["versions"]["mteb"]


def test_it_is_evaluated_only_and_general_without_being_told():
    specs = parse_specs(
        [
            {"name": "code", "builtin": "docstring_to_code"},
            {"name": "titles", "builtin": "title_of_data_set"},
        ]
    )
    assert [spec.general for spec in specs] == [False, True]
    assert specs[1].uses == ["evaluate"]
    assert [spec.source.name for spec in specs] == ["python_code", "data_set_prose"]


def test_a_paper_is_in_one_split_only_and_few_times(prose):
    papers: dict[str, set[str]] = {}
    for item in prose.data_sets:
        if item.title:
            papers.setdefault(comparison_key(item.title), set()).add(item.split)
    assert all(len(splits) == 1 for splits in papers.values())
    counts = Counter(comparison_key(item.title) for item in prose.data_sets if item.title)
    assert max(counts.values()) <= 3


def test_descriptions_are_plain_english_and_different(prose):
    texts = [item.description for item in prose.data_sets]
    assert len(set(texts)) == len(texts)
    assert not [text for text in texts if "http" in text or "](" in text or not text.isascii()]
    assert not [text for text in texts if "This version corrects" in text]
    titles = [item.title for item in prose.data_sets]
    assert not [title for title in titles if "{" in title or title.startswith("Proceedings")]


def test_every_subject_has_rows_for_a_probe(prose):
    counts = {
        split: Counter(row["label"] for _, row in prose.rows("subject_of_data_set", split))
        for split in SPLITS
    }
    assert set(counts["train"]) == set(counts["test"]) == set(module.SUBJECTS)
    assert min(counts["train"].values()) >= 6


SOURCE = '''
x = TaskMetadata(
    name="A",
    description="Reviews of [hotels](https://a.b) in 3 towns. This version corrects errors.",
    domains=["Reviews", "Written"],
    bibtex_citation=r"""
@inproceedings{a,
  booktitle = {Proceedings of things that nobody reads},
  title = {{H}otels: {\\'a} Study of their Guests},
}
""",
)
y = TaskMetadata(name="B", description="Reviews of hotels in 4 towns.", domains=["News"])
z = TaskMetadata(name="C", description=OTHER, domains=["News"])
w = TaskMetadata(name="D", description="Pictures of cats in many streets here.",
                 domains=["News"], modalities=["image"])
'''


def test_what_is_read_of_a_file(tmp_path, monkeypatch):
    folder = tmp_path / "mteb/tasks"
    folder.mkdir(parents=True)
    (folder / "some.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.setattr(module.sysconfig, "get_paths", lambda: {"purelib": str(tmp_path)})
    found = module.collect()
    assert [(item.description, item.title, item.subject) for item in found.data_sets] == [
        ("Reviews of hotels in 3 towns.", "Hotels: a Study of their Guests", "Reviews"),
        ("Pictures of cats in many streets here.", "", ""),
    ]
    assert found.removed == {"same description as another data set": 1}
    assert found.data_sets[0].origin == "mteb/tasks/some.py:2"


def test_without_the_package_there_is_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(module.sysconfig, "get_paths", lambda: {"purelib": str(tmp_path)})
    assert module.collect() == module.Prose((), "not installed", Counter())
