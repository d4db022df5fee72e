"""Axes that are learned: the rotation whose prefixes tell a pair from other pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init
from torch.nn.utils.parametrizations import orthogonal
from tqdm.auto import tqdm

from domain_embeddings.core.encoders.pair_vectors import PairVectors
from domain_embeddings.core.losses.info_nce import false_negative_mask, nested_info_nce
from domain_embeddings.core.statistics.axes import shared_axes
from domain_embeddings.core.statistics.eigenspace import canonical_signs
from domain_embeddings.core.threads import one_thread

# Chosen on dev data (docs/decisions.md, "Axes that are learned").
STEPS = 200
BATCH = 512
LEARNING_RATE = 4e-3
TEMPERATURE = 0.07
NOISE = 0.7
HELD_OUT = 0.1
MOST_HELD_OUT = 1_024
FEWEST_HELD_OUT = 5
CHECK_EVERY = 20


def contrastive_axes(
    pairs: PairVectors, widths: Sequence[int], *, noise: float = NOISE, seed: int = 0
) -> np.ndarray:
    """Learn the orthogonal axes whose prefixes tell pairs apart best, from finished embeddings.

    The nested loss of training (equal weights, full width left out, since a rotation changes
    nothing there) is minimised over rotations of the shared axes, with the embeddings as they are:
    no forward pass of any model is needed. Gaussian noise keeps it from directions in which texts
    hardly differ: a model that was trained on these pairs has them closer together, in ways that do
    not carry over, than others. Of the rotations seen on the way, the one with the smallest loss on
    a tenth of the pairs is returned, which are not learned from but may share texts with those that
    are. The shared axes are returned where none is better, where no width is below d, and for fewer
    pairs than leave `FEWEST_HELD_OUT`.

    Args:
        pairs: Embeddings of n training pairs.
        widths: Nested widths, of which those below d count.
        noise: Expected norm of the noise, beside embeddings of norm 1.
        seed: Of held-out pairs, batches and noise.

    Returns:
        The axes as columns, (d, d) float64 with canonical signs; the same on every machine with
        the same processor, however many threads there are.

    Source:
        docs/method.md, section 4b.
    """
    with one_thread():
        _, start = shared_axes(pairs.anchors, pairs.positives, pairs.sources)
        prefixes = [m for m in widths if m < len(start)]
        held_out = min(round(HELD_OUT * len(pairs.anchors)), MOST_HELD_OUT)
        if not prefixes or held_out < FEWEST_HELD_OUT:
            return start
        turn = _learn(_Sides.of(pairs, start), prefixes, held_out, noise, seed)
        # Single precision leaves the axes orthogonal to 1e-6; the nearest orthogonal ones are so.
        left, _, right = np.linalg.svd(start @ turn.T.double().numpy())
        return canonical_signs(left @ right)


class _Sides:
    """The two sides of pairs as tensors in the basis to start from, and who may be compared."""

    def __init__(self, sides: tuple[Tensor, Tensor], ids: tuple[Tensor, ...]) -> None:
        self.sides, self.ids = sides, ids

    @staticmethod
    def of(pairs: PairVectors, start: np.ndarray) -> _Sides:
        """Turn embeddings into the basis to start from."""
        sides = [
            torch.from_numpy((np.asarray(side, dtype=np.float64) @ start).astype(np.float32))
            for side in (pairs.anchors, pairs.positives)
        ]
        ids = (pairs.anchor_ids, pairs.positive_ids, pairs.labels)
        return _Sides((sides[0], sides[1]), tuple(torch.from_numpy(values) for values in ids))

    def loss(
        self, rows: Tensor, turn: Tensor, prefixes: Sequence[int], noise: Tensor | None = None
    ) -> Tensor:
        """Return the nested loss of some pairs, one mean over all prefixes."""
        anchor_ids, positive_ids, labels = (values[rows] for values in self.ids)
        mask, _ = false_negative_mask(
            anchor_ids, positive_ids, labels=labels, task_ids=torch.zeros_like(labels)
        )
        sides = [side[rows] for side in self.sides]
        if noise is not None:
            sides = [side + own for side, own in zip(sides, noise, strict=True)]
        kept = turn[: prefixes[-1]].T
        loss, _ = nested_info_nce(
            sides[0] @ kept, sides[1] @ kept, prefixes, temperature=TEMPERATURE, mask=mask
        )
        return loss


def _learn(
    sides: _Sides, prefixes: Sequence[int], held_out: int, noise: float, seed: int
) -> Tensor:
    """Return the rotation with the smallest loss on held-out pairs, (d, d), rows for axes."""
    count, width = sides.sides[0].shape
    generator = torch.Generator().manual_seed(seed)
    held, learned = torch.randperm(count, generator=generator).tensor_split([held_out])
    linear = skip_init(nn.Linear, width, width, bias=False)
    nn.init.eye_(linear.weight)
    # The Cayley map of a skew matrix: every step ends at a rotation, and zero is the start.
    layer = cast("nn.Linear", orthogonal(linear, orthogonal_map="cayley"))
    optimiser = torch.optim.Adam(layer.parameters(), LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, LEARNING_RATE, total_steps=STEPS)
    best, best_loss = torch.eye(width), float("inf")
    for step in tqdm(range(STEPS + 1), desc="axes", unit="step", leave=False):
        if step % CHECK_EVERY == 0:
            with torch.no_grad():
                turn = layer.weight.clone()
                loss = float(sides.loss(held, turn, prefixes))
            if loss < best_loss:
                best, best_loss = turn, loss
        if step == STEPS:
            break
        rows = learned[torch.randperm(len(learned), generator=generator)[:BATCH]]
        added = torch.randn(2, len(rows), width, generator=generator) * (noise / width**0.5)
        optimiser.zero_grad()
        sides.loss(rows, layer.weight, prefixes, added).backward()
        optimiser.step()
        schedule.step()
    return best
