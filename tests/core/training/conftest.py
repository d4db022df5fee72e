"""The world that most tests of training share."""

from __future__ import annotations

import pytest
from tiny_models import tiny_sentence_transformer
from tiny_training import make_pairs, make_world


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A tiny model of three layers, its pairs, relation vectors and a shrinkage."""
    model = tiny_sentence_transformer(tmp_path_factory.mktemp("model"), layers=3)
    return make_world(model, make_pairs())
