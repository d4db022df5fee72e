"""MLflow models of exported folders: written to the catalog, logged with the run."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np


def save_mlflow_model(source: Path, target: Path, example: Sequence[str]) -> dict[str, Any]:
    """Write a folder of sentence-transformers as an MLflow model.

    MLflow's own flavour is used: an exported folder cuts and normalises by itself, so nothing of
    ours has to be installed, or unpickled, where the model is served.

    Args:
        source: Folder of one width.
        target: An empty folder.
        example: Texts that show what goes in.

    Returns:
        ``inputs`` and ``outputs`` of the signature, as text.
    """
    import mlflow
    from mlflow.models import ModelSignature
    from mlflow.types.schema import ColSpec, ParamSchema, ParamSpec, Schema, TensorSpec

    from domain_embeddings.core.export.folders import (
        PACKAGES,
        SETTINGS_FILE,
        load_folder,
        read_settings,
    )

    settings = read_settings(source)
    signature = ModelSignature(
        inputs=Schema([ColSpec("string")]),
        outputs=Schema([TensorSpec(np.dtype(np.float32), (-1, settings["width"]))]),
        params=ParamSchema(
            [ParamSpec("prompt_name", "string", None), ParamSpec("batch_size", "long", 32)]
        ),
    )
    mlflow.sentence_transformers.save_model(
        load_folder(source, device="cpu"),
        str(target),
        signature=signature,
        input_example=list(example),
        # Named here, because MLflow would start a process to find them out.
        pip_requirements=[f"{name}=={version(name)}" for name in PACKAGES],
        metadata={"width": settings["width"], "weight_hash": settings["weight_hash"]},
        create_model_card=False,
    )
    for name in (SETTINGS_FILE, "README.md"):
        shutil.copy(source / name, target / name)
    return {"inputs": str(signature.inputs), "outputs": str(signature.outputs)}


def log_mlflow_models(root: Path) -> None:
    """Log every written model with the active run, without writing it a second time."""
    from mlflow.models import Model

    from domain_embeddings.core.export.folders import exported_folders

    for width, folder in exported_folders(root).items():
        Model.log(
            artifact_path=None, name=f"embeddings_dim_{width}", flavor=_Written, folder=folder
        )


class _Written:
    """What `Model.log` takes for a flavour: it copies a model that is there already."""

    @staticmethod
    def save_model(path: str, mlflow_model: Any, folder: Path) -> None:
        """Copy the files and give the description to the model that is being logged."""
        from mlflow.models import Model
        from mlflow.models.model import MLMODEL_FILE_NAME

        shutil.copytree(folder, path, dirs_exist_ok=True)
        written = Model.load(str(folder))
        mlflow_model.flavors = written.flavors
        mlflow_model.signature = written.signature
        mlflow_model.metadata = written.metadata
        mlflow_model.saved_input_example_info = written.saved_input_example_info
        mlflow_model.model_size_bytes = written.model_size_bytes
        mlflow_model.save(str(Path(path) / MLMODEL_FILE_NAME))
