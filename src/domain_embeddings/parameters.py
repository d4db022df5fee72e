"""Every parameter of every stage, typed, bounded and checked together before the first node runs.

The models mirror ``conf/base/parameters``: one class per file. Unknown keys are refused, so a
misspelt ``--params`` never passes silently.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from domain_embeddings.core.errors import ParameterError

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
NonNegative = Annotated[float, Field(ge=0.0)]
Count = Annotated[int, Field(ge=1)]

Method = Literal[
    "reference", "rotation", "plain", "simcse", "mrl", "ese", "mic", "reze", "reze_mic"
]
UNTRAINED = ("reference", "rotation")
METHODS = get_args(Method)


class Section(BaseModel):
    """A group of parameters: immutable, unknown keys forbidden."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class CurationParameters(Section):
    """Cleaning, leakage policy and pair building."""

    leakage: Literal["stop", "drop", "allow"] = "stop"
    max_pairs_per_task: Count | None = None
    min_characters: Count = 1


class LaunchParameters(Section):
    """How many workers share a stage (docs/runbook.md, "Several workers")."""

    processes: Count = 1
    restarts: Annotated[int, Field(ge=0)] = 3
    hosts: Count = 1
    endpoint: str | None = None
    folder: str | None = None

    @property
    def workers(self) -> int:
        """How many workers there are on all hosts."""
        return self.processes * self.hosts

    @model_validator(mode="after")
    def _check_hosts(self) -> Self:
        if self.hosts > 1 and not (self.endpoint and self.folder):
            msg = (
                f"hosts: {self.hosts} needs launch.endpoint (name:port of this host, as the others "
                "reach it) and launch.folder (on a disk that all hosts share)"
            )
            raise ValueError(msg)
        return self


class RelationsParameters(Section):
    """How relation vectors are encoded and stored."""

    batch_tokens: Count = 16_384
    dtype: Literal["float32", "float16"] = "float32"
    launch: LaunchParameters = LaunchParameters()


class MarginParameters(Section):
    """How much less similar than the positive a mined negative must be; null asks for nothing."""

    absolute: NonNegative | None = None
    relative: Fraction | None = 0.05


class NegativesParameters(Section):
    """Mined hard negatives (docs/method.md, section 3d)."""

    per_pair: Annotated[int, Field(ge=0)] = 0
    margin: MarginParameters = MarginParameters()
    range_min: Annotated[int, Field(ge=0)] = 0
    range_max: Count | None = None
    max_score: Annotated[float, Field(ge=-1.0, le=1.0)] | None = None
    sampling: Literal["top", "random"] = "top"

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        if self.range_max is not None and self.range_max - self.range_min < max(1, self.per_pair):
            msg = (
                f"range_max: {self.range_max} leaves {self.range_max - self.range_min} ranks after "
                f"range_min {self.range_min}, per_pair asks for {self.per_pair}; allowed: "
                f"{self.range_min + max(1, self.per_pair)} or more, or null"
            )
            raise ValueError(msg)
        return self


class RezeParameters(Section):
    """Eigenspace, task variance and soft shrinkage (docs/method.md, section 1)."""

    rho: Annotated[float, Field(gt=0.0, le=1.0)] = 0.99
    gamma: NonNegative = 1.0
    eta: Fraction = 0.7
    shrinkage: Literal["translate", "scale", "printed"] = "translate"
    eps: Positive = 1e-8
    block_rows: Count = 8_192


class RotationParameters(Section):
    """Prefix rotation (docs/method.md, section 4b)."""

    when: Literal["none", "init", "final", "both"] = "both"
    axes: Literal["contrastive", "shared", "principal"] = "contrastive"
    noise: NonNegative = 0.7
    pairs: Annotated[int, Field(ge=2)] = 10_000
    centre: bool = False

    @model_validator(mode="after")
    def _check_centre(self) -> Self:
        if self.centre and self.when == "none":
            msg = "centre needs a rotation to be part of; allowed with when: init, final, both"
            raise ValueError(msg)
        return self


class SamplingParameters(Section):
    """What batches are made of (docs/method.md, section 3b)."""

    batches: Literal["mixed", "same_source"] = "mixed"
    sources: Literal["proportional", "temperature", "equal"] = "proportional"
    temperature: Positive = 2.0


class DevParameters(Section):
    """Scores on held-out dev tasks during training (docs/method.md, section 3e)."""

    every: Count | None = None
    widths: Annotated[list[Count], Field(min_length=1)] | None = None
    patience: Count | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.every is None and (self.widths is not None or self.patience is not None):
            msg = "every: widths and patience need it; allowed: a number of steps"
            raise ValueError(msg)
        if self.widths is not None and sorted(set(self.widths)) != self.widths:
            msg = f"widths: must be strictly increasing, got {self.widths}"
            raise ValueError(msg)
        return self


class LoraParameters(Section):
    """Low-rank adapters in the place of all weights (docs/method.md, section 5)."""

    rank: Count = 8
    alpha: Count = 16
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    modules: Literal["all"] | Annotated[list[str], Field(min_length=1)] = "all"


class TrainingLaunchParameters(LaunchParameters):
    """How many workers train together, and whether they share one model."""

    fsdp: bool = False


class CheckpointParameters(Section):
    """When training saves its state, and where; none of it has an influence on the result."""

    every: Count | None = 500
    keep: Count = 2
    folder: Annotated[str, Field(min_length=1)] = "data/06_models/checkpoints"


class TrainingParameters(Section):
    """Objective, optimiser and hardware of the training stage."""

    method: Method = "reze_mic"
    steps: Count = 120
    batch_size: Annotated[int, Field(ge=2)] = 64
    learning_rate: Positive = 1e-4
    weight_decay: NonNegative = 0.01
    warmup_ratio: Fraction = 0.1
    scheduler: Literal["cosine", "linear", "constant"] = "cosine"
    temperature: Positive = 0.05
    symmetric: bool = False
    weights: Literal["equal", "full", "dynamic"] | list[Positive] = "full"
    widths_per_step: Count | None = None
    gamma: NonNegative = 0.1
    alpha: NonNegative = 0.3
    regulariser_warmup: Fraction = 0.0
    tau: Literal["auto"] | NonNegative = "auto"
    lambda_var: NonNegative = 0.1
    lambda_corr: NonNegative = 1.0
    layers: (
        Literal["middle", "last", "all"]
        | Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)]
    ) = "last"
    mapping: Literal["grid", "pairs"] = "grid"
    reze_main: Literal["nested", "full"] = "nested"
    reze_dims: Literal["full", "nested"] = "full"
    interpolate: Fraction = 1.0
    rotation: RotationParameters = RotationParameters()
    sampling: SamplingParameters = SamplingParameters()
    dev: DevParameters = DevParameters()
    lora: LoraParameters | None = None
    accumulation: Count = 1
    activation_checkpointing: bool = False
    gradient_cache: Count | None = None
    packing: Literal["auto", "never"] = "auto"
    chunks: Count = 8
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    max_truncated: Fraction = 1.0
    logging_steps: Count = 5
    launch: TrainingLaunchParameters = TrainingLaunchParameters()
    checkpoints: CheckpointParameters = CheckpointParameters()
    resume: Literal["auto", "never"] = "auto"

    @property
    def trains(self) -> bool:
        """Whether the method takes any step."""
        return self.method not in UNTRAINED

    @property
    def saves(self) -> bool:
        """Whether a training of this length writes checkpoints at all."""
        every = self.checkpoints.every
        # A model in pieces (FSDP) has no checkpoints.
        kept = self.trains and not self.launch.fsdp
        return kept and every is not None and every < self.steps

    @model_validator(mode="after")
    def _check_rotation(self) -> Self:
        if self.method == "rotation" and self.rotation.when == "none":
            msg = "method: rotation needs rotation.when; allowed with it: init, final, both"
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _check_fsdp(self) -> Self:
        if not self.launch.fsdp:
            return self
        reasons = {
            "chunks: 1 (every worker has to call a shared model equally often)": self.chunks != 1,
            "lora: null (adapters are small enough for every worker)": self.lora is not None,
            "dev.every: null (no worker holds the weights to score)": self.dev.every is not None,
            "gradient_cache: null (every part of a batch would call it again)": self.gradient_cache
            is not None,
        }
        missing = [reason for reason, missed in reasons.items() if missed]
        if missing:
            msg = f"launch.fsdp: needs {', '.join(missing)}"
            raise ValueError(msg)
        return self


class ClassificationProbe(Section):
    """The logistic-regression probe of mteb's classification tasks."""

    samples_per_label: Count = 8
    experiments: Count = 10


class ClusteringProbe(Section):
    """The repeated mini-batch k-means of mteb's clustering tasks."""

    documents: Count = 1_024
    experiments: Count = 10


class StoreParameters(Section):
    """Where embeddings are kept from run to run, and how much of them."""

    folder: Annotated[str, Field(min_length=1)] = "data/07_model_output/embedding_store"
    max_gib: Positive | None = 10.0


class MtebParameters(Section):
    """mteb's own tasks, scored beside those of the project; none by default."""

    tasks: list[str] = []
    benchmark: str | None = None
    languages: Annotated[list[str], Field(min_length=1)] | None = None
    revisions: dict[str, str] = {}
    folder: Annotated[str, Field(min_length=1)] | None = None

    @property
    def wanted(self) -> bool:
        """Whether there is a task to score."""
        return bool(self.tasks) or self.benchmark is not None

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        if not self.wanted:
            return self
        # mteb takes seconds to import, so it is asked only about tasks that somebody wants.
        from domain_embeddings.core.evaluation.mteb_tasks import selection_problems

        problems = selection_problems(self)
        if problems:
            raise ValueError("\n  ".join(problems))
        return self


class ShortlistParameters(Section):
    """Documents found by small vectors and ranked again by full ones (docs/method.md, section 8).

    Without widths, all of them are tried.
    """

    widths: Annotated[list[Count], Field(min_length=1)] | None = None
    candidates: Annotated[int, Field(ge=10)] = 100


class CostParameters(Section):
    """How long speed and recall of searches are measured."""

    vectors: Count = 50_000
    queries: Count = 200
    repeats: Count = 5


class EvaluationParameters(Section):
    """What is scored, how, and with which uncertainty."""

    split: Literal["dev", "test"] = "test"
    transforms: list[
        Literal["none", "pca", "pca_centred", "shared", "contrastive", "whitening", "flow"]
    ] = ["none", "pca", "contrastive"]
    precisions: list[Literal["float32", "int8", "binary"]] = ["float32", "int8", "binary"]
    batch_tokens: Count = 16_384
    store: StoreParameters | None = StoreParameters()
    fit_pairs: Annotated[int, Field(ge=2)] = 10_000
    bootstrap: Annotated[int, Field(ge=0)] = 2_000
    confidence: Annotated[float, Field(gt=0.5, lt=1.0)] = 0.95
    max_general_drop: Fraction | None = None
    classification: ClassificationProbe = ClassificationProbe()
    clustering: ClusteringProbe = ClusteringProbe()
    mteb: MtebParameters = MtebParameters()
    shortlist: ShortlistParameters | None = ShortlistParameters()
    costs: CostParameters = CostParameters()

    @model_validator(mode="after")
    def _check_transforms(self) -> Self:
        if "none" not in self.transforms or len(set(self.transforms)) < len(self.transforms):
            msg = f"transforms: must hold 'none' and no name twice, got {self.transforms}"
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _check_precisions(self) -> Self:
        if "float32" not in self.precisions or len(set(self.precisions)) < len(self.precisions):
            msg = (
                f"precisions: must hold 'float32', which the others are compared with, and no name "
                f"twice, got {self.precisions}"
            )
            raise ValueError(msg)
        return self


class ReportingParameters(Section):
    """Choices of the report."""

    tolerance: Fraction = 0.02
    quality_floor: Fraction | None = None
    map_points: Count = 600


class ExportParameters(Section):
    """What is shipped, and in which forms (docs/runbook.md, "Ship it")."""

    widths: Literal["recommended"] | Annotated[list[Count], Field(min_length=1)] = "recommended"
    precision: Literal["float32", "int8", "binary"] = "float32"
    onnx: bool = True
    onnx_tolerance: Positive = 1e-4
    onnx_texts: Count = 64
    onnx_int8: bool = False
    corpus: bool = True
    index: Literal["faiss"] | None = "faiss"
    mlflow: bool = True

    @model_validator(mode="after")
    def _check_widths(self) -> Self:
        if self.widths != "recommended" and sorted(set(self.widths)) != self.widths:
            msg = f"widths: must be 'recommended' or strictly increasing, got {self.widths}"
            raise ValueError(msg)
        return self


class Parameters(Section):
    """All parameters of the project."""

    # NumPy's generators, which mteb draws with, take no larger one.
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    widths: list[Count] = [16, 32, 64, 128, 256, 384]
    curation: CurationParameters = CurationParameters()
    relations: RelationsParameters = RelationsParameters()
    negatives: NegativesParameters = NegativesParameters()
    reze: RezeParameters = RezeParameters()
    training: TrainingParameters = TrainingParameters()
    evaluation: EvaluationParameters = EvaluationParameters()
    reporting: ReportingParameters = ReportingParameters()
    export: ExportParameters = ExportParameters()

    @model_validator(mode="after")
    def _check_widths(self) -> Self:
        if not self.widths:
            msg = "widths: at least one width is needed"
            raise ValueError(msg)
        if sorted(set(self.widths)) != self.widths:
            msg = f"widths: must be strictly increasing, got {self.widths}"
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _check_shortlist(self) -> Self:
        shortlist = self.evaluation.shortlist
        unknown = sorted(set((shortlist and shortlist.widths) or ()) - set(self.widths))
        if unknown:
            msg = (
                f"evaluation.shortlist.widths: {unknown} are not evaluated; allowed: null, or some "
                f"of {self.widths}"
            )
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _check_negatives(self) -> Self:
        if self.negatives.per_pair and self.training.method == "simcse":
            msg = (
                f"negatives.per_pair: {self.negatives.per_pair} mined negatives would be ignored, "
                "as training.method simcse sees single texts; allowed: 0"
            )
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _check_per_width(self) -> Self:
        """Compare what is given per width with the widths.

        The model's full width joins the list where it is missing, so one more is possible; training
        knows the model and compares exactly.
        """
        training, count = self.training, len(self.widths)
        problems = []
        if isinstance(training.weights, list) and len(training.weights) - count not in (0, 1):
            problems.append(
                f"training.weights: needs one weight per width ({count}), got "
                f"{len(training.weights)}; allowed: full, equal, dynamic, or such a list"
            )
        pairs = training.mapping == "pairs" and isinstance(training.layers, list)
        if pairs and len(training.layers) - count not in (0, 1):
            problems.append(
                "training.mapping: pairs ties the k-th width to the k-th layer and needs as many "
                f"layers as widths ({count}), got {len(training.layers)}; allowed: grid, or so "
                "many layers"
            )
        if (training.widths_per_step or 1) > count + 1:
            problems.append(
                f"training.widths_per_step: {training.widths_per_step} of {count} widths cannot "
                f"be drawn; allowed: null, or 1 to {count}"
            )
        if problems:
            raise ValueError("\n  ".join(problems))
        return self


def check_parameters(raw: dict[str, Any]) -> Parameters:
    """Validate all parameters at once.

    Args:
        raw: The merged parameters of the Kedro context, nested by section.

    Returns:
        The typed parameters.

    Raises:
        ParameterError: One message that lists every offending key, what it was and what is allowed.
    """
    try:
        return Parameters.model_validate(raw)
    except ValidationError as error:
        lines = [_describe(detail) for detail in error.errors()]
        raise ParameterError("\n".join(["The parameters are not valid:", *lines])) from None


def _describe(detail: Any) -> str:
    """Render one pydantic error as 'key: message (got value)'."""
    # Brackets are in the names of types only, which a value may have been meant to be.
    key = ".".join(str(part) for part in detail["loc"] if "[" not in str(part))
    if detail["type"] == "extra_forbidden":
        return f"  {key}: unknown parameter{_known(detail['loc'])}"
    said = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "value_error" and isinstance(detail["input"], Mapping):
        # A check of a whole section names its keys itself, one problem a line.
        lines = [_below(key, line.strip()) for line in said.split("\n")]
        return "\n".join(f"  {line}" for line in lines)
    return f"  {key}: {said} (got {detail['input']!r})"


def _below(section: str, said: str) -> str:
    """Write out the key that a message about a section begins with, if it begins with one."""
    if not section:
        return said
    return f"{section}{'.' if re.match(r'[a-z_.]+: ', said) else ': '}{said}"


def _known(location: tuple[Any, ...]) -> str:
    """List the keys that are allowed beside an unknown one."""
    model: Any = Parameters
    for part in location[:-1]:
        annotation = getattr(model.model_fields.get(part), "annotation", None)
        # A section that may be null is one of the types of a union.
        model = next((kind for kind in get_args(annotation) if isinstance(kind, type)), annotation)
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            return ""
    return f"; allowed: {', '.join(model.model_fields)}"
