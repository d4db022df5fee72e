"""The catalog, the parameters and the graph agree with each other."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import get_type_hints

import pytest
import yaml
from kedro.config import OmegaConfigLoader
from kedro.pipeline import Pipeline

from domain_embeddings.core.errors import ParameterError
from domain_embeddings.parameters import Parameters, Section, check_parameters
from domain_embeddings.pipeline_registry import ON_REQUEST, STAGES, register_pipelines
from domain_embeddings.settings import CONFIG_LOADER_ARGS

ROOT = Path(__file__).parents[2]
LAYERS = "raw intermediate primary feature model_input models model_output reporting".split()
INPUTS = {"raw_tasks", "reference_model", "export_corpus"}
PIPELINES = register_pipelines()


def load_config(env: str = "base") -> OmegaConfigLoader:
    # The resolvers of the project and no others: they stay registered for the whole process.
    arguments = {**CONFIG_LOADER_ARGS, "default_run_env": "base"}
    return OmegaConfigLoader(str(ROOT / "conf"), env=env, **arguments)


CATALOG = load_config()["catalog"]
PARAMETERS = load_config()["parameters"]
WHOLE = PIPELINES["domain_adapt"]
# What is asked for by name included.
ALL = sum(PIPELINES.values(), Pipeline([]))


def data_sets(pipeline: Pipeline) -> set[str]:
    return {name for name in pipeline.datasets() if not name.startswith("param")}


def test_the_stages_sum_to_the_default_pipeline():
    names = [stage.__name__.rpartition(".")[2] for stage in STAGES]
    assert names == [
        "ingestion", "curation", "relations", "reze", "training", "evaluation", "reporting",
    ]  # fmt: skip
    parts = [node.name for name in names for node in PIPELINES[name].nodes]
    assert sorted(parts) == sorted(node.name for node in WHOLE.nodes)
    assert PIPELINES["__default__"].describe() == WHOLE.describe()


def test_what_is_asked_for_by_name_reads_the_default_pipeline_and_is_no_part_of_it():
    for stage in ON_REQUEST:
        pipeline = PIPELINES[stage.__name__.rpartition(".")[2]]
        assert not set(pipeline.nodes) & set(WHOLE.nodes)
        assert data_sets(pipeline) & WHOLE.all_outputs()


@pytest.mark.parametrize("name", PIPELINES)
def test_every_edge_is_a_catalog_entry(name):
    assert data_sets(PIPELINES[name]) <= set(CATALOG)


def test_every_entry_is_used():
    assert set(CATALOG) == data_sets(ALL)


@pytest.mark.parametrize("name", sorted(data_sets(ALL)))
def test_every_entry_has_a_layer_and_every_output_is_versioned(name):
    entry = CATALOG[name]
    assert entry["metadata"]["kedro-viz"]["layer"] in LAYERS
    assert entry.get("versioned", False) == (name not in INPUTS)
    assert "MemoryDataset" not in entry["type"]


def test_the_gate_is_the_last_node_so_that_nothing_is_lost():
    assert WHOLE.nodes[-1].name == "check_retention"


def test_every_output_is_written_once_to_its_own_place():
    outputs = Counter(name for node in ALL.nodes for name in node.outputs)
    assert set(outputs.values()) == {1}
    places = Counter(CATALOG[name]["filepath"] for name in outputs)
    assert set(places.values()) == {1}


def test_data_flows_through_the_layers_in_one_direction():
    order = {
        name: LAYERS.index(entry["metadata"]["kedro-viz"]["layer"])
        for name, entry in CATALOG.items()
    }
    for node in ALL.nodes:
        for source in data_sets(Pipeline([node])) & set(node.inputs):
            assert all(order[source] <= order[target] for target in node.outputs), node.name


def test_every_parameter_is_used_and_every_used_one_exists():
    used = {name.removeprefix("params:") for name in ALL.inputs() if name.startswith("params:")}
    assert used == set(PARAMETERS)


def test_the_documented_defaults_are_the_typed_defaults():
    assert Parameters().model_dump(mode="json") == PARAMETERS


def test_nodes_take_their_parameter_sections_typed():
    for node in ALL.nodes:
        hints = get_type_hints(node.func)
        arguments = dict(zip(hints, node.inputs, strict=False))
        for argument, name in arguments.items():
            section = PARAMETERS.get(name.removeprefix("params:"))
            if name.startswith("params:") and isinstance(section, dict):
                assert issubclass(hints[argument], Section), (node.name, argument)


@pytest.mark.parametrize("env", ["test", "gpu"])
def test_other_environments_change_values_but_never_the_graph(env):
    config = load_config(env)
    assert set(config["catalog"]) == set(CATALOG)
    check_parameters(config["parameters"])


def test_all_parameter_errors_are_listed_at_once_with_allowed_values():
    raw = {
        "widths": [32, 16],
        "training": {"method": "magic", "alhpa": 1.0, "batch_size": 1},
        "reze": {"rho": 2},
        "speed": 1,
    }
    with pytest.raises(ParameterError) as error:
        check_parameters(raw)
    message = str(error.value)
    for part in (
        "training.method", "'reze_mic'", "training.alhpa: unknown parameter; allowed:", "alpha",
        "training.batch_size", "reze.rho", "speed: unknown parameter",
    ):  # fmt: skip
        assert part in message
    with pytest.raises(ParameterError, match=r"widths: must be strictly increasing, got \[32, 16"):
        check_parameters({"widths": [32, 16]})
    with pytest.raises(ParameterError) as error:
        check_parameters(
            {"training": {
                "weights": [1.0], "mapping": "pairs", "layers": [1, 2], "widths_per_step": 9
            }}
        )  # fmt: skip
    for part in (
        "training.weights: needs one weight per width (6), got 1",
        "training.mapping: pairs ties the k-th width to the k-th layer",
        "training.widths_per_step: 9 of 6 widths",
    ):
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"lora": {"ranks": 3}}, "training.lora.ranks: unknown parameter; allowed: rank, alpha"),
        ({"rotation": {"when": "none", "centre": True}}, "training.rotation: centre needs"),
        ({"weights": "ful"}, "training.weights: Input should be 'equal', 'full'"),
    ],
)
def test_a_parameter_error_begins_with_the_key_as_it_is_written(training, message):
    with pytest.raises(ParameterError, match=re.escape(message)):
        check_parameters({"training": training})


@pytest.mark.parametrize(
    ("section", "value", "message"),
    [
        (
            "evaluation",
            {"transforms": []},
            "  evaluation.transforms: must hold 'none' and no name twice, got []",
        ),
        (
            "training",
            {"rotation": {"when": "none", "centre": True}},
            "  training.rotation: centre needs a rotation to be part of; allowed with when: init, "
            "final, both",
        ),
    ],
)
def test_an_error_of_several_keys_does_not_repeat_their_whole_section(section, value, message):
    with pytest.raises(ParameterError) as error:
        check_parameters({section: value})
    assert str(error.value).splitlines()[1:] == [message]


def test_several_problems_of_a_section_begin_with_their_keys():
    with pytest.raises(ParameterError) as error:
        check_parameters({"evaluation": {"mteb": {"tasks": ["STS99"], "benchmark": "None"}}})
    _, first, second = str(error.value).splitlines()
    assert first.startswith("  evaluation.mteb.tasks: 'STS99' is not a task")
    assert second.startswith("  evaluation.mteb.benchmark: 'None' is not a benchmark")


def test_an_environment_leaves_the_rest_of_a_section_alone(tmp_path):
    from domain_embeddings.settings import CONFIG_LOADER_ARGS

    for env, text in {
        "base": "training: {steps: 7, gamma: 0.5}",
        "gpu": "training: {steps: 9}",
    }.items():
        (tmp_path / env).mkdir()
        (tmp_path / env / "parameters.yml").write_text(text)
    loader = OmegaConfigLoader(str(tmp_path), env="gpu", **CONFIG_LOADER_ARGS)
    assert loader["parameters"]["training"] == {"steps": 9, "gamma": 0.5}


@pytest.mark.parametrize(
    ("section", "value", "message"),
    [
        ("training", {"layers": []}, "layers"),
        ("training", {"device": "gpu"}, "'auto', 'cpu' or 'cuda'"),
        ("training", {"rotation": {"when": "none", "centre": True}}, "centre needs a rotation"),
        ("evaluation", {"transforms": ["pca"]}, "must hold 'none'"),
        ("evaluation", {"transforms": ["none", "none"]}, "no name twice"),
        ("export", {"widths": [16, 8]}, "strictly increasing"),
        ("export", {"widths": []}, "at least 1 item"),
        ("evaluation", {"precisions": ["int8"]}, "must hold 'float32'"),
        ("evaluation", {"fit_pairs": 1}, "evaluation.fit_pairs: Input should be greater than"),
    ],
)
def test_options_that_would_be_ignored_or_fail_late_are_refused(section, value, message):
    with pytest.raises(ParameterError, match=message):
        check_parameters({section: value})


def test_listing_pipelines_imports_neither_torch_nor_mteb():
    code = (
        "import sys, domain_embeddings.settings as s;"
        "from domain_embeddings.pipeline_registry import register_pipelines as r; r();"
        "heavy = {'torch', 'mteb', 'transformers', 'sklearn', 'mlflow'} & set(sys.modules);"
        "sys.exit(', '.join(heavy) or 0)"
    )
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_the_constraints_pin_what_the_project_requires():
    pins = {
        line.partition("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [project["dependencies"], *project["optional-dependencies"].values()]
    for requirement in chain.from_iterable(wanted):
        name = requirement.split(">")[0].split("=")[0].split("[")[0].strip().lower()
        assert name in pins, requirement
    assert yaml.safe_load((ROOT / ".telemetry").read_text()) == {"consent": False}
