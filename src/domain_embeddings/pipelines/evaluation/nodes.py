"""Nodes of the evaluation stage: encode each text once, then score every width from that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from domain_embeddings.core.bundle import Bundle
from domain_embeddings.core.encoders.widths import nested_widths
from domain_embeddings.parameters import EvaluationParameters, StoreParameters

if TYPE_CHECKING:
    from domain_embeddings.core.encoders.bank import EmbeddingBank
    from domain_embeddings.core.encoders.store import EmbeddingStore
    from domain_embeddings.core.evaluation.tasks import LocalTask

Specs = list[dict[str, Any]]


def embed_reference(
    reference_model: Any,
    evaluation_tasks: pd.DataFrame,
    training_pairs: pd.DataFrame,
    task_specs: Specs,
    evaluation: EvaluationParameters,
    widths: list[int],
    seed: int,
) -> Bundle:
    """Encode the texts of all tasks, and of sampled training pairs, with the untouched model.

    Args:
        reference_model: The untouched sentence-transformers model.
        evaluation_tasks: Records of the tasks.
        training_pairs: Training pairs.
        task_specs: Task specifications.
        evaluation: Parameters of the stage.
        widths: Prefix widths, checked before anything is encoded.
        seed: Seed of the sampled pairs and of the probes.

    Returns:
        The embedding bank of the model.

    Raises:
        ParameterError: A width exceeds the model's.
        DataError: A task cannot be scored.
    """
    model = reference_model
    return _embed(model, evaluation_tasks, training_pairs, task_specs, evaluation, widths, seed)


def embed_adapted(
    adapted_model: Any,
    evaluation_tasks: pd.DataFrame,
    training_pairs: pd.DataFrame,
    task_specs: Specs,
    evaluation: EvaluationParameters,
    widths: list[int],
    seed: int,
) -> Bundle:
    """Encode the same texts with the adapted model; see `embed_reference`."""
    model = adapted_model
    return _embed(model, evaluation_tasks, training_pairs, task_specs, evaluation, widths, seed)


def fit_quantisation(
    reference_embeddings: Bundle,
    adapted_embeddings: Bundle,
    training_pairs: pd.DataFrame,
    task_specs: Specs,
    evaluation: EvaluationParameters,
    widths: list[int],
    seed: int,
) -> Bundle:
    """Take the int8 ranges of both models, at every width, from sampled training pairs.

    Args:
        reference_embeddings: Embedding bank of the untouched model.
        adapted_embeddings: Embedding bank of the adapted model.
        training_pairs: Training pairs.
        task_specs: Task specifications.
        evaluation: Parameters of the stage.
        widths: Prefix widths; the model's full width joins.
        seed: Seed of the sampled pairs.

    Returns:
        Ranges by model and width (``core.encoders.quantisation.calibrate``).
    """
    from domain_embeddings.core.encoders.quantisation import calibrate
    from domain_embeddings.core.evaluation.sampling import fit_vectors, sample_pairs

    banks = _banks(reference_embeddings, adapted_embeddings)
    pairs = sample_pairs(training_pairs, evaluation.fit_pairs, seed)
    return calibrate(
        {name: fit_vectors(bank, pairs, task_specs) for name, bank in banks.items()},
        nested_widths(widths, banks["reference"].width),
        {name: bank.header for name, bank in banks.items()},
    )


def score(
    reference_embeddings: Bundle,
    adapted_embeddings: Bundle,
    quantisation_ranges: Bundle,
    evaluation_tasks: pd.DataFrame,
    training_pairs: pd.DataFrame,
    task_specs: Specs,
    evaluation: EvaluationParameters,
    training_report: dict[str, Any],
    widths: list[int],
    seed: int,
) -> tuple[pd.DataFrame, Bundle]:
    """Score both models at every width, under every transform and precision, on every task.

    Args:
        reference_embeddings: Embedding bank of the untouched model.
        adapted_embeddings: Embedding bank of the adapted model.
        quantisation_ranges: int8 ranges of both.
        evaluation_tasks: Records of the tasks.
        training_pairs: Training pairs; a sample of them is what transforms are fitted on.
        task_specs: Task specifications.
        evaluation: Parameters of the stage.
        training_report: Names the method that the model was trained with.
        widths: Prefix widths; the model's full width joins.
        seed: Seed of the probes; the bootstrap is drawn by task name alone.

    Returns:
        The tidy scores (columns in ``core.evaluation.scores.COLUMNS``), and the bootstrap
        replicates of the main metrics.
    """
    from domain_embeddings.core.evaluation.sampling import sample_pairs
    from domain_embeddings.core.evaluation.scores import SweepSettings, sweep

    banks = _banks(reference_embeddings, adapted_embeddings)
    settings = SweepSettings(
        widths=nested_widths(widths, banks["reference"].width),
        transforms=evaluation.transforms,
        precisions=evaluation.precisions,
        replicates=evaluation.bootstrap,
        confidence=evaluation.confidence,
        seed=seed,
        split=evaluation.split,
    )
    return sweep(
        banks,
        _tasks(evaluation_tasks, task_specs, evaluation, seed),
        task_specs,
        sample_pairs(training_pairs, evaluation.fit_pairs, seed),
        settings,
        ranges=quantisation_ranges,
        methods={"adapted": training_report["method"]},
    )


def measure_costs(
    adapted_embeddings: Bundle,
    quantisation_ranges: Bundle,
    score_replicates: Bundle,
    evaluation_tasks: pd.DataFrame,
    task_specs: Specs,
    evaluation: EvaluationParameters,
    widths: list[int],
    seed: int,
) -> pd.DataFrame:
    """Measure what the adapted model's vectors cost to store and search, and what they are worth.

    Args:
        adapted_embeddings: Embedding bank of the adapted model.
        quantisation_ranges: Its int8 ranges.
        score_replicates: Its scores with their bootstrap replicates.
        evaluation_tasks: Records of the tasks.
        task_specs: Task specifications.
        evaluation: Parameters of the stage.
        widths: Prefix widths; the model's full width joins.
        seed: Seed of probes, queries and bootstrap.

    Returns:
        One row per width, precision and search (``core.evaluation.costs.vector_costs``).
    """
    from domain_embeddings.core.encoders.bank import EmbeddingBank
    from domain_embeddings.core.evaluation.costs import CostSettings, Subject, vector_costs

    bank = EmbeddingBank(adapted_embeddings)
    shortlist = evaluation.shortlist
    return vector_costs(
        Subject("adapted", bank, quantisation_ranges, task_specs),
        _tasks(evaluation_tasks, task_specs, evaluation, seed),
        score_replicates,
        CostSettings(
            widths=nested_widths(widths, bank.width),
            precisions=evaluation.precisions,
            candidates=shortlist.candidates if shortlist else None,
            shortlist_widths=shortlist.widths if shortlist else None,
            vectors=evaluation.costs.vectors,
            queries=evaluation.costs.queries,
            repeats=evaluation.costs.repeats,
            replicates=evaluation.bootstrap,
            confidence=evaluation.confidence,
            seed=seed,
        ),
    )


def measure_geometry(
    reference_embeddings: Bundle,
    adapted_embeddings: Bundle,
    training_pairs: pd.DataFrame,
    task_specs: Specs,
    relation_eigenspace: Bundle,
    shrinkage: Bundle,
    evaluation: EvaluationParameters,
    widths: list[int],
    seed: int,
) -> pd.DataFrame:
    """Measure the geometry of sampled training pairs before and after training.

    Args:
        reference_embeddings: Embedding bank of the untouched model.
        adapted_embeddings: Embedding bank of the adapted model.
        training_pairs: Training pairs.
        task_specs: Task specifications.
        relation_eigenspace: Eigenspace of the reference relation vectors.
        shrinkage: What REZE moves.
        evaluation: Parameters of the stage.
        widths: Prefix widths; the model's full width joins.
        seed: Seed of the sampled pairs.

    Returns:
        Tidy measures with the columns model, measure, source, width, value.
    """
    from domain_embeddings.core.evaluation.geometry import MOST_PAIRS, geometry_scores
    from domain_embeddings.core.evaluation.sampling import sample_pairs

    return geometry_scores(
        {"reference": reference_embeddings, "adapted": adapted_embeddings},
        # A part of what was embedded: a smaller sample of the same seed.
        sample_pairs(training_pairs, min(evaluation.fit_pairs, MOST_PAIRS), seed),
        task_specs,
        nested_widths(widths, reference_embeddings["vectors"].shape[1]),
        relation_eigenspace,
        shrinkage,
    )


def score_mteb(
    reference_model: Any,
    adapted_model: Any,
    truncation_scores: pd.DataFrame,
    score_replicates: Bundle,
    evaluation: EvaluationParameters,
    training_report: dict[str, Any],
    widths: list[int],
) -> tuple[pd.DataFrame, list[Any]]:
    """Score both models on mteb's own tasks, and write all scores in mteb's own format.

    Args:
        reference_model: The untouched sentence-transformers model.
        adapted_model: The adapted model.
        truncation_scores: Scores of the tasks of the project.
        score_replicates: Knows the digest of their test rows.
        evaluation: Parameters of the stage; ``mteb`` names the tasks.
        training_report: Names the method that the model was trained with.
        widths: Prefix widths; the model's full width joins.

    Returns:
        The tidy scores of mteb's own tasks (columns in ``core.evaluation.mteb_tasks``; no row
        without tasks), and results of all tasks for ``datasets.mteb_results``.

    Raises:
        DataError: The data of a task cannot be loaded.
    """
    from domain_embeddings.core.encoders.loading import describe
    from domain_embeddings.core.evaluation.mteb_results import local_results
    from domain_embeddings.core.evaluation.mteb_tasks import score_tasks, select_tasks

    models = {"reference": reference_model, "adapted": adapted_model}
    headers = {name: describe(model) for name, model in models.items()}
    revisions = score_replicates.header["test_rows"]
    results = list(local_results(truncation_scores, headers, revisions))
    methods = {"reference": "reference", "adapted": training_report["method"]}
    tasks = select_tasks(evaluation.mteb) if evaluation.mteb.wanted else []
    evaluated = {
        name: _evaluated(model, headers[name], methods[name], evaluation)
        for name, model in models.items()
        if tasks
    }
    scores, own = score_tasks(
        evaluated, tasks, nested_widths(widths, headers["reference"]["width"])
    )
    return scores, [*results, *own]


def _evaluated(
    model: Any, header: dict[str, Any], method: str, evaluation: EvaluationParameters
) -> Any:
    """Hand mteb a model that encodes each text once."""
    from domain_embeddings.core.evaluation.mteb_tasks import EvaluatedModel, RememberedTexts

    store = _store(evaluation.store)
    space = store.space(model, header["weight_hash"]) if store else None
    embed = RememberedTexts(model, evaluation.batch_tokens, space=space)
    return EvaluatedModel(embed, header, method, getattr(model, "default_prompt_name", None))


def _embed(
    model: Any,
    evaluation_tasks: pd.DataFrame,
    training_pairs: pd.DataFrame,
    task_specs: Specs,
    evaluation: EvaluationParameters,
    widths: list[int],
    seed: int,
) -> Bundle:
    """Build the embedding bank of either model."""
    from domain_embeddings.core.evaluation.embed import embed
    from domain_embeddings.core.evaluation.sampling import sample_pairs

    nested_widths(widths, int(model.get_embedding_dimension()))
    return embed(
        model,
        _tasks(evaluation_tasks, task_specs, evaluation, seed),
        sample_pairs(training_pairs, evaluation.fit_pairs, seed),
        task_specs,
        batch_tokens=evaluation.batch_tokens,
        store=_store(evaluation.store),
    )


def _banks(reference: Bundle, adapted: Bundle) -> dict[str, EmbeddingBank]:
    """Open the embedding banks of both models by their names."""
    from domain_embeddings.core.encoders.bank import EmbeddingBank

    return {"reference": EmbeddingBank(reference), "adapted": EmbeddingBank(adapted)}


def _store(parameters: StoreParameters | None) -> EmbeddingStore | None:
    """Open the embedding store that the parameters ask for."""
    from domain_embeddings.core.encoders.store import EmbeddingStore

    if parameters is None:
        return None
    limit = parameters.max_gib
    return EmbeddingStore(parameters.folder, max_bytes=int(limit * 2**30) if limit else None)


def _tasks(
    evaluation_tasks: pd.DataFrame, task_specs: Specs, evaluation: EvaluationParameters, seed: int
) -> list[LocalTask]:
    """Build the tasks in the same way wherever they are needed."""
    from domain_embeddings.core.evaluation.tasks import build_tasks, task_options

    return build_tasks(
        evaluation_tasks,
        task_specs,
        split=evaluation.split,
        seed=seed,
        options=task_options(evaluation),
    )
