"""The whole encoder as one ONNX graph, from token ids to unit vectors of the shipped width."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from domain_embeddings.core.encoders.batching import encode, pad_rows, tokenise
from domain_embeddings.core.encoders.loading import backbone
from domain_embeddings.core.errors import ParameterError
from domain_embeddings.core.export.folders import read_settings, write_settings

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

MODEL_FILE = "model.onnx"
INT8_FILE = "model_int8.onnx"
TOKENIZER_FILE = "tokenizer.json"
OUTPUT = "sentence_embedding"
OPSET = 18
_NEEDED = ("onnx", "onnxruntime")
_PROBE = ("a text", "a somewhat longer text, so that one of the two is padded")


def require_packages() -> None:
    """Refuse to start without the packages that ONNX needs.

    Raises:
        ParameterError: Naming what is missing.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        msg = (
            f"export.onnx: needs the packages {', '.join(missing)}, which are not installed "
            "(pip install 'domain_embeddings[export]'); allowed without them: false"
        )
        raise ParameterError(msg)


def ship_onnx(  # noqa: PLR0913 - what, from where to where, how it is checked, in which forms
    model: SentenceTransformer,
    source: Path,
    target: Path,
    texts: Sequence[str],
    tolerance: float,
    *,
    int8: bool = False,
) -> dict[str, Any]:
    """Export a shipped folder to ONNX and compare the two.

    Args:
        model: The model of the folder, on the CPU.
        source: The folder.
        target: Where to write; exists.
        texts: See `check_onnx`.
        tolerance: See `check_onnx`.
        int8: Write a second graph whose weights are int8.

    Returns:
        What `check_onnx` found, with ``int8`` about the second graph; ``embedding.json`` says it,
        too.
    """
    export_onnx(model, target)
    found = check_onnx(model, target, texts, tolerance)
    if int8:
        write_int8(target)
        found["int8"] = compare_onnx(model, target, texts, INT8_FILE)
    write_settings(target, {**read_settings(source), "onnx": {"opset": OPSET, **found}})
    return found


def export_onnx(model: SentenceTransformer, folder: Path) -> None:
    """Write ``model.onnx`` and the files of its tokenizer.

    The graph holds the transformer, pooling, rotation, cut and normalisation, with dynamic batch
    size and sequence length. ``tokenizer.json`` is set to truncate and pad as the model does, so
    the package ``tokenizers`` alone prepares its inputs.

    Args:
        model: A model on the CPU, in evaluation mode.
        folder: Where to write; exists.

    Raises:
        ParameterError: If the tokenizer or the architecture cannot be exported.
    """
    _save_tokenizer(model, folder)
    inputs = _probe(model)
    try:
        _convert(model, inputs, folder / MODEL_FILE)
    # The exporter has errors of its own for every step, and architectures bring theirs.
    except Exception as error:
        reason = (str(error) or type(error).__name__).strip().splitlines()[0]
        msg = (
            f"export.onnx: {type(backbone(model)).__name__} cannot be exported to ONNX "
            f"({type(error).__name__}: {reason}); allowed for this model: false"
        )
        raise ParameterError(msg) from error


def _save_tokenizer(model: SentenceTransformer, folder: Path) -> None:
    """Write the tokenizer with the truncation and the padding of the model."""
    tokenizer = model.tokenizer
    if not getattr(tokenizer, "is_fast", False):
        msg = (
            f"export.onnx: {type(tokenizer).__name__} has no tokenizer.json (it is not a 'fast' "
            "tokenizer), so nothing but Python could prepare the inputs; allowed: false"
        )
        raise ParameterError(msg)
    from tokenizers import Tokenizer

    tokenizer.save_pretrained(str(folder))
    alone = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    alone.enable_truncation(int(model.max_seq_length or tokenizer.model_max_length))
    alone.enable_padding(
        direction=tokenizer.padding_side,
        pad_id=tokenizer.pad_token_id,
        pad_type_id=tokenizer.pad_token_type_id,
        pad_token=tokenizer.pad_token,
    )
    alone.save(str(folder / TOKENIZER_FILE))


def _probe(model: SentenceTransformer) -> dict[str, Any]:
    """Return inputs of two texts, one of them padded."""
    return pad_rows(model, tokenise(model, _PROBE))


def _convert(model: SentenceTransformer, inputs: Mapping[str, Any], path: Path) -> None:
    """Trace the model and write the graph.

    torch has two exporters. The one that traces takes a thirtieth of the time of the one that
    analyses the code (0.2 s against 8.7 s for a model of two layers) and leaves a third of the
    graph, without the folders of this machine in it. A trace may fix what ought to depend on the
    input; `check_onnx` compares all lengths and two batch sizes and would show that.
    """
    import torch
    from torch import nn

    class Encoder(nn.Module):
        """From tensors, in the order of the inputs, to the embedding."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *tensors: Any) -> Any:
            return self.model(dict(zip(inputs, tensors, strict=True)))["sentence_embedding"]

    axes = {0: "batch", 1: "tokens"}
    with _quiet(), torch.no_grad():
        torch.onnx.export(
            Encoder().eval(),
            tuple(inputs.values()),
            str(path),
            input_names=list(inputs),
            output_names=[OUTPUT],
            dynamic_axes={**dict.fromkeys(inputs, axes), OUTPUT: {0: "batch"}},
            opset_version=OPSET,
            dynamo=False,
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence notes that tracing is older, and that it is tracing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class OnnxEncoder:
    """Texts to vectors with an exported folder, without torch and transformers.

    Args:
        folder: A folder that `export_onnx` has filled.
        file: Name of the graph.
    """

    def __init__(self, folder: Path, file: str = MODEL_FILE) -> None:
        """Open graph and tokenizer."""
        import onnxruntime
        from tokenizers import Tokenizer

        options = onnxruntime.SessionOptions()
        # Threads that spin while they wait make small models crawl on shared machines.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(
            str(folder / file), options, providers=["CPUExecutionProvider"]
        )
        self._tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
        self._names = [entry.name for entry in self._session.get_inputs()]

    def encode(self, texts: Sequence[str], batch_size: int = 16) -> np.ndarray:
        """Encode texts that already carry their prompt.

        Args:
            texts: The texts, at least one.
            batch_size: Texts per call.

        Returns:
            Unit vectors of shape (n, width), float32.
        """
        parts = []
        for start in range(0, len(texts), batch_size):
            rows = self._tokenizer.encode_batch(list(texts[start : start + batch_size]))
            fields = {
                "input_ids": [row.ids for row in rows],
                "attention_mask": [row.attention_mask for row in rows],
                "token_type_ids": [row.type_ids for row in rows],
            }
            feed = {name: np.array(fields[name], dtype=np.int64) for name in self._names}
            parts.append(self._session.run([OUTPUT], feed)[0])
        return np.concatenate(parts)


def check_onnx(
    model: SentenceTransformer, folder: Path, texts: Sequence[str], tolerance: float
) -> dict[str, Any]:
    """Compare the vectors of the exported graph with those of torch.

    Args:
        model: What was exported.
        folder: Where it was exported to.
        texts: Texts of different length that already carry their prompt.
        tolerance: Largest difference of a coordinate that is taken for rounding.

    Returns:
        ``texts``, ``shortest`` and ``longest`` in tokens, and what `compare_onnx` found.

    Raises:
        ParameterError: If a coordinate differs by more than the tolerance.
    """
    lengths = [len(row["input_ids"]) for row in tokenise(model, texts)]
    found = compare_onnx(model, folder, texts)
    difference = found["max_abs_difference"]
    if not difference <= tolerance:
        msg = (
            f"export.onnx: the ONNX graph of {type(backbone(model)).__name__} gives vectors that "
            f"differ from torch by {difference:.2g}, more than export.onnx_tolerance "
            f"({tolerance:g}); allowed for this model: false"
        )
        raise ParameterError(msg)
    return {
        "texts": len(texts),
        "shortest": min(lengths),
        "longest": max(lengths),
        **found,
    }


def compare_onnx(
    model: SentenceTransformer, folder: Path, texts: Sequence[str], file: str = MODEL_FILE
) -> dict[str, float]:
    """Measure how far the vectors of a graph are from those of torch.

    Args:
        model: What was exported.
        folder: Where it was exported to.
        texts: Texts that already carry their prompt.
        file: Name of the graph.

    Returns:
        ``max_abs_difference`` of a coordinate, ``min_cosine`` and ``mean_cosine``.
    """
    expected = encode(model, texts, show_progress=False)
    found = OnnxEncoder(folder, file).encode(texts)
    cosines = np.sum(found * expected, axis=1)
    return {
        "max_abs_difference": float(np.abs(found - expected).max()),
        "min_cosine": float(cosines.min()),
        "mean_cosine": float(cosines.mean()),
    }


def write_int8(folder: Path) -> None:
    """Write a second graph beside the first one: weights in int8, activations as they come.

    Args:
        folder: A folder that `export_onnx` has filled.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    # It recommends preparing graphs for another kind of quantisation, on the root logger.
    notes = logging.getLogger()
    level = notes.level
    notes.setLevel(logging.ERROR)
    try:
        # A scale per channel costs nothing and is much nearer: with MiniLM-L6 at width 64 a mean
        # cosine of 0.993 instead of 0.958.
        quantize_dynamic(
            str(folder / MODEL_FILE),
            str(folder / INT8_FILE),
            weight_type=QuantType.QInt8,
            per_channel=True,
        )
    finally:
        notes.setLevel(level)
