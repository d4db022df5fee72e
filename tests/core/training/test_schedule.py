from __future__ import annotations

from collections import Counter

import pytest

from domain_embeddings.core.training.schedule import draw_widths, warmed_up


def test_the_full_width_is_always_drawn_and_the_others_equally_often():
    seen = Counter()
    for step in range(3000):
        drawn = draw_widths(5, 3, seed=1, step=step)
        assert len(drawn) == 3
        assert drawn == sorted(set(drawn))
        assert drawn[-1] == 4
        seen.update(drawn)
    assert all(seen[k] == pytest.approx(1500, abs=120) for k in range(4))


def test_a_draw_depends_on_seed_and_step_only():
    draws = [draw_widths(6, 3, 0, step) for step in range(20)]
    assert [draw_widths(6, 3, 0, step) for step in reversed(range(20))] == draws[::-1]
    assert [draw_widths(6, 3, 1, step) for step in range(20)] != draws


def test_all_widths_and_the_full_one_alone():
    assert draw_widths(4, None, 0, 0) == [0, 1, 2, 3]
    assert draw_widths(4, 4, 0, 0) == [0, 1, 2, 3]
    assert draw_widths(4, 1, 0, 7) == [3]
    assert draw_widths(1, None, 0, 0) == [0]


def test_the_warm_up_rises_linearly_from_zero():
    assert [warmed_up(0.5, step, 8) for step in range(8)] == [0, 0.25, 0.5, 0.75, 1, 1, 1, 1]
    assert warmed_up(0.0, 0, 8) == 1.0
    assert warmed_up(1.0, 7, 8) == 7 / 8
