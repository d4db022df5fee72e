"""Every text of an evaluation encoded once, at full width, and found again by prompt and text."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from tqdm.auto import tqdm

from domain_embeddings.core.bundle import Bundle, give_back_pages
from domain_embeddings.core.errors import DataError, UserError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from domain_embeddings.core.encoders.store import Space

logger = logging.getLogger(__name__)

KEY_BYTES = 16
_SEPARATOR = "\x1f"
_SHOWN = 80
# Texts that are encoded, checked and stored together: what a killed run may lose.
BLOCK_TEXTS = 4_096
# Rows of a memory-mapped bank that are read before its pages are given back.
_TAKEN_ROWS = 2_048


def text_key(prompt: str, text: str) -> bytes:
    """Return the 128-bit key of a text under a prompt."""
    content = (prompt + _SEPARATOR + text).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(content, digest_size=KEY_BYTES).digest()


class EmbeddingBank:
    """Read access to the embeddings of many texts; the vectors may stay memory-mapped.

    Args:
        bundle: Arrays ``keys`` (n, 16) uint8, sorted, and ``vectors`` (n, d) float32 of unit norm.
    """

    def __init__(self, bundle: Bundle) -> None:
        """Index the keys."""
        self.header = bundle.header
        self.vectors = bundle["vectors"]
        self._keys = as_bytes(bundle["keys"])

    def __len__(self) -> int:
        """Return the number of distinct (prompt, text) items."""
        return len(self._keys)

    @property
    def width(self) -> int:
        """Width of the embeddings."""
        return int(self.vectors.shape[1])

    @staticmethod
    def build(  # noqa: PLR0913 - a model, its texts and four settings
        model: SentenceTransformer,
        items: Iterable[tuple[str, str]],
        *,
        space: Space | None = None,
        batch_tokens: int = 16_384,
        header: Mapping[str, Any] | None = None,
        show_progress: bool = True,
    ) -> Bundle:
        """Encode each distinct (prompt, text) item exactly once.

        Args:
            model: The encoder.
            items: Prompts and texts, in any order, repeats allowed.
            space: Vectors of this model that earlier runs have stored; new ones join them. None
                encodes everything.
            batch_tokens: Padded tokens per batch.
            header: Provenance of the model and settings to keep with the vectors.
            show_progress: Whether to draw a progress bar.

        Returns:
            The bank; equal items give an equal bank, whatever their order.

        Raises:
            DataError: The items are empty or a text has no finite embedding.
        """
        distinct = {text_key(prompt, text): (prompt, text) for prompt, text in items}
        if not distinct:
            msg = "there is no text to embed"
            raise DataError(msg)
        keys = sorted(distinct)
        ordered = [distinct.pop(key) for key in keys]
        table = np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(-1, KEY_BYTES)
        found, vectors = space.read(table) if space else (np.zeros(len(keys), dtype=bool), None)
        missing = np.flatnonzero(~found)
        if space is not None:
            logger.info(
                "Embedding store: %s texts found, %s to encode",
                *(f"{len(keys) - len(missing):,}", f"{len(missing):,}"),
            )
        # By length, so that a block needs little padding; the longest first, so that running out
        # of memory shows at once.
        longest = sorted(missing, key=lambda row: -sum(map(len, ordered[row])))
        with tqdm(
            total=len(missing), desc="encoding", unit="text", disable=not show_progress
        ) as bar:
            for start in range(0, len(longest), BLOCK_TEXTS):
                rows = np.array(longest[start : start + BLOCK_TEXTS])
                block = _encode([ordered[row] for row in rows], model, batch_tokens, bar)
                if vectors is None:
                    vectors = np.empty((len(keys), block.shape[1]), dtype=np.float32)
                vectors[rows] = block
                if space is not None:
                    space.add(table[rows], block)
        if space is not None and len(missing):
            space.tidy()
        arrays = {"vectors": cast("np.ndarray", vectors), "keys": table}
        return Bundle(arrays, dict(header or {}))

    def lookup(self, texts: Sequence[str], prompt: str = "") -> np.ndarray:
        """Return the embeddings of ``texts``.

        Args:
            texts: Texts without their prompt, repeats allowed.
            prompt: The prompt under which they were encoded.

        Returns:
            Full-width vectors of shape (len(texts), d), float32, in the order of ``texts``.

        Raises:
            UserError: A text was not encoded under this prompt.
        """
        return self.take(self.rows(texts, prompt))

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return the embeddings in some rows of the bank: shape (len(rows), d), float32."""
        taken = np.empty((len(rows), self.width), dtype=np.float32)
        for start in range(0, len(rows), _TAKEN_ROWS):
            part = slice(start, start + _TAKEN_ROWS)
            taken[part] = self.vectors[rows[part]]
            # The system maps many pages around each one that is read.
            give_back_pages(self.vectors)
        return taken

    def rows(self, texts: Sequence[str], prompt: str = "") -> np.ndarray:
        """Return where the bank has ``texts``, shape (len(texts),); see `lookup`.

        Raises:
            UserError: A text was not encoded under this prompt.
        """
        if len(texts) == 0:
            return np.empty(0, dtype=np.int64)
        wanted = np.frombuffer(
            b"".join(text_key(prompt, text) for text in texts), dtype=f"S{KEY_BYTES}"
        )
        rows = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
        absent = np.flatnonzero(self._keys[rows] != wanted)
        if absent.size:
            msg = (
                f"The embedding bank of '{self.header.get('model', '?')}' has no entry for the "
                f"text {_shorten(texts[int(absent[0])])} under the prompt {prompt!r} "
                f"({absent.size} of {len(texts)} texts are absent). Run the evaluation pipeline "
                "again from its first node."
            )
            raise UserError(msg)
        return np.asarray(rows)


def as_bytes(keys: np.ndarray) -> np.ndarray:
    """View (n, 16) bytes as n fixed-length strings, which NumPy can search."""
    return np.ascontiguousarray(keys).view(f"S{KEY_BYTES}").reshape(-1)


def _encode(
    items: Sequence[tuple[str, str]],
    model: SentenceTransformer,
    batch_tokens: int,
    bar: tqdm,
) -> np.ndarray:
    """Encode one block of items; only a block's texts are written out with their prompts."""
    from domain_embeddings.core.encoders.batching import encode

    vectors = encode(
        model,
        [prompt + text for prompt, text in items],
        batch_tokens=batch_tokens,
        show_progress=bar,
    )
    _require_finite(vectors, items)
    return np.asarray(vectors, dtype=np.float32)


def _require_finite(vectors: np.ndarray, items: Sequence[tuple[str, str]]) -> None:
    """Refuse embeddings with NaN or infinity, naming the first such text."""
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if bad.size:
        msg = (
            f"{bad.size} of {len(items)} texts have no finite embedding, "
            f"the first is {_shorten(items[int(bad[0])][1])}"
        )
        raise DataError(msg)


def _shorten(text: str) -> str:
    """Quote the beginning of a text for a message."""
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")
