from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from kedro.io import DataCatalog, MemoryDataset
from kedro.runner import SequentialRunner

from domain_embeddings.core.tasks.spec import load_specs
from domain_embeddings.datasets.raw_tasks import RawTasksDataset
from domain_embeddings.pipelines.ingestion.pipeline import create_pipeline

OUTPUTS = ("task_records", "task_specs", "ingestion_report")


def test_the_pipeline_gives_records_specs_and_a_report(tmp_path):
    (tmp_path / "t.csv").write_text("utterance,intent\nhi,greet\n,greet\n")
    task = {
        "name": "intents",
        "type": "clustering",
        "files": {"train": "t.csv"},
        "columns": {"text": "utterance", "label": "intent"},
    }
    catalog = DataCatalog({"raw_tasks": RawTasksDataset(tasks=[task], root=str(tmp_path))})
    for name in OUTPUTS:
        catalog[name] = MemoryDataset()
    SequentialRunner().run(create_pipeline(), catalog)
    records, specs, report = (catalog[name].load() for name in OUTPUTS)
    assert records[["text", "label", "origin"]].values.tolist() == [["hi", "greet", "t.csv:2"]]
    assert load_specs(json.loads(json.dumps(specs)))["intents"].uses == ["train"]
    assert report["tasks"]["intents"]["splits"]["train"]["dropped"] == {"empty text": 1}


def test_nodes_import_without_heavy_libraries():
    code = (
        "import sys\n"
        "import domain_embeddings.pipelines.ingestion.pipeline\n"
        "import domain_embeddings.pipelines.curation.pipeline\n"
        "import domain_embeddings.datasets.raw_tasks\n"
        "heavy = {'torch', 'transformers', 'datasets', 'sklearn', 'mteb'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or 0)"
    )
    source = Path(__file__).parents[2] / "src"
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(source), "PATH": ""},
    )
    assert found.returncode == 0, found.stderr
