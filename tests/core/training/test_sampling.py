from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch
from accelerate import skip_first_batches
from accelerate.data_loader import prepare_data_loader
from sentence_transformers.base.sampler import DefaultBatchSampler
from torch.utils.data import DataLoader, RandomSampler

from domain_embeddings.core.errors import ParameterError
from domain_embeddings.core.training.sampling import PairSampler, weighted_ids, whole_parts
from domain_embeddings.parameters import SamplingParameters, check_parameters

SIZES = {"large": 100, "middle": 25, "small": 3}
TASKS = pd.Series([name for name, size in SIZES.items() for _ in range(size)])


def sampler(block=8, seed=0, specs=(), **settings) -> PairSampler:
    return PairSampler(TASKS, specs, SamplingParameters(**settings), seed=seed, block=block)


def loader(order, block=8, processes=1, index=0):
    """Make the loader that the trainer makes, as one of several processes sees it."""
    batches = DefaultBatchSampler(order, batch_size=block // processes, drop_last=True)
    plain = DataLoader(list(range(len(TASKS))), batch_sampler=batches)
    made = prepare_data_loader(
        plain, num_processes=processes, process_index=index, put_on_device=False,
        use_seedable_sampler=True, data_seed=0, even_batches=False,
    )  # fmt: skip
    if isinstance(order, PairSampler):
        made.set_sampler(order)
    return made


def batches(made, epoch):
    made.set_epoch(epoch)
    return [batch.tolist() for batch in made]


def test_the_default_order_is_the_one_of_a_plain_shuffled_loader():
    specs = [{"name": "large", "weight": 0.4}, {"name": "middle", "weight": 2.5}]
    ids = weighted_ids(TASKS, specs, seed=0)
    generator = torch.Generator().manual_seed(0)
    plain = loader(RandomSampler(ids.tolist(), generator=generator))
    ours = loader(sampler(specs=specs))
    for epoch in range(3):
        expected = [ids[batch].tolist() for batch in batches(plain, epoch)]
        assert batches(ours, epoch) == expected


@pytest.mark.parametrize("sources", ["proportional", "temperature", "equal"])
def test_a_batch_of_same_source_holds_one_task_and_every_task_has_a_batch(sources):
    order = sampler(batches="same_source", sources=sources)
    for epoch in range(3):
        blocks = order.order(epoch).reshape(-1, 8)
        tasks = [set(TASKS[block]) for block in blocks]
        assert all(len(names) == 1 for names in tasks)
        assert set.union(*tasks) == set(SIZES)


@pytest.mark.parametrize("kind", ["mixed", "same_source"])
def test_processes_share_the_batches_of_one_process(kind):
    settings = {"batches": kind, "sources": "temperature"}
    whole = batches(loader(sampler(**settings)), 1)
    parts = [batches(loader(sampler(**settings), processes=2, index=i), 1) for i in range(2)]
    assert [first + second for first, second in zip(*parts, strict=True)] == whole


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("kind", ["mixed", "same_source"])
def test_skipped_batches_leave_the_rest_of_an_epoch_as_it_was(kind, processes):
    made = loader(sampler(batches=kind), processes=processes, index=processes - 1)
    whole = batches(made, 2)
    # A resumed run builds everything anew.
    fresh = loader(sampler(batches=kind), processes=processes, index=processes - 1)
    assert batches(skip_first_batches(fresh, 5), 2) == whole[5:]
    assert batches(made, 1) != whole


def test_the_order_depends_on_seed_and_epoch_alone():
    for settings in ({}, {"sources": "equal"}, {"batches": "same_source"}):
        order = sampler(**settings)
        later = order.order(3)
        assert np.array_equal(sampler(**settings).order(3), later)
        assert not np.array_equal(order.order(2), later)
        assert not np.array_equal(sampler(seed=1, **settings).order(3), later)


@pytest.mark.parametrize(
    ("settings", "weight", "expected"),
    [
        # 100 : 25 : 3 pairs; the square roots are 10 : 5 : 1.73 of 128 in all.
        ({"sources": "temperature"}, 1.0, [77, 38, 13]),
        ({"sources": "temperature", "temperature": 1.0}, 1.0, [100, 25, 3]),
        ({"sources": "temperature", "temperature": 1e9}, 1.0, [43, 43, 42]),
        ({"sources": "equal"}, 1.0, [43, 43, 42]),
        ({"sources": "equal"}, 2.0, [114, 57, 57]),
        ({"sources": "proportional"}, 2.0, [200, 25, 3]),
        ({"sources": "proportional"}, 0.0, [0, 25, 3]),
        ({"sources": "equal"}, 0.0, [0, 14, 14]),
        ({"batches": "same_source"}, 0.0, [0, 32, 8]),
    ],
)
def test_an_epoch_holds_the_shares_of_the_sources(settings, weight, expected):
    order = sampler(specs=[{"name": "large", "weight": weight}], **settings)
    counts = Counter(TASKS[order.order(1)])
    assert [counts[name] for name in SIZES] == expected
    assert len(order) == sum(expected)


def test_tasks_that_all_have_weight_0_are_refused():
    with pytest.raises(ParameterError, match="every task has weight 0"):
        sampler(specs=[{"name": name, "weight": 0} for name in SIZES])


@pytest.mark.parametrize("kind", ["mixed", "same_source"])
def test_every_pair_of_a_source_is_drawn_once_before_any_is_drawn_again(kind):
    order = sampler(batches=kind, sources="equal")
    seen: Counter[int] = Counter()
    for epoch in range(4):
        seen.update(order.order(epoch).tolist())
        for name in SIZES:
            times = [seen[pair] for pair in np.flatnonzero(TASKS == name)]
            assert max(times) - min(times) <= 1


def test_the_report_counts_what_was_drawn():
    order = sampler(sources="equal")
    # 128 rows make 16 batches of 8 an epoch: 20 steps are an epoch and 4 batches of the next.
    drawn = np.concatenate([order.order(0), order.order(1)[:32]])
    for source in order.report(20):
        mine = drawn[TASKS[drawn] == source["task"]]
        assert source["available"] == SIZES[source["task"]]
        assert source["drawn"] == len(mine)
        assert source["distinct"] == len(set(mine))
        assert source["epochs"] == pytest.approx(len(mine) / source["available"])
        parts = [part[TASKS[part] == source["task"]] for part in drawn.reshape(-1, 8)]
        repeats = sum(len(part) - len(set(part)) for part in parts)
        assert source["repeated_in_batch"] == repeats
        assert (repeats > 0) or source["task"] != "small"


def test_rows_that_complete_epochs_leave_over_are_counted_as_dropped():
    order = sampler(block=30)
    # 128 rows make 4 batches of 30; 8 rows are left in each of two complete epochs.
    assert sum(source["dropped"] for source in order.report(10)) == 16
    assert sum(source["drawn"] for source in order.report(10)) == 300
    assert sum(source["dropped"] for source in sampler(batches="same_source").report(40)) == 0


@pytest.mark.parametrize("accumulation", [2, 3])
def test_an_accumulated_step_draws_several_batches_but_not_past_the_epoch(accumulation):
    order = sampler()
    drawn = sum(source["drawn"] for source in order.report(9, accumulation))
    per_epoch = -(-16 // accumulation)
    left = min(16, (9 - per_epoch) * accumulation)
    assert drawn == 8 * (16 + left)


def test_a_source_that_was_never_drawn_is_said(caplog):
    sampler(batches="same_source").report(1)
    assert "was drawn in 1 steps" in caplog.text


def test_whole_parts_lose_nothing_and_round_no_source_away():
    rng = np.random.default_rng(0)
    for _ in range(50):
        shares, total = rng.random(5) + 1e-6, int(rng.integers(5, 200))
        counts, exact = whole_parts(shares, total), shares / shares.sum() * total
        assert (np.abs(counts - exact) < 1).all() or (counts[exact < 1] == 1).all()
        assert counts.min() >= 1
        assert counts.sum() == total + (exact < 1).sum() - _given(exact, total)


def _given(exact, total):
    """Count the sources below one row that the largest remainders raised to one already."""
    left = total - int(np.floor(exact).sum())
    raised = np.argsort(np.floor(exact) - exact, kind="stable")[:left]
    return int((exact[raised] < 1).sum())


def test_weights_repeat_or_thin_out_a_task():
    tasks = pd.Series(["a"] * 100 + ["b"] * 100)
    specs = [{"name": "a", "weight": 2.0}, {"name": "b", "weight": 0.5}]
    ids = weighted_ids(tasks, specs, seed=0)
    assert (ids < 100).sum() == 200
    assert 30 < (ids >= 100).sum() < 70
    assert np.array_equal(weighted_ids(tasks, [], seed=0), np.arange(200))


def test_unknown_kinds_of_sampling_are_refused():
    with pytest.raises(ParameterError, match=r"training\.sampling\.batches.*'mixed'"):
        check_parameters({"training": {"sampling": {"batches": "pure"}}})
    with pytest.raises(ParameterError, match=r"training\.sampling\.temperature.*greater than 0"):
        check_parameters({"training": {"sampling": {"temperature": 0}}})
