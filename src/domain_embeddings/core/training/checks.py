"""What training would refuse, found out before anything is computed, from configurations alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from domain_embeddings.core.encoders.loading import read_width, resolve_source
from domain_embeddings.core.encoders.widths import nested_widths

if TYPE_CHECKING:
    from domain_embeddings.parameters import TrainingParameters


def check_training(parameters: TrainingParameters, widths: list[int], source: str) -> None:
    """Refuse parameters that do not fit the model or the machine.

    Args:
        parameters: The section ``training``.
        widths: Prefix widths.
        source: Where the model is (`loading.resolve_source`). Of one that is not on this disk only
            what needs no model is checked; training itself refuses the rest.

    Raises:
        ParameterError: Naming the key and what is allowed.
    """
    if not parameters.trains:
        return
    from domain_embeddings.core.encoders.adapters import target_names
    from domain_embeddings.core.training.objective import mic_layers
    from domain_embeddings.core.training.train import check_widths, resolve_device

    resolve_device(parameters.device)
    full = read_width(source)
    if full is None:
        return
    nested = nested_widths(widths, full)
    check_widths(parameters, nested)
    named = parameters.lora is not None and parameters.lora.modules != "all"
    tied = isinstance(parameters.layers, list) or parameters.mapping == "pairs"
    encoder = _skeleton(source) if named or tied else None
    if encoder is None:
        return
    mic_layers(parameters, encoder.config.num_hidden_layers, nested)
    if parameters.lora is not None:
        target_names(encoder, parameters.lora.modules)


def check_batch(parameters: TrainingParameters, pairs: int) -> None:
    """Refuse a batch that is larger than the table of training pairs.

    Args:
        parameters: The section ``training``.
        pairs: Number of training pairs.

    Raises:
        ParameterError: Naming the key and what is allowed.
    """
    from domain_embeddings.core.training.sampling import require_batch

    if parameters.trains:
        require_batch(parameters.batch_size, pairs, parameters.launch.workers)


def _skeleton(source: str) -> Any:
    """Build the transformers model of a local encoder without weights; None where that fails."""
    import torch
    from transformers import AutoConfig, AutoModel

    folder = Path(resolve_source(source))
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    try:
        with torch.device("meta"):
            config = AutoConfig.from_pretrained(folder / modules[0]["path"], local_files_only=True)
            return AutoModel.from_config(config)
    # A model of a kind that only its own code knows; loading it says what is wrong with it.
    except (OSError, ValueError, ImportError, KeyError):
        return None
