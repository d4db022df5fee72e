"""mteb's own tasks, by name or by benchmark, scored at every width from texts encoded once.

mteb loads the data (at the revision it pins), evaluates and aggregates; this module chooses the
tasks, checks that their data can be had before anything is computed, and stands between mteb and
the model, so that a text is encoded once at full width for all widths.
"""

from __future__ import annotations

import difflib
import json
import logging
import random
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import datasets
import huggingface_hub
import mteb
import numpy as np
import pandas as pd
import torch
from huggingface_hub.utils import get_session
from mteb.abstasks.abstask import AbsTask
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.get_tasks import TASK_LIST
from mteb.models.abs_encoder import get_prompt_name
from mteb.models.model_meta import ModelMeta
from mteb.types import PromptType
from tqdm.auto import tqdm

from domain_embeddings.core.encoders.bank import EmbeddingBank, text_key
from domain_embeddings.core.encoders.prefix import prefix
from domain_embeddings.core.errors import DataError
from domain_embeddings.core.evaluation.metrics import metric_name
from domain_embeddings.core.evaluation.mteb_results import MtebResult, model_meta
from domain_embeddings.core.evaluation.protocol import CosineEncoder
from domain_embeddings.core.evaluation.scores import AS_IS, COLUMNS, MEAN_METRIC, MEAN_TASK
from domain_embeddings.core.evaluation.tasks import preserved_random_state, quiet

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from domain_embeddings.core.encoders.store import Space
    from domain_embeddings.parameters import MtebParameters

logger = logging.getLogger(__name__)

# Texts and a prompt to full-width vectors (n, d).
Embed = Callable[[Sequence[str], str], np.ndarray]

# Those of `truncation_scores`, and the revision of the data set.
MTEB_COLUMNS = (*COLUMNS, "revision")
LOCAL_REVISION = "local"

_DOCUMENT_NAMES = ("document", "passage", "corpus")
_TIMEOUT_SECONDS = 10
_COMMIT = re.compile(r"[0-9a-f]{40}")
_MATCHES = 3


def selection_problems(parameters: MtebParameters) -> list[str]:
    """Say what is wrong with the chosen tasks; no data are looked at.

    Args:
        parameters: Section ``evaluation.mteb``.

    Returns:
        One line per problem, beginning with the key; a name that does not exist comes with close
        ones that do.
    """
    installed = f"mteb {version('mteb')}"
    problems = []
    known = [task.metadata.name for task in TASK_LIST]
    for name in parameters.tasks:
        if name not in known:
            problems.append(f"tasks: '{name}' is not a task of {installed}{_close(name, known)}")
    repeated = sorted({name for name in parameters.tasks if parameters.tasks.count(name) > 1})
    if repeated:
        problems.append(f"tasks: {', '.join(repeated)} is named twice")
    benchmarks = _benchmarks()
    wanted = parameters.benchmark
    if wanted is not None and wanted not in benchmarks:
        problems.append(
            f"benchmark: '{wanted}' is not a benchmark of {installed}{_close(wanted, benchmarks)}"
        )
    if problems:
        return problems
    try:
        chosen = select_tasks(parameters)
    except ValueError as error:
        return [f"languages: {error}"]
    names = [part.metadata.name for task in chosen for part in parts(task)]
    problems += [
        f"revisions: '{name}' is not among the chosen tasks{_close(name, names)}"
        for name in parameters.revisions
        if name not in names
    ]
    other = [task.metadata.name for task in chosen if list(task.metadata.modalities) != ["text"]]
    if other:
        problems.append(f"tasks: {', '.join(other)} is not about text alone")
    return problems


def _close(name: str, names: Sequence[str]) -> str:
    """Name what a misspelt name may have meant."""
    folded = {known.casefold(): known for known in names}
    found = difflib.get_close_matches(name.casefold(), folded, n=_MATCHES, cutoff=0.5)
    return f"; did you mean {', '.join(folded[match] for match in found)}?" if found else ""


def _benchmarks() -> list[str]:
    """Name all benchmarks; asked for the first time, mteb makes all their tasks."""
    with preserved_random_state():
        benchmarks = mteb.get_benchmarks()
    return [
        *(found.name for found in benchmarks),
        *(n for b in benchmarks for n in b.aliases or ()),
    ]


def select_tasks(parameters: MtebParameters) -> list[AbsTask]:
    """Make the chosen tasks, in order; no data are loaded.

    Args:
        parameters: Section ``evaluation.mteb``, its names known.

    Returns:
        Tasks of their own, so that what is set on them reaches no other user of mteb.

    Raises:
        ValueError: A task has none of the languages.
    """
    with preserved_random_state():
        chosen: dict[str, AbsTask] = {name: mteb.get_task(name) for name in parameters.tasks}
        if parameters.benchmark is not None:
            for task in mteb.get_benchmark(parameters.benchmark).tasks:
                chosen.setdefault(task.metadata.name, task)
    return [_own(task, parameters) for task in chosen.values()]


def _own(task: AbsTask, parameters: MtebParameters) -> AbsTask:
    """Copy a task and set what the parameters say about its data."""
    task = copy(task)
    if task.is_aggregate:
        members = [_own(member, parameters) for member in _members(task)]
        task.metadata = task.metadata.model_copy(update={"tasks": members})
        return task
    if parameters.languages is not None:
        task.filter_languages(parameters.languages)
    place = dict(task.metadata.dataset)
    name = task.metadata.name
    folder = Path(parameters.folder or "") / str(place["path"])
    if parameters.folder is not None and folder.is_dir():
        place |= {"path": str(folder), "revision": LOCAL_REVISION}
    place["revision"] = parameters.revisions.get(name, place["revision"])
    task.metadata = task.metadata.model_copy(update={"dataset": place})
    return task


def parts(task: AbsTask) -> Iterator[AbsTask]:
    """Yield the tasks that a task consists of: itself, or the members of an aggregate."""
    if not task.is_aggregate:
        yield task
        return
    for member in _members(task):
        yield from parts(member)


def _members(task: AbsTask) -> list[AbsTask]:
    """Return what an aggregate is made of."""
    return list(cast("Any", task.metadata).tasks)


def require_data(tasks: Sequence[AbsTask]) -> None:
    """Refuse tasks whose data can neither be had from the hub nor from its local cache.

    Nothing but descriptions is downloaded, so this is quick enough to ask before training.

    Raises:
        DataError: Naming every such task, why, and what can be done.
    """
    problems = []
    with hub_or_cache(tasks):
        for part in (part for task in tasks for part in parts(task)):
            try:
                _find(part)
            # What a hub, a proxy or a cache answers with is not documented.
            except Exception as error:
                problems.append(_absent(part, error))
    if problems:
        raise DataError("\n".join([*problems, _ADVICE]))


@contextmanager
def hub_or_cache(tasks: Sequence[AbsTask]) -> Iterator[None]:
    """Ask the hub once whether it answers; if it does not, use nothing but its local cache.

    Otherwise every data set would be asked for six times, with pauses.
    """
    paths = {str(part.metadata.dataset["path"]) for task in tasks for part in parts(task)}
    offline = datasets.config.HF_HUB_OFFLINE
    if not offline and not all(Path(path).is_dir() for path in paths):
        offline = not _answers(datasets.config.HF_ENDPOINT)
    switches: tuple[Any, ...] = (datasets.config, huggingface_hub.constants)
    before = [switch.HF_HUB_OFFLINE for switch in switches]
    try:
        for switch in switches:
            switch.HF_HUB_OFFLINE = offline
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.HF_HUB_OFFLINE = value


def _answers(address: str) -> bool:
    """Tell whether a hub answers at all."""
    try:
        get_session().head(address, timeout=_TIMEOUT_SECONDS)
    # A proxy, a name server, a certificate: all of them mean that there is no hub.
    except Exception as error:
        logger.warning("%s does not answer (%s): looking in its local cache only", address, error)
        return False
    return True


def _find(task: AbsTask) -> None:
    """Look a data set up without loading it."""
    place = task.metadata.dataset
    if isinstance(task, AbsTaskRetrieval):
        names = datasets.get_dataset_config_names(place["path"], revision=place["revision"])
        # Some tasks make their candidates themselves.
        loads = type(task).load_data is AbsTaskRetrieval.load_data
        if loads and _reranks(task) and not any("top_ranked" in name for name in names):
            raise DataError(_NO_CANDIDATES)
        return
    subsets = task.hf_subsets if task.metadata.is_multilingual else [place.get("name")]
    for subset in subsets:
        builder = datasets.load_dataset_builder(
            place["path"], name=subset, revision=place["revision"]
        )
        _require_revision(task, str(builder.hash))


def _require_revision(task: AbsTask, found: str) -> None:
    """Refuse another commit than the pinned one: a local cache gives whatever it has."""
    revision = task.metadata.revision
    if _COMMIT.fullmatch(revision) and _COMMIT.fullmatch(found) and found != revision:
        msg = f"the local cache holds the revision {found}"
        raise DataError(msg)


# Of what is in its cache `datasets` lists no more than one configuration, and mteb would then rank
# the whole corpus.
_NO_CANDIDATES = (
    "they do not tell which documents are the candidates of a query (configuration 'top_ranked')"
)
_ADVICE = (
    "To continue, make the hub reachable, point HF_HOME to a cache that holds the data, put them "
    "in hub form under <evaluation.mteb.folder>/<owner>/<name>, or remove the task from "
    "evaluation.mteb."
)


def _absent(task: AbsTask, error: Exception) -> str:
    place = task.metadata.dataset
    reason = " ".join(str(error).split()) or type(error).__name__
    return (
        f"mteb's task '{task.metadata.name}' has no data: {place['path']} at the revision "
        f"{place['revision']}: {reason}"
    )


def load(task: AbsTask) -> None:
    """Load the data of a task.

    Raises:
        DataError: They cannot be loaded; the message names the task and what can be done.
    """
    for part in parts(task):
        try:
            with preserved_random_state(), quiet(), hub_or_cache([part]):
                _reseed(part)
                part.load_data()
            _require_whole(part)
        except Exception as error:
            msg = f"{_absent(part, error)}\n{_ADVICE}"
            raise DataError(msg) from error


def _require_whole(task: AbsTask) -> None:
    """Refuse what a local cache may give in the place of the data: another revision, or a part."""
    for table in _tables(task.dataset):
        for file in table.cache_files:
            _require_revision(task, Path(file["filename"]).parent.name)
    if not _reranks(task):
        return
    for found in (found for splits in (task.dataset or {}).values() for found in splits.values()):
        if found.get("top_ranked") is None:
            raise DataError(_NO_CANDIDATES)


def _reranks(task: AbsTask) -> bool:
    return isinstance(task, AbsTaskRetrieval) and "Reranking" in task.metadata.type


def _tables(data: Any) -> Iterator[datasets.Dataset]:
    """Yield the tables of a task, however they are nested in subsets and splits."""
    if isinstance(data, datasets.Dataset):
        yield data
    elif isinstance(data, Mapping):
        for value in data.values():
            yield from _tables(value)


def _unload(task: AbsTask) -> None:
    for part in parts(task):
        part.dataset, part.data_loaded = None, False


def _reseed(task: AbsTask) -> None:
    """Put the generators of a task, and the global ones, where mteb puts them for a new task."""
    random.seed(task.seed)
    np.random.seed(task.seed)
    torch.manual_seed(task.seed)
    task.rng_state = random.Random(task.seed)  # noqa: S311
    task.np_rng = np.random.default_rng(task.seed)


def mteb_prompt(
    prompts: Mapping[str, str | None],
    task_metadata: Any,
    prompt_type: PromptType | None,
    default: str | None = None,
) -> str:
    """Choose the prompt of a text as mteb and sentence-transformers do together.

    Args:
        prompts: Prompts saved with the model, by name: of a task, a type of tasks, or a side.
        task_metadata: mteb's description of the task.
        prompt_type: Query, document, or neither.
        default: Name of the model's default prompt.

    Returns:
        The text of the prompt; empty where there is none.
    """
    named = {name: text for name, text in prompts.items() if text is not None}
    name = get_prompt_name(named, task_metadata, prompt_type)
    names = [name]
    if prompt_type == PromptType.document:
        names += _DOCUMENT_NAMES
    return next((named[name] for name in [*names, default] if name in named), "")


class PrefixEncoder(CosineEncoder):
    """An encoder for mteb of full-width vectors that are cut and normalised.

    Args:
        embed: Texts and prompt to full-width vectors.
        prompts: Prompts saved with the model.
        width: Number of leading coordinates that are kept.
        meta: Metadata that the results are filed under.
        default_prompt: Name of the model's default prompt.
    """

    def __init__(
        self,
        embed: Embed,
        prompts: Mapping[str, str | None],
        width: int,
        meta: ModelMeta,
        *,
        default_prompt: str | None = None,
    ) -> None:
        """Keep the parts."""
        super().__init__(meta)
        self.embed = embed
        self.prompts = prompts
        self.width = width
        self.default_prompt = default_prompt

    def _encode(
        self, texts: Sequence[str], task_metadata: Any, prompt_type: PromptType | None
    ) -> np.ndarray:
        prompt = mteb_prompt(self.prompts, task_metadata, prompt_type, self.default_prompt)
        return np.asarray(prefix(self.embed(texts, prompt), self.width), dtype=np.float32)


class RememberedTexts:
    """Full-width vectors of texts, each encoded once.

    Args:
        model: The encoder.
        batch_tokens: Padded tokens per batch.
        space: Vectors of this model that earlier runs have stored; new ones join them.
        show_progress: Whether to draw a progress bar.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        batch_tokens: int,
        *,
        space: Space | None = None,
        show_progress: bool = True,
    ) -> None:
        """Start with nothing in memory."""
        self._model = model
        self._options: dict[str, Any] = {
            "space": space,
            "batch_tokens": batch_tokens,
            "show_progress": show_progress,
        }
        self._width = int(model.get_embedding_dimension() or 0)
        self._known: dict[bytes, np.ndarray] = {}

    def __call__(self, texts: Sequence[str], prompt: str) -> np.ndarray:
        """Return the vectors of texts under a prompt, shape (len(texts), d)."""
        keys = [text_key(prompt, text) for text in texts]
        new = [text for key, text in zip(keys, texts, strict=True) if key not in self._known]
        if new:
            items = [(prompt, text) for text in new]
            bank = EmbeddingBank.build(self._model, items, **self._options)
            self._known.update(zip(map(bytes, bank["keys"]), bank["vectors"], strict=True))
        if not keys:
            return np.empty((0, self._width), dtype=np.float32)
        return np.stack([self._known[key] for key in keys])

    def forget(self) -> None:
        """Let go of what is in memory if it is in the store as well."""
        if self._options["space"] is not None:
            self._known.clear()


@dataclass(frozen=True)
class EvaluatedModel:
    """A model that mteb's own tasks are scored with.

    Args:
        embed: Its texts; asked for each of them at every width.
        header: Description of the model (``encoders.loading.describe``).
        method: Training method.
        default_prompt: Name of its default prompt.
    """

    embed: RememberedTexts
    header: Mapping[str, Any]
    method: str
    default_prompt: str | None = None


def score_tasks(
    models: Mapping[str, EvaluatedModel],
    tasks: Sequence[AbsTask],
    widths: Sequence[int],
    *,
    show_progress: bool = True,
) -> tuple[pd.DataFrame, list[MtebResult]]:
    """Score every model on every task at every width.

    Args:
        models: Models by name.
        tasks: Tasks of `select_tasks`; their data are loaded here, one task at a time.
        widths: Prefix widths, increasing.
        show_progress: Whether to draw a progress bar.

    Returns:
        Tidy scores with the columns `MTEB_COLUMNS`: the main score of every task, over its splits
        and subsets as mteb takes them together, and the task ``mean``; and mteb's own results.

    Raises:
        DataError: The data of a task cannot be loaded.
    """
    rows: list[dict[str, Any]] = []
    results: list[MtebResult] = []
    with tqdm(total=len(tasks) * len(models) * len(widths), disable=not show_progress) as bar:
        for task in tasks:
            if task.superseded_by:
                logger.warning(
                    "mteb's task '%s' is superseded by '%s'",
                    *(task.metadata.name, task.superseded_by),
                )
            load(task)
            for name, model in models.items():
                for width in widths:
                    bar.set_description(f"{name} {task.metadata.name} {width}")
                    meta = model_meta(name, model.header, width)
                    found = _evaluate(model, task, width, meta)
                    results.append(MtebResult(meta, found))
                    rows.append(_row(name, model, task, width, float(found.get_score())))
                    bar.update()
                model.embed.forget()
            _unload(task)
    return pd.DataFrame([*rows, *_means(rows)], columns=list(MTEB_COLUMNS)), results


def _evaluate(model: EvaluatedModel, task: AbsTask, width: int, meta: ModelMeta) -> Any:
    """Let mteb score one width; equal encoders score equally, in whatever order they come."""
    encoder = PrefixEncoder(
        model.embed, model.header["prompts"], width, meta, default_prompt=model.default_prompt
    )
    with preserved_random_state(), quiet(), warnings.catch_warnings():
        # Said once per task, not at every width.
        warnings.filterwarnings("ignore", message=".*is superseded by")
        for part in parts(task):
            _reseed(part)
        found = mteb.evaluate(
            encoder,
            task,
            cache=None,
            co2_tracker=False,
            show_progress_bar=False,
            encode_kwargs={"batch_size": 1_024, "show_progress_bar": False},
        )
    return found.task_results[0]


def _row(
    name: str, model: EvaluatedModel, task: AbsTask, width: int, value: float
) -> dict[str, Any]:
    """Lay one score out."""
    kinds = (None, PromptType.query, PromptType.document)
    used = [
        mteb_prompt(model.header["prompts"], task.metadata, kind, model.default_prompt)
        for kind in kinds
    ]
    revisions = dict.fromkeys(str(part.metadata.revision) for part in parts(task))
    return {
        "model": name,
        "method": model.method,
        "transform": AS_IS,
        "precision": "float32",
        "task": task.metadata.name,
        "type": snake_case(task.metadata.type),
        "width": width,
        "metric": metric_name(task.metadata.main_score),
        "main": True,
        "value": value,
        "n": sum(_rows(part) for part in parts(task)),
        "low": float("nan"),
        "high": float("nan"),
        "seed": task.seed,
        "split": ",".join(task.eval_splits),
        "prompts": json.dumps({"text": used[0], "query": used[1], "document": used[2]}),
        "max_length": int(model.header["max_length"]),
        "mteb_version": version("mteb"),
        "revision": ",".join(revisions),
    }


def _rows(task: AbsTask) -> int:
    """Count the evaluated rows (queries, for retrieval) of a loaded task."""
    count = 0
    for subset in task.hf_subsets:
        data: Any = task.dataset
        data = data[subset] if subset in data else data
        for split in task.eval_splits:
            rows = data[split]
            count += len(rows["queries"] if isinstance(rows, dict) else rows)
    return count


def _means(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the mean over tasks of every model and width."""
    cells: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for row in rows:
        cells.setdefault((row["model"], row["width"]), []).append(row)
    for own in cells.values():
        yield {
            **own[0],
            "task": MEAN_TASK,
            "type": MEAN_TASK,
            "metric": MEAN_METRIC,
            "value": float(np.mean([row["value"] for row in own])),
            "n": sum(row["n"] for row in own),
            "split": "",
            "prompts": json.dumps({}),
            "revision": "",
        }


def snake_case(name: str) -> str:
    """Spell one of mteb's types as this project does: PairClassification, pair_classification."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
