"""Checkpoints on disk: complete or not there at all, and nothing in them is pickled."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from domain_embeddings.core.errors import ParameterError

logger = logging.getLogger(__name__)

# Part of every fingerprint: a change of what is stored never meets old files.
FORMAT = 1
MANIFEST = "manifest.json"
TREE, TENSORS = "state.json", "state.safetensors"
STEP = "step-"
PARTIAL = ".partial"
MEBIBYTE = 1024**2


# --------------------------------------------------------------------------------- state on disk


def write_state(folder: Path, state: Any) -> None:
    """Write nested state without pickle: tensors as safetensors, everything else as JSON.

    Args:
        folder: Existing folder.
        state: Dicts, lists, tuples, tensors, NumPy arrays, strings, numbers, booleans and None.

    Raises:
        TypeError: If there is anything else in ``state``.
    """
    from safetensors.torch import save_file

    tensors: dict[str, Any] = {}
    tree = _encode(state, tensors, set())
    (folder / TREE).write_text(json.dumps(tree), encoding="utf-8")
    save_file(tensors, folder / TENSORS)


def read_state(folder: Path) -> Any:
    """Read what `write_state` wrote, tensors on the CPU."""
    from safetensors.torch import load_file

    tree = json.loads((folder / TREE).read_text(encoding="utf-8"))
    return _decode(tree, load_file(folder / TENSORS))


def _encode(value: Any, tensors: dict[str, Any], memory: set[int]) -> Any:
    """Return ``value`` as JSON whose tensors are references into ``tensors``."""
    import numpy as np
    import torch

    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, torch.Tensor | np.ndarray):
        kind = "tensor" if isinstance(value, torch.Tensor) else "array"
        name = f"{len(tensors):06d}"
        tensor = value if isinstance(value, torch.Tensor) else torch.from_numpy(np.array(value))
        stored = tensor.detach().cpu().contiguous()
        place = stored.untyped_storage().data_ptr()
        # safetensors refuses two names for one piece of memory.
        tensors[name] = stored.clone() if place in memory else stored
        memory.add(place)
        return {kind: name}
    if isinstance(value, list):
        return [_encode(item, tensors, memory) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [_encode(item, tensors, memory) for item in value]}
    if isinstance(value, Mapping):
        # Pairs, because the keys of an optimiser's state are numbers, which JSON does not know.
        items = [[_encode(part, tensors, memory) for part in item] for item in value.items()]
        return {"dict": items}
    msg = f"A checkpoint cannot hold a {type(value).__name__}"
    raise TypeError(msg)


def _decode(value: Any, tensors: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    [(kind, content)] = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "array":
        return tensors[content].numpy()
    items = [_decode(item, tensors) for item in content]
    return tuple(items) if kind == "tuple" else dict(items)


# ----------------------------------------------------------------------------------- fingerprint


def fingerprint(parts: Mapping[str, Any]) -> str:
    """Return a name for everything that determines the result of a training.

    Args:
        parts: Nested dicts, lists, arrays, strings and numbers; the order of keys is of no matter.

    Returns:
        16 hexadecimal digits.
    """
    digest = hashlib.sha256()
    _update(digest, parts)
    return digest.hexdigest()[:16]


def _update(digest: Any, value: Any) -> None:
    """Feed a value with its type and length, so that no two values look alike."""
    import numpy as np

    if isinstance(value, Mapping):
        digest.update(f"dict{len(value)}:".encode())
        for key in sorted(value, key=str):
            _update(digest, str(key))
            _update(digest, value[key])
    elif isinstance(value, np.ndarray) and value.dtype != object:
        digest.update(f"array{value.dtype}{value.shape}:".encode())
        digest.update(np.ascontiguousarray(value).data)
    elif isinstance(value, list | tuple | np.ndarray):
        digest.update(f"list{len(value)}:".encode())
        for item in value:
            _update(digest, item)
    else:
        text = repr(value).encode()
        digest.update(f"{type(value).__name__}{len(text)}:".encode() + text)


# ------------------------------------------------------------------------------------ the folder


@dataclass
class Checkpoints:
    """The checkpoints of one training, in a folder of its own.

    A checkpoint is written under a temporary name, synchronised to disk, sealed with a manifest of
    sizes and digests, and renamed: under its final name it is complete. Older ones go only after
    that.

    Args:
        root: Folder of the checkpoints of all trainings.
        fingerprint: What this training is, see `fingerprint`.
        keep: How many checkpoints to keep.
    """

    root: Path
    fingerprint: str
    keep: int = 2
    written: int = 0
    failed: int = 0
    _closed: bool = field(default=False, repr=False)

    @property
    def folder(self) -> Path:
        """The folder of this training."""
        return self.root / self.fingerprint

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second process with the very same training from writing to the folder."""
        with contextlib.ExitStack() as stack:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._mention_others()
                lock = stack.enter_context((self.folder / ".lock").open("w"))
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._closed = True
                logger.warning(
                    "Another process trains exactly this with checkpoints in %s; this one writes "
                    "none.",
                    self.folder,
                )
            except OSError as error:
                # Some network file systems have no locks; two equal runs at once are rare.
                logger.warning("No lock in %s: %s", self.folder, error)
            yield

    def summary(self) -> dict[str, Any]:
        """Return folder and counts for the report."""
        return {"folder": str(self.folder), "written": self.written, "failed": self.failed}

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint, newest first, whether it is sound or not."""
        if not self.folder.is_dir():
            return []
        names = [p.name.removeprefix(STEP) for p in self.folder.iterdir() if _is_step(p.name)]
        return sorted((int(name) for name in names), reverse=True)

    def path(self, step: int) -> Path:
        """Return the folder of the checkpoint of a step."""
        return self.folder / f"{STEP}{step:09d}"

    def latest(self) -> Path | None:
        """Return the newest sound checkpoint; says why it passes over a newer one."""
        if self._closed:
            return None
        for step in self.steps():
            problem = self._problem(self.path(step))
            if problem is None:
                return self.path(step)
            logger.warning(
                "The checkpoint %s cannot be used (%s); looking for the one before.",
                self.path(step),
                problem,
            )
        return None

    def save(self, step: int, write: Callable[[Path], None]) -> bool:
        """Write a checkpoint, then let go of old ones.

        A disk that is full or gone must not cost the training: it costs a warning, and what was
        there before stays.

        Args:
            step: Number of steps done.
            write: Writes the files into a folder.

        Returns:
            Whether the checkpoint is there.
        """
        from safetensors import SafetensorError

        if self._closed:
            return False
        partial = self._temporary(step)
        try:
            partial.mkdir(parents=True)
            write(partial)
            self._seal(partial, step)
            self._put(partial, self.path(step))
        except (OSError, SafetensorError) as error:
            self.failed += 1
            logger.warning(
                "No checkpoint at step %d: %s: %s. Training goes on; what was written before stays "
                "(training.checkpoints).",
                step,
                self.folder,
                error,
            )
            return False
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        self.written += 1
        self._prune(step)
        return True

    def _mention_others(self) -> None:
        """Say how much room the trainings take that were interrupted and never resumed."""
        others = [
            path
            for path in self.root.iterdir()
            if path != self.folder and any(path.glob(f"{STEP}*"))
        ]
        if others:
            size = sum(f.stat().st_size for p in others for f in p.rglob("*") if f.is_file())
            logger.info(
                "%d other unfinished trainings keep %.0f MiB in %s; remove what you will not "
                "resume.",
                len(others),
                size / MEBIBYTE,
                self.root,
            )

    def _temporary(self, step: int) -> Path:
        return self.folder / f"{STEP}{step:09d}.{uuid.uuid4().hex[:8]}{PARTIAL}"

    def _seal(self, folder: Path, step: int) -> None:
        """Bring all files to disk and write down what they are."""
        files = {}
        for path in sorted(folder.iterdir()):
            with path.open("rb") as file:
                os.fsync(file.fileno())
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            files[path.name] = {"bytes": path.stat().st_size, "sha256": digest}
        content = {"fingerprint": self.fingerprint, "step": step, "files": files}
        with (folder / MANIFEST).open("w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        _sync_folder(folder)

    def _put(self, partial: Path, final: Path) -> None:
        """Move a sealed checkpoint to its place; one that is there gives way."""
        if final.exists():
            _discard(final)
        partial.rename(final)
        _sync_folder(self.folder)

    def _prune(self, step: int) -> None:
        """Remove what is too old, unfinished, or ahead of this step.

        A checkpoint ahead of the step was passed over as damaged, or the user began anew.
        """
        behind = [other for other in self.steps() if other <= step]
        kept = {self.path(other).name for other in behind[: self.keep]}
        for path in self.folder.iterdir():
            if path.name.startswith(STEP) and path.name not in kept:
                _discard(path)

    def _problem(self, folder: Path) -> str | None:
        """Return what is wrong with a checkpoint, or None."""
        try:
            manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
            if manifest["fingerprint"] != self.fingerprint:
                return f"it belongs to the training {manifest['fingerprint']}"
            for name, expected in manifest["files"].items():
                size = (folder / name).stat().st_size
                if size != expected["bytes"]:
                    return f"{name} has {size} bytes instead of {expected['bytes']}"
                with (folder / name).open("rb") as file:
                    if hashlib.file_digest(file, "sha256").hexdigest() != expected["sha256"]:
                        return f"the content of {name} has changed since it was written"
        except FileNotFoundError as error:
            return f"{Path(str(error.filename)).name} is missing"
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            return f"{MANIFEST}: {type(error).__name__}: {error}"
        return None


def require_writable(root: str | Path) -> None:
    """Refuse a folder for checkpoints that cannot be written to.

    Raises:
        ParameterError: Naming the folder and the parameter.
    """
    probe = Path(root) / f".{uuid.uuid4().hex}"
    try:
        probe.parent.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        msg = (
            f"training.checkpoints.folder: cannot write to {Path(root).resolve()} "
            f"({error.strerror}); choose another folder, or training.checkpoints.every=null for no "
            "checkpoints"
        )
        raise ParameterError(msg) from None


def remove_checkpoints(folder: str | Path) -> None:
    """Remove the checkpoints of a training whose results are safely stored.

    Args:
        folder: Folder of the training, as its report names it.
    """
    # The results first: after a power cut there must be one or the other.
    os.sync()
    shutil.rmtree(folder, ignore_errors=True)


def _is_step(name: str) -> bool:
    return name.startswith(STEP) and name.removeprefix(STEP).isdigit()


def _discard(folder: Path) -> None:
    """Remove a checkpoint; killed half-way, it no longer bears the name of one."""
    if not folder.name.endswith(PARTIAL):
        folder = folder.rename(folder.with_name(f"{folder.name}.{uuid.uuid4().hex[:8]}{PARTIAL}"))
    shutil.rmtree(folder, ignore_errors=True)


def _sync_folder(folder: Path) -> None:
    """Bring the names in a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
