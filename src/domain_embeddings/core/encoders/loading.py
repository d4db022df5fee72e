"""Load encoders from a hub, a folder or a PyPI package, and say exactly what was loaded."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from domain_embeddings.core.errors import ParameterError, ProvenanceError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

PACKAGE_SCHEME = "package:"
WEIGHTS_FILE = "model.safetensors"
CONFIG_FILE = "config_sentence_transformers.json"
WIDTHS_KEY = "trained_widths"
# Dense, Pooling (old and new name), and the transformer itself, whose folder is the root.
WIDTH_KEYS = ("out_features", "embedding_dimension", "word_embedding_dimension", "hidden_size")


def resolve_source(source: str) -> str:
    """Turn a model source into what sentence-transformers can load.

    Args:
        source: ``package:<module>`` for a model carried by an installed package, an existing local
            folder, or a hub id.

    Returns:
        A folder, or the hub id unchanged.

    Raises:
        ParameterError: If the package is not installed or carries no model folder.
    """
    if not source.startswith(PACKAGE_SCHEME):
        return source
    module = source.removeprefix(PACKAGE_SCHEME)
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        msg = (
            f"reference_model.source: the Python package '{module}' is not installed; install it, "
            "or name a local folder or a hub id"
        )
        raise ParameterError(msg)
    root = Path(next(iter(spec.submodule_search_locations)))
    folders = sorted(path.parent for path in root.rglob("modules.json"))
    if not folders:
        msg = f"reference_model.source: the package '{module}' carries no modules.json"
        raise ParameterError(msg)
    return str(folders[0])


def _require_pooled_prompts(model: SentenceTransformer, source: str) -> None:
    """Refuse models that leave their prompt out of pooling: texts carry it like other tokens."""
    excluded = any(getattr(module, "include_prompt", True) is False for module in model)
    if excluded and any(model.prompts.values()):
        msg = (
            f"reference_model.source: '{source}' leaves its prompt out of pooling "
            "(include_prompt: false), which is not supported; allowed: models that pool all tokens"
        )
        raise ParameterError(msg)


def read_width(source: str) -> int | None:
    """Read a local model's embedding width from its configuration, without loading anything.

    Args:
        source: See `resolve_source`.

    Returns:
        The width, or None where only loading the model would tell, as for a hub id.
    """
    folder = Path(resolve_source(source))
    modules = folder / "modules.json"
    if not modules.is_file():
        return None
    width = None
    for module in json.loads(modules.read_text(encoding="utf-8")):
        config = folder / module["path"] / "config.json"
        if config.is_file():
            values = json.loads(config.read_text(encoding="utf-8"))
            width = next((values[key] for key in WIDTH_KEYS if key in values), width)
    return width


def check_weights(folder: str, sha256: str) -> None:
    """Compare the weight file of a local model with its expected SHA-256.

    Raises:
        ProvenanceError: If the digest differs or there is no local weight file to check.
    """
    path = Path(folder) / WEIGHTS_FILE
    if not path.is_file():
        msg = f"reference_model.sha256: there is no {WEIGHTS_FILE} in '{folder}' to check"
        raise ProvenanceError(msg)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != sha256:
        msg = f"reference_model.sha256: {path} has {digest}, expected {sha256}"
        raise ProvenanceError(msg)


def load_encoder(  # noqa: PLR0913 - one argument per key of the catalog entry
    source: str,
    *,
    revision: str | None = None,
    sha256: str | None = None,
    max_length: int | None = None,
    prompts: Mapping[str, str] | None = None,
    device: str | None = "cpu",
    trust_remote_code: bool = False,
) -> SentenceTransformer:
    """Load a sentence-transformers model and attach where it came from.

    Args:
        source: See `resolve_source`.
        revision: Commit of a hub model; recorded in every artifact made with it.
        sha256: Expected digest of the local ``model.safetensors``.
        max_length: Longest input in tokens; the model's own limit if None.
        prompts: Prompts by role, ``query`` and ``document``; the model's own if None.
        device: Torch device.
        trust_remote_code: Allow code from a hub repository; off unless the user asks.

    Returns:
        The model, in evaluation mode, with the attribute ``provenance``.

    Raises:
        ParameterError: If the source is not to be found or ends in no usable encoder.
        ProvenanceError: If the weights are not the expected ones.
    """
    from sentence_transformers import SentenceTransformer

    path = resolve_source(source)
    if sha256 is not None:
        check_weights(path, sha256)
    try:
        model: Any = SentenceTransformer(
            path,
            revision=revision,
            device=device,
            trust_remote_code=trust_remote_code,
            model_kwargs={"use_safetensors": True},
            prompts=dict(prompts) if prompts is not None else None,
        )
    except (OSError, ValueError) as error:
        msg = f"reference_model.source: could not load '{source}': {error}"
        raise ParameterError(msg) from error
    _require_text_encoder(model, source)
    _require_pooled_prompts(model, source)
    if max_length is not None:
        model.max_seq_length = max_length
    model.provenance = {"model": source, "revision": revision}
    return model.eval()


def _require_text_encoder(model: SentenceTransformer, source: str) -> None:
    """Refuse models whose layers we could not reach: the first module has to be a transformer."""
    if not hasattr(model[0], "auto_model") or model.tokenizer is None:
        msg = (
            f"reference_model.source: '{source}' does not start with a transformer; static and "
            "bag-of-words models have no layers to train"
        )
        raise ParameterError(msg)
    if "message" in getattr(model[0], "modality_config", {}):
        msg = (
            f"reference_model.source: '{source}' rewrites every text with the chat template of its "
            "tokenizer, which is not supported; remove the template (or save the model with the "
            "modality text only), and put an instruction into reference_model.prompts"
        )
        raise ParameterError(msg)


def backbone(model: SentenceTransformer) -> Any:
    """Return the transformers model inside an encoder."""
    return model[0].auto_model


def transformer_layers(model: SentenceTransformer) -> list[Any]:
    """Return the layers of the transformers model inside an encoder, in order."""
    encoder = backbone(model)
    count = encoder.config.num_hidden_layers
    lists = (m for m in encoder.modules() if type(m).__name__ == "ModuleList" and len(m) == count)
    return list(next(lists))


def weight_hash(model: SentenceTransformer) -> str:
    """Return a digest of all weights, independent of where the model was stored.

    Returns:
        Sixteen hexadecimal digits over names, shapes and fp32 values.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().float().numpy().tobytes())
    return digest.hexdigest()[:16]


def describe(model: SentenceTransformer) -> dict[str, Any]:
    """Describe an encoder for the header of everything that is made with it.

    Returns:
        Keys model, revision, weight_hash, pooling, prompts, max_length and width.
    """
    provenance = getattr(model, "provenance", {"model": "in memory", "revision": None})
    pooling = [getattr(module, "pooling_mode", None) for module in model]
    return {
        **provenance,
        "weight_hash": weight_hash(model),
        "pooling": "+".join(str(mode) for mode in pooling if mode),
        "prompts": dict(model.prompts),
        "max_length": int(model.max_seq_length or 0),
        "width": int(model.get_embedding_dimension() or 0),
    }


def write_widths(folder: Path, widths: list[int]) -> None:
    """Record in a saved model which prefixes it was trained for."""
    path = folder / CONFIG_FILE
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**config, WIDTHS_KEY: widths}, indent=2), encoding="utf-8")


def read_widths(folder: Path) -> list[int]:
    """Return the prefixes a saved model was trained for; empty if it does not say."""
    path = folder / CONFIG_FILE
    if not path.is_file():
        return []
    return list(json.loads(path.read_text(encoding="utf-8")).get(WIDTHS_KEY, []))
