from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pandas as pd
import psutil
import pytest
import torch
import torch.multiprocessing
from workers_world import (
    BATCH,
    METHODS,
    SPECS,
    TRAININGS,
    WIDTHS,
    losses_and_gradients,
    make_job,
    trained,
    work,
)

from domain_embeddings.core.bundle import Bundle
from domain_embeddings.core.encoders.loading import describe
from domain_embeddings.core.encoders.relations import relation_vectors
from domain_embeddings.core.encoders.sharded import relation_vectors_on_workers
from domain_embeddings.core.errors import TrainingError
from domain_embeddings.core.training.job import read_job, write_job
from domain_embeddings.core.training.launch import run_workers, torchrun, train_on_workers
from domain_embeddings.parameters import LaunchParameters, RezeParameters, TrainingParameters
from domain_embeddings.pipelines.reze.nodes import accumulate_moments

HALVES = (range(BATCH // 2), range(BATCH // 2, BATCH))


def run(function, job, checkpoint_root=None, **changes):
    settings = {**job.settings["parameters"], **changes}
    return function(
        job.model, job.pairs, SPECS, job.bundles["relation_vectors"], job.bundles["shrinkage"],
        parameters=TrainingParameters(**settings), widths=job.settings["widths"], seed=0,
        checkpoint_root=checkpoint_root,
    )  # fmt: skip


@contextlib.contextmanager
def other_host(folder):
    """Wait for this process with what the log tells a person to start on another host."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        endpoint = f"localhost:{probe.getsockname()[1]}"
    launch = LaunchParameters(restarts=0, hosts=2, endpoint=endpoint, folder=str(folder))
    env, fresh, _, *arguments = torchrun(folder, launch)
    host = subprocess.Popen([env, fresh, sys.executable, "-m", "torch.distributed.run", *arguments])
    try:
        yield launch
        assert host.wait(60) == 0
    finally:
        host.kill()


def kill_worker(number, root, killed):
    """Kill a worker of this process as soon as there is a checkpoint."""
    while not list(root.glob("*/step-*[0-9]")):
        time.sleep(0.01)
    for child in psutil.Process().children():
        if child.environ().get("RANK") == str(number):
            child.kill()
            killed.append(child.pid)


def weights(model) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.fixture(scope="module")
def met(tmp_path_factory):
    """What one worker finds for a batch, what two find together, and what each finds alone."""
    folder = tmp_path_factory.mktemp("workers")
    job = make_job(folder)
    write_job(folder, job)
    torch.multiprocessing.spawn(work, (str(folder),), nprocs=2)
    two = [dict(np.load(folder / f"found_{number}.npz")) for number in range(2)]
    alone = [losses_and_gradients(read_job(folder), half) for half in HALVES]
    return losses_and_gradients(read_job(folder), range(BATCH)), two, alone


@pytest.mark.parametrize("method", METHODS)
def test_two_workers_equal_one_with_twice_the_batch(met, method):
    one, two, alone = met
    names = [name for name in one if name.split(".")[0] == method]
    assert f"{method}.gradient" in names
    halves = np.mean([found[f"{method}.gradient"] for found in alone], axis=0)
    assert np.abs(one[f"{method}.gradient"] - halves).max() > 1e-3, "batches do not matter here"
    for name in names:
        for found in two:
            # Norms are taken in single precision.
            near = {"rtol": 1e-5} if "gradient_norm" in name else {"rtol": 1e-7, "atol": 1e-9}
            np.testing.assert_allclose(found[name], one[name], **near, err_msg=name)


def test_candidates_of_another_worker_are_masked_too(met):
    one, two, alone = met
    halves = [found["mrl.masked_negatives"] for found in alone]
    assert two[0]["mrl.masked_negatives"] == one["mrl.masked_negatives"] > sum(halves)


def test_rows_of_all_workers_carry_the_slopes_of_all_workers(met):
    for number, found in enumerate(met[1]):
        np.testing.assert_array_equal(found["gathered"], [[1, 1], [2, 2], [2, 2]])
        # Worker k minimises (k + 1) * sum of squares: (1 + 2) * 2 x together.
        np.testing.assert_array_equal(
            found["gathered.slope"], np.full((number + 1, 2), 6 * (number + 1))
        )
        assert found["total.slope"] == 2 * (1 + 2) * (1 + 2)


@pytest.mark.parametrize("name", [name for name in TRAININGS if name != "killed"])
def test_two_workers_end_where_one_with_twice_the_batch_ends(met, name, tmp_path):
    found = met[1][0][f"trained.{name}"]
    job = make_job(tmp_path)
    changes = {**TRAININGS[name], "launch": {}, "batch_size": BATCH}
    np.testing.assert_allclose(found, trained(job, **changes), atol=1e-3)
    assert np.abs(found - job.model.encode(list(job.pairs["anchor"]))).max() > 1e-2


def test_a_killed_worker_is_started_again_and_training_goes_on(met, tmp_path):
    job = make_job(tmp_path)
    before = weights(job.model).clone()
    killed = []
    killer = threading.Thread(target=kill_worker, args=(1, tmp_path / "root", killed), daemon=True)
    killer.start()
    model, history, report = run(
        train_on_workers, job, checkpoint_root=tmp_path / "root",
        **TRAININGS["killed"], launch={"processes": 2, "restarts": 1},
    )  # fmt: skip
    assert killed
    assert report["resumed_from_step"] >= 5
    assert sorted(history["step"].unique()) == list(range(2, 31, 2))
    found = met[1][0]["trained.killed"]
    np.testing.assert_allclose(model.encode(list(job.pairs["anchor"])), found, atol=1e-5)
    assert torch.equal(weights(job.model), before), "the reference model was changed"
    assert (report["workers"], report["effective_batch"]) == (2, BATCH)
    assert model.trained_widths == WIDTHS
    assert model.provenance == {}


def test_the_error_of_a_worker_arrives_as_it_is_and_is_not_tried_again(tmp_path):
    job = make_job(tmp_path, method="reze", rotation={"when": "none"})
    job.bundles["relation_vectors"]["vectors"][20:] = np.nan
    (tmp_path / "job").mkdir()
    write_job(tmp_path / "job", job)
    with pytest.raises(TrainingError, match=r"Training stopped at step 1: .*reze.*pair_id"):
        run_workers(tmp_path / "job", LaunchParameters(processes=1, restarts=1), "cpu")
    # The second attempt found the error of the first and left at once.
    assert len(list(tmp_path.glob("job/logs/*/attempt_*"))) == 2


def test_a_mapped_array_is_linked_and_a_part_of_one_is_copied(tmp_path):
    (tmp_path / "job").mkdir()
    np.save(tmp_path / "stored.npy", np.arange(12.0).reshape(6, 2))
    mapped = np.load(tmp_path / "stored.npy", mmap_mode="r")
    arrays = {"whole": mapped, "part": mapped[2:], "turned": mapped[::-1], "none": np.zeros((0, 2))}
    job = make_job(tmp_path)
    job.bundles["more"] = Bundle(arrays, {"a": 1})
    write_job(tmp_path / "job", job)
    found = read_job(tmp_path / "job").bundles["more"]
    assert found.header == {"a": 1}
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        linked = (tmp_path / "job/more" / f"{name}.npy").is_symlink()
        assert linked == (name == "whole")


def test_a_job_describes_the_same_model_and_pairs(tmp_path):
    (tmp_path / "job").mkdir()
    job = make_job(tmp_path)
    write_job(tmp_path / "job", job)
    found = read_job(tmp_path / "job")
    assert describe(found.model) == describe(job.model)
    assert found.settings == job.settings
    pd.testing.assert_frame_equal(
        found.pairs.drop(columns="negatives"), job.pairs.drop(columns="negatives")
    )
    assert [list(x) for x in found.pairs["negatives"]] == [list(x) for x in job.pairs["negatives"]]


def test_relation_vectors_of_two_hosts_are_those_of_one_with_exact_moments(tmp_path):
    job = make_job(tmp_path)
    # More rows of one source at the end: the second worker sees both sources unequally often.
    pairs = pd.concat([job.pairs, job.pairs.iloc[::2], job.pairs.iloc[1:2]], ignore_index=True)
    options = {"batch_tokens": 256, "dtype": "float32"}
    one = relation_vectors(job.model, pairs, SPECS, **options)
    with other_host(tmp_path / "job") as launch:
        two = relation_vectors_on_workers(job.model, pairs, SPECS, launch=launch, **options)
    assert two.header == one.header
    np.testing.assert_array_equal(two["source"], one["source"])
    vectors, expected = (np.concatenate(list(b.arrays["vectors"].blocks)) for b in (two, one))
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    saved = Bundle({**two.arrays, "vectors": vectors}, two.header)
    plain = Bundle({"vectors": vectors, "source": two["source"]}, two.header)
    merged = accumulate_moments(saved, RezeParameters())
    whole = accumulate_moments(plain, RezeParameters(block_rows=7))
    for name, array in whole.arrays.items():
        np.testing.assert_allclose(merged[name], array, rtol=1e-10, atol=1e-10, err_msg=name)
