"""One exported folder per width of a random model with a rotation and prompts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_models import WORDS, tiny_family_model

from domain_embeddings.core.encoders.batching import encode
from domain_embeddings.core.encoders.loading import weight_hash
from domain_embeddings.core.encoders.quantisation import calibrate
from domain_embeddings.core.encoders.rotation import rotate_model
from domain_embeddings.core.export.folders import Shipment

CARD = (
    "---\ntags:\n- a\n---\n\n# Domain embeddings, recommended width 16\n\nShip width 16.\n\n"
    "## Usage\n\ntruncate_dim=16\n\n## Widths\n\na table\n"
)


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """Texts of 1 to 30 words."""
    rng = np.random.default_rng(3)
    return [" ".join(rng.choice(WORDS, size=1 + i % 30)) for i in range(90)]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory):
    """Return a random model of width 32 as training leaves one."""
    made = tiny_family_model(tmp_path_factory.mktemp("model"), "e5")
    basis = np.linalg.qr(np.random.default_rng(4).normal(size=(32, 32)))[0]
    rotate_model(made, basis, np.zeros(32))
    made.trained_widths = [8, 16, 32]
    made.saved_path = "data/06_models/adapted_model/v1/adapted_model"
    return made


@pytest.fixture(scope="session")
def ranges(model, texts):
    """Return int8 ranges of the widths 12 and 16."""
    vectors = encode(model, texts, show_progress=False)
    header = {"adapted": {"weight_hash": weight_hash(model)}}
    return calibrate({"adapted": vectors}, [12, 16], header)


@pytest.fixture(scope="session")
def shipment(model, ranges) -> Shipment:
    """Return what folders of the widths 12 and 16 are made of; 12 was not trained."""
    base = {"model": "owner/base", "revision": "abc", "weight_hash": "0123", "pairs": 7}
    return Shipment(model, [12, 16], 16, CARD, base, ranges)


@pytest.fixture(scope="session")
def exported(shipment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with one folder per width."""
    root = tmp_path_factory.mktemp("exported")
    shipment.write(root)
    return root
