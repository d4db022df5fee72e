"""One self-contained folder per shipped width."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from tqdm.auto import tqdm

from domain_embeddings.core.encoders.cut import cut_model
from domain_embeddings.core.encoders.loading import CONFIG_FILE, WIDTHS_KEY, describe, weight_hash
from domain_embeddings.core.encoders.quantisation import INT8, Quantiser, quantiser
from domain_embeddings.core.errors import ParameterError
from domain_embeddings.core.reporting.card import card_of_width

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from domain_embeddings.core.bundle import Bundle

logger = logging.getLogger(__name__)

SETTINGS_FILE = "embedding.json"
SETTINGS_FORMAT = 1
RANGES_KEY = "quantisation"
# The name of the adapted model in `quantisation_ranges`.
MODEL = "adapted"
PACKAGES = ("sentence-transformers", "transformers", "torch")


def folder_name(width: int) -> str:
    """Return the name of the folder of a width."""
    return f"dim_{width}"


def exported_folders(root: Path) -> dict[int, Path]:
    """Return the folders below ``root`` by width, smallest first."""
    found = {read_settings(path.parent)["width"]: path.parent for path in _settings_files(root)}
    return dict(sorted(found.items()))


def _settings_files(root: Path) -> Iterator[Path]:
    return root.glob(f"*/{SETTINGS_FILE}")


def read_settings(folder: Path) -> dict[str, Any]:
    """Read the settings of an exported folder (docs/data_formats.md)."""
    settings: dict[str, Any] = json.loads((folder / SETTINGS_FILE).read_text(encoding="utf-8"))
    return settings


def write_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Write the settings of an exported folder."""
    text = json.dumps(settings, indent=2, allow_nan=False) + "\n"
    (folder / SETTINGS_FILE).write_text(text, encoding="utf-8")


def load_folder(folder: Path, device: str | None = None) -> SentenceTransformer:
    """Load an exported folder, by default on a GPU where there is one."""
    from domain_embeddings.core.encoders.loading import load_encoder

    return load_encoder(str(folder), device=device)


def for_each_width(
    source: Path, work: Callable[[Path, Path], dict[str, Any]], label: str
) -> Callable[[Path], dict[str, Any]]:
    """Return a function that makes a folder per width from those below ``source``.

    Args:
        source: Holds a folder per width.
        work: Fills the second folder, which is empty, from the first one, and returns details.
        label: What the progress bar says.

    Returns:
        A function of the folder that the new folders go to, which returns their details by width.
    """

    def write(root: Path) -> dict[str, Any]:
        made = {}
        for width, folder in tqdm(exported_folders(source).items(), desc=label, unit="width"):
            target = root / folder_name(width)
            target.mkdir()
            made[str(width)] = {"folder": target.name, **work(folder, target)}
        return {"widths": made}

    return write


def chosen_widths(
    widths: Literal["recommended"] | Sequence[int], recommended: int, model_width: int
) -> list[int]:
    """Return the widths to ship, smallest first.

    Args:
        widths: ``export.widths``.
        recommended: The width that the evaluation recommends.
        model_width: Full width d of the model.

    Returns:
        Distinct widths.

    Raises:
        ParameterError: If a width is wider than the model.
    """
    chosen = [recommended] if widths == "recommended" else sorted(set(widths))
    wider = [width for width in chosen if width > model_width]
    if wider:
        msg = (
            f"export.widths: {wider} wider than the model; allowed: recommended, or a list of "
            f"widths from 1 to {model_width}"
        )
        raise ParameterError(msg)
    return chosen


@dataclass(frozen=True)
class Shipment:
    """What the exported folders are made of.

    Args:
        model: The adapted model; its attribute ``trained_widths`` names its widths.
        widths: Widths to ship, see `chosen_widths`.
        recommended: The width that the evaluation recommends.
        card: Markdown of the model card.
        base: What the model was adapted from: ``model``, ``revision``, ``weight_hash``.
        ranges: The int8 ranges of the model at every calibrated width.
    """

    model: SentenceTransformer
    widths: Sequence[int]
    recommended: int
    card: str
    base: Mapping[str, Any]
    ranges: Bundle

    def __post_init__(self) -> None:
        """Warn about widths that the model was not trained for."""
        trained = self.trained
        untrained = [width for width in self.widths if width not in trained]
        if untrained:
            logger.warning(
                "export.widths: the model was not trained for %s, and nothing is known about its "
                "quality there; trained: %s",
                untrained,
                trained,
            )

    def require(self, precision: str) -> None:
        """Refuse a precision of which a width has no ranges.

        Raises:
            ParameterError: Naming the width.
            ProvenanceError: If the ranges belong to other weights.
        """
        weights = weight_hash(self.model)
        for width in self.widths:
            ranges = int8_ranges(self.ranges, width, weights)
            quantiser_of({"width": width, RANGES_KEY: {INT8: ranges}}, precision)

    @property
    def trained(self) -> list[int]:
        """Widths of the objective; the full width is part of every one."""
        named = getattr(self.model, "trained_widths", None) or []
        return sorted({*named, int(self.model.get_embedding_dimension() or 0)})

    @property
    def _version(self) -> str | None:
        """Version of the adapted model in the catalog; its folder says nothing elsewhere."""
        path = getattr(self.model, "saved_path", None)
        return None if path is None else Path(path).parent.name

    def write(self, root: Path) -> dict[str, Any]:
        """Write one folder per width.

        Args:
            root: An empty folder.

        Returns:
            The folders by width, with the hash of their weights.
        """
        source = {**describe(self.model), "trained_widths": self.trained}
        made = {}
        for width in tqdm(self.widths, desc="exporting widths", unit="model"):
            folder = root / folder_name(width)
            shipped = cut_model(self.model, width)
            shipped.save_pretrained(str(folder), create_model_card=False)
            settings = self._settings(shipped, width, source)
            write_settings(folder, settings)
            _extend_config(folder, settings)
            card = card_of_width(self.card, width, settings["prompts"], settings["max_length"])
            (folder / "README.md").write_text(card, encoding="utf-8")
            made[str(width)] = {"folder": folder.name, "weight_hash": settings["weight_hash"]}
        return {"widths": made}

    def _settings(
        self, shipped: SentenceTransformer, width: int, source: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Describe a folder to a program that knows nothing else."""
        return {
            "format": SETTINGS_FORMAT,
            "width": width,
            "full_width": source["width"],
            "trained_widths": source["trained_widths"],
            "trained": width in source["trained_widths"],
            "recommended": width == self.recommended,
            "similarity": "cosine",
            "normalised": True,
            "pooling": source["pooling"],
            "prompts": source["prompts"],
            "max_length": source["max_length"],
            RANGES_KEY: {INT8: int8_ranges(self.ranges, width, source["weight_hash"])},
            "weight_hash": weight_hash(shipped),
            "adapted_model": {"version": self._version, "weight_hash": source["weight_hash"]},
            "base_model": {key: self.base.get(key) for key in ("model", "revision", "weight_hash")},
            "versions": {name: version(name) for name in PACKAGES},
        }


def int8_ranges(ranges: Bundle, width: int, weights: str) -> list[list[float]] | None:
    """Return the calibrated range of every coordinate, or None where the width has none.

    Args:
        ranges: The entry ``quantisation_ranges``.
        width: Prefix width m.
        weights: Hash of the weights of the adapted model.

    Returns:
        Smallest and largest value of the m coordinates: two lists.

    Raises:
        ProvenanceError: If the ranges belong to other weights.
    """
    if width not in ranges.header["widths"]:
        return None
    found = quantiser(INT8, MODEL, width, ranges, weight_hash=weights).ranges
    return None if found is None else found.tolist()


def quantiser_of(settings: Mapping[str, Any], precision: str) -> Quantiser:
    """Return the quantiser that the settings of a folder describe.

    Raises:
        ParameterError: If int8 is asked for and the folder has no ranges.
    """
    if precision != INT8:
        return Quantiser(precision)
    ranges = settings[RANGES_KEY][INT8]
    if ranges is None:
        msg = (
            f"export.precision: int8 has no calibrated ranges at width {settings['width']}; "
            "allowed: float32, binary, or int8 at one of the evaluated widths"
        )
        raise ParameterError(msg)
    return Quantiser(INT8, np.array(ranges, dtype=np.float32))


def _extend_config(folder: Path, settings: Mapping[str, Any]) -> None:
    """Keep widths and ranges in the configuration of sentence-transformers, too."""
    path = folder / CONFIG_FILE
    config = json.loads(path.read_text(encoding="utf-8"))
    added = {WIDTHS_KEY: settings["trained_widths"], RANGES_KEY: settings[RANGES_KEY]}
    path.write_text(json.dumps({**config, **added}, indent=2), encoding="utf-8")
