"""One run of the whole graph that all tests of this folder look at."""

from __future__ import annotations

import pytest
from kedro_project import PLACES, FinishedRun, make_project


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """Run everything once, in a project that nobody writes to afterwards."""
    project = make_project(tmp_path_factory.mktemp("finished") / "project")
    result = project.run()
    assert result.exit_code == 0, result.output
    [version] = project.versions(PLACES["task_records"])
    return FinishedRun(project, result, version)
