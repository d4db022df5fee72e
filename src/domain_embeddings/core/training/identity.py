"""What makes two trainings the same one, so that only the same one is ever resumed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from domain_embeddings.core.training.checkpoints import FORMAT, Checkpoints, fingerprint

if TYPE_CHECKING:
    from transformers import TrainingArguments

    from domain_embeddings.core.bundle import Bundle
    from domain_embeddings.core.training.batches import TokenisedPairs
    from domain_embeddings.parameters import TrainingParameters

# Rows of the relation vectors that enter the fingerprint; the header stands for the others.
SAMPLED_ROWS = 1_000
# Parameters without an influence on the result; device and precision enter as what they stand for.
NO_INFLUENCE = {"checkpoints", "resume", "launch", "device", "precision"}
PACKAGES = ("torch", "transformers", "sentence-transformers", "domain_embeddings")


def find_checkpoints(
    root: str | Path | None,
    parameters: TrainingParameters,
    arguments: TrainingArguments,
    data: Mapping[str, Any],
) -> Checkpoints | None:
    """Return where a training keeps its checkpoints; None if it has none and writes none.

    Args:
        root: Folder of the checkpoints of all trainings.
        parameters: Parameters of the section ``training``.
        arguments: The same for the trainer.
        data: Everything else that determines the result, see `data_parts`.
    """
    # With FSDP neither written nor read: those of whole models do not fit one in pieces.
    if root is None or parameters.launch.fsdp:
        return None
    everything = {
        **data,
        "format": FORMAT,
        "parameters": parameters.model_dump(mode="json", exclude=NO_INFLUENCE),
        "precision": "bf16" if arguments.bf16 else "fp32",
        "device": arguments.device.type,
        "processes": arguments.world_size,
        "versions": {name: version(name) for name in PACKAGES},
    }
    checkpoints = Checkpoints(Path(root), fingerprint(everything), parameters.checkpoints.keep)
    return checkpoints if parameters.saves or checkpoints.steps() else None


def data_parts(
    tokenised: TokenisedPairs, relation_vectors: Bundle, shrinkage: Bundle
) -> dict[str, Any]:
    """Return what of the data determines the result: what the loss sees, wherever it is from.

    Args:
        tokenised: The training pairs.
        relation_vectors: Reference relation vectors.
        shrinkage: REZE's offline result, before a rotation.
    """
    vectors = relation_vectors["vectors"]
    rows = np.unique(np.linspace(0, len(vectors) - 1, SAMPLED_ROWS).astype(int))
    return {
        "tokens": _joined([row["input_ids"] for row in tokenised.rows]),
        "pairs": [tokenised.anchor, tokenised.positive],
        "negatives": [_joined(tokenised.negatives), _joined(tokenised.negative_labels)],
        "classes": [tokenised.text, tokenised.label, tokenised.task],
        "vectors": [np.asarray(vectors[rows]), np.asarray(relation_vectors["source"])],
        "shrinkage": {name: np.asarray(shrinkage[name]) for name in shrinkage.arrays},
        "headers": [relation_vectors.header, shrinkage.header],
    }


def _joined(rows: Sequence[Iterable[int]]) -> list[np.ndarray]:
    """Return rows of different lengths as one array and their lengths: millions digest slowly."""
    parts = [np.asarray(row, dtype=np.int64) for row in rows]
    lengths = np.array([len(part) for part in parts])
    return [lengths, np.concatenate([np.zeros(0, dtype=np.int64), *parts])]
