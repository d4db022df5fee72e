"""Bundles: reading by blocks, unfinished arrays, and refusing artifacts that do not match."""

from __future__ import annotations

import numpy as np
import pytest

from domain_embeddings.core.bundle import BlockArray, Bundle, require_same
from domain_embeddings.core.errors import ProvenanceError


@pytest.mark.parametrize("rows", [1, 3, 7, 100])
def test_row_blocks_concatenate_to_the_array(rows: int) -> None:
    array = np.arange(21).reshape(7, 3)
    blocks = list(Bundle({"a": array}).row_blocks("a", rows))
    assert all(len(block) <= rows for block in blocks)
    np.testing.assert_array_equal(np.concatenate(blocks), array)


def test_an_array_that_is_still_being_produced_cannot_be_read() -> None:
    bundle = Bundle({"a": BlockArray((2,), "float32", [np.zeros(2)])})
    with pytest.raises(TypeError, match="'a' is still being produced"):
        bundle["a"]


def test_headers_that_agree_on_the_keys_are_accepted() -> None:
    require_same({"model": "m", "note": 1}, {"model": "m", "note": 2}, ["model"])


def test_every_differing_key_is_named_with_both_values() -> None:
    with pytest.raises(ProvenanceError) as error:
        require_same({"model": "m", "width": 3, "k": 0}, {"model": "n", "k": 0}, ["model", "width"])
    assert "model: 'm' against 'n'" in str(error.value)
    assert "width: 3 against None" in str(error.value)
