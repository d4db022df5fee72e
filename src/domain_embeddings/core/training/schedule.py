"""What changes from step to step: the widths that are trained and the weight of regularisers.

Everything is a function of the step, so that a resumed run and every worker see the same.
"""

from __future__ import annotations

import numpy as np


def draw_widths(count: int, drawn: int | None, seed: int, step: int) -> list[int]:
    """Choose the widths of one step.

    Args:
        count: Number of nested widths K.
        drawn: How many to take; None, or K and more, for all.
        seed: Seed of the run.
        step: Optimiser steps done so far.

    Returns:
        Their indices, ascending; the last one, the full width, is always among them.
    """
    if drawn is None or drawn >= count:
        return list(range(count))
    others = np.random.default_rng([seed, step]).permutation(count - 1)[: drawn - 1]
    return [*sorted(others.tolist()), count - 1]


def warmed_up(share: float, step: int, steps: int) -> float:
    """Return the factor of gamma and alpha at one step.

    Args:
        share: Share of the steps over which it rises linearly from 0 to 1; 0 for no warm-up.
        step: Optimiser steps done so far.
        steps: Optimiser steps of the whole run.

    Returns:
        Factor between 0 and 1.
    """
    rise = share * steps
    return 1.0 if step >= rise else step / rise
