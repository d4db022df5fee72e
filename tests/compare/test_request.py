"""What `kedro compare` refuses, and what it finds again, without running anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from domain_embeddings.compare.command import Request, compare
from domain_embeddings.compare.execute import find_cell, find_upstreams, upstream_key
from domain_embeddings.compare.plan import Project, parse_seeds, parse_settings, plan_cells
from domain_embeddings.core.errors import DataError, ParameterError
from domain_embeddings.parameters import Parameters
from domain_embeddings.records import FOLDER, RunRecord, inputs_digest, read_records, write_record

ENTRIES = (
    "truncation_scores",
    "score_replicates",
    "geometry_scores",
    "training_report",
    "adaptation_report",
)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    catalog = {name: {"filepath": f"data/{name}.file"} for name in (*ENTRIES, "shrinkage")}
    return Project(tmp_path, None, {"widths": [16, 64]}, {}, catalog, tmp_path / "data")


BAD = {
    "nothing": (Request(), "Nothing to compare"),
    "a seed that is no number": (Request("mrl", seeds="0,x"), "--seeds: '0,x'"),
    "a seed twice": (Request("mrl", seeds="1,1"), "--seeds: '1,1'"),
    "a seed twice, written differently": (Request("mrl", seeds="1,01"), "--seeds: '1,01'"),
    "a seed that no generator takes": (
        Request("mrl", seeds="4294967296"),
        "mrl: The parameters are not valid:\n  seed: Input should be less than 4294967296",
    ),
    "a value out of range": (
        Request(variants=["slow:training.batch_size=1"]),
        "slow: The parameters are not valid:\n  training.batch_size",
    ),
    "no change": (Request(variants=["slow:training"]), "--variant slow: 'training'; allowed"),
    "no name": (Request(variants=[":training.steps=1"]), "cannot be a name"),
    "the name of the baseline": (Request(variants=["untouched:"]), "cannot be a name"),
    "a name twice": (Request("mic", variants=["mic:training.gamma=1"]), "'mic' is there twice"),
    "the seed as a parameter": (Request(variants=["a:seed=3"]), "--seeds 0,1,2"),
    "a width that is not scored": (Request("mrl", width=5), "--width: 5; allowed: 16, 64"),
    "a width that a variant does not score": (
        Request("mrl", variants=["small:widths=[16]"], width=64),
        "--width: 64; allowed: 16",
    ),
    "a name that is a path": (Request("mrl", name="../x"), "--name: '../x'"),
    "runs and methods": (Request("mrl", runs="a"), "compare runs that exist"),
    "runs and a filter": (Request(runs="a", query="b"), "allowed: one of the two"),
    "runs without an id": (Request(runs=","), "--runs: ','; allowed: different ids"),
    "a run twice": (Request(runs="a,b,a"), "--runs: 'a,b,a'; allowed: different ids"),
    "runs without a server": (Request(runs="a"), "server is not reachable"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_requests_are_refused_before_anything_is_made(project, case):
    request, words = BAD[case]
    with pytest.raises((ParameterError, DataError)) as error:
        compare(project, request, print)
    assert words in str(error.value)
    assert list(project.root.iterdir()) == []


def test_a_variant_changes_what_it_names_and_leaves_the_rest():
    [method, variant] = parse_settings("mic", ["hot:training.gamma=1;widths=[8,16]"])
    assert method.changes == {"training": {"method": "mic"}}
    assert (variant.name, variant.changes) == ("hot", {"training": {"gamma": 1}, "widths": [8, 16]})


def test_seeds_come_first_so_that_a_part_of_a_comparison_is_one(project):
    cells = plan_cells(project, parse_settings("mrl,mic", []), parse_seeds("0, 2"))
    assert [cell.name for cell in cells] == [
        f"{method}, seed {seed}" for seed in (0, 2) for method in ("mrl", "mic")
    ]
    assert cells[-1].given == {"training": {"method": "mic"}, "seed": 2}
    assert cells[-1].parameters.widths == [16, 64]


def make(project: Project, version: str, *names: str) -> dict[str, str]:
    """Make entries in a version."""
    for name in names:
        path = project.path(name, version)
        path.parent.mkdir(parents=True)
        path.touch()
    return dict.fromkeys(names, version)


def test_what_training_reads_makes_no_other_upstream_and_what_curation_reads_does():
    base = Parameters().model_dump(mode="json")
    assert upstream_key(base) == upstream_key({**base, "training": {}, "widths": [1]})
    for key, value in (("seed", 1), ("reze", {}), ("negatives", {}), ("curation", {})):
        assert upstream_key(base) != upstream_key({**base, key: value})


def test_an_upstream_is_used_again_only_whole_from_the_same_inputs_and_still_there(project):
    parameters = Parameters().model_dump(mode="json")
    saved = make(project, "1", "shrinkage")
    record = RunRecord("1", False, parameters, "inputs", {}, saved)
    key = upstream_key(parameters)

    def found(*records: RunRecord, inputs: str = "inputs"):
        return find_upstreams(project, records, key, ["shrinkage"], inputs)

    assert found(record) == [saved]
    assert found(record, inputs="others") == []
    assert found(replace(record, saved={})) == []
    assert found(replace(record, parameters={**parameters, "seed": 5})) == []
    project.path("shrinkage", "1").unlink()
    assert found(record) == []


def test_a_cell_is_done_only_with_all_its_parameters_and_the_same_upstream(project):
    [cell] = plan_cells(project, parse_settings("mic", []), [3])
    saved = make(project, "2", *ENTRIES)
    parameters = cell.parameters.model_dump(mode="json")
    record = RunRecord("2", True, parameters, "inputs", {"shrinkage": "1"}, saved)

    def found(record: RunRecord, version: str = "1") -> RunRecord | None:
        return find_cell(project, [record], cell, {"shrinkage": version}, "inputs")

    assert found(record) is record
    assert found(record, "0") is None
    assert found(replace(record, finished=False)) is None
    assert found(replace(record, inputs="others")) is None
    assert found(replace(record, saved={})) is None
    assert found(replace(record, parameters={**parameters, "seed": 4})) is None


def test_records_are_read_newest_first_and_damaged_ones_passed_over(tmp_path):
    folder = tmp_path / FOLDER
    assert read_records(folder) == []
    first, second = (RunRecord(version, True, {}, "", {"a": "0"}, {"b": "1"}) for version in "12")
    for record in (first, second):
        write_record(folder, record)
    (folder / "3.json").write_text("{", encoding="utf-8")
    (folder / "4.json").write_text("{}", encoding="utf-8")
    assert read_records(folder) == [second, first]
    assert first.versions == {"a": "0", "b": "1"}


def test_inputs_are_told_apart_by_configuration_and_by_files(tmp_path):
    (tmp_path / "data").mkdir()
    for name in ("a.csv", "b.csv"):
        (tmp_path / "data" / name).write_text("text\n", encoding="utf-8")

    def digest(**change: object) -> str:
        task = {"name": "a", "files": {"train": "data/a.csv"}, "note": "/", **change}
        return inputs_digest({"raw_tasks": {"tasks": [task]}}, tmp_path)

    before = digest()
    assert digest() == before
    assert digest(name="b") != before
    (tmp_path / "data/b.csv").write_text("more text\n", encoding="utf-8")
    assert digest() == before
    folder = digest(files="data/")
    (tmp_path / "data/a.csv").write_text("more text\n", encoding="utf-8")
    assert digest() != before
    assert digest(files="data/") != folder
