"""Embeddings kept between runs: a text is encoded once per model, whichever run asks for it.

A folder of the store holds the vectors of one *space*: everything but prompt and text that decides
what a vector is. They lie in shards that are written once, under a name of their own, and never
changed, so that several processes can read and write at once without waiting for each other; the
worst that a race costs is a text encoded twice. A shard that was cut off or altered is found by its
length and checksums, said, removed and made again. Deleting any part of the folder is safe.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import struct
import time
import uuid
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from domain_embeddings.core.bundle import give_back_pages
from domain_embeddings.core.encoders.bank import KEY_BYTES, EmbeddingBank, as_bytes
from domain_embeddings.core.encoders.loading import backbone, weight_hash

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)

SUFFIX = ".shard"
_PARTIAL = ".partial"
_ABOUT = "space.json"
_MAGIC = b"EMBEDS01"
# Magic, rows, width, CRC-32 of keys and row sums.
_HEADER = struct.Struct("<8sQII8x")
_SUM_BYTES = 4
# More small shards than this are merged into one.
_MAX_SMALL_SHARDS = 32
_SMALL_ROWS = 2_048
# A partial file this old was left behind by a process that was killed.
_STALE_SECONDS = 24 * 3_600


@dataclass(frozen=True)
class _Shard:
    """A shard, memory-mapped: keys (n,) of 16 bytes, row sums (n,) and vectors (n, d) float32."""

    path: Path
    keys: np.ndarray
    sums: np.ndarray
    vectors: np.ndarray


class Space:
    """The stored vectors of one model under one maximum length and number type.

    Args:
        folder: Where its shards are.
        width: Width of the vectors.
        store: The store that it is a part of.
    """

    def __init__(self, folder: Path, width: int, store: EmbeddingStore) -> None:
        """Point at the folder, which need not exist."""
        self.folder = folder
        self.width = width
        self._store = store

    def read(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Find stored vectors.

        Args:
            keys: Distinct keys (n, 16) uint8, sorted.

        Returns:
            Which keys were found, shape (n,), and vectors (n, width) float32, of which only the
            found rows mean anything.
        """
        wanted = as_bytes(keys)
        found = np.zeros(len(wanted), dtype=bool)
        vectors = np.zeros((len(wanted), self.width), dtype=np.float32)
        for path in self._shards():
            if found.all():
                break
            shard = self._open(path)
            if shard is None:
                continue
            # The shard's keys are looked for among the wanted ones, which are sorted.
            place = np.minimum(np.searchsorted(wanted, shard.keys), len(wanted) - 1)
            own = np.flatnonzero((wanted[place] == shard.keys) & ~found[place])
            taken = self._rows(shard, own)
            if taken is not None and len(own):
                vectors[place[own]], found[place[own]] = taken, True
                _touch(path)
        return found, vectors

    def add(self, keys: np.ndarray, vectors: np.ndarray) -> None:
        """Store vectors; a disk that is full or read-only costs a warning.

        Args:
            keys: Keys (n, 16) uint8, in any order.
            vectors: Their embeddings (n, width), float32.
        """
        path = self.folder / f"{uuid.uuid4().hex}{SUFFIX}"
        partial = path.with_suffix(_PARTIAL)
        sums = row_sums(vectors)
        crc = zlib.crc32(sums.tobytes(), zlib.crc32(keys.tobytes()))
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                file.write(_HEADER.pack(_MAGIC, len(keys), self.width, crc))
                for part in (keys, sums, vectors):
                    file.write(np.ascontiguousarray(part).data)
                file.flush()
                os.fsync(file.fileno())
            partial.rename(path)
        except OSError as error:
            logger.warning("Embeddings are not kept for later runs: %s", error)
            with contextlib.suppress(OSError):
                partial.unlink()

    def tidy(self) -> None:
        """Merge many small shards into one, and keep the store within its limit."""
        try:
            self._merge_small()
            self._store.prune()
        except OSError as error:
            logger.warning("The embedding store '%s' was not tidied: %s", self.folder, error)

    def _merge_small(self) -> None:
        opened = [self._open(path) for path in self._shards()]
        small = [shard for shard in opened if shard is not None and len(shard.keys) <= _SMALL_ROWS]
        if len(small) <= _MAX_SMALL_SHARDS:
            return
        parts = [(s, self._rows(s, np.arange(len(s.keys)))) for s in small]
        sound = [(shard, rows) for shard, rows in parts if rows is not None]
        keys = np.concatenate([shard.keys for shard, _ in sound])
        keys, first = np.unique(keys, return_index=True)
        vectors = np.concatenate([rows for _, rows in sound])[first]
        before = set(self._shards())
        self.add(keys.view(np.uint8).reshape(-1, KEY_BYTES), vectors)
        if set(self._shards()) - before:
            for shard, _ in sound:
                shard.path.unlink(missing_ok=True)

    def _shards(self) -> list[Path]:
        return sorted(self.folder.glob(f"*{SUFFIX}"))

    def _open(self, path: Path) -> _Shard | None:
        """Map a shard and check its length and the checksum of its index."""
        try:
            content = np.memmap(path, dtype=np.uint8, mode="r")
            magic, rows, width, crc = _HEADER.unpack(content[: _HEADER.size].tobytes())
        except FileNotFoundError:  # removed by another process since it was listed
            return None
        except (OSError, ValueError, struct.error) as error:
            self._discard(path, str(error))
            return None
        start = _HEADER.size + rows * (KEY_BYTES + _SUM_BYTES)
        if magic != _MAGIC or width != self.width or len(content) != start + rows * width * 4:
            self._discard(path, "its length is not the one it announces")
            return None
        index = content[_HEADER.size : start]
        if zlib.crc32(index.tobytes()) != crc:
            self._discard(path, "its index is not what was written")
            return None
        return _Shard(
            path,
            as_bytes(index[: rows * KEY_BYTES].reshape(rows, KEY_BYTES)),
            np.frombuffer(index[rows * KEY_BYTES :].tobytes(), dtype=np.uint32),
            content[start:].view(np.float32).reshape(rows, width),
        )

    def _rows(self, shard: _Shard, rows: np.ndarray) -> np.ndarray | None:
        """Read rows of a shard and compare them with their checksums."""
        taken = np.asarray(shard.vectors[rows])
        give_back_pages(shard.vectors)
        if (row_sums(taken) != shard.sums[rows]).any():
            self._discard(shard.path, "its vectors are not what was written")
            return None
        return taken

    def _discard(self, path: Path, reason: str) -> None:
        """Say that a shard cannot be used, and remove it."""
        logger.warning(
            "Embedding store: %s is damaged (%s); encoding its texts again", path, reason
        )
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("Embedding store: %s could not be removed: %s", path, error)


class EmbeddingStore:
    """Embeddings of every model, kept in a folder from run to run.

    Args:
        folder: Where they are kept.
        max_bytes: Size above which the shards that were not used for longest are removed; None for
            no limit.
    """

    def __init__(self, folder: str | Path, *, max_bytes: int | None = None) -> None:
        """Point at the folder, which need not exist."""
        self.folder = Path(folder)
        self.max_bytes = max_bytes

    def embed(
        self,
        model: SentenceTransformer,
        texts: Sequence[str],
        prompt: str = "",
        *,
        batch_tokens: int = 16_384,
        show_progress: bool = True,
    ) -> np.ndarray:
        """Return the embeddings of texts, encoding only those that no run has encoded.

        Every call hashes the weights.

        Args:
            model: The encoder.
            texts: Texts without their prompt, repeats allowed.
            prompt: Put in front of every text.
            batch_tokens: Padded tokens per batch.
            show_progress: Whether to draw a progress bar.

        Returns:
            Unit vectors of shape (len(texts), d), float32, in the order of ``texts``.

        Raises:
            DataError: A text has no finite embedding.
        """
        space = self.space(model)
        if len(texts) == 0:
            return np.empty((0, space.width), dtype=np.float32)
        bundle = EmbeddingBank.build(
            model,
            ((prompt, text) for text in texts),
            space=space,
            batch_tokens=batch_tokens,
            show_progress=show_progress,
        )
        return EmbeddingBank(bundle).lookup(texts, prompt)

    def space(self, model: SentenceTransformer, weights: str | None = None) -> Space:
        """Return the stored vectors of a model as it is now.

        Args:
            model: The encoder; another weight, tokenizer, pooling, configuration, maximum length,
                number type or kind of device is another space.
            weights: Hash of its weights (`weight_hash`) where it is known; None computes it.
        """
        about = describe_space(model, weights)
        name = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:24]
        space = Space(self.folder / name, int(about["width"]), self)
        if not (space.folder / _ABOUT).is_file():
            self._write_about(space.folder, about)
        return space

    def prune(self) -> None:
        """Remove the shards that were not used for longest, until the store is within its limit."""
        now = time.time()
        for partial in self.folder.glob(f"*/*{_PARTIAL}"):
            if now - _modified(partial) > _STALE_SECONDS:
                partial.unlink(missing_ok=True)
        if self.max_bytes is None:
            return
        shards = [(_modified(path), _size(path), path) for path in self._all()]
        excess = sum(size for _, size, _ in shards) - self.max_bytes
        removed = 0
        for _, size, path in sorted(shards):
            if excess <= 0:
                break
            path.unlink(missing_ok=True)
            excess -= size
            removed += 1
            _remove_empty(path.parent)
        if removed:
            logger.info(
                "Embedding store: removed %d shards above the limit of %.2f GiB",
                *(removed, self.max_bytes / 2**30),
            )

    def _all(self) -> Iterable[Path]:
        return self.folder.glob(f"*/*{SUFFIX}")

    @staticmethod
    def _write_about(folder: Path, about: dict[str, Any]) -> None:
        """Say for people which model the folder is of; nothing reads it."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            partial = folder / f"{uuid.uuid4().hex}{_PARTIAL}"
            partial.write_text(json.dumps(about, indent=2), encoding="utf-8")
            partial.replace(folder / _ABOUT)
        except OSError as error:
            logger.warning("Embedding store: %s", error)


def describe_space(model: SentenceTransformer, weights: str | None = None) -> dict[str, Any]:
    """Return what decides a vector beside prompt and text.

    Args:
        model: The encoder.
        weights: See `EmbeddingStore.space`.

    Returns:
        JSON-serialisable; equal for models that embed equally, wherever they were loaded from.
    """
    modules: Any = list(model)
    config = backbone(model).config.to_dict()
    # Where a model was loaded from, by which version and in which type does not change a vector.
    left_out = {"transformers_version", "dtype", "torch_dtype", "architectures"}
    settings = {
        key: value
        for key, value in config.items()
        if not key.startswith("_") and key not in left_out
    }
    described: Any = [
        [type(module).__name__, getattr(module, "get_config_dict", dict)()]
        for module in modules[1:]
    ]
    return {
        "weight_hash": weight_hash(model) if weights is None else weights,
        "modules": _digest(described),
        "config": _digest(settings),
        "tokenizer": _tokenizer_hash(model.tokenizer),
        "max_length": int(model.max_seq_length or 0),
        "width": int(model.get_embedding_dimension() or 0),
        "dtype": str(next(model.parameters()).dtype),
        "device": model.device.type,
    }


def row_sums(vectors: np.ndarray) -> np.ndarray:
    """Return a checksum of every row (n, d) float32: the exclusive or of its words, shape (n,)."""
    words = np.ascontiguousarray(vectors, dtype=np.float32).view(np.uint32)
    return np.asarray(np.bitwise_xor.reduce(words, axis=1, initial=0), dtype=np.uint32)


def _tokenizer_hash(tokenizer: Any) -> str:
    """Hash a tokenizer without the padding and truncation of its last call."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return _digest({"class": type(tokenizer).__name__, "vocabulary": tokenizer.get_vocab()})
    content = json.loads(backend.to_str())
    side = getattr(tokenizer, "padding_side", None)
    return _digest({**content, "padding": side, "truncation": None})


def _digest(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _remove_empty(folder: Path) -> None:
    """Remove the folder of a space without shards, unless another process writes to it."""
    if any(folder.glob(f"*{SUFFIX}")) or any(folder.glob(f"*{_PARTIAL}")):
        return
    (folder / _ABOUT).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


def _touch(path: Path) -> None:
    """Mark a shard as used."""
    # Gone meanwhile, or a disk that is only read.
    with contextlib.suppress(OSError):
        os.utime(path)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return time.time()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
