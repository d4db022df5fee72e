"""Tests of the one rule for prompts."""

from __future__ import annotations

import pytest

from domain_embeddings.core.encoders.prompts import prompt_for

MODEL = {"query": "query: ", "document": "passage: "}
SYMMETRIC = [
    "classification",
    "multilabel",
    "pair_classification",
    "sts",
    "clustering",
    "bitext_mining",
]


def spec(kind: str, **prompts: str | None) -> dict[str, object]:
    return {"name": "t", "type": kind, "prompts": prompts or None}


@pytest.mark.parametrize("kind", ["retrieval", "reranking", "summarization"])
def test_sides_of_an_asymmetric_task_have_prompts_of_their_own(kind):
    task = spec(kind, query="Q ", document="D ")
    assert prompt_for(task, "anchor", MODEL) == "Q "
    assert prompt_for(task, "positive", MODEL) == "D "


@pytest.mark.parametrize("kind", SYMMETRIC)
def test_both_sides_of_a_symmetric_task_carry_the_query_prompt(kind):
    task = spec(kind, query="Q ", document="D ")
    assert prompt_for(task, "anchor", MODEL) == "Q "
    assert prompt_for(task, "positive", MODEL) == "Q "


def test_the_prompts_of_the_model_are_used_where_the_task_has_none():
    assert prompt_for(spec("retrieval"), "anchor", MODEL) == "query: "
    assert prompt_for(spec("retrieval"), "positive", MODEL) == "passage: "
    assert prompt_for(spec("sts"), "positive", MODEL) == "query: "


def test_an_empty_prompt_of_the_task_switches_the_one_of_the_model_off():
    assert prompt_for(spec("retrieval", query="", document=""), "anchor", MODEL) == ""
    assert prompt_for(spec("retrieval", query="", document=""), "positive", MODEL) == ""


def test_one_prompt_of_the_task_leaves_the_other_to_the_model():
    task = spec("retrieval", query="Q ", document=None)
    assert prompt_for(task, "positive", MODEL) == "passage: "


def test_other_names_of_the_document_prompt_are_understood():
    assert prompt_for(spec("retrieval"), "positive", {"passage": "p: "}) == "p: "


def test_no_prompt_anywhere_is_an_empty_string():
    assert prompt_for({"name": "t", "type": "sts"}, "anchor", {}) == ""
