"""Tests of what is refused before anything is computed: training itself would refuse it later."""

from __future__ import annotations

import pytest
from tiny_models import tiny_sentence_transformer

from domain_embeddings.core.errors import ParameterError
from domain_embeddings.core.training import checks
from domain_embeddings.core.training.checks import check_batch, check_training
from domain_embeddings.parameters import TrainingParameters

WIDTHS = [8, 16]


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("model")
    tiny_sentence_transformer(folder, width=32, layers=2)
    return str(folder / "model")


REFUSED = {
    "a layer beyond the last": ({"layers": [1, 3]}, r"training\.layers: \[3\].*allowed: 1 to 2"),
    "fewer layers than widths": (
        {"layers": [1, 2], "mapping": "pairs"},
        r"training\.mapping: .*2 layers \[1, 2\] for 3 widths \[8, 16, 32\]",
    ),
    "a module that does not exist": (
        {"lora": {"modules": ["query", "qkv"]}},
        r"training\.lora\.modules: \['qkv'\] not in the model; allowed: all, or some of .*query",
    ),
    "more widths per step than widths": (
        {"widths_per_step": 4},
        r"training\.widths_per_step: 4 .*allowed: null, or 1 to 3",
    ),
    "weights for other widths": ({"weights": [1.0, 2.0]}, r"training\.weights: .*\[8, 16, 32\]"),
    "a dev width wider than the model": (
        {"dev": {"every": 1, "widths": [16, 64]}},
        r"training\.dev\.widths: \[64\] .*allowed: 1 to 32",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_the_model_is_refused_from_its_configuration(source, monkeypatch, case):
    import sentence_transformers

    monkeypatch.setattr(
        sentence_transformers, "SentenceTransformer", lambda *_, **__: pytest.fail("loaded")
    )
    changes, message = REFUSED[case]
    with pytest.raises(ParameterError, match=message):
        check_training(TrainingParameters(**changes), WIDTHS, source)


def test_what_fits_the_model_is_not_refused(source):
    fitting = {
        "layers": [1, 2, 2],
        "mapping": "pairs",
        "lora": {"modules": ["query", "attention.output.dense"]},
        "widths_per_step": 3,
        "weights": [1.0, 2.0, 3.0],
        "dev": {"every": 1, "widths": [8, 20]},
    }
    check_training(TrainingParameters(**fitting), WIDTHS, source)


def test_layers_are_not_asked_for_where_no_method_looks_at_them(source):
    check_training(TrainingParameters(method="mrl", layers=[9]), WIDTHS, source)
    check_training(TrainingParameters(gamma=0.0, layers=[9]), WIDTHS, source)


def test_a_gpu_is_refused_where_there_is_none(source, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ParameterError, match=r"training\.device.*allowed: auto, cpu"):
        check_training(TrainingParameters(device="cuda"), WIDTHS, source)


def test_without_training_nothing_is_refused(source):
    check_training(TrainingParameters(method="reference", layers=[9]), WIDTHS, source)


def test_a_model_that_only_loading_would_tell_about_is_left_to_training(monkeypatch):
    monkeypatch.setattr(checks, "_skeleton", lambda _: pytest.fail("was not on this disk"))
    check_training(TrainingParameters(layers=[9]), WIDTHS, "owner/name")


def test_a_batch_of_more_pairs_than_there_are_is_refused():
    two_workers = {"batch_size": 8, "launch": {"processes": 2}}
    check_batch(TrainingParameters(batch_size=16), 16)
    check_batch(TrainingParameters(method="reference", batch_size=16), 3)
    for changes, allowed in (({"batch_size": 16}, 15), (two_workers, 7)):
        with pytest.raises(ParameterError, match=rf"training\.batch_size.*allowed: 2 to {allowed}"):
            check_batch(TrainingParameters(**changes), 15)
