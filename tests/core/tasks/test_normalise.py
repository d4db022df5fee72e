from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain_embeddings.core.tasks.normalise import (
    clean,
    comparison_key,
    pair_key,
    stable_fraction,
    stable_hash,
)


@pytest.mark.parametrize(
    "other",
    [
        "where is my CARD",
        " Where  is\tmy card ?",
        "Where is my card?!",
        "\u201cWhere is my card\u201d",
    ],
)
def test_case_space_and_sentence_marks_do_not_matter(other):
    assert comparison_key(other) == comparison_key("Where is my card?")


@pytest.mark.parametrize(
    ("first", "second"), [("a + b", "a - b"), ("f(x)", "f x"), ("!!!", "???"), ("x[1]", "x[2]")]
)
def test_operators_keep_texts_apart(first, second):
    assert comparison_key(first) != comparison_key(second)


@given(st.text(min_size=1))
def test_normalising_twice_changes_nothing_and_text_never_vanishes(text):
    assert clean(clean(text)) == clean(text)
    assert bool(comparison_key(text)) == bool(text.split())


@given(st.text(), st.text())
def test_pair_key_ignores_the_order(first, second):
    assert pair_key(first, second) == pair_key(second, first)


def test_hashes_are_the_same_on_every_machine():
    # printf '\x1fcard' | b2sum -l 64
    assert stable_hash("card") == 0xDAD03145E25F4961
    assert 0 <= stable_fraction("card") < 1
