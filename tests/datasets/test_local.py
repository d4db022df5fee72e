"""What all data sets on a local disk share."""

from __future__ import annotations

from pathlib import Path

import pytest
from kedro.io import DataCatalog, DatasetError
from kedro.io.core import Version

from domain_embeddings.datasets.encoder import SentenceTransformerDataset
from domain_embeddings.datasets.folder import FolderDataset
from domain_embeddings.datasets.memmap_bundle import MemmapBundleDataset
from domain_embeddings.datasets.mteb_results import MtebResultsDataset
from domain_embeddings.datasets.safetensors_bundle import SafetensorsBundleDataset

DATASETS = [
    *(FolderDataset, MemmapBundleDataset, MtebResultsDataset),
    *(SafetensorsBundleDataset, SentenceTransformerDataset),
]


@pytest.mark.parametrize("kind", DATASETS)
def test_a_remote_path_is_refused(kind: type) -> None:
    with pytest.raises(DatasetError, match="local disk"):
        kind(filepath="s3://bucket/entry")


@pytest.mark.parametrize("kind", DATASETS)
def test_an_entry_can_be_made_again_from_its_configuration(kind: type, tmp_path: Path) -> None:
    path = str(tmp_path / "entry")
    dataset = kind(filepath=path, version=Version(None, "v1"), metadata={"layer": "models"})
    assert dataset.metadata == {"layer": "models"}
    config, *rest = DataCatalog({"entry": dataset}).to_config()
    assert config["entry"]["filepath"] == path
    assert config["entry"]["versioned"] is True
    again = DataCatalog.from_config(config, *rest)["entry"]
    assert type(again) is kind
    assert again._describe()["filepath"] == dataset._describe()["filepath"]
