"""The embedded general set: English prose about data sets, from the catalogue of the package mteb.

mteb describes more than a thousand data sets of text, pictures, sound and video: what is in them
(reviews, court rulings, news, symptoms, songs), who collected them and why. That is English about
the world, far from docstrings, and comes with an installed dependency. It is no more than that: the
texts are short, some are terse, many say "dataset" and "benchmark", and a model that is to serve
other general text should be judged on that (any task may be marked ``general: true``).

The source is parsed, never imported. Descriptions are assigned to splits by a hash of the paper
they belong to, so that versions of one data set stay together.
"""

from __future__ import annotations

import ast
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, get_args

from domain_embeddings.core.tasks.normalise import comparison_key, stable_fraction

ProseTask = Literal["title_of_data_set", "subject_of_data_set"]
PROSE_TASKS: tuple[str, ...] = get_args(ProseTask)

# What a data set is about, in mteb's words. How it was written down ("Written", "Web") is no
# subject, and what is left out here is too rare.
SUBJECTS = ("Academic", "Encyclopaedic", "Legal", "News", "Reviews", "Social")
_NO_SUBJECT = frozenset({"Written", "Spoken", "Web", "Non-fiction", "Constructed", "Entertainment"})
_DESCRIPTIONS: dict[str, tuple[str, str]] = {
    "title_of_data_set": ("retrieval", "Description of a data set to the title of its paper"),
    "subject_of_data_set": ("classification", "Description of a data set to its subject"),
}
# The probe's rows come from train; most of the rest is there to be asked.
_TEST_SHARE, _DEV_SHARE = 0.55, 0.12
_MIN_WORDS, _MAX_CHARACTERS = 6, 400
_MIN_TITLE_WORDS = 4
_PER_PAPER = 3
_PROCEEDINGS = re.compile(r"(?i)^(?:proceedings|advances in|findings of|\S+ conference)")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_ADDRESS = re.compile(r"\(?https?://\S+")
_BOILERPLATE = re.compile(
    r"(?:This version (?:corrects|adds|fixes)|For details,|See \[?pull request|Dataset card).*$",
    re.DOTALL,
)
_TITLE = re.compile(r'(?<![a-z])title\s*=\s*[{"]+(.+?)[}"]+\s*,?\s*\n', re.DOTALL)
_LATEX = re.compile(r"\\[a-zA-Z]+\s*|\\[^a-zA-Z]|[{}$~]")


@dataclass(frozen=True)
class DataSet:
    """A described data set.

    Args:
        description: What is in it.
        title: Title of the paper it comes from, or empty.
        subject: The one of `SUBJECTS` it is about, or empty.
        origin: Path within the installation and line.
    """

    description: str
    title: str
    subject: str
    origin: str

    @property
    def split(self) -> str:
        """Return the split: the same for all data sets of one paper, on every machine."""
        position = stable_fraction(comparison_key(self.title or self.description), "prose")
        if position < _TEST_SHARE:
            return "test"
        return "dev" if position < _TEST_SHARE + _DEV_SHARE else "train"


@dataclass(frozen=True)
class Prose:
    """All described data sets.

    Args:
        data_sets: In order of their files.
        version: Version of mteb.
        removed: Data sets left out, by reason.
    """

    data_sets: tuple[DataSet, ...]
    version: str
    removed: Mapping[str, int] = field(default_factory=dict)

    def rows(self, task: str, split: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield origin and values of the rows of one task and split."""
        for item in self.data_sets:
            if item.split != split:
                continue
            if task == "title_of_data_set" and item.title:
                yield item.origin, {"query": item.description, "document": item.title}
            if task == "subject_of_data_set" and item.subject:
                yield item.origin, {"text": item.description, "label": item.subject}

    def distractors(self, task: str, split: str) -> Iterator[tuple[str, str]]:
        """Yield nothing: titles of other splits would be the only ones."""
        yield from ()

    def report(self) -> dict[str, Any]:
        """Return version and counts in JSON form."""
        return {
            "versions": {"mteb": self.version},
            "data_sets": dict(Counter(item.split for item in self.data_sets)),
            "subjects": dict(Counter(item.subject for item in self.data_sets if item.subject)),
            "removed": dict(self.removed),
        }


def spec_defaults(task: str) -> dict[str, Any]:
    """Return the spec fields that a task brings with it."""
    kind, description = _DESCRIPTIONS[task]
    return {"type": kind, "description": description, "general": True, "max_rows": {"test": 400}}


def collect() -> Prose:
    """Collect the descriptions of the installed mteb; empty where it is not installed."""
    folder = Path(sysconfig.get_paths()["purelib"]) / "mteb" / "tasks"
    removed: Counter[str] = Counter()
    found: list[DataSet] = []
    texts: set[str] = set()
    papers: Counter[str] = Counter()
    for item in _data_sets(folder):
        reason = _unusable(item, texts, papers)
        if reason:
            removed[reason] += 1
            continue
        texts.add(_without_numbers(item.description))
        papers[comparison_key(item.title)] += bool(item.title)
        found.append(item)
    return Prose(tuple(found), metadata.version("mteb") if found else "not installed", removed)


def _unusable(item: DataSet, texts: set[str], papers: Counter[str]) -> str | None:
    """Return why a data set is left out, or None."""
    words = item.description.split()
    if len(words) < _MIN_WORDS:
        return "description too short"
    if len(item.description) > _MAX_CHARACTERS or not item.description.isascii():
        return "description too long or not plain English"
    if _without_numbers(item.description) in texts:
        return "same description as another data set"
    if papers[comparison_key(item.title)] >= _PER_PAPER:
        return "enough data sets of that paper"
    return None


def _without_numbers(text: str) -> str:
    """Key of a description: variants of a task differ in a number only."""
    return re.sub(r"\d+", "", comparison_key(text))


def _data_sets(folder: Path) -> Iterator[DataSet]:
    """Yield what the source files describe."""
    for path in sorted(folder.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if "TaskMetadata(" not in source:
            continue
        place = "/".join(["mteb", "tasks", *path.relative_to(folder).parts])
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "TaskMetadata":
                values = dict(_constants(node))
                description = values.get("description")
                if isinstance(description, str):
                    yield DataSet(
                        _plain(description),
                        _title(str(values.get("bibtex_citation") or "")),
                        _subject(values),
                        f"{place}:{node.lineno}",
                    )


def _constants(call: ast.Call) -> Iterator[tuple[str, Any]]:
    """Yield the arguments that are written out."""
    for keyword in call.keywords:
        if keyword.arg in ("description", "domains", "modalities", "bibtex_citation"):
            try:
                yield keyword.arg, ast.literal_eval(keyword.value)
            except ValueError:
                continue


def _plain(description: str) -> str:
    """Return a description without links and without notes on versions."""
    text = _BOILERPLATE.sub("", description)
    text = _ADDRESS.sub("", _LINK.sub(r"\1", text))
    return " ".join(text.split())


def _title(citation: str) -> str:
    """Return the title of a paper without LaTeX; empty if there is none worth reading."""
    found = _TITLE.search(citation)
    text = " ".join(_LATEX.sub("", found[1]).split()) if found else ""
    usable = len(text.split()) >= _MIN_TITLE_WORDS and not _PROCEEDINGS.match(text)
    return text if usable and text.isascii() else ""


def _subject(values: Mapping[str, Any]) -> str:
    """Return the only subject of a set of texts; empty if there is none or more than one."""
    if list(values.get("modalities") or ["text"]) != ["text"]:
        return ""
    subjects = set(values.get("domains") or ()) - _NO_SUBJECT
    only = subjects.pop() if len(subjects) == 1 else ""
    return only if only in SUBJECTS else ""
