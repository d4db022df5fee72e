"""What a task is: its type, where its rows are, what its columns mean and what it is used for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from domain_embeddings.core.errors import ParameterError
from domain_embeddings.core.tasks import builtin

TaskType = Literal[
    "classification",
    "multilabel",
    "retrieval",
    "reranking",
    "pair_classification",
    "sts",
    "clustering",
    "bitext_mining",
    "summarization",
    "unlabelled",
]
Split = Literal["train", "dev", "test"]
Use = Literal["train", "evaluate"]
Value = TypeVar("Value")

TASK_TYPES: tuple[str, ...] = get_args(TaskType)
SPLITS: tuple[Split, ...] = ("train", "dev", "test")
FILE_FORMATS = (".jsonl", ".csv", ".tsv", ".parquet")

# Role -> column name that is looked for when the user names none.
REQUIRED_COLUMNS: dict[str, dict[str, str]] = {
    "classification": {"text": "text", "label": "label"},
    "multilabel": {"text": "text", "label": "label"},
    "clustering": {"text": "text", "label": "label"},
    "retrieval": {"query": "query", "document": "document"},
    "reranking": {"query": "query", "document": "document", "score": "score"},
    "pair_classification": {"text1": "text1", "text2": "text2", "label": "label"},
    "sts": {"text1": "text1", "text2": "text2", "score": "score"},
    "bitext_mining": {"text1": "text1", "text2": "text2"},
    "summarization": {"text": "text", "summary": "summary"},
    "unlabelled": {"text": "text"},
}
# Roles that are read only when the user names a column for them.
OPTIONAL_COLUMNS: dict[str, tuple[str, ...]] = {
    "retrieval": ("score", "negative", "query_id", "document_id"),
    "reranking": ("query_id", "document_id"),
    "summarization": ("score",),
}
# Roles of the three-part form of a retrieval set: corpus, queries, relevance.
PART_COLUMNS: dict[str, str] = {
    "corpus_id": "_id",
    "corpus_text": "text",
    "corpus_title": "title",
    "queries_id": "_id",
    "queries_text": "text",
    "relevance_query": "query-id",
    "relevance_document": "corpus-id",
    "relevance_score": "score",
}
DOCUMENT_TYPES = ("retrieval", "reranking")
LABEL_TYPES = ("classification", "multilabel", "clustering")
# Evaluated by a probe that is trained on rows of the split train.
PROBE_TYPES = ("classification", "multilabel")
PAIR_TYPES = ("pair_classification", "sts", "bitext_mining", "summarization")
SCORE_TYPES = ("sts", "summarization")

# Names of rows in the score tables.
RESERVED_NAMES = ("mean", "general_mean", "all")
MAX_NAME = 60
_NAME = re.compile(r"^[a-z][a-z0-9]*(_[a-z0-9]+)*$")


class _Model(BaseModel):
    """Immutable, unknown keys forbidden."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Paths = Annotated[str, Field(min_length=1)] | Annotated[list[str], Field(min_length=1)]


class SplitRule(_Model):
    """How one file is split: deterministically, by a hash of the text or of a group column.

    Args:
        dev: Share of the rows (or groups) that become the dev split.
        test: Share that becomes the test split.
        by: Column whose equal values stay in one split; by default the text itself.
    """

    dev: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    test: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.2
    by: str | None = None

    @model_validator(mode="after")
    def _leaves_rows_for_training(self) -> Self:
        if self.dev + self.test >= 1.0:
            msg = f"dev + test must stay below 1, got {self.dev + self.test:g}"
            raise ValueError(msg)
        return self


class FilesSource(_Model):
    """Rows in local files: one or several per split, or one file that is split by a rule."""

    kind: Literal["files"] = "files"
    train: Paths | None = None
    dev: Paths | None = None
    test: Paths | None = None
    all: Paths | None = None
    split: SplitRule | None = None
    corpus: Paths | None = None
    queries: Paths | None = None
    relevance: dict[Split, Paths] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        problems = [
            f"'{path}' must end in one of {', '.join(FILE_FORMATS)}"
            for path in self._paths()
            if PurePosixPath(path).suffix.lower() not in FILE_FORMATS
        ]
        problems += self._combinations()
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _combinations(self) -> list[str]:
        """Name the keys that do not go together."""
        named = [split for split in SPLITS if getattr(self, split) is not None]
        forms = [bool(named), self.all is not None, self.relevance is not None]
        problems = []
        if sum(forms) != 1:
            problems.append(
                "give either files per split (train, dev, test), or one file to be split (all), "
                "or corpus, queries and relevance"
            )
        if self.split is not None and self.all is None:
            problems.append("'split' applies to 'all' only")
        if (self.relevance is None) != (self.queries is None):
            problems.append("'queries' and 'relevance' go together")
        if self.relevance is not None and self.corpus is None:
            problems.append("'relevance' needs 'corpus'")
        return problems

    def _paths(self) -> list[str]:
        groups = [self.train, self.dev, self.test, self.all, self.corpus, self.queries]
        groups += list((self.relevance or {}).values())
        return [path for group in groups if group is not None for path in as_list(group)]

    def splits(self) -> tuple[Split, ...]:
        """Return the splits that this source provides."""
        if self.all is not None:
            rule = self.split or SplitRule()
            shares = {"train": 1.0, "dev": rule.dev, "test": rule.test}
            return tuple(split for split in SPLITS if shares[split] > 0)
        given = self.relevance if self.relevance is not None else self.model_dump()
        return tuple(split for split in SPLITS if given.get(split) is not None)

    def where(self, split: str) -> str:
        """Say in words where the rows of a split come from."""
        relevance = _by_name(self.relevance or {})
        group = self.all or relevance.get(split) or getattr(self, split)
        return ", ".join(as_list(group)) if group else f"no file given for '{split}'"


class HubSource(_Model):
    """Rows of a data set on the Hugging Face hub, or in a local folder of the same form.

    Args:
        path: Repository id, or a local folder relative to the project.
        revision: Commit or tag; required unless the path is a local folder.
        config: Name of the configuration.
        splits: Our split names to those of the data set.
        corpus_config: Configuration that holds the corpus of a three-part retrieval set.
        queries_config: Configuration that holds its queries.
    """

    kind: Literal["hub"] = "hub"
    path: Annotated[str, Field(min_length=1)]
    revision: str | None = None
    config: str | None = None
    splits: dict[Split, str] = {"train": "train", "test": "test"}
    corpus_config: str | None = None
    queries_config: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.splits:
            msg = "splits: name at least one split, for example {train: train, test: test}"
            raise ValueError(msg)
        if self.queries_config is not None and self.corpus_config is None:
            msg = "'queries_config' needs 'corpus_config'"
            raise ValueError(msg)
        return self

    def where(self, split: str) -> str:
        """Say in words where the rows of a split come from."""
        return f"{self.path} (split '{self.split_name(split)}')"

    def split_name(self, split: str) -> str:
        """Return what the data set calls one of our splits."""
        return _by_name(self.splits).get(split, "not mapped")


class BuiltinSource(_Model):
    """A task that comes with the project.

    Args:
        name: The collection, which follows from the task: ``python_code`` is built from the
            installed Python source, ``data_set_prose`` from what the package mteb says of data
            sets.
        task: Which of its tasks.
    """

    kind: Literal["builtin"] = "builtin"
    name: Literal["python_code", "data_set_prose"]
    task: builtin.BuiltinTask

    @model_validator(mode="before")
    @classmethod
    def _name(cls, raw: Any) -> Any:
        """Name the collection of the task."""
        return {**raw, "name": builtin.collection_of(raw.get("task"))}

    def splits(self) -> tuple[Split, ...]:
        """Return the splits that this source provides."""
        return SPLITS

    def where(self, split: str) -> str:
        """Say in words where the rows of a split come from."""
        return f"builtin {self.name}.{self.task} (split '{split}')"


Source = Annotated[FilesSource | HubSource | BuiltinSource, Field(discriminator="kind")]


class Prompts(_Model):
    """Text put in front of what is encoded; a symmetric task uses ``query`` for both sides."""

    query: str | None = None
    document: str | None = None


class TaskSpec(_Model):
    """One task: the only thing a user has to write.

    Args:
        name: Snake case; it becomes part of metric names.
        type: One of the task types.
        source: Where the rows are; in a catalog written as ``files``, ``hub`` or ``builtin``.
        columns: Role to column name, where they differ from the defaults.
        prompts: Prompts of both sides; by default those of the model.
        uses: ``train``, ``evaluate`` or both; by default what the source has splits for.
        general: Whether the task stands for general text: it is evaluated to see what the model
            forgot, never trained on, and no part of the mean over the domain tasks.
        weight: Relative frequency of the task in training. At 0 none of its pairs is trained on,
            but its text still has a say in the rotation and in REZE.
        max_rows: Most rows (queries, for retrieval) to keep, per split or for every split.
        label_text: Label to the description that a text is paired with.
        positive_score: Lowest score of a training pair (sts, summarization); by default the
            lowest plus 0.8 of the range of the training scores.
        pairing: ``label`` pairs a text with its label's description, ``same_label`` with
            another text of that label.
        separator: What stands between several labels in one cell of text (multilabel).
        description: Free text for reports.
    """

    name: str
    type: TaskType
    source: Source
    columns: dict[str, str] = {}
    prompts: Prompts | None = None
    uses: Annotated[list[Use], Field(min_length=1)]
    general: bool = False
    weight: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 1.0
    max_rows: Annotated[int, Field(ge=1)] | dict[Split, Annotated[int, Field(ge=1)]] | None = None
    label_text: dict[str, str] | None = None
    positive_score: Annotated[float, Field(allow_inf_nan=False)] | None = None
    pairing: Literal["label", "same_label"] = "label"
    separator: Annotated[str, Field(min_length=1)] = "|"
    description: str = ""

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, raw: Any) -> Any:
        """Turn the short form that a user writes into the full one."""
        if not isinstance(raw, Mapping):
            return raw
        data = _with_source(dict(raw))
        source = data.get("source")
        if isinstance(source, Mapping) and source.get("kind") == "builtin":
            data = {**builtin.spec_defaults(source.get("task")), **data}
        if "uses" not in data and data.get("general") is True:
            data["uses"] = ["evaluate"]
        if "uses" not in data and isinstance(source, Mapping):
            data["uses"] = _default_uses(data, source)
        return data

    @model_validator(mode="after")
    def _check(self) -> Self:
        problems = [*self._name_problems(), *self._column_problems(), *self._use_problems()]
        problems += self._option_problems()
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def _name_problems(self) -> list[str]:
        if not _NAME.match(self.name) or len(self.name) > MAX_NAME:
            return [
                f"name: must be snake case (lower-case letters, digits, single underscores), start "
                f"with a letter and have at most {MAX_NAME} characters, got {self.name!r}"
            ]
        if self.name in RESERVED_NAMES:
            return [f"name: {self.name!r} is a row of the score tables, choose another name"]
        return []

    def _column_problems(self) -> list[str]:
        allowed = self.column_roles()
        return [
            f"columns.{role}: not a column of a {self.type} task; allowed: {', '.join(allowed)}"
            for role in self.columns
            if role not in allowed
        ]

    def _use_problems(self) -> list[str]:
        problems = []
        provided = source_splits(self.source)
        if self.type == "unlabelled" and "evaluate" in self.uses:
            problems.append("uses: an unlabelled task has nothing to evaluate; allowed: [train]")
        if self.general and self.uses != ["evaluate"]:
            problems.append("uses: a general task is only evaluated; allowed: [evaluate]")
        if "train" in self.uses and "train" not in provided:
            problems.append("uses: 'train' needs a train split, which the source does not give")
        if "evaluate" in self.uses and not {"dev", "test"} & set(provided):
            problems.append("uses: 'evaluate' needs a dev or test split, which is not given")
        if self.type in PROBE_TYPES and "train" not in provided:
            problems.append(
                f"uses: {self.type} is evaluated by a probe on training rows, so the source "
                "must give a train split"
            )
        if self.type == "summarization" and "evaluate" in self.uses and "score" not in self.columns:
            problems.append(
                "uses: summarization is evaluated on the scores of summaries; name their column in "
                "columns.score, or set uses: [train]"
            )
        return problems

    def _option_problems(self) -> list[str]:
        problems = []
        if self.label_text is not None and self.type not in LABEL_TYPES:
            problems.append(f"label_text: applies to {', '.join(LABEL_TYPES)} only")
        if self.pairing != "label" and self.type not in LABEL_TYPES:
            problems.append(f"pairing: applies to {', '.join(LABEL_TYPES)} only")
        if self.positive_score is not None and self.type not in SCORE_TYPES:
            problems.append(f"positive_score: applies to {', '.join(SCORE_TYPES)} only")
        if self.separator != "|" and self.type != "multilabel":
            problems.append("separator: applies to multilabel only")
        if self._has_corpus() and self.type not in DOCUMENT_TYPES:
            problems.append(f"corpus: applies to {', '.join(DOCUMENT_TYPES)} only")
        return problems

    def _has_corpus(self) -> bool:
        source = self.source
        if isinstance(source, FilesSource):
            return source.corpus is not None
        return isinstance(source, HubSource) and source.corpus_config is not None

    def column_roles(self) -> tuple[str, ...]:
        """Return the roles that ``columns`` may name."""
        roles = (*REQUIRED_COLUMNS[self.type], *OPTIONAL_COLUMNS.get(self.type, ()))
        return (*roles, *PART_COLUMNS) if self.type in DOCUMENT_TYPES else roles

    def column(self, role: str) -> str | None:
        """Return the column name of a role, or None when it is optional and not named."""
        default = REQUIRED_COLUMNS[self.type].get(role, PART_COLUMNS.get(role))
        return self.columns.get(role, default)

    def row_limit(self, split: str) -> int | None:
        """Return the most rows to keep of a split."""
        if isinstance(self.max_rows, dict):
            return _by_name(self.max_rows).get(split)
        return self.max_rows

    def where(self, split: str) -> str:
        """Say in words where the rows of a split come from."""
        return self.source.where(split)


def _by_name(values: Mapping[Split, Value]) -> dict[str, Value]:
    """Return a mapping that may be asked for any name."""
    return {str(split): value for split, value in values.items()}


def as_list(value: str | list[str]) -> list[str]:
    """Return one path or several as a list."""
    return [value] if isinstance(value, str) else list(value)


def source_splits(source: FilesSource | HubSource | BuiltinSource) -> tuple[str, ...]:
    """Return the splits that a source provides."""
    if isinstance(source, HubSource):
        return tuple(split for split in SPLITS if split in source.splits)
    return source.splits()


def parse_specs(raw: Any) -> list[TaskSpec]:
    """Validate all task specs together.

    Args:
        raw: What the catalog entry lists under ``tasks``.

    Returns:
        The specs in the order given.

    Raises:
        ParameterError: One message that lists every problem of every task.
    """
    if not isinstance(raw, list | tuple) or not raw:
        msg = "raw_tasks.tasks: must be a list of at least one task"
        raise ParameterError(msg)
    specs: list[TaskSpec] = []
    problems: list[str] = []
    for number, item in enumerate(raw):
        try:
            specs.append(TaskSpec.model_validate(item))
        except ValidationError as error:
            place = f"raw_tasks.tasks[{number}]"
            problems += [line for detail in error.errors() for line in _describe(place, detail)]
    problems += _duplicate_names(raw)
    problems += _without_domain(specs)
    if problems:
        lines = [f"  {problem}" for problem in problems]
        raise ParameterError("\n".join(["The tasks are not valid:", *lines]))
    return specs


def load_specs(task_specs: Iterable[Mapping[str, Any]]) -> dict[str, TaskSpec]:
    """Read specs back from their JSON form, by task name and in order."""
    return {spec.name: spec for spec in (TaskSpec.model_validate(item) for item in task_specs)}


def _with_source(data: dict[str, Any]) -> dict[str, Any]:
    """Move ``files``, ``hub`` or ``builtin`` into ``source``."""
    short = [kind for kind in ("files", "hub", "builtin") if kind in data]
    if len(short) + ("source" in data) != 1:
        given = ", ".join(short) if short else "none of them"
        msg = f"source: give exactly one of files, hub, builtin; got {given}"
        raise ValueError(msg)
    if not short:
        return data
    kind = short[0]
    value = data.pop(kind)
    if kind == "files" and isinstance(value, str | list):
        value = {"all": value}
    if kind == "builtin" and isinstance(value, str):
        value = {"task": value}
    if not isinstance(value, Mapping):
        msg = f"{kind}: must be a mapping, got {value!r}"
        raise ValueError(msg)
    data["source"] = {**value, "kind": kind}
    return data


def _default_uses(task: Mapping[str, Any], source: Mapping[str, Any]) -> list[str]:
    """Use a task for whatever its source has splits for, and its columns can support."""
    given: Mapping[str, Any] = source
    if source.get("kind") == "hub":
        given = source.get("splits") or {"train": "train", "test": "test"}
    elif source.get("relevance") is not None:
        given = source["relevance"]
    elif source.get("all") is not None or source.get("kind") == "builtin":
        given = dict.fromkeys(SPLITS, True)
    held_out = isinstance(given, Mapping) and (given.get("dev") or given.get("test"))
    trains = isinstance(given, Mapping) and given.get("train")
    uses = (["train"] if trains else []) + (["evaluate"] if held_out else [])
    columns = task.get("columns")
    unrated = task.get("type") == "summarization" and "score" not in (columns or {})
    return ["train"] if task.get("type") == "unlabelled" or unrated or not uses else uses


def _duplicate_names(raw: Iterable[Any]) -> list[str]:
    """Name every task name that occurs more than once, and where."""
    names = [item.get("name") if isinstance(item, Mapping) else None for item in raw]
    counts = Counter(name for name in names if isinstance(name, str))
    return [
        f"raw_tasks.tasks[{number}].name: {name!r} is used more than once"
        for number, name in enumerate(names)
        if isinstance(name, str) and counts[name] > 1
    ]


def _without_domain(specs: Iterable[TaskSpec]) -> list[str]:
    """Say so if general tasks are all that is evaluated: the mean would be one of nothing."""
    evaluated = [spec for spec in specs if "evaluate" in spec.uses]
    if not evaluated or not all(spec.general for spec in evaluated):
        return []
    names = ", ".join(spec.name for spec in evaluated)
    return [f"raw_tasks.tasks: only general tasks are evaluated ({names}); add one of the domain"]


def _describe(place: str, detail: ErrorDetails) -> list[str]:
    """Render one pydantic error as lines of 'raw_tasks.tasks[i].key: what is wrong'."""
    message = detail["msg"].removeprefix("Value error, ")
    parts = [str(part) for part in detail["loc"]]
    if parts[:1] == ["source"] and len(parts) > 1:
        parts = parts[1:]
    parts = [part for part in parts if not _is_type_tag(part)]
    key = ".".join([place, *parts])
    if detail["type"] == "value_error":
        # A check over several keys names its keys itself, one problem a line.
        joint = not parts
        return [f"{key}{'.' if joint else ': '}{line}" for line in message.split("\n")]
    if detail["type"] == "extra_forbidden":
        return [f"{key}: unknown key{_known(parts)}"]
    if detail["type"] == "missing":
        return [f"{key}: is required{_allowed(parts)}"]
    return [f"{key}: {message} (got {detail['input']!r})"]


def _is_type_tag(part: str) -> bool:
    """Tell the names of union members that pydantic puts into a location from real keys."""
    return "[" in part or part in {"int", "str", "constrained-int", "constrained-str"}


def _known(parts: list[str]) -> str:
    """List the keys that are allowed beside an unknown one."""
    models: dict[str, type[BaseModel]] = {
        "files": FilesSource,
        "hub": HubSource,
        "builtin": BuiltinSource,
        "prompts": Prompts,
        "split": SplitRule,
    }
    if len(parts) == 1:
        fields = [name for name in TaskSpec.model_fields if name != "source"]
        return f"; allowed: {', '.join(['files', 'hub', 'builtin', *fields])}"
    model = models.get(parts[-2])
    if model is None:
        return ""
    return f"; allowed: {', '.join(name for name in model.model_fields if name != 'kind')}"


def _allowed(parts: list[str]) -> str:
    """List the values that a missing key may have, where they are few."""
    return f"; allowed: {', '.join(TASK_TYPES)}" if parts == ["type"] else ""
