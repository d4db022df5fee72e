"""From pairs and a reference model to an adapted model."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformerTrainingArguments

from domain_embeddings.core.bundle import Bundle, require_same
from domain_embeddings.core.encoders.adapters import add_adapters, count_parameters, merge_adapters
from domain_embeddings.core.encoders.batching import pad_rows
from domain_embeddings.core.encoders.interpolation import interpolate
from domain_embeddings.core.encoders.loading import backbone, describe, transformer_layers
from domain_embeddings.core.encoders.packing import can_pack, packing
from domain_embeddings.core.encoders.relations import pair_table_hash, pair_texts
from domain_embeddings.core.encoders.widths import nested_widths
from domain_embeddings.core.errors import ParameterError, TrainingError
from domain_embeddings.core.losses.simcse import require_dropout
from domain_embeddings.core.training.batches import PairCollator, tokenise_pairs
from domain_embeddings.core.training.dev import WRAPPERS, DevScorer, DevSelection
from domain_embeddings.core.training.distributed import (
    shard,
    share_parameters,
    whole_weights,
    worker,
    workers,
)
from domain_embeddings.core.training.gradients import PREFIX as GRADIENT_PREFIX
from domain_embeddings.core.training.identity import data_parts, find_checkpoints
from domain_embeddings.core.training.memory import (
    is_out_of_memory,
    peak_gpu_memory,
    peak_memory_mib,
    release_memory,
)
from domain_embeddings.core.training.objective import Objective, recipe
from domain_embeddings.core.training.rotation import rotate_end, rotate_start
from domain_embeddings.core.training.sampling import PairSampler, require_batch
from domain_embeddings.core.training.trainer import HISTORY_COLUMNS, PairTrainer

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from domain_embeddings.core.training.batches import TokenisedPairs
    from domain_embeddings.parameters import EvaluationParameters, TrainingParameters

PROVENANCE_KEYS = ("model", "weight_hash", "pooling", "prompts", "max_length", "width")
# A log-variance has to move by about one within a run; a weight of the model by far less.
DYNAMIC_RATE = 100


def train(  # noqa: PLR0913 - one argument per catalog entry
    reference_model: SentenceTransformer,
    pairs: pd.DataFrame,
    task_specs: Sequence[Mapping[str, Any]],
    relation_vectors: Bundle,
    shrinkage: Bundle,
    *,
    parameters: TrainingParameters,
    widths: Sequence[int],
    seed: int,
    dev_tasks: pd.DataFrame | None = None,
    evaluation: EvaluationParameters | None = None,
    checkpoint_root: str | Path | None = None,
) -> tuple[SentenceTransformer, pd.DataFrame, dict[str, Any]]:
    """Train the chosen method.

    Args:
        reference_model: The untouched model; stays untouched.
        pairs: Training pairs, row k with pair_id k.
        task_specs: Task specifications, for prompts and weights.
        relation_vectors: Reference relation vectors of exactly these pairs and this model.
        shrinkage: REZE's offline result on these relation vectors.
        parameters: Parameters of the section ``training``.
        widths: Nested widths; the model's full width joins if it is missing.
        seed: Seeds sampling and dropout.
        dev_tasks: Records that the model is scored on during training, where ``dev.every`` asks
            for it; the best weights are then returned in place of the last.
        evaluation: How they are scored; by default as in the section ``evaluation``'s defaults.
        checkpoint_root: Folder of the checkpoints of all trainings; None neither writes nor reads
            any.

    Returns:
        The adapted model, the history of all components, and a report of facts and costs.

    Raises:
        ProvenanceError: If vectors or shrinkage belong to another model or pair table.
        ParameterError: If a parameter does not fit the model or the data.
        TrainingError: If a loss is not finite, or memory does not suffice.
    """
    texts = pair_texts(pairs, task_specs, reference_model.prompts)
    header = {
        **describe(reference_model),
        "pair_table_hash": pair_table_hash(pairs["task"], *texts),
    }
    for stored in (relation_vectors, shrinkage):
        require_same(header, stored.header, (*PROVENANCE_KEYS, "pair_table_hash"))
    nested = nested_widths(widths, header["width"])
    model = _copy(reference_model)
    model.trained_widths = []
    rotated = partial(
        rotate_start, model, pairs, relation_vectors, shrinkage, parameters.rotation,
        widths=nested, seed=seed,
    )  # fmt: skip
    if not parameters.trains:
        if parameters.method == "rotation":
            rotated(reze=False)
            model.trained_widths = nested
        return _untrained(model, parameters, len(pairs))
    if recipe(parameters).nested:
        model.trained_widths = nested
    check_widths(parameters, nested)
    sampler = _sampler(pairs["task"], task_specs, parameters, seed)
    dev = _dev(dev_tasks, task_specs, pairs, parameters, evaluation, nested, seed)
    start = shrinkage
    if parameters.rotation.when in ("init", "both"):
        start = rotated(reze=recipe(parameters).reze and parameters.alpha > 0)
    if parameters.lora is not None:
        add_adapters(model, parameters.lora, seed)
    objective = Objective(model, nested, parameters, relation_vectors, start, seed=seed)
    tokenised = tokenise_pairs(model, pairs, task_specs)
    _require_untruncated(tokenised.truncated, parameters.max_truncated)
    _require_views(model, tokenised, parameters)
    packed = parameters.packing == "auto" and can_pack(model)
    collator = PairCollator(
        model,
        tokenised,
        parameters.chunks,
        recipe(parameters).views,
        parameters.gradient_cache,
        packed,
    )
    with tempfile.TemporaryDirectory(prefix="domain_embeddings_") as folder:
        arguments = training_arguments(parameters, seed, folder)
        data = data_parts(tokenised, relation_vectors, shrinkage)
        data |= {"seed": seed, "widths": nested, "header": header, "epoch": sampler.order(0)}
        if dev is not None and dev_tasks is not None:
            data["dev"] = [dev_tasks.astype(str).to_dict("list"), repr(evaluation), task_specs]
        trainer = PairTrainer(
            model=model,
            args=arguments,
            train_dataset=Dataset.from_dict({"pair_id": np.arange(len(pairs))}),
            loss=objective,
            data_collator=collator,
            sampler=sampler,
            dev=dev,
            checkpoints=find_checkpoints(checkpoint_root, parameters, arguments, data),
        )
        with packing(model, on=packed):
            if parameters.launch.fsdp and workers() > 1:
                seconds, model = _run_sharded(trainer, model, parameters)
            else:
                seconds = _run(trainer, model, parameters)
    if dev is not None:
        dev.restore(model)
    trained, total = count_parameters(objective)
    merge_adapters(model)
    interpolate(model, reference_model, parameters.interpolate)
    if parameters.rotation.when in ("final", "both") and worker() == 0:
        rotate_end(model, pairs, task_specs, parameters.rotation, widths=nested, seed=seed)
    sampling = sampler.report(trainer.state.global_step, parameters.accumulation)
    drawn = sum(source["drawn"] for source in sampling)
    report = {
        "method": parameters.method,
        "widths": nested,
        "pairs": len(pairs),
        "negatives": int(pairs["negatives"].map(len).sum()),
        "parameters": total,
        "trained_parameters": trained,
        "batch_size": parameters.batch_size,
        "workers": workers(),
        "effective_batch": sampler.block,
        "steps": trainer.state.global_step,
        "accumulation": parameters.accumulation,
        "epochs": drawn / len(sampler),
        "sampling": sampling,
        "dev": None if dev is None else dev.report(),
        "seed": seed,
        "train_seconds": seconds,
        # The trainer's own figure takes every planned step for one of this process, which is wrong
        # for a run that was resumed or that stopped early.
        "pairs_per_s": drawn / seconds,
        "peak_memory_mib": peak_memory_mib(),
        **peak_gpu_memory(model.device),
        "precision": "bf16" if trainer.args.bf16 else "fp32",
        "device": str(model.device),
        "packed": packed,
        "chunks": parameters.chunks,
        "masked_negatives": _mean_of(trainer.history, "masked_negatives"),
        "gradient_norms": {
            row["component"].removeprefix(GRADIENT_PREFIX): row["value"]
            for row in trainer.history
            if row["component"].startswith(GRADIENT_PREFIX)
        },
        "padding_ratio": collator.padding_ratio(),
        "truncated": collator.pairs.truncated,
        "note": shrinkage.header.get("note", ""),
        "resumed_from_step": trainer.resumed_from,
        "checkpoints": None if trainer.checkpoints is None else trainer.checkpoints.summary(),
        "settings": parameters.model_dump(mode="json"),
    }
    return model.eval(), trainer.history_frame(), report


def _untrained(
    model: SentenceTransformer, parameters: TrainingParameters, pairs: int
) -> tuple[SentenceTransformer, pd.DataFrame, dict[str, Any]]:
    """Return what a training without any step returns."""
    report: dict[str, Any] = {"method": parameters.method, "steps": 0}
    if parameters.method == "rotation":
        report["pairs_for_axes"] = min(pairs, parameters.rotation.pairs)
    report["settings"] = parameters.model_dump(mode="json")
    return model, pd.DataFrame(columns=HISTORY_COLUMNS), report


def _sampler(
    tasks: pd.Series,
    task_specs: Sequence[Mapping[str, Any]],
    parameters: TrainingParameters,
    seed: int,
) -> PairSampler:
    """Return the sampler of all processes together.

    Raises:
        ParameterError: If an epoch has fewer pairs than one step needs.
    """
    block = parameters.batch_size * workers()
    sampler = PairSampler(tasks, task_specs, parameters.sampling, seed=seed, block=block)
    require_batch(parameters.batch_size, len(sampler), workers())
    return sampler


def _dev(  # noqa: PLR0913, PLR0917 - what evaluation needs, and the widths that are trained
    dev_tasks: pd.DataFrame | None,
    task_specs: Sequence[Mapping[str, Any]],
    pairs: pd.DataFrame,
    parameters: TrainingParameters,
    evaluation: EvaluationParameters | None,
    widths: list[int],
    seed: int,
) -> DevSelection | None:
    """Return what scores the model during training, or None where nothing asks for it.

    Raises:
        ParameterError: If there is nothing to score it on.
    """
    from domain_embeddings.parameters import EvaluationParameters

    settings = parameters.dev
    if settings.every is None:
        return None
    if dev_tasks is None or dev_tasks.empty:
        msg = (
            f"training.dev.every: {settings.every} asks for scores during training, but dev_tasks "
            "is empty: no task with the use 'evaluate' has a dev split; allowed: null"
        )
        raise ParameterError(msg)
    scorer = DevScorer.build(
        dev_tasks,
        task_specs,
        pairs,
        parameters,
        evaluation or EvaluationParameters(),
        widths=widths,
        seed=seed,
    )
    return DevSelection(scorer, settings.every, parameters.steps, settings.patience)


def check_widths(parameters: TrainingParameters, widths: list[int]) -> None:
    """Refuse what does not fit the trained widths.

    Args:
        parameters: The section ``training``.
        widths: Trained widths, the full one included.

    Raises:
        ParameterError: Naming the key and what is allowed.
    """
    wider = [width for width in parameters.dev.widths or [] if width > widths[-1]]
    if wider:
        msg = f"training.dev.widths: {wider} wider than the model; allowed: 1 to {widths[-1]}"
        raise ParameterError(msg)
    weights, drawn = parameters.weights, parameters.widths_per_step
    if isinstance(weights, list) and len(weights) != len(widths):
        msg = (
            f"training.weights: needs one weight for each of {widths}, the full width of the "
            f"model included; got {len(weights)}"
        )
        raise ParameterError(msg)
    if drawn is not None and drawn > len(widths):
        msg = (
            f"training.widths_per_step: {drawn} of the widths {widths} cannot be drawn; allowed: "
            f"null, or 1 to {len(widths)}"
        )
        raise ParameterError(msg)


def _mean_of(history: list[dict[str, Any]], component: str) -> float:
    """Return the mean of one component over all logging steps."""
    return float(np.mean([row["value"] for row in history if row["component"] == component]))


def _copy(reference: SentenceTransformer) -> Any:
    """Copy a model together with where it came from."""
    model: Any = copy.deepcopy(reference)
    model.provenance = dict(getattr(reference, "provenance", {}))
    return model


def training_arguments(
    parameters: TrainingParameters, seed: int, folder: str
) -> SentenceTransformerTrainingArguments:
    """Translate the section ``training`` for the trainer."""
    device = resolve_device(parameters.device)
    arguments = SentenceTransformerTrainingArguments(
        output_dir=folder,
        max_steps=parameters.steps,
        # Batches are drawn as for one worker and then split, so that samplers need not know.
        per_device_train_batch_size=parameters.batch_size * workers(),
        accelerator_config={"split_batches": workers() > 1},
        gradient_accumulation_steps=parameters.accumulation,
        learning_rate=parameters.learning_rate,
        learning_rate_mapping=(
            {"log_variance": DYNAMIC_RATE * parameters.learning_rate}
            if parameters.weights == "dynamic" and recipe(parameters).nested
            else {}
        ),
        weight_decay=parameters.weight_decay,
        warmup_steps=round(parameters.warmup_ratio * parameters.steps),
        lr_scheduler_type={"constant": "constant_with_warmup"}.get(
            parameters.scheduler, parameters.scheduler
        ),
        bf16=use_bf16(parameters.precision, device),
        use_cpu=device == "cpu",
        dataloader_drop_last=True,
        dataloader_pin_memory=device != "cpu",
        logging_steps=parameters.logging_steps,
        logging_nan_inf_filter=False,
        save_strategy="steps" if parameters.saves else "no",
        save_steps=parameters.checkpoints.every or parameters.steps,
        report_to="none",
        seed=seed,
        data_seed=seed,
    )
    # With several visible GPUs the trainer would split every batch over them (DataParallel), and
    # with it the negatives.
    arguments._n_gpu = min(1, arguments.n_gpu)
    return arguments


def resolve_device(device: str) -> str:
    """Return the torch device type that ``auto`` stands for.

    Raises:
        ParameterError: If a GPU is asked for and there is none.
    """
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        msg = "training.device: there is no CUDA device on this machine; allowed: auto, cpu"
        raise ParameterError(msg)
    if device != "auto":
        return device
    return "cuda" if available else "cpu"


def use_bf16(precision: str, device: str) -> bool:
    """Say whether to train under bf16 autocast; ``auto`` asks the hardware."""
    if precision != "auto":
        return precision == "bf16"
    if device == "cuda":
        # Cards before Ampere emulate it, far slower than fp32.
        return torch.cuda.is_bf16_supported(including_emulation=False)
    # Without these instructions bf16 on a CPU is emulated and slower than fp32.
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def _require_untruncated(truncated: Mapping[str, float], allowed: float) -> None:
    """Refuse to train on texts that lose more tokens than the user accepts."""
    above = {name: share for name, share in truncated.items() if share > allowed}
    if above:
        shares = ", ".join(f"{name} {share:.1%}" for name, share in above.items())
        msg = (
            f"training.max_truncated: {shares} of the texts are cut, {allowed:.1%} is allowed; "
            "raise reference_model.max_length or training.max_truncated"
        )
        raise ParameterError(msg)


def _require_views(
    model: SentenceTransformer, tokenised: TokenisedPairs, parameters: TrainingParameters
) -> None:
    """Refuse a method that needs dropout where there is none."""
    # The dropout of an adapter does not show before the first step, where its B is 0.
    if recipe(parameters).views and not (parameters.lora and parameters.lora.dropout):
        some = pad_rows(model, tokenised.rows[:2])
        require_dropout(model, {name: field.to(model.device) for name, field in some.items()})


def _run(trainer: PairTrainer, model: SentenceTransformer, parameters: TrainingParameters) -> float:
    """Train, and leave the model as it was configured whatever happens.

    For mixed precision the trainer puts a wrapper in the place of ``model.forward`` and leaves it
    there; without it the model embeds in full precision again, as it will after it was saved.

    Returns:
        Seconds of training, those before an interruption included.
    """
    encoder = backbone(model)
    config = encoder.config
    before = config.output_hidden_states
    config.output_hidden_states = trainer.pair_objective.needs_all_layers()
    if parameters.activation_checkpointing:
        checkpoint_layers(encoder)
    # What encoding and curation have freed before, in the same process.
    release_memory()
    share_parameters(trainer.pair_objective.parameters())
    if workers() > 1:
        # The same dropout on every worker would be less noise than it looks like.
        torch.manual_seed(trainer.args.seed + worker())
    try:
        metrics = trainer.run(resume=parameters.resume == "auto").metrics
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise TrainingError(_out_of_memory(trainer, model, parameters)) from error
    finally:
        config.output_hidden_states = before
        if parameters.activation_checkpointing:
            encoder.activation_checkpointing_disable()
        for name in WRAPPERS:
            vars(model).pop(name, None)
    return trainer.seconds_before + float(metrics["train_runtime"])


def checkpoint_layers(encoder: Any) -> None:
    """Keep only the input of every layer, and compute the rest again for the backward pass.

    The generator's state is put back for it, so dropout hits the same elements again.

    Args:
        encoder: A transformers model.

    Raises:
        ParameterError: If the backbone cannot do it.
    """
    if not encoder.supports_gradient_checkpointing:
        msg = "training.activation_checkpointing: this backbone does not support it; allowed: false"
        raise ParameterError(msg)
    encoder.activation_checkpointing_enable({"use_reentrant": False})
    # Only the reentrant kind needs a gradient at its input, and it would ask for one in encoding.
    encoder.disable_input_require_grads()


def _run_sharded(
    trainer: PairTrainer, model: Any, parameters: TrainingParameters
) -> tuple[float, Any]:
    """Train a model whose weights are spread over the workers.

    Returns:
        Seconds of training, and on the first worker the whole model; on the others it is as before.
    """
    whole = copy.deepcopy(model).cpu()
    # Tokens are embedded inside of the model: outside of it the table is in pieces.
    trainer.pair_objective.tokens.shared = False
    shard(model, transformer_layers(model))
    seconds = _run(trainer, model, parameters)
    weights = whole_weights(model)
    if worker() == 0:
        whole.load_state_dict(weights)
    return seconds, whole.to(model.device)


def _out_of_memory(
    trainer: PairTrainer, model: SentenceTransformer, parameters: TrainingParameters
) -> str:
    """Say what took the memory, and what to turn."""
    config = backbone(model).config
    return (
        f"Out of memory at step {trainer.state.global_step + 1} on {trainer.args.device.type}: "
        f"training.batch_size={parameters.batch_size} pairs in training.chunks="
        f"{parameters.chunks}, texts of up to {model.max_seq_length} tokens, "
        f"{config.num_hidden_layers} layers of width {config.hidden_size}, "
        f"{'bf16' if trainer.args.bf16 else 'fp32'}. Lower training.batch_size or "
        "reference_model.max_length (then run from the stage 'relations'), raise "
        "training.chunks, or set training.activation_checkpointing or training.lora. Smaller "
        "batches with training.accumulation keep the pairs of a step, but have fewer negatives."
        f"{trainer.last_checkpoint()}"
    )
