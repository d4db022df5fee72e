"""The folder of checkpoints: complete or not there, and never at the cost of what was there."""

from __future__ import annotations

import errno
import json
import logging
import os
import random
import resource
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from domain_embeddings.core.errors import ParameterError
from domain_embeddings.core.training.checkpoints import (
    Checkpoints,
    fingerprint,
    read_state,
    remove_checkpoints,
    require_writable,
    write_state,
)
from domain_embeddings.core.training.resumable import random_state, set_random_state


def writer(value: float = 0.0, rows: int = 4):
    return lambda folder: write_state(folder, {"weights": torch.full((rows,), value)})


@pytest.fixture
def three(tmp_path) -> Checkpoints:
    """Return a folder with the checkpoints of steps 2, 4 and 6."""
    made = Checkpoints(tmp_path, "abc", keep=3)
    for step in (2, 4, 6):
        assert made.save(step, writer(step))
    return made


# ------------------------------------------------------------------------------------- the state


def test_state_comes_back_with_its_types_and_bits(tmp_path):
    shared = torch.arange(6, dtype=torch.float32)
    state = {
        "optimizer": {"state": {0: {"step": torch.tensor(3.0)}, 7: {}}, "betas": (0.9, 0.999)},
        "odd": [0.1 + 0.2, float("inf"), True, None, "text", [], {}, ()],
        "bf16": torch.randn(3, dtype=torch.bfloat16),
        "empty": torch.zeros(0),
        "views": [shared, shared[:3], shared.view(2, 3).T],
        "unsigned": np.array([1, 2**32 - 1], dtype=np.uint32),
        "scalar": np.float64(1 / 3),
    }
    write_state(tmp_path, state)
    back = read_state(tmp_path)
    assert back["optimizer"]["state"].keys() == {0, 7}
    assert back["optimizer"]["betas"] == (0.9, 0.999)
    assert back["odd"] == state["odd"]
    assert back["unsigned"].dtype == np.uint32
    assert back["unsigned"].tolist() == [1, 2**32 - 1]
    assert back["scalar"] == 1 / 3
    pairs = zip([state["bf16"], *state["views"]], [back["bf16"], *back["views"]], strict=True)
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in pairs)
    assert back["empty"].shape == (0,)


def test_what_only_a_pickle_could_hold_is_refused(tmp_path):
    with pytest.raises(TypeError, match="cannot hold a set"):
        write_state(tmp_path, {"a": {1}})


def test_all_generators_go_on_where_they_were(tmp_path):
    def draw() -> tuple:
        # The second normal number of a pair is kept by the generators themselves.
        return random.random(), random.gauss(0, 1), np.random.normal(), torch.rand(2).tolist()  # noqa: S311

    draw()
    write_state(tmp_path, random_state())
    expected = [draw(), draw()]
    set_random_state(read_state(tmp_path))
    assert [draw(), draw()] == expected


def test_the_fingerprint_tells_everything_apart_but_the_order_of_keys():
    parts = {"a": 1, "b": [np.arange(3), "x"], "c": {"d": None}}
    others = [
        {**parts, "a": 1.0}, {**parts, "a": "1"}, {**parts, "b": [np.arange(3.0), "x"]},
        {**parts, "b": [np.arange(3)[None], "x"]}, {**parts, "b": [np.arange(3), ["x"]]},
        {**parts, "c": {"d": 0}}, {**parts, "e": 1}, {"a": 1, "b": parts["b"]},
        {**parts, "c": {"d": None, "e": None}},
    ]  # fmt: skip
    assert fingerprint(dict(reversed(parts.items()))) == fingerprint(parts)
    names = [fingerprint(other) for other in [parts, *others]]
    assert len(set(names)) == len(names)


# ------------------------------------------------------------------------------------ the folder


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


DAMAGE = {
    "flipped bit": (lambda p: flip(p / "state.safetensors"), "content of state.safetensors has"),
    "truncated": (lambda p: os.truncate(p / "state.safetensors", 9), "has 9 bytes instead of"),
    "missing file": (lambda p: (p / "state.json").unlink(), "state.json is missing"),
    "half-written": (lambda p: (p / "manifest.json").unlink(), "manifest.json is missing"),
    "broken manifest": (lambda p: os.truncate(p / "manifest.json", 20), "manifest.json: JSON"),
    "empty manifest": (lambda p: (p / "manifest.json").write_text("[]"), "manifest.json: Type"),
    "another training": (
        lambda p: (p / "manifest.json").write_text(json.dumps({"fingerprint": "other"})),
        "belongs to the training other",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_checkpoint_is_passed_over_and_said_so(three, caplog, name):
    damage, reason = DAMAGE[name]
    damage(three.path(6))
    assert three.latest() == three.path(4)
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert str(three.path(6)) in record.getMessage()
    assert reason in record.getMessage()
    damage(three.path(4))
    damage(three.path(2))
    assert three.latest() is None
    assert len(caplog.records) == 4


def test_the_newest_ones_stay_and_what_is_ahead_or_unfinished_goes(three, tmp_path):
    (three.folder / "step-000000005.0000.partial").mkdir()
    three.keep = 2
    assert three.save(5, writer())
    # Step 6 was ahead: it can only have been passed over, or the training began anew.
    assert three.steps() == [5, 4]
    assert sorted(p.name for p in three.folder.iterdir()) == ["step-000000004", "step-000000005"]


def test_a_checkpoint_of_the_same_step_is_replaced(three):
    flip(three.path(6) / "state.safetensors")
    assert three.save(6, writer(9.0))
    assert three.latest() == three.path(6)
    assert read_state(three.path(6))["weights"].tolist() == [9.0] * 4


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EIO])
def test_a_write_that_fails_costs_a_warning_and_nothing_that_was_there(three, caplog, code):
    def failing(folder: Path) -> None:
        writer()(folder)
        raise OSError(code, os.strerror(code))

    assert not three.save(8, failing)
    assert (three.written, three.failed) == (3, 1)
    assert three.latest() == three.path(6)
    assert len(list(three.folder.iterdir())) == 3
    [record] = caplog.records
    for part in ("step 8", str(three.folder), os.strerror(code), "training.checkpoints"):
        assert part in record.getMessage()


def test_a_file_that_may_not_grow_costs_a_warning_only(three, caplog):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        assert not three.save(8, writer(rows=100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "File too large" in caplog.text
    assert three.latest() == three.path(6)


def test_a_disk_that_is_really_full_costs_a_warning_only(tmp_path, caplog):
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs to mount a small file system")
    try:
        made = Checkpoints(tmp_path, "abc")
        assert made.save(2, writer(rows=150_000))
        assert not made.save(4, writer(rows=150_000))
        assert "No space left on device" in caplog.text
        assert made.latest() == made.path(2)
        assert made.steps() == [2]
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_second_process_with_the_same_training_writes_nothing(three, tmp_path, caplog):
    other = Checkpoints(tmp_path, "abc")
    with three.locked():
        with other.locked():
            assert other.latest() is None
            assert not other.save(8, writer())
        assert three.save(8, writer())
    assert "Another process trains exactly this" in caplog.text
    again = Checkpoints(tmp_path, "abc")
    with again.locked():
        assert again.latest() == three.path(8)


def test_what_other_trainings_left_is_mentioned_with_its_size(three, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    assert Checkpoints(tmp_path, "def").save(2, writer(rows=2 * 1024**2))
    with three.locked():
        pass
    assert "1 other unfinished trainings keep 8 MiB" in caplog.text


def test_a_folder_nobody_can_write_to_is_refused_with_its_parameter(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ParameterError, match=r"training\.checkpoints\.folder: .*file/below"):
        require_writable(tmp_path / "file/below")
    require_writable(tmp_path / "new/below")
    assert list((tmp_path / "new/below").iterdir()) == []


def test_a_finished_training_leaves_no_checkpoints(three, tmp_path):
    remove_checkpoints(three.folder)
    assert list(tmp_path.iterdir()) == []
