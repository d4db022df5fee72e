from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from planted import pair_vectors
from threadpoolctl import threadpool_limits

from domain_embeddings.core.encoders import contrastive_axes as learned
from domain_embeddings.core.encoders.contrastive_axes import contrastive_axes
from domain_embeddings.core.encoders.pair_vectors import PairVectors, class_ids
from domain_embeddings.core.encoders.prefix import prefix
from domain_embeddings.core.losses.info_nce import nested_info_nce
from domain_embeddings.core.statistics.axes import shared_axes

D = 16
WIDTHS = [4, 8, D]


def normalised(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def topics(axes, count, seed):
    """Make pairs of twelve topics, six strong axes, and of what is said about them, four weak ones.

    Shared axes give a prefix of four to four of the strong axes, though fewer tell twelve topics
    apart, and nothing to what is said.
    """
    rng = np.random.default_rng(seed)
    strong = 2 * np.vstack([np.eye(6), -np.eye(6)])[rng.integers(12, size=count)]
    told = np.hstack([strong, rng.normal(size=(count, 4)) / 2, np.zeros((count, len(axes) - 10))])
    return pair_vectors(
        *(
            normalised((told + rng.normal(size=(count, len(axes))) * 0.05) @ axes.T)
            for _ in range(2)
        )
    )


@pytest.fixture(scope="module")
def hidden():
    """Return pairs to learn from, and others of the same kind."""
    axes = np.linalg.qr(np.random.default_rng(0).normal(size=(D, D)))[0]
    return topics(axes, 800, 1), topics(axes, 300, 2)


def found_first(pairs, axes, width):
    """Return the share of anchors whose own positive is the nearest of all."""
    anchors, positives = (prefix(side @ axes, width) for side in (pairs.anchors, pairs.positives))
    return np.mean((anchors @ positives.T).argmax(axis=1) == np.arange(len(anchors)))


def nested_loss(pairs, axes, widths):
    a, p = (torch.from_numpy(side @ axes) for side in (pairs.anchors, pairs.positives))
    return float(nested_info_nce(a, p, widths, temperature=learned.TEMPERATURE)[0])


def test_prefixes_of_learned_axes_tell_unseen_pairs_apart_where_shared_axes_do_not(hidden):
    pairs, unseen = hidden
    _, shared = shared_axes(pairs.anchors, pairs.positives, pairs.sources)
    axes = contrastive_axes(pairs, WIDTHS)
    assert found_first(unseen, shared, 4) < 0.1
    assert found_first(unseen, axes, 4) > 0.3
    assert found_first(unseen, axes, 8) > found_first(unseen, shared, 8) + 0.1
    assert found_first(unseen, axes, D) == found_first(unseen, shared, D)


def test_the_axes_are_orthogonal_to_double_precision_with_canonical_signs(hidden):
    axes = contrastive_axes(hidden[0], WIDTHS)
    np.testing.assert_allclose(axes.T @ axes, np.eye(D), atol=1e-12)
    assert (axes[np.abs(axes).argmax(axis=0), np.arange(D)] > 0).all()


def test_neither_threads_nor_what_was_drawn_before_change_the_axes(monkeypatch):
    """So wide that sums over several threads, of torch and of BLAS, would differ."""
    monkeypatch.setattr(learned, "STEPS", 20)
    pairs = topics(np.linalg.qr(np.random.default_rng(4).normal(size=(256, 256)))[0], 500, 5)
    before = torch.get_num_threads()
    axes = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            with threadpool_limits(threads):
                torch.rand(threads)
                axes.append(contrastive_axes(pairs, [16, 64], seed=3))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    np.testing.assert_array_equal(*axes)
    _, shared = shared_axes(pairs.anchors, pairs.positives, pairs.sources)
    assert np.abs(axes[0] - shared).max() > 1e-6, "nothing was learned"
    assert np.abs(contrastive_axes(pairs, [16, 64], seed=4) - axes[0]).max() > 1e-6


def test_random_states_are_left_alone(hidden, monkeypatch):
    monkeypatch.setattr(learned, "STEPS", 3)
    state = torch.get_rng_state()
    contrastive_axes(hidden[0], [4])
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("rows", "widths"), [(800, [D]), (800, []), (44, [4]), (2, [2, 4])])
def test_without_prefixes_or_pairs_to_hold_out_they_are_the_shared_axes(hidden, rows, widths):
    pairs = hidden[0]
    few = pair_vectors(pairs.anchors[:rows], pairs.positives[:rows])
    _, shared = shared_axes(few.anchors, few.positives, few.sources)
    np.testing.assert_array_equal(contrastive_axes(few, widths), shared)


def test_a_rotation_that_does_not_help_held_out_pairs_is_not_taken():
    """Anchors and positives have nothing to do with each other: there is only noise to learn."""
    rng = np.random.default_rng(1)
    pairs = pair_vectors(*(normalised(rng.normal(size=(200, D))) for _ in range(2)))
    held = _order(200)[:20]
    unseen = pair_vectors(pairs.anchors[held], pairs.positives[held])
    _, shared = shared_axes(pairs.anchors, pairs.positives, pairs.sources)
    axes = contrastive_axes(pairs, [2, 4])
    assert nested_loss(unseen, axes, [2, 4]) <= nested_loss(unseen, shared, [2, 4]) + 1e-6


def _order(count):
    """Return the order that pairs are held out in, with seed 0."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(0)).numpy()


def test_pairs_of_one_class_and_equal_texts_are_not_told_apart(hidden, monkeypatch):
    """With everything masked there is nothing to learn, and the start is as good as anything."""
    monkeypatch.setattr(learned, "STEPS", 40)
    pairs = hidden[0]
    _, shared = shared_axes(pairs.anchors, pairs.positives, pairs.sources)
    one_class = replace(pairs, labels=np.zeros(800, dtype=np.int64))
    one_text = replace(pairs, positive_ids=np.full(800, 5_000))
    for same in (one_class, one_text):
        np.testing.assert_allclose(contrastive_axes(same, [4]), shared, atol=1e-6)
    assert np.abs(contrastive_axes(pairs, [4]) - shared).max() > 0.05


def test_pairs_are_numbered_by_text_and_class_by_task():
    frame = pd.DataFrame({
        "task": ["a", "a", "b", "b"],
        "anchor": ["x", "y", "x", "z"],
        "positive": ["y", "w", "w", "w"],
        "label": ["1", None, "1", "1"],
    })  # fmt: skip
    pairs = PairVectors.of(frame, np.zeros((4, 2)), np.ones((4, 2)))
    assert pairs.anchor_ids[0] == pairs.anchor_ids[2] != pairs.anchor_ids[1]
    assert pairs.anchor_ids[1] == pairs.positive_ids[0]
    assert len({*pairs.positive_ids[1:]}) == 1
    assert pairs.sources.tolist() == ["a", "a", "b", "b"]
    assert class_ids(frame).tolist() == [0, -1, 1, 1]
    centred = pairs.centred(np.array([3.0, 4.0]))
    np.testing.assert_allclose(centred.anchors, [[-0.6, -0.8]] * 4)
    np.testing.assert_allclose(centred.positives, np.array([[-2.0, -3.0]] * 4) / 13**0.5)
