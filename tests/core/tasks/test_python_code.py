from __future__ import annotations

import ast
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from domain_embeddings.core.tasks import python_code
from domain_embeddings.core.tasks.curation import curate
from domain_embeddings.core.tasks.leakage import find_leakage
from domain_embeddings.core.tasks.normalise import comparison_key
from domain_embeddings.core.tasks.records import RawTasks
from domain_embeddings.core.tasks.spec import parse_specs

PACKAGES = ("python", "networkx", "jinja2", "polars", "sklearn")


@pytest.fixture(scope="module")
def corpus():
    return python_code.collect(PACKAGES, per_package=150)


def rows(corpus, task, split):
    return [values for _, values in corpus.rows(task, split)]


def test_enough_functions_of_every_package(corpus):
    counts = corpus.report()["packages"]
    assert set(counts) == set(PACKAGES)
    assert min(counts.values()) >= 100
    assert set(corpus.versions) == set(PACKAGES)
    assert corpus.versions["python"] == ".".join(map(str, sys.version_info[:3]))


def test_no_module_is_in_two_splits(corpus):
    modules = {
        split: {(item.package, item.module) for item in items}
        for split, items in corpus.functions.items()
    }
    assert all(modules.values())
    assert not modules["train"] & modules["test"]
    assert not modules["train"] & modules["dev"]
    assert not modules["dev"] & modules["test"]


def test_nothing_a_held_out_function_shows_is_in_training(corpus):
    for side in ("summary", "words", "code", "details"):
        shown = {
            split: {comparison_key(getattr(item, side)) for item in items} - {""}
            for split, items in corpus.functions.items()
        }
        assert not shown["train"] & (shown["test"] | shown["dev"]), side
        assert not shown["dev"] & shown["test"], side


def test_code_has_no_docstring_and_does_not_quote_the_summary(corpus):
    for items in corpus.functions.values():
        for item in items:
            [function] = ast.parse(item.code).body
            docstrings = [
                ast.get_docstring(node)
                for node in ast.walk(function)
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            ]
            assert docstrings == [None] * len(docstrings)
            assert item.summary.casefold() not in item.code.casefold()
            assert 60 <= len(item.code) <= 400


def test_private_functions_tests_and_empty_bodies_are_left_out(corpus):
    for items in corpus.functions.values():
        for item in items:
            [function] = ast.parse(item.code).body
            assert not function.name.startswith(("_", "test"))
            assert "tests" not in item.origin.split("/")
            assert not all(isinstance(node, ast.Pass | ast.Raise) for node in function.body)


def test_origins_lead_to_the_function(corpus):
    item = corpus.functions["train"][0]
    path, line = item.origin.rsplit(":", 1)
    folder = python_code._folder(item.package)
    source = (folder / Path(path).relative_to(item.package)).read_text(encoding="utf-8")
    [function] = ast.parse(item.code).body
    assert f"def {function.name}(" in source.split("\n")[int(line) - 1]


def test_collecting_twice_gives_the_same(corpus):
    again = python_code.collect(("jinja2",), per_package=150)
    first = [item for item in corpus.functions["test"] if item.package == "jinja2"]
    assert set(first) <= set(again.functions["test"])
    assert again == python_code.collect(("jinja2",), per_package=150)


def test_an_absent_package_is_left_out():
    assert python_code.collect(("no_such_package",)).report()["packages"] == {}


def test_splits_do_not_move():
    modules = [f"module_{n}" for n in range(500)]
    counts = Counter(python_code.split_of("numpy", module) for module in modules)
    assert counts["test"] == pytest.approx(100, abs=30)
    assert counts["dev"] == pytest.approx(35, abs=20)
    # Written down once: a module that changed sides would mix what was measured before.
    found = [python_code.split_of("numpy", f"numpy.{name}") for name in ("fft", "ma", "linalg")]
    assert found == ["train", "dev", "test"]


@pytest.mark.parametrize("task", python_code.CODE_TASKS)
@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_every_task_has_rows_in_every_split(corpus, task, split):
    found = rows(corpus, task, split)
    assert len(found) >= 5
    assert all(value for values in found for value in values.values())


def test_both_pair_labels_occur_and_a_false_pair_is_never_a_true_one(corpus):
    found = rows(corpus, "summary_and_details", "train")
    by_label = {
        label: {(row["text1"], row["text2"]) for row in found if row["label"] == label}
        for label in "01"
    }
    assert len(by_label["0"]) > 20
    assert not by_label["0"] & by_label["1"]


def test_distractors_belong_to_their_split(corpus):
    codes = {item.code for item in corpus.functions["test"]}
    documents = {text for _, text in corpus.distractors("docstring_to_code", "test")}
    assert documents
    assert documents <= codes
    assert not list(corpus.distractors("package_of_docstring", "test"))


@pytest.mark.parametrize(
    ("owner", "name", "expected"),
    [
        ("DataFrame", "to_dict", "data frame to dict"),
        ("", "HTTPServer2", "http server 2"),
        ("", "readline", "readline"),
    ],
)
def test_names_become_words(owner, name, expected):
    assert python_code.name_in_words(owner, name) == expected


def parsed(source):
    data = textwrap.dedent(source).encode()
    return list(python_code._module_functions("pkg", "pkg.mod", "pkg/mod.py", data))


GOOD = '''
class Card:
    @cached
    def find_all(self, owner, limit=10):
        """Return the :class:`Card` objects of an ``owner``.

        Args:
            owner: Whose.

        Cards that were blocked are left out of the list altogether.
        """
        # A comment.
        def inner():
            """Say nothing."""
        found = [card for card in self.cards if card.owner == owner]
        return found[:limit]
'''


def test_a_function_gives_words_summary_details_and_bare_code():
    [item] = parsed(GOOD)
    assert item.words == "card find all"
    assert item.summary == "Return the Card objects of an owner."
    assert item.details == "Cards that were blocked are left out of the list altogether."
    assert item.origin == "pkg/mod.py:4"
    assert "cached" not in item.code
    assert "Say nothing" not in item.code
    assert "comment" not in item.code
    assert item.area == "pkg mod"


@pytest.mark.parametrize(
    "source",
    [
        GOOD.replace("find_all", "_find_all"),
        GOOD.replace("class Card", "class _Card"),
        GOOD.replace("Return the :class:`Card` objects of an ``owner``.", "Find them."),
        GOOD.replace(
            "Return the :class:`Card` objects of an ``owner``.", ">>> find all of them now"
        ),
        GOOD.replace("found[:limit]", "'return the card objects of an owner.'"),
        GOOD.partition("        # A comment")[0] + "        raise NotImplementedError\n",
        "def broken(:\n",
    ],
)
def test_unsuitable_functions_are_left_out(source):
    assert parsed(source) == []


@pytest.fixture(scope="module")
def embedded(corpus):
    """The records of all builtin tasks, from the small corpus."""
    specs = parse_specs([{"name": task, "builtin": task} for task in python_code.CODE_TASKS])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(python_code, "collect", lambda: corpus)
        records, report = RawTasks(tuple(specs), Path()).read()
    return {spec.name: spec for spec in specs}, records, report


def test_the_embedded_tasks_survive_curation_and_have_no_leakage(embedded):
    specs, records, report = embedded
    curated, _ = curate(records, specs)
    assert find_leakage(curated, specs)["total"] == 0
    assert {spec.type for spec in specs.values()} == {
        "retrieval",
        "classification",
        "clustering",
        "pair_classification",
    }
    assert report["python_code"]["functions"]["train"] > 300
