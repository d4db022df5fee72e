"""Encode, once and at full width, every text that evaluation and geometry will ask for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from domain_embeddings.core.bundle import Bundle
from domain_embeddings.core.encoders.bank import EmbeddingBank
from domain_embeddings.core.encoders.loading import describe
from domain_embeddings.core.encoders.rotation import find_rotation
from domain_embeddings.core.encoders.store import EmbeddingStore
from domain_embeddings.core.evaluation.encoder import task_prompts
from domain_embeddings.core.evaluation.sampling import ROLES, pair_items
from domain_embeddings.core.evaluation.tasks import LocalTask

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def embed(  # noqa: PLR0913 - the model, three kinds of input and two settings
    model: SentenceTransformer,
    tasks: Sequence[LocalTask],
    pairs: pd.DataFrame,
    specs: Sequence[Mapping[str, Any]],
    *,
    batch_tokens: int,
    store: EmbeddingStore | None = None,
    show_progress: bool = True,
) -> Bundle:
    """Build the embedding bank of a model.

    Args:
        model: The encoder.
        tasks: Tasks whose texts are encoded: the evaluated split and what their probes draw.
        pairs: Sampled training pairs; both sides are encoded.
        specs: Task specifications, for the prompts.
        batch_tokens: Padded tokens per batch.
        store: Where vectors are kept from run to run; None encodes every text.
        show_progress: Whether to draw a progress bar.

    Returns:
        The bank; its header describes the model and names the widths it was trained for. A prefix
        rotation of the model (docs/method.md, section 4b) is kept as the array ``rotation``, U of
        shape (d, d), so that geometry can be measured in the basis of the reference model.
    """
    header = {
        **describe(model),
        "widths": list(getattr(model, "trained_widths", None) or []),
        "split": tasks[0].split if tasks else "",
    }
    items = _items(tasks, pairs, specs, header["prompts"])
    bundle = EmbeddingBank.build(
        model,
        items,
        space=store.space(model, header["weight_hash"]) if store else None,
        batch_tokens=batch_tokens,
        header=header,
        show_progress=show_progress,
    )
    rotation = find_rotation(model)
    if rotation is None:
        return bundle
    basis = rotation.linear.weight.detach().cpu().numpy().T
    return Bundle({**bundle.arrays, "rotation": np.ascontiguousarray(basis)}, bundle.header)


def _items(
    tasks: Sequence[LocalTask],
    pairs: pd.DataFrame,
    specs: Sequence[Mapping[str, Any]],
    model_prompts: Mapping[str, str | None],
) -> Iterator[tuple[str, str]]:
    """Yield (prompt, text) of all tasks and pairs."""
    prompts = task_prompts(specs, model_prompts)
    for task in tasks:
        for role, text in task.texts():
            yield prompts[task.name][role], text
    for role in ROLES:
        yield from pair_items(pairs, role, specs, model_prompts)
