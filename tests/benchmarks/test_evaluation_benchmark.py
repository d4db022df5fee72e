"""The evaluation benchmark on a tiny model: same tasks for all, ratios from one round."""

from __future__ import annotations

import argparse
import json

import pytest
from task_data import records, specs
from tiny_models import tiny_sentence_transformer

from benchmarks import evaluation
from domain_embeddings.core.encoders import loading
from domain_embeddings.core.evaluation.tasks import build_tasks

TYPES = ("classification", "sts")


def test_all_contestants_are_timed_and_compared(tmp_path, monkeypatch):
    model = tiny_sentence_transformer(tmp_path, width=32)
    monkeypatch.setattr(loading, "load_encoder", lambda *_, **__: model)
    monkeypatch.setattr(evaluation, "load", lambda _: (records(), specs(*TYPES)))
    result = evaluation.measure(
        argparse.Namespace(
            widths="8,32",
            rounds=1,
            model="tiny",
            max_length=16,
            bootstrap=10,
            without_mteb=False,
            json=str(tmp_path / "out.json"),
        )
    )
    assert result == json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert result["tasks"] == ["classification (classification, 40)", "sts (sts, 40)"]
    for part in ("whole_s", "whole_processor_s"):
        ours, one, theirs = (
            result[f"{name}.{part}"][1] for name in ("all_widths", "one_width", "mteb")
        )
        assert result[f"ratio.all_over_one.{part}"][1] == pytest.approx(ours / one)
        assert result[f"ratio.mteb_over_ours.{part}"][1] == pytest.approx(theirs / ours)
    assert getattr(model, "truncate_dim", None) is None


def test_mteb_gets_the_data_and_the_draws_of_our_tasks():
    for task in build_tasks(records(), specs("clustering", *TYPES), split="test", seed=5):
        plain = evaluation.plain_task(task)
        plain.load_data()
        assert plain.dataset is task.dataset
        assert plain.seed == task.seed == 5
        assert type(plain).__mro__[1].__module__.startswith("mteb.")
        shared = [name for name in evaluation.SETTINGS if hasattr(task, name)]
        assert [getattr(plain, name) for name in shared] == [getattr(task, name) for name in shared]


def test_only_queries_are_cut_not_the_corpus():
    frame = records(rows=40)
    cut = evaluation.few(frame, 5)
    test = cut[cut["split"] == "test"]
    assert (test[test["text"].notna()].groupby("task").size() == 5).all()
    distractors = (frame["task"] == "retrieval") & frame["text"].isna()
    assert ((cut["task"] == "retrieval") & cut["text"].isna()).sum() == distractors.sum()
    assert (cut["split"] == "train").sum() == (frame["split"] == "train").sum()
