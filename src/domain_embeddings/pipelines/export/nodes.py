"""Ship what a run has made: folders, ONNX, vectors, an index and an MLflow model.

Nodes return functions that fill a folder; the catalog calls them when it saves (`FolderDataset`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from domain_embeddings.core.bundle import Bundle
from domain_embeddings.parameters import EvaluationParameters, ExportParameters

Specs = list[dict[str, Any]]
Write = Callable[[Path], dict[str, Any]]


def export_models(
    adapted_model: Any,
    width_recommendation: dict[str, Any],
    quantisation_ranges: Bundle,
    model_card: str,
    shrinkage: Bundle,
    export: ExportParameters,
) -> Write:
    """Write a folder per width that plain sentence-transformers loads.

    Args:
        adapted_model: The adapted model.
        width_recommendation: Names the recommended width.
        quantisation_ranges: int8 ranges of the model by width.
        model_card: The model card in Markdown.
        shrinkage: Its header describes the untouched model.
        export: Parameters of the pipeline.

    Returns:
        What fills ``exported_models``.

    Raises:
        ParameterError: If a width or a package is not there.
    """
    from domain_embeddings.core.export.folders import Shipment, chosen_widths
    from domain_embeddings.core.export.onnx import require_packages

    if export.onnx:
        require_packages()
    recommended = int(width_recommendation["recommended_width"])
    width = int(adapted_model.get_embedding_dimension())
    shipment = Shipment(
        model=adapted_model,
        widths=chosen_widths(export.widths, recommended, width),
        recommended=recommended,
        card=model_card,
        base=shrinkage.header,
        ranges=quantisation_ranges,
    )
    shipment.require(export.precision)
    return shipment.write


def convert_to_onnx(
    exported_models: Path,
    evaluation_tasks: pd.DataFrame,
    task_specs: Specs,
    export: ExportParameters,
) -> Write:
    """Write every exported model as an ONNX graph and compare the two on texts of the tasks."""
    from domain_embeddings.core.export.folders import for_each_width, load_folder
    from domain_embeddings.core.export.onnx import ship_onnx
    from domain_embeddings.core.export.texts import sample_texts

    if not export.onnx:
        return _skip("export.onnx: false")

    def convert(source: Path, target: Path) -> dict[str, Any]:
        model = load_folder(source, device="cpu")
        texts = sample_texts(evaluation_tasks, task_specs, model.prompts, export.onnx_texts)
        return ship_onnx(model, source, target, texts, export.onnx_tolerance, int8=export.onnx_int8)

    return for_each_width(exported_models, convert, "ONNX")


def embed_corpus(
    exported_models: Path,
    export_corpus: Any,
    evaluation_tasks: pd.DataFrame,
    task_specs: Specs,
    export: ExportParameters,
    evaluation: EvaluationParameters,
) -> Write:
    """Embed a corpus once, in blocks, and write its vectors at every exported width.

    Args:
        exported_models: Folders of sentence-transformers.
        export_corpus: A `CorpusFile`, or None for the documents of the tasks.
        evaluation_tasks: Records of the tasks.
        task_specs: Task specifications.
        export: Parameters of the pipeline.
        evaluation: Tells how large a batch may be.

    Returns:
        What fills ``corpus_embeddings``.
    """
    from domain_embeddings.core.export.corpus import document_prompt, task_documents, write_vectors
    from domain_embeddings.core.export.folders import exported_folders, load_folder, read_settings

    if not export.corpus:
        return _skip("export.corpus: false")
    folders = list(exported_folders(exported_models).values())
    # Narrower vectors are prefixes of the widest ones.
    model = load_folder(folders[-1])
    if export_corpus is None:
        documents = task_documents(evaluation_tasks, task_specs, model.prompts)
    else:
        documents = export_corpus.documents(document_prompt(model.prompts))

    def write(root: Path) -> dict[str, Any]:
        source = "evaluated tasks" if export_corpus is None else str(export_corpus.path)
        return {"source": source} | write_vectors(
            root,
            model,
            [read_settings(folder) for folder in folders],
            documents,
            precision=export.precision,
            batch_tokens=evaluation.batch_tokens,
        )

    return write


def index_corpus(corpus_embeddings: Path, export: ExportParameters) -> Write:
    """Put the vectors of the corpus into an index per width."""
    from domain_embeddings.core.export.folders import for_each_width
    from domain_embeddings.core.export.index import write_index

    if not export.corpus:
        return _skip("export.corpus: false")
    if export.index is None:
        return _skip("export.index: null")
    return for_each_width(corpus_embeddings, write_index, "index")


def package_for_mlflow(
    exported_models: Path,
    evaluation_tasks: pd.DataFrame,
    export: ExportParameters,
) -> Write:
    """Write every exported model as an MLflow model with signature and input example."""
    from domain_embeddings.core.export.folders import for_each_width
    from domain_embeddings.pipelines.export.serving import save_mlflow_model

    if not export.mlflow:
        return _skip("export.mlflow: false")
    example = evaluation_tasks["text"].dropna().astype(str).head(2).tolist()
    return for_each_width(
        exported_models,
        lambda source, target: save_mlflow_model(source, target, example),
        "MLflow",
    )


def report_export(
    exported_models: Path,
    onnx_models: Path,
    corpus_embeddings: Path,
    corpus_index: Path,
    mlflow_models: Path,
) -> dict[str, Any]:
    """Collect where everything is, how large it is, what was checked and what it took.

    Args:
        exported_models: Folders of sentence-transformers.
        onnx_models: ONNX graphs.
        corpus_embeddings: Vectors of the corpus.
        corpus_index: Indexes of them.
        mlflow_models: MLflow models.

    Returns:
        By entry: ``folder``, ``bytes``, ``seconds`` and the details that its files came with.
    """
    from domain_embeddings.core.export.folders import exported_folders
    from domain_embeddings.core.export.manifest import read_manifest

    folders = {
        "exported_models": exported_models,
        "onnx_models": onnx_models,
        "corpus_embeddings": corpus_embeddings,
        "corpus_index": corpus_index,
        "mlflow_models": mlflow_models,
    }
    report: dict[str, Any] = {"widths": list(exported_folders(exported_models))}
    for name, folder in folders.items():
        manifest = read_manifest(folder)
        report[name] = {
            "folder": str(folder),
            "bytes": manifest["bytes"],
            "seconds": manifest["seconds"],
            **manifest["details"],
        }
    return report


def _skip(reason: str) -> Write:
    """Return what leaves a folder empty, and says why."""
    return lambda _root: {"skipped": reason}
