"""How strongly each term of the loss pulls, measured where all of them act."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from domain_embeddings.core.losses.nesting import no_autocast
from domain_embeddings.core.training.distributed import sum_up, workers

PREFIX = "gradient_norm_"


def gradient_norms(terms: Mapping[str, Tensor], at: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return the norm of the gradient of every term.

    The graph stays as it is, and nothing is accumulated: training goes on as if this had not been
    asked.

    Args:
        terms: Weighted terms of the loss, scalars.
        at: Tensors that the gradient is taken by, all together.

    Returns:
        Norm of each term, named ``gradient_norm_<term>``; 0 where a term does not depend on
        them.
    """
    return {PREFIX + name: _norm(term, at) for name, term in terms.items()}


def _norm(term: Tensor, at: Sequence[Tensor]) -> Tensor:
    if not term.requires_grad:
        return term.detach().float() * 0
    with no_autocast(term):
        slopes = torch.autograd.grad(term, list(at), retain_graph=True, allow_unused=True)
    squares = [slope.float().square().sum() for slope in slopes if slope is not None]
    if not squares:
        return term.detach().float() * 0
    # The loss is the mean over workers, each of which holds a part of what it depends on.
    return sum_up(torch.stack(squares).sum()).sqrt() / workers()
