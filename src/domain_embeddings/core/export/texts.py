"""Texts of the evaluated tasks, as a model is given them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from domain_embeddings.core.encoders.prompts import Role, prompt_for

_SIDES: tuple[tuple[str, Role], ...] = (("text", "anchor"), ("text2", "positive"))


def sample_texts(
    records: pd.DataFrame,
    specs: Sequence[Mapping[str, Any]],
    model_prompts: Mapping[str, str | None],
    count: int,
) -> list[str]:
    """Choose texts of all lengths, from the shortest to the longest.

    Args:
        records: The entry ``evaluation_tasks``.
        specs: Task specifications.
        model_prompts: Prompts saved with the model, by name.
        count: How many texts; fewer if there are not so many.

    Returns:
        Distinct texts with their prompts, both sides of the tasks, shortest first.
    """
    found: set[str] = set()
    for spec in specs:
        rows = records[records["task"] == spec["name"]]
        for column, role in _SIDES:
            prompt = prompt_for(spec, role, model_prompts)
            found.update(prompt + str(text) for text in rows[column].dropna())
    ordered = sorted(found, key=lambda text: (len(text), text))
    rows = np.unique(np.linspace(0, len(ordered) - 1, min(count, len(ordered))).round().astype(int))
    return [ordered[row] for row in rows]
