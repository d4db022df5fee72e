"""Several workers that train as one: what they tell each other, and the slopes of it.

One rule holds everywhere: what is minimised is the *mean over workers* of what each of them
returns as its loss, and the gradients of the parameters are averaged over workers. A loss that all
workers compute alike from gathered values and a mean over a worker's own pairs then both come out
as if one worker had seen everything. Without a process group every function here is the identity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

Made = TypeVar("Made")
BUCKET_BYTES = 32 * 1024 * 1024


def workers() -> int:
    """Return how many workers train together; 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def worker() -> int:
    """Return the number of this worker, from 0."""
    return dist.get_rank() if workers() > 1 else 0


@dataclass(frozen=True)
class Shares:
    """What each worker holds of a batch.

    Args:
        sequences: Sequences of each worker.
        tokens: Valid tokens of each worker.
    """

    sequences: tuple[int, ...]
    tokens: tuple[int, ...]


def shares(sequences: int, tokens: int, device: torch.device) -> Shares | None:
    """Tell all workers the size of this worker's part of the batch.

    Args:
        sequences: Sequences of this worker.
        tokens: Their valid tokens.
        device: Where the numbers travel.

    Returns:
        The sizes of all workers, or None if there is only one.
    """
    if workers() == 1:
        return None
    sizes = _all_gather(torch.tensor([[sequences, tokens]], device=device)).tolist()
    return Shares(tuple(size[0] for size in sizes), tuple(size[1] for size in sizes))


def gather(x: Tensor, counts: Sequence[int] | None = None) -> list[Tensor]:
    """Return the rows of every worker, with a gradient to the worker they came from.

    Args:
        x: Rows of this worker, shape (n, ...); n may differ between workers.
        counts: Rows of every worker, if they are known already.

    Returns:
        One tensor per worker, in the order of workers.
    """
    if workers() == 1:
        return [x]
    if counts is None:
        counts = _all_gather(torch.tensor([len(x)], device=x.device)).tolist()
    most = max(counts)
    if len(x) < most:
        x = torch.cat([x, x.new_zeros(most - len(x), *x.shape[1:])])
    rows = cast("Any", _Gather.apply)(x).split(most)
    return [part[:count] for part, count in zip(rows, counts, strict=True)]


def total(x: Tensor) -> Tensor:
    """Return the sum over workers, with a gradient."""
    return x if workers() == 1 else cast("Any", _Total.apply)(x)


def mean(x: Tensor) -> Tensor:
    """Return the mean over workers, without a gradient."""
    return sum_up(x.detach()) / workers()


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Average the gradients of all workers, in few large messages.

    In place of a wrapper around the model: that one needs every worker to call the model equally
    often, and a worker's batch falls into as many chunks as its lengths ask for. It also knows
    nothing of parameters outside the model.

    Args:
        parameters: The same parameters in the same order on every worker. Sharded ones are left
            alone: their gradients are averaged as they are computed.
    """
    if workers() == 1:
        return
    found = [p.grad for p in parameters if p.grad is not None]
    for bucket in _buckets([gradient for gradient in found if not _is_sharded(gradient)]):
        flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
        dist.all_reduce(flat)
        flat /= workers()
        parts = flat.split([gradient.numel() for gradient in bucket])
        for gradient, part in zip(bucket, parts, strict=True):
            gradient.copy_(part.view_as(gradient))


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Group tensors of one type into messages of about `BUCKET_BYTES`."""
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        bucket: list[Tensor] = []
        size = 0
        for tensor in tensors:
            if tensor.dtype != dtype:
                continue
            bucket.append(tensor)
            size += tensor.numel() * tensor.element_size()
            if size >= BUCKET_BYTES:
                yield bucket
                bucket, size = [], 0
        if bucket:
            yield bucket


def from_first(make: Callable[[], Made]) -> Made:
    """Return what the first worker makes, on every worker; the others wait for it."""
    if workers() == 1:
        return make()
    box = [make() if worker() == 0 else None]
    dist.broadcast_object_list(box, src=0)
    return cast("Made", box[0])


def share_parameters(parameters: Iterable[nn.Parameter]) -> None:
    """Give every worker the parameters of the first one; pieces of a sharded one stay."""
    if workers() == 1:
        return
    with torch.no_grad():
        for parameter in parameters:
            if not _is_sharded(parameter):
                dist.broadcast(parameter.data, src=0)


def shard(model: nn.Module, layers: Iterable[nn.Module]) -> None:
    """Split all weights, their gradients and so the optimiser's state over the workers.

    A layer's weights are put together while it computes, so that a worker holds its share of the
    model and one whole layer.

    Args:
        model: Changed in place, equal on all workers and on its device. Every worker has to call it
            equally often.
        layers: The parts that are put together one at a time.
    """
    from torch.distributed.fsdp import fully_shard

    for layer in layers:
        fully_shard(cast("Any", layer))
    fully_shard(cast("Any", model))


def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return all weights of a sharded model on the CPU of the first worker; empty on the others."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return cast("dict[str, Tensor]", get_model_state_dict(model, options=options))


def _is_sharded(x: Tensor) -> bool:
    from torch.distributed.tensor import DTensor

    return isinstance(x, DTensor)


def gather_texts(x: Tensor, batch: dict[str, Any]) -> Tensor:
    """Put what is known of the texts of all workers together, as one worker would have seen it.

    Args:
        x: One row per text of this worker, anchors, positives, then mined negatives, (n_texts, ..).
        batch: The batch of this worker (`PairCollator`).

    Returns:
        The rows of all workers, with a gradient, in the order anchors, positives, negatives.
    """
    if workers() == 1:
        return x
    sizes = _sizes(batch)
    parts = gather(x, [texts for texts, _ in sizes])
    roles = [
        part.split([pairs, pairs, texts - 2 * pairs])
        for part, (texts, pairs) in zip(parts, sizes, strict=True)
    ]
    return torch.cat([part for role in zip(*roles, strict=True) for part in role])


def gather_ids(batch: dict[str, Any]) -> dict[str, Tensor]:
    """Return text_id of all texts, label and task of all pairs, and label of all negatives."""
    if workers() == 1:
        return {name: batch[name] for name in ("text_id", "label", "task", "negative_label")}
    pairs = [size[1] for size in _sizes(batch)]
    labels = torch.cat([batch["label"], batch["label"], batch["negative_label"]])
    return {
        "negative_label": gather_texts(labels, batch)[2 * sum(pairs) :],
        "text_id": gather_texts(batch["text_id"], batch),
        "label": torch.cat(gather(batch["label"], pairs)),
        "task": torch.cat(gather(batch["task"], pairs)),
    }


def _sizes(batch: dict[str, Any]) -> list[list[int]]:
    """Return texts and pairs of every worker; mined negatives and views differ in number."""
    if "sizes" not in batch:
        own = torch.tensor([[len(batch["text_id"]), len(batch["label"])]])
        # Kept with the batch: it is asked for several times a step.
        batch["sizes"] = _all_gather(own.to(batch["label"].device)).tolist()
    return batch["sizes"]


def _all_gather(x: Tensor) -> Tensor:
    """Join equally shaped tensors of all workers along the first axis."""
    joined = x.new_empty(workers() * len(x), *x.shape[1:])
    dist.all_gather_single(joined, x.contiguous())
    return joined


class _Gather(torch.autograd.Function):
    """Rows of all workers; the slope of a row is the sum of the slopes that all workers found."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _all_gather(x)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        own = slope.new_empty(len(slope) // workers(), *slope.shape[1:])
        dist.reduce_scatter_single(own, slope.contiguous())
        return own


class _Total(torch.autograd.Function):
    """Sum over workers; each worker's part gets the sum of the slopes that all workers found."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return sum_up(x)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        return sum_up(slope)


def sum_up(x: Tensor) -> Tensor:
    """Return the sum over workers, without a gradient of its own."""
    if workers() == 1:
        return x
    x = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(x)
    return x
