"""The embedded code domain: tasks made of the documented functions of installed Python packages.

The source is parsed, never imported. Modules are assigned to train, dev and test by a hash of
their name, so no module is in two splits; a function whose summary, name, details or code also
occurs in a held-out split is removed from training. The data depend on nothing but the installed
versions, which :meth:`Corpus.report` lists.
"""

from __future__ import annotations

import ast
import os
import re
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from itertools import islice
from pathlib import Path
from platform import python_version
from typing import Any, Literal, get_args

from domain_embeddings.core.tasks.normalise import (
    comparison_key,
    pair_key,
    stable_fraction,
    stable_hash,
)

CodeTask = Literal[
    "docstring_to_code",
    "name_to_docstring",
    "package_of_docstring",
    "area_of_docstring",
    "summary_and_details",
]
CODE_TASKS: tuple[str, ...] = get_args(CodeTask)

STANDARD_LIBRARY = "python"
# Import name -> what the package is for. All of them come with the dependencies of the project.
PACKAGES: dict[str, str] = {
    STANDARD_LIBRARY: "Python standard library",
    "IPython": "IPython, interactive shell and notebooks",
    "PIL": "Pillow, reading and editing images",
    "aiohttp": "aiohttp, asynchronous HTTP client and server",
    "datasets": "datasets, loading and mapping machine learning data",
    "docker": "docker, controlling containers and images",
    "fontTools": "fontTools, reading and writing font files",
    "fsspec": "fsspec, local and remote file systems",
    "graphql": "graphql, query language and schema for APIs",
    "huggingface_hub": "huggingface_hub, sharing models and files",
    "jinja2": "Jinja, text templates",
    "matplotlib": "matplotlib, plotting and figures",
    "mlflow": "MLflow, experiment tracking and model registry",
    "networkx": "networkx, graphs and networks",
    "numpy": "numpy, arrays and numerical computing",
    "pandas": "pandas, data frames and time series",
    "polars": "polars, fast data frames and expressions",
    "pydantic": "pydantic, data validation with type hints",
    "rich": "rich, formatted text in the terminal",
    "scipy": "scipy, scientific computing and statistics",
    "setuptools": "setuptools, building and installing packages",
    "sklearn": "scikit-learn, machine learning",
    "sqlalchemy": "SQLAlchemy, databases and SQL",
    "sympy": "sympy, symbolic mathematics",
    "torch": "torch, tensors and neural networks",
    "werkzeug": "werkzeug, requests and responses of web applications",
}
_DISTRIBUTIONS = {"PIL": "pillow", "graphql": "graphql-core", "sklearn": "scikit-learn"}

_DESCRIPTIONS: dict[str, tuple[str, str]] = {
    "docstring_to_code": ("retrieval", "Docstring summary to the function it describes"),
    "name_to_docstring": ("retrieval", "Class and function name in words to docstring summary"),
    "package_of_docstring": ("classification", "Docstring summary to its package"),
    "area_of_docstring": ("clustering", "Docstring summaries grouped by subpackage"),
    "summary_and_details": (
        "pair_classification",
        "Whether a summary and a later paragraph belong to one docstring",
    ),
}
# Rows (queries, for retrieval) a task keeps unless max_rows says otherwise.
_MAX_ROWS: dict[str, dict[str, int]] = {
    "docstring_to_code": {"train": 2_700, "dev": 200, "test": 500},
    "name_to_docstring": {"train": 2_700, "dev": 200, "test": 500},
    "package_of_docstring": {"train": 2_500, "dev": 300, "test": 800},
    "area_of_docstring": {"train": 1_500, "dev": 300, "test": 800},
    "summary_and_details": {"train": 3_600, "dev": 200, "test": 600},
}
_DISTRACTORS = {"dev": 300, "test": 1_000}

_TEST_SHARE, _DEV_SHARE = 0.2, 0.07
_FUNCTIONS_PER_PACKAGE = 360
_FUNCTIONS_PER_MODULE = 40
# Parsing is most of the work: files with few docstrings, and very long ones, are not worth it.
_MIN_FILE_DOCSTRINGS = 4
_MAX_FILE_BYTES = 120_000
_MIN_WORDS, _MAX_SUMMARY = 4, 160
_MIN_DETAILS, _MAX_DETAILS = 40, 240
_MIN_CODE, _MAX_CODE = 60, 400
_MAX_LINES = 24
_MIN_NAME_WORDS = 2
_MIN_AREA_ROWS = {"train": 20, "dev": 6, "test": 12}
_SKIPPED_FOLDERS = frozenset(
    "tests test testing _testing site-packages __pycache__ idlelib lib2to3 turtledemo "
    "_vendor vendor _vendored externals extern".split()
)

_ROLE = re.compile(r":[a-z:+-]+:`[~!]?([^`<]+?)(?:\s*<[^`]*>)?`")
_TICKS = re.compile(r"`+([^`]*)`+_?")
_WORDS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
_NOT_PROSE = re.compile(r"^\s*(?:>>>|\.\. |:param|@|\||\+--|[-=~*]{3,})|[-=~]{4,}|%\(|\{[a-z_]*\}")
_SECTION = re.compile(
    r"^(?:args|arguments|parameters|params|returns?|yields?|raises|examples?|notes?|see also|"
    r"references|attributes|warnings?|usage|inputs?|outputs?|keyword arguments)\b\s*:?\s*$",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Function:
    """A documented function.

    Args:
        package: Import name of the package, or ``python`` for the standard library.
        module: Dotted module name; it decides the split.
        words: Class and function name in words.
        summary: First paragraph of the docstring.
        details: A later paragraph of prose, or empty.
        code: The function without docstrings, comments and decorators.
        origin: Path within the installation and line.
    """

    package: str
    module: str
    words: str
    summary: str
    details: str
    code: str
    origin: str

    @property
    def area(self) -> str:
        """Return package and subpackage in words."""
        parts = self.module.split(".")
        if self.package == STANDARD_LIBRARY:
            return f"{self.package} {parts[0]}"
        return f"{self.package} {parts[1] if len(parts) > 1 else self.package}"

    def keys(self) -> tuple[str, ...]:
        """Return the comparison keys of everything a task may show of the function."""
        texts = (self.summary, self.words, self.code, self.details)
        return tuple(
            f"{number}:{comparison_key(text)}" for number, text in enumerate(texts) if text
        )


@dataclass(frozen=True)
class Corpus:
    """Functions by split.

    Args:
        functions: Split to functions, sorted by module and line.
        versions: Package to installed version.
        removed: Functions removed by reason.
    """

    functions: Mapping[str, tuple[Function, ...]]
    versions: Mapping[str, str]
    removed: Mapping[str, int] = field(default_factory=dict)

    def rows(self, task: str, split: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield origin and values of the rows of one task and split."""
        yield from _ROWS[task](self.functions[split], split)

    def distractors(self, task: str, split: str) -> Iterator[tuple[str, str]]:
        """Yield origin and text of documents that make a retrieval corpus larger."""
        side = {"docstring_to_code": "code", "name_to_docstring": "summary"}.get(task)
        if side is None:
            return
        # Ordered by the hash of the summary, as the sampling of queries is, so that the tasks
        # share their texts and each is encoded once.
        ordered = sorted(self.functions[split], key=lambda item: stable_hash(item.summary))
        for item in ordered[: _DISTRACTORS[split]]:
            yield item.origin, getattr(item, side)

    def report(self) -> dict[str, Any]:
        """Return versions and counts in JSON form."""
        return {
            "versions": dict(self.versions),
            "functions": {split: len(items) for split, items in self.functions.items()},
            "modules": {
                split: len({(item.package, item.module) for item in items})
                for split, items in self.functions.items()
            },
            "packages": dict(
                Counter(item.package for items in self.functions.values() for item in items)
            ),
            "removed": dict(self.removed),
        }


def spec_defaults(task: Any) -> dict[str, Any]:
    """Return the spec fields that a builtin task brings with it."""
    if task not in CODE_TASKS:
        return {"type": "unlabelled"}  # the unknown task itself is reported by the spec
    kind, description = _DESCRIPTIONS[task]
    defaults: dict[str, Any] = {
        "type": kind,
        "description": description,
        "max_rows": _MAX_ROWS[task],
    }
    if task == "package_of_docstring":
        defaults["label_text"] = PACKAGES
    return defaults


def collect(
    packages: Iterable[str] = tuple(PACKAGES), per_package: int = _FUNCTIONS_PER_PACKAGE
) -> Corpus:
    """Collect the documented functions of installed packages and split them by module.

    Args:
        packages: Import names; one that is not installed is left out.
        per_package: About how many functions to take of each.

    Returns:
        The functions by split, deterministic for given package versions.
    """
    found: list[Function] = []
    versions: dict[str, str] = {}
    for package in packages:
        folder = _folder(package)
        if folder is None:
            continue
        versions[package] = _version(package)
        found += _package_functions(package, folder, per_package)
    removed: Counter[str] = Counter()
    return Corpus(_split(found, removed), versions, removed)


def split_of(package: str, module: str) -> str:
    """Return the split of a module: the same on every machine."""
    position = stable_fraction(f"{package}:{module}", "module")
    if position < _TEST_SHARE:
        return "test"
    return "dev" if position < _TEST_SHARE + _DEV_SHARE else "train"


def _split(found: Iterable[Function], removed: Counter[str]) -> dict[str, tuple[Function, ...]]:
    """Assign functions to splits; what a later-read split shows again is removed from it."""
    ordered = sorted(found, key=lambda item: (item.package, item.module, item.origin, item.words))
    by_split: dict[str, list[Function]] = {"train": [], "dev": [], "test": []}
    for item in ordered:
        by_split[split_of(item.package, item.module)].append(item)
    seen: set[str] = set()
    kept: dict[str, tuple[Function, ...]] = {}
    # Held-out splits keep their functions, training gives way.
    for split in ("test", "dev", "train"):
        fresh = [item for item in by_split[split] if seen.isdisjoint(item.keys())]
        overlapping = len(by_split[split]) - len(fresh)
        if overlapping:
            removed[f"{split}: text also in a held-out split"] = overlapping
        kept[split] = tuple(_unique_code(fresh, split, removed))
        seen.update(key for item in kept[split] for key in item.keys())
    return {split: kept[split] for split in by_split}


def _unique_code(
    items: Iterable[Function], split: str, removed: Counter[str]
) -> Iterator[Function]:
    """Yield functions, of equal code only the first."""
    seen: set[str] = set()
    for item in items:
        key = comparison_key(item.code)
        if key in seen:
            removed[f"{split}: same code as another function"] += 1
            continue
        seen.add(key)
        yield item


# ------------------------------------------------------------------------------------ parsing


def _folder(package: str) -> Path | None:
    """Return where the source of a package is, without importing it."""
    paths = sysconfig.get_paths()
    if package == STANDARD_LIBRARY:
        return Path(paths["stdlib"])
    folders = [Path(paths[key]) / package for key in ("purelib", "platlib")]
    return next((folder for folder in folders if folder.is_dir()), None)


def _version(package: str) -> str:
    if package == STANDARD_LIBRARY:
        return python_version()
    try:
        return metadata.version(_DISTRIBUTIONS.get(package, package))
    except metadata.PackageNotFoundError:
        return "unknown"


def _package_functions(package: str, folder: Path, wanted: int) -> list[Function]:
    """Return functions of a package, module by module in hash order, until there are enough."""
    modules = {_module_name(package, folder, path): path for path in _source_files(folder)}
    found: list[Function] = []
    for module in sorted(modules, key=lambda name: (stable_hash(name), name)):
        if len(found) >= wanted:
            break
        path = modules[module]
        data = path.read_bytes()
        if len(data) <= _MAX_FILE_BYTES and data.count(b'"""') >= 2 * _MIN_FILE_DOCSTRINGS:
            place = "/".join([package, *path.relative_to(folder).parts])
            usable = _module_functions(package, module, place, data)
            found += islice(usable, _FUNCTIONS_PER_MODULE)
    return found


def _source_files(folder: Path) -> Iterator[Path]:
    for current, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED_FOLDERS)
        for name in sorted(files):
            if name.endswith(".py") and not name.startswith(("test_", "conftest")):
                yield Path(current) / name


def _module_name(package: str, folder: Path, path: Path) -> str:
    parts = list(path.relative_to(folder).with_suffix("").parts)
    if parts[-1] == "__init__" and len(parts) > 1:
        parts.pop()
    return ".".join(parts if package == STANDARD_LIBRARY else [package, *parts])


def _module_functions(package: str, module: str, place: str, data: bytes) -> Iterator[Function]:
    """Yield the usable functions of one source file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's source
            tree = ast.parse(data)
    except (SyntaxError, ValueError):
        return
    for owner, node in _functions(tree):
        made = _function(owner, node)
        if made is not None:
            words, summary, details, code = made
            origin = f"{place}:{node.lineno}"
            yield Function(package, module, words, summary, details, code, origin)


_Definition = ast.FunctionDef | ast.AsyncFunctionDef


def _functions(tree: ast.Module | ast.ClassDef, owner: str = "") -> Iterator[tuple[str, Any]]:
    """Yield public functions and methods with the name of their class."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from _functions(node, node.name)
        elif isinstance(node, _Definition) and not node.name.startswith(("_", "test")):
            yield owner, node


def _function(owner: str, node: Any) -> tuple[str, str, str, str] | None:
    """Return words, summary, details and code of a function, or None if it is unsuitable."""
    docstring = ast.get_docstring(node)
    if docstring is None or node.end_lineno - node.body[0].end_lineno > _MAX_LINES:
        return None
    summary, details = _paragraphs(docstring)
    words = name_in_words(owner, node.name)
    if not summary or len(words.split()) < _MIN_NAME_WORDS:
        return None
    code = _code_without_docstrings(node)
    if code is None or summary.casefold() in code.casefold():
        return None
    return words, summary, details, code


def name_in_words(owner: str, name: str) -> str:
    """Return the names of a class and its function as lower-case words."""
    words = _WORDS.findall(f"{owner} {name}".replace("_", " "))
    return " ".join(word.lower() for word in words)


def _paragraphs(docstring: str) -> tuple[str, str]:
    """Return the first paragraph and a later one of prose, each empty if there is none."""
    first, *rest = [_prose(part) for part in re.split(r"\n\s*\n", docstring.strip())]
    if not (len(first.split()) >= _MIN_WORDS and len(first) <= _MAX_SUMMARY):
        return "", ""
    long_enough = (part for part in rest if _MIN_DETAILS <= len(part) <= _MAX_DETAILS)
    return first, next(long_enough, "")


def _prose(paragraph: str) -> str:
    """Return a paragraph as plain text, or nothing when it is markup, a list or an example."""
    lines = paragraph.strip().split("\n")
    if _SECTION.match(lines[0]) or any(_NOT_PROSE.search(line) for line in lines):
        return ""
    text = " ".join(paragraph.split())
    text = _TICKS.sub(r"\1", _ROLE.sub(r"\1", text))
    return text if text[:1].isalpha() else ""


def _code_without_docstrings(node: Any) -> str | None:
    """Return the source of a function without docstrings and decorators, or None if unsuitable."""
    for inner in ast.walk(node):
        if isinstance(inner, _Definition | ast.ClassDef):
            inner.decorator_list = []
            while inner.body and _is_text(inner.body[0]):
                inner.body = inner.body[1:] or [ast.Pass()]
    if all(_is_trivial(statement) for statement in node.body):
        return None
    code = ast.unparse(node)
    return code if _MIN_CODE <= len(code) <= _MAX_CODE else None


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _is_trivial(statement: ast.stmt) -> bool:
    """Tell statements that do nothing: pass, ..., raise."""
    constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return constant or isinstance(statement, ast.Pass | ast.Raise)


# -------------------------------------------------------------------------------------- tasks

_Rows = Iterator[tuple[str, dict[str, Any]]]


def _docstring_to_code(items: tuple[Function, ...], _split: str) -> _Rows:
    for item in items:
        yield item.origin, {"query": item.summary, "document": item.code}


def _name_to_docstring(items: tuple[Function, ...], _split: str) -> _Rows:
    for item in items:
        if item.words != comparison_key(item.summary):
            yield item.origin, {"query": item.words, "document": item.summary}


def _package_of_docstring(items: tuple[Function, ...], _split: str) -> _Rows:
    for item in items:
        yield item.origin, {"text": item.summary, "label": item.package}


def _area_of_docstring(items: tuple[Function, ...], split: str) -> _Rows:
    sizes = Counter(item.area for item in items)
    for item in items:
        private = item.area.split()[1][:1] == "_"
        if sizes[item.area] >= _MIN_AREA_ROWS[split] and not private:
            yield item.origin, {"text": item.summary, "label": item.area}


def _summary_and_details(items: tuple[Function, ...], _split: str) -> _Rows:
    """Yield one true pair per docstring, and one with the details of a neighbour.

    The neighbour is the next such function of the same package, mostly of the same module: a hard
    negative, because topic and vocabulary are shared.
    """
    detailed = [item for item in items if item.details]
    # Docstrings are copied: what one function says of itself must not be false of another.
    true = {pair_key(item.summary, item.details) for item in detailed}
    for item, neighbour in zip(detailed, detailed[1:] + detailed[:1], strict=True):
        yield item.origin, {"text1": item.summary, "text2": item.details, "label": "1"}
        false = pair_key(item.summary, neighbour.details) not in true
        if neighbour.package == item.package and false:
            values = {"text1": item.summary, "text2": neighbour.details, "label": "0"}
            yield neighbour.origin, values


_ROWS = {
    "docstring_to_code": _docstring_to_code,
    "name_to_docstring": _name_to_docstring,
    "package_of_docstring": _package_of_docstring,
    "area_of_docstring": _area_of_docstring,
    "summary_and_details": _summary_and_details,
}
