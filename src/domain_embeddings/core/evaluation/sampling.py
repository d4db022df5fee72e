"""Training pairs that stand for the training text in transforms and geometry."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from domain_embeddings.core.encoders.bank import EmbeddingBank
from domain_embeddings.core.encoders.pair_vectors import PairVectors
from domain_embeddings.core.encoders.prompts import Role, prompt_for

ROLES: tuple[Role, Role] = ("anchor", "positive")


def sample_pairs(pairs: pd.DataFrame, count: int, seed: int) -> pd.DataFrame:
    """Draw training pairs, as equally from every task as the tasks allow.

    Equal shares keep one large task from deciding the axes of a transform and give every task a
    mean worth measuring. What small tasks cannot fill goes to the larger ones.

    Args:
        pairs: Training pairs with the columns pair_id and task.
        count: Number of pairs wanted in all.
        seed: Seed; the same pairs are drawn wherever the same seed is used.

    Returns:
        The drawn rows, ordered by pair_id.
    """
    ordered = pairs.sort_values("pair_id", kind="stable")
    groups = {str(task): rows for task, rows in ordered.groupby("task", sort=True)}
    shares = equal_shares([len(rows) for rows in groups.values()], count)
    chosen = [
        rows.iloc[
            np.random.default_rng([seed, zlib.crc32(task.encode())]).permutation(len(rows))[:share]
        ]
        for (task, rows), share in zip(groups.items(), shares, strict=True)
    ]
    return pd.concat(chosen).sort_values("pair_id", kind="stable") if chosen else ordered


def equal_shares(sizes: Sequence[int], count: int) -> list[int]:
    """Split ``count`` among groups as equally as their sizes allow.

    Args:
        sizes: Size of each group.
        count: Total wanted.

    Returns:
        Share of each group; the shares sum to min(count, sum of sizes).
    """
    shares = [0] * len(sizes)
    left = count
    for position, group in enumerate(sorted(range(len(sizes)), key=lambda index: sizes[index])):
        shares[group] = min(sizes[group], -(-left // (len(sizes) - position)))
        left -= shares[group]
    return shares


def pair_items(
    pairs: pd.DataFrame,
    role: Role,
    specs: Sequence[Mapping[str, Any]],
    model_prompts: Mapping[str, str | None],
) -> list[tuple[str, str]]:
    """Return (prompt, text) of one side of every pair, in row order."""
    prompts = {str(spec["name"]): prompt_for(spec, role, model_prompts) for spec in specs}
    return [(prompts[task], text) for task, text in zip(pairs["task"], pairs[role], strict=True)]


def lookup_items(bank: EmbeddingBank, items: Sequence[tuple[str, str]]) -> np.ndarray:
    """Return the embeddings of items under mixed prompts: shape (len(items), d)."""
    vectors = np.empty((len(items), bank.width), dtype=np.float32)
    for wanted in dict.fromkeys(prompt for prompt, _ in items):
        rows = [row for row, (prompt, _) in enumerate(items) if prompt == wanted]
        vectors[rows] = bank.lookup([items[row][1] for row in rows], wanted)
    return vectors


def fit_vectors(
    bank: EmbeddingBank, pairs: pd.DataFrame, specs: Sequence[Mapping[str, Any]]
) -> np.ndarray:
    """Return the embeddings of the distinct texts of sampled pairs, which transforms are fitted on.

    Args:
        bank: Embeddings of the model that is transformed.
        pairs: Sampled training pairs.
        specs: Task specifications, for the prompts.

    Returns:
        Shape (distinct texts, d).
    """
    anchors, positives = _sides(bank, pairs, specs)
    return lookup_items(bank, list(dict.fromkeys([*anchors, *positives])))


def fit_pairs(
    bank: EmbeddingBank, pairs: pd.DataFrame, specs: Sequence[Mapping[str, Any]]
) -> PairVectors:
    """Return the embeddings of sampled pairs, side by side.

    Args:
        bank: Embeddings of the model that is transformed.
        pairs: Sampled training pairs.
        specs: Task specifications, for the prompts.
    """
    anchors, positives = (lookup_items(bank, side) for side in _sides(bank, pairs, specs))
    return PairVectors.of(pairs, anchors, positives)


def _sides(
    bank: EmbeddingBank, pairs: pd.DataFrame, specs: Sequence[Mapping[str, Any]]
) -> list[list[tuple[str, str]]]:
    """Return (prompt, text) of all anchors, and of all positives."""
    return [pair_items(pairs, role, specs, bank.header["prompts"]) for role in ROLES]
