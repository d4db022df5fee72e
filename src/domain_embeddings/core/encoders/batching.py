"""Length-aware batching: spend compute on tokens, not on padding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tqdm.auto import tqdm

from domain_embeddings.core.encoders.prefix import prefix
from domain_embeddings.core.errors import DataError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

TOKENISE_BLOCK = 4_096
# Larger batches only pad more on a CPU, and their activations no longer fit its caches.
CPU_BATCH_TOKENS = 2_048


def token_budget_batches(lengths: np.ndarray, batch_tokens: int) -> Iterator[np.ndarray]:
    """Group rows so that no padded batch exceeds a token budget.

    Args:
        lengths: Number of tokens of each row, shape (n,).
        batch_tokens: Largest rows x longest row of a batch; a longer single row stands alone.

    Yields:
        Row indices of one batch, longest rows first, so that running out of memory shows at once.
    """
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        rows = max(1, batch_tokens // max(1, int(lengths[order[start]])))
        yield order[start : start + rows]
        start += rows


def length_sorted_chunks(lengths: Sequence[int] | np.ndarray, chunks: int) -> list[np.ndarray]:
    """Split one batch into chunks of similar length, with the fewest padded tokens.

    The best contiguous split of the sorted rows is found exactly by dynamic programming; a batch is
    small, so this costs well under a millisecond per step.

    Args:
        lengths: Number of tokens of each row, shape (n,).
        chunks: Largest number of chunks; more chunks mean less padding and more kernel launches.

    Returns:
        Row indices per chunk, shortest rows first; together a permutation of all rows.
    """
    lengths = np.asarray(lengths)
    order = np.argsort(lengths, kind="stable")
    ends, counts = np.unique(lengths[order], return_counts=True)
    stops = np.cumsum(counts)
    k = min(chunks, len(ends))
    starts = np.concatenate([[0], stops[:-1]])
    # cost[i, j]: padded tokens of one chunk that holds the distinct lengths i..j.
    cost = (stops[None, :] - starts[:, None]) * ends[None, :].astype(float)
    cost[np.tril_indices(len(ends), -1)] = np.inf
    best = cost[0].copy()
    back = np.zeros((k, len(ends)), dtype=int)
    for chunk in range(1, k):
        options = np.concatenate([[np.inf], best[:-1]])[:, None] + cost
        back[chunk] = options.argmin(axis=0)
        best = options[back[chunk], np.arange(len(ends))]
    bounds, last = [], len(ends) - 1
    for chunk in range(k - 1, -1, -1):
        first = back[chunk, last] if chunk else 0
        bounds.append((starts[first], stops[last]))
        last = first - 1
    return [order[start:stop] for start, stop in reversed(bounds)]


def tokenise(model: SentenceTransformer, texts: Sequence[str]) -> list[dict[str, list[int]]]:
    """Tokenise texts that already carry their prompt, once and without padding.

    Returns:
        One mapping per text of the tokenizer's fields, truncated to the model's maximum length.
    """
    rows: list[dict[str, list[int]]] = []
    for start in range(0, len(texts), TOKENISE_BLOCK):
        fields = model.tokenizer(
            list(texts[start : start + TOKENISE_BLOCK]),
            truncation=True,
            max_length=model.max_seq_length,
            padding=False,
        )
        names = list(fields)
        rows.extend(
            dict(zip(names, values, strict=True))
            for values in zip(*(fields[name] for name in names), strict=True)
        )
    return rows


def count_truncated(model: SentenceTransformer, texts: Sequence[str]) -> int:
    """Count the texts that lose tokens to the model's maximum length."""
    longest = int(model.max_seq_length or 0)
    encoded = model.tokenizer(list(texts), truncation=False, padding=False, verbose=False)
    return sum(len(row) > longest for row in encoded["input_ids"])


def pad_rows(model: SentenceTransformer, rows: Sequence[dict[str, list[int]]]) -> dict[str, Any]:
    """Collate tokenised rows into one padded batch of tensors, as the tokenizer would.

    The tokenizer pads row by row in Python, which takes as long as tokenising and would keep a GPU
    waiting; it is asked only about fields that are not known here.

    Args:
        model: Supplies the padding values and the side of its tokenizer.
        rows: Tokenised rows, at least one.

    Returns:
        Tensors of shape (len(rows), longest row) by field, int64.
    """
    tokenizer = model.tokenizer
    padding = {
        "input_ids": tokenizer.pad_token_id,
        "token_type_ids": tokenizer.pad_token_type_id,
        "attention_mask": 0,
    }
    if tokenizer.pad_token_id is None or not set(rows[0]) <= set(padding):
        return dict(tokenizer.pad(list(rows), padding=True, return_tensors="pt"))
    lengths = np.array([len(row["input_ids"]) for row in rows])
    column = np.arange(lengths.max())
    if tokenizer.padding_side == "left":
        column = column[::-1]
    valid = column < lengths[:, None]
    batch = {}
    for name in rows[0]:
        table = np.full(valid.shape, padding[name], dtype=np.int64)
        values = chain.from_iterable(row[name] for row in rows)
        table[valid] = np.fromiter(values, dtype=np.int64, count=lengths.sum())
        batch[name] = torch.from_numpy(table)
    return batch


@torch.inference_mode()
def encode(
    model: SentenceTransformer,
    texts: Sequence[str],
    *,
    batch_tokens: int = 16_384,
    show_progress: bool | tqdm = True,
    label: str = "encoding",
) -> np.ndarray:
    """Encode texts in length-sorted batches at full width.

    Args:
        model: The encoder, used in evaluation mode.
        texts: Texts that already carry their prompt.
        batch_tokens: Largest padded batch in tokens; on a CPU it is never more than 2,048.
        show_progress: Show a progress bar of texts, or a bar of the caller's that counts on.
        label: What the bar says is being encoded.

    Returns:
        L2-normalised embeddings, float32, shape (n, width), in the order of ``texts``.

    Raises:
        DataError: If the model returns a non-finite embedding; names the text.
    """
    rows = tokenise(model, texts)
    lengths = np.array([len(row["input_ids"]) for row in rows], dtype=np.int64)
    width = int(model.get_embedding_dimension() or 0)
    embeddings = np.empty((len(rows), width), dtype=np.float32)
    forward = _forward(model.eval())
    if model.device.type == "cpu":
        batch_tokens = min(batch_tokens, CPU_BATCH_TOKENS)
    with _bar(show_progress, len(rows), label) as bar:
        for batch in token_budget_batches(lengths, batch_tokens):
            vectors = forward(pad_rows(model, [rows[i] for i in batch]))
            embeddings[batch] = prefix(vectors, width)
            bar.update(len(batch))
    _require_finite(embeddings, texts)
    return embeddings


def encode_distinct(model: SentenceTransformer, texts: Sequence[str], **options: Any) -> np.ndarray:
    """Encode texts of which many are equal, each of them once.

    Args:
        model: The encoder, used in evaluation mode.
        texts: Texts that already carry their prompt.
        options: Options of `encode`.

    Returns:
        As of `encode`.

    Raises:
        DataError: Likewise.
    """
    distinct, index = np.unique(np.array(texts, dtype=object), return_inverse=True)
    return encode(model, distinct.tolist(), **options)[index]


def _bar(shown: bool | tqdm, texts: int, label: str) -> AbstractContextManager[tqdm]:
    """Return a bar of texts, or the caller's, which is not closed."""
    if isinstance(shown, bool):
        return tqdm(total=texts, desc=label, unit="text", disable=not shown)
    return nullcontext(shown)


def _forward(model: SentenceTransformer) -> Callable[[dict[str, Any]], np.ndarray]:
    """Return a function from a padded batch to fp32 embeddings on the CPU."""
    device = model.device

    def run(features: dict[str, Any]) -> np.ndarray:
        features = {name: value.to(device) for name, value in features.items()}
        return model(features)["sentence_embedding"].float().cpu().numpy()

    return run


def _require_finite(embeddings: np.ndarray, texts: Sequence[str]) -> None:
    """Name the first text whose embedding is not finite."""
    bad = np.flatnonzero(~np.isfinite(embeddings).all(axis=1))
    if len(bad):
        msg = f"{len(bad)} embeddings are not finite; the first is of the text {texts[bad[0]]!r}"
        raise DataError(msg)
