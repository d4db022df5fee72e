"""The process of one run of a comparison, with a stand-in for Kedro."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from domain_embeddings.compare.execute import CellError, run_kedro


@pytest.fixture
def fake_kedro(tmp_path, monkeypatch):
    """Return a function that makes `python -m kedro` in the current folder run some code."""
    monkeypatch.chdir(tmp_path)

    def fake(code: str) -> Path:
        (tmp_path / "kedro.py").write_text(code, encoding="utf-8")
        return tmp_path / "run"

    return fake


def test_the_configuration_of_a_run_and_its_output_are_kept(fake_kedro):
    stem = fake_kedro("import sys; print(sys.argv[1:])")
    run_kedro({"params": {"seed": 1}}, {}, stem)
    config = stem.with_suffix(".yml")
    assert yaml.safe_load(config.read_text("utf-8")) == {"run": {"params": {"seed": 1}}}
    assert stem.with_suffix(".log").read_text("utf-8").strip() == str(["run", "--config", str(config)])  # fmt: skip  # noqa: E501


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            "print('noise'); print('Error: no\\nroom'); raise SystemExit(3)",
            r"^no room \(exit code 3",
        ),
        ("raise SystemExit(1)", "^It said nothing"),
        ("print('Error: a\\r 33%|# | 1/3'); raise SystemExit(1)", r"^a \(exit code 1"),
        ("import os; print('last', flush=True); os.kill(os.getpid(), 9)", r"^last \(exit code -9"),
    ],
)
def test_a_run_that_ends_badly_is_an_error_in_its_own_words(fake_kedro, code, words):
    with pytest.raises(CellError, match=words):
        run_kedro({}, {}, fake_kedro(code))


INTERRUPTED = """
import os, signal, sys, threading, time
from pathlib import Path
from domain_embeddings.compare.execute import run_kedro

def interrupt():
    while not Path("ready").exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt).start()
try:
    run_kedro({}, {}, Path("run"))
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_an_interrupted_comparison_ends_its_run_in_order(fake_kedro):
    fake_kedro(
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path('ended').touch(), sys.exit(143)))\n"
        "pathlib.Path('ready').touch()\n"
        "time.sleep(60)\n"
    )
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], timeout=50, check=False)
    assert done.returncode == 130
    assert Path("ended").exists()
