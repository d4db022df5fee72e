"""The notebook runs on a finished run, and is committed without results."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kedro_project import DATA, ROOT

NOTEBOOK = ROOT / "notebooks/explore_run.ipynb"


def read():
    import nbformat

    return nbformat.read(NOTEBOOK, as_version=4)


def test_the_committed_notebook_has_no_results():
    cells = [cell for cell in read().cells if cell.cell_type == "code"]
    assert cells
    assert all(not cell.outputs and cell.execution_count is None for cell in cells)


# The kernel is another process on this machine.
@pytest.mark.enable_socket
def test_the_notebook_shows_scores_and_spectrum_of_a_run(finished, tmp_path, monkeypatch):
    from nbclient import NotebookClient

    project = finished.project.copy(tmp_path / "project")
    before = sorted(path for path in (project.folder / DATA).rglob("*.parquet"))
    monkeypatch.setenv("KEDRO_ENV", "test")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = read()
    resources = {"metadata": {"path": str(project.folder)}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert [o for o in outputs if o.output_type == "error"] == []
    pictures = [o for o in outputs if "image/png" in o.get("data", {})]
    assert len(pictures) == 2
    texts = [o["data"].get("text/plain", "") for o in outputs if "data" in o]
    shown = re.sub(r"\x1b\[[\d;]*m", "", " ".join(texts))
    for task in ("topics", "questions", "duplicates", "similar", "groups", "mean"):
        assert task in shown
    # The planted bias comes first.
    assert re.search(r"distance\s+board ", shown)
    assert "WARNING" not in shown
    assert sorted(path for path in (project.folder / DATA).rglob("*.parquet")) == before
    assert not list(Path(project.folder).rglob("*.ipynb"))
