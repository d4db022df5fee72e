"""The growing Gram against the loop it replaces, and the masking of candidates that are true."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from domain_embeddings.core.encoders.prefix import prefix
from domain_embeddings.core.losses import NestedInfoNCELoss, false_negative_mask, nested_info_nce
from domain_embeddings.core.losses.nesting import growing_cosines

TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}
NO_LABEL = -1


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def one_direction(a: Tensor, p: Tensor, m: int, temperature: float, mask: Tensor) -> Tensor:
    scores = prefix(a, m) @ prefix(p, m).T / temperature
    rows = []
    for i in range(len(a)):
        kept = [j for j in range(len(p)) if j == i or not mask[i, j]]
        rows.append(torch.logsumexp(scores[i, kept], dim=0) - scores[i, i])
    return torch.stack(rows).mean()


def naive(  # noqa: PLR0917
    a: Tensor,
    p: Tensor,
    widths: list[int],
    weights: list[float],
    temperature: float,
    mask: Tensor,
    symmetric: bool,
) -> Tensor:
    total = a.new_zeros(())
    for m, weight in zip(widths, weights, strict=True):
        loss = one_direction(a, p, m, temperature, mask)
        if symmetric:
            n = len(a)
            loss = (loss + one_direction(p[:n], a, m, temperature, mask[:, :n].T)) / 2
        total = total + weight / sum(weights) * loss
    return total


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("extra", [0, 5])
def test_value_and_gradient_are_those_of_the_loop(
    dtype: torch.dtype, symmetric: bool, extra: int
) -> None:
    widths, weights = [2, 8, 24, 48], [1.0, 3.0, 2.0, 0.5]
    mask = random(16, 16 + extra, seed=3) > 1
    losses, slopes = [], []
    for fast in (True, False):
        a = random(16, 48, seed=1).to(dtype).requires_grad_()
        p = random(16 + extra, 48, seed=2).to(dtype).requires_grad_()
        if fast:
            loss, _ = nested_info_nce(
                a, p, widths, weights, temperature=0.2, mask=mask, symmetric=symmetric
            )
        else:
            loss = naive(a, p, widths, weights, 0.2, mask, symmetric)
        loss.backward()
        losses.append(loss.detach())
        slopes.append(torch.cat([a.grad, p.grad]))  # type: ignore[list-item]
    assert mask.any()
    torch.testing.assert_close(*losses, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    torch.testing.assert_close(*slopes, rtol=0, atol=TOLERANCE[dtype])


def test_growing_cosines_are_those_of_the_prefixes() -> None:
    a, p = random(5, 12), random(7, 12, seed=1)
    out = growing_cosines(a, p, (1, 4, 12), temperature=0.5)
    for k, m in enumerate((1, 4, 12)):
        torch.testing.assert_close(out[k], prefix(a, m) @ prefix(p, m).T / 0.5)


def test_slope_matches_finite_differences() -> None:
    mask = random(4, 5, seed=3) > 0.5
    assert torch.autograd.gradcheck(
        lambda a, p: nested_info_nce(a, p, [1, 3, 6], temperature=0.5, mask=mask, symmetric=True),
        (random(4, 6).requires_grad_(), random(5, 6, seed=1).requires_grad_()),
    )


def test_learned_weights_receive_a_gradient() -> None:
    weights = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    loss, per_width = nested_info_nce(random(4, 6), random(4, 6, seed=1), [2, 6], weights)
    loss.backward()
    total = weights.detach().sum()
    torch.testing.assert_close(weights.grad, (per_width - loss).detach() / total)


def test_full_width_alone_is_plain_cross_entropy() -> None:
    a, p = random(8, 6), random(8, 6, seed=1)
    loss, _ = nested_info_nce(a, p, [6])
    scores = prefix(a, 6) @ prefix(p, 6).T / 0.05
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(scores, torch.arange(8)))


@given(st.integers(0, 10_000), st.floats(0.1, 10), st.floats(0.1, 10))
@settings(max_examples=25, deadline=None)
def test_lengths_and_a_common_order_do_not_matter(seed: int, left: float, right: float) -> None:
    a, p = random(6, 8, seed=seed), random(6, 8, seed=seed + 1)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(seed))
    expected, _ = nested_info_nce(a, p, [2, 8])
    scaled, _ = nested_info_nce(a * left, p * right, [2, 8])
    shuffled, _ = nested_info_nce(a[order], p[order], [2, 8])
    torch.testing.assert_close(scaled, expected)
    torch.testing.assert_close(shuffled, expected)


@given(st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_masking_only_ever_lowers_the_loss(seed: int) -> None:
    a, p = random(6, 8, seed=seed), random(6, 8, seed=seed + 1)
    mask = random(6, 6, seed=seed + 2) > 0
    masked, _ = nested_info_nce(a, p, [2, 8], mask=mask)
    plain, _ = nested_info_nce(a, p, [2, 8])
    assert 0 <= masked <= plain


def test_a_row_with_only_its_positive_left_has_loss_zero() -> None:
    a, p = random(3, 4).requires_grad_(), random(3, 4, seed=1)
    loss, _ = nested_info_nce(a, p, [2, 4], mask=torch.ones(3, 3, dtype=torch.bool))
    loss.backward()
    assert loss.item() == 0
    assert a.grad is not None
    assert not a.grad.any()


@pytest.mark.parametrize("symmetric", [False, True])
def test_zero_and_equal_vectors_give_a_finite_slope(symmetric: bool) -> None:
    a = torch.zeros(3, 4, requires_grad=True)
    p = torch.ones(3, 4, requires_grad=True)
    loss, _ = nested_info_nce(a, p, [2, 4], symmetric=symmetric)
    loss.backward()
    assert loss.item() == pytest.approx(math.log(3))
    assert a.grad is not None
    assert p.grad is not None
    assert torch.isfinite(a.grad).all()
    assert torch.isfinite(p.grad).all()


def test_one_pair_has_loss_zero() -> None:
    loss, _ = nested_info_nce(random(1, 4), random(1, 4, seed=1), [2, 4])
    assert loss.item() == 0


def test_autocast_changes_nothing() -> None:
    a = random(8, 32, dtype=torch.float32).bfloat16()
    p = random(8, 32, seed=1, dtype=torch.float32).bfloat16()
    expected, _ = nested_info_nce(a.float(), p.float(), [8, 32])
    with torch.autocast("cpu", torch.bfloat16):
        loss, per_width = nested_info_nce(a, p, [8, 32])
    assert loss.dtype == per_width.dtype == torch.float32
    assert torch.equal(loss, expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"widths": [4, 4]}, "strictly increasing"),
        ({"widths": [2, 9]}, "d = 8"),
        ({"widths": []}, "strictly increasing"),
        ({"widths": [0, 4]}, "between 1"),
        ({"weights": [1.0]}, "1 weights for 2 widths"),
        ({"weights": [1.0, -1.0]}, "non-negative"),
        ({"weights": [0.0, 0.0]}, "positive sum"),
        ({"temperature": 0.0}, "temperature"),
        ({"mask": torch.zeros(4, 3, dtype=torch.bool)}, "mask must be boolean"),
        ({"mask": torch.zeros(4, 4)}, "mask must be boolean"),
        ({"positives": torch.ones(3, 8)}, "positive each"),
        ({"positives": torch.ones(4, 7)}, "positive each"),
    ],
)
def test_bad_input_is_named(arguments: dict, message: str) -> None:
    good = {"anchors": torch.ones(4, 8), "positives": torch.ones(4, 8), "widths": [2, 8]}
    with pytest.raises(ValueError, match=message):
        nested_info_nce(**(good | arguments))


def test_module_is_the_function() -> None:
    a, p = random(4, 6), random(5, 6, seed=1)
    mask = random(4, 5, seed=2) > 0
    module = NestedInfoNCELoss([2, 6], [1, 2], temperature=0.1, symmetric=True)
    expected, _ = nested_info_nce(a, p, [2, 6], [1, 2], temperature=0.1, mask=mask, symmetric=True)
    torch.testing.assert_close(module(a, p, mask), expected)


def naive_mask(
    anchors: list[int],
    positives: list[int],
    labels: list[int],
    tasks: list[int],
    negatives: list[int],
) -> list[list[bool]]:
    known = {(anchor, text) for anchor, text in zip(anchors, positives, strict=True)}
    rows = []
    for i, anchor in enumerate(anchors):
        row = []
        for j, text in enumerate(positives + negatives):
            false = (anchor, text) in known or text == anchor
            if j < len(anchors):
                same = labels[i] == labels[j] and tasks[i] == tasks[j]
                false = false or (labels[i] >= 0 and same)
            row.append(false and i != j)
        rows.append(row)
    return rows


ids = st.lists(st.integers(0, 4), min_size=5, max_size=5)


@given(ids, ids, st.lists(st.integers(-1, 2), min_size=5, max_size=5), ids, ids)
@settings(max_examples=60, deadline=None)
def test_mask_is_that_of_the_rules(
    anchors: list[int], positives: list[int], labels: list[int], tasks: list[int], extra: list[int]
) -> None:
    mask, count = false_negative_mask(
        *map(torch.tensor, (anchors, positives, labels, tasks, extra))
    )
    expected = torch.tensor(naive_mask(anchors, positives, labels, tasks, extra))
    assert torch.equal(mask, expected)
    assert count.item() == expected.sum().item()


@pytest.mark.parametrize(
    ("anchors", "positives", "labels", "tasks", "masked"),
    [
        ([1, 2, 3], [10, 10, 30], [-1] * 3, [0] * 3, {(0, 1), (1, 0)}),
        ([1, 1, 3], [10, 20, 30], [-1] * 3, [0] * 3, {(0, 1), (1, 0)}),
        ([1, 2, 3], [10, 1, 30], [-1] * 3, [0] * 3, {(0, 1)}),
        ([1, 2, 3], [10, 20, 30], [7, 7, -1], [0] * 3, {(0, 1), (1, 0)}),
        ([1, 2, 3], [10, 20, 30], [7, 7, 7], [0, 1, 0], {(0, 2), (2, 0)}),
        ([1, 2, 3], [10, 20, 30], [-1, -1, -1], [0] * 3, set()),
        ([1, 1, 3], [10, 20, 20], [-1] * 3, [0] * 3, {(0, 1), (1, 0), (0, 2), (1, 2), (2, 1)}),
    ],
    ids=["positive", "anchor", "own text", "label", "other task", "no label", "known elsewhere"],
)
def test_each_planted_duplicate_is_masked(
    anchors: list[int],
    positives: list[int],
    labels: list[int],
    tasks: list[int],
    masked: set[tuple[int, int]],
) -> None:
    mask, count = false_negative_mask(*map(torch.tensor, (anchors, positives, labels, tasks)))
    assert {tuple(cell) for cell in mask.nonzero().tolist()} == masked
    assert count.item() == len(masked)


def test_mined_negatives_that_are_true_are_masked() -> None:
    mask, count = false_negative_mask(
        torch.tensor([1, 2]), torch.tensor([10, 20]), negative_ids=torch.tensor([10, 2, 99])
    )
    assert mask.tolist() == [[False, False, True, False, False], [False, False, False, True, False]]
    assert count.item() == 2


def test_labels_without_tasks_are_refused() -> None:
    with pytest.raises(ValueError, match="task_ids"):
        false_negative_mask(torch.tensor([1]), torch.tensor([2]), labels=torch.tensor([0]))


def test_planted_duplicates_cost_what_a_hand_calculation_says() -> None:
    """Pairs 0 and 1 share their positive; pair 2 is orthogonal to both."""
    a = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    mask, count = false_negative_mask(torch.tensor([1, 2, 3]), torch.tensor([5, 5, 6]))
    loss, _ = nested_info_nce(a, a, [2], temperature=1.0, mask=mask)
    duplicated = math.log(1 + math.exp(-1))
    alone = math.log(1 + 2 * math.exp(-1))
    assert count.item() == 2
    assert loss.item() == pytest.approx((2 * duplicated + alone) / 3, rel=1e-6)


def test_the_negative_of_another_pair_is_masked_for_anchors_of_its_label():
    anchors, positives = torch.tensor([1, 2, 3]), torch.tensor([4, 5, 6])
    labels, tasks = torch.tensor([0, 1, -1]), torch.zeros(3, dtype=torch.int64)
    mask, count = false_negative_mask(
        anchors,
        positives,
        labels,
        tasks,
        torch.tensor([7, 8, 9]),
        negative_labels=torch.tensor([1, 0, -1]),
    )
    expected = torch.zeros(3, 6, dtype=torch.bool)
    expected[1, 3] = expected[0, 4] = True
    assert torch.equal(mask, expected)
    assert count == 2
