"""Bundles on disk: round trips, versions, streaming, interrupted and impossible saves."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from kedro.io import DatasetError
from kedro.io.core import Version

from domain_embeddings.core.bundle import BlockArray, Bundle
from domain_embeddings.core.errors import DataError
from domain_embeddings.datasets.memmap_bundle import MemmapBundleDataset
from domain_embeddings.datasets.safetensors_bundle import SafetensorsBundleDataset

DATASETS = [MemmapBundleDataset, SafetensorsBundleDataset]
HEADER = {"sources": ["a", "b"], "width": 2, "prompts": {"query": "q: "}, "revision": None}


def _bundle() -> Bundle:
    generator = np.random.default_rng(0)
    arrays = {
        "vectors": generator.standard_normal((7, 4)).astype("float16"),
        "scatter": generator.standard_normal((4, 4)),
        "source": np.array([0, 1, 1, 0, 1, 0, 0], dtype="int32"),
        "shrunk": np.array([[True, False], [False, True]]),
        "columns": np.zeros(0, dtype="int64"),
        "basis": np.zeros((4, 0)),
    }
    return Bundle(arrays, HEADER)


def _assert_same(loaded: Bundle, saved: Bundle) -> None:
    assert loaded.header == saved.header
    assert set(loaded.arrays) == set(saved.arrays)
    for name in saved.arrays:
        assert loaded[name].dtype == saved[name].dtype
        np.testing.assert_array_equal(loaded[name], saved[name])


@pytest.mark.parametrize("kind", DATASETS)
def test_a_bundle_survives_the_round_trip(kind: type, tmp_path: Path) -> None:
    dataset = kind(filepath=str(tmp_path / "deep" / "bundle"))
    assert not dataset.exists()
    dataset.save(_bundle())
    assert dataset.exists()
    _assert_same(dataset.load(), _bundle())


@pytest.mark.parametrize("kind", DATASETS)
def test_transposed_and_strided_arrays_keep_their_values(kind: type, tmp_path: Path) -> None:
    array = np.arange(24.0).reshape(4, 6)
    saved = Bundle({"transposed": array.T, "strided": array[::2, ::3]})
    dataset = kind(filepath=str(tmp_path / "bundle"))
    dataset.save(saved)
    _assert_same(dataset.load(), saved)


@pytest.mark.parametrize("kind", DATASETS)
def test_every_version_loads_its_own_bundle(kind: type, tmp_path: Path) -> None:
    path = str(tmp_path / "bundle")
    for stamp, value in (("2024-01-01T00.00.00.000Z", 1.0), ("2024-01-02T00.00.00.000Z", 2.0)):
        kind(filepath=path, version=Version(None, stamp)).save(Bundle({"a": np.array([value])}))
    latest = kind(filepath=path, version=Version(None, None))
    first = kind(filepath=path, version=Version("2024-01-01T00.00.00.000Z", None))
    missing = kind(filepath=path, version=Version("2023-01-01T00.00.00.000Z", None))
    assert latest.load()["a"][0] == 2.0
    assert first.load()["a"][0] == 1.0
    assert latest.exists()
    assert not missing.exists()


@pytest.mark.parametrize("kind", DATASETS)
def test_a_version_is_never_overwritten(kind: type, tmp_path: Path) -> None:
    dataset = kind(filepath=str(tmp_path / "b"), version=Version(None, "2024-01-01T00.00.00.000Z"))
    dataset.save(Bundle({"a": np.zeros(1)}))
    with pytest.raises(DatasetError, match="must not exist"):
        dataset.save(Bundle({"a": np.ones(1)}))


@pytest.mark.parametrize("kind", DATASETS)
def test_without_versions_a_save_replaces_the_bundle(kind: type, tmp_path: Path) -> None:
    dataset = kind(filepath=str(tmp_path / "bundle"))
    dataset.save(Bundle({"old": np.zeros(3)}))
    mapped = dataset.load()["old"]
    dataset.save(Bundle({"new": np.ones(2)}))
    assert set(dataset.load().arrays) == {"new"}
    np.testing.assert_array_equal(mapped, np.zeros(3))  # readers of the old files keep them
    assert os.listdir(tmp_path) == ["bundle"]


@pytest.mark.parametrize("kind", DATASETS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_not_finite_is_refused_with_array_and_row(
    kind: type, value: float, tmp_path: Path
) -> None:
    vectors = np.zeros((6, 2), dtype="float32")
    vectors[4, 1] = value
    dataset = kind(filepath=str(tmp_path / "bundle"))
    with pytest.raises(DatasetError, match="array 'vectors', row 4: not finite"):
        dataset.save(Bundle({"vectors": vectors}))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("kind", DATASETS)
def test_what_would_need_pickling_is_refused(kind: type, tmp_path: Path) -> None:
    dataset = kind(filepath=str(tmp_path / "bundle"))
    with pytest.raises(DatasetError):
        dataset.save(Bundle({"a": np.array([{"x": 1}], dtype=object)}))
    with pytest.raises(DatasetError):
        dataset.save(Bundle({"a": np.zeros(1)}, {"when": object()}))
    assert not dataset.exists()


@pytest.mark.parametrize("kind", DATASETS)
def test_an_array_name_cannot_leave_the_directory(kind: type, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="array name"):
        kind(filepath=str(tmp_path / "bundle")).save(Bundle({"../a": np.zeros(1)}))


@pytest.mark.parametrize("kind", DATASETS)
def test_the_preview_names_header_and_shapes(kind: type, tmp_path: Path) -> None:
    dataset = kind(filepath=str(tmp_path / "bundle"))
    dataset.save(_bundle())
    content = json.loads(dataset.preview())
    assert content["header"] == HEADER
    assert content["arrays"]["vectors"] == {"shape": [7, 4], "dtype": "float16"}
    # Kedro-Viz draws by the name of the annotation.
    assert inspect.signature(dataset.preview).return_annotation == "JSONPreview"


def _blocks(*lengths: int) -> Iterator[np.ndarray]:
    start = 0
    for length in lengths:
        yield np.arange(2 * start, 2 * (start + length), dtype="float64").reshape(length, 2)
        start += length


def test_blocks_are_streamed_to_the_announced_type_and_loaded_memory_mapped(
    tmp_path: Path,
) -> None:
    dataset = MemmapBundleDataset(filepath=str(tmp_path / "bundle"))
    dataset.save(Bundle({"vectors": BlockArray((6, 2), "float32", _blocks(2, 0, 3, 1))}))
    vectors = dataset.load()["vectors"]
    assert isinstance(vectors, np.memmap)
    assert not vectors.flags.writeable
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors, np.arange(12).reshape(6, 2))


def _resident_mapped_kib() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("RssFile:")[1].split()[0])


def test_a_pass_by_blocks_does_not_keep_the_whole_array_in_memory(tmp_path: Path) -> None:
    dataset = MemmapBundleDataset(filepath=str(tmp_path / "bundle"))
    array = np.arange(8 * 1024 * 1024, dtype="float32").reshape(-1, 1024)  # 32 MiB
    dataset.save(Bundle({"v": array}))
    bundle = dataset.load()
    before = _resident_mapped_kib()
    largest, kept = 0, []
    for block in bundle.row_blocks("v", 512):  # 2 MiB each
        kept.append((block, block.sum(dtype=np.float64)))
        largest = max(largest, _resident_mapped_kib() - before)
    assert 1024 <= largest <= 8 * 1024
    # Blocks that are read again later still hold their values.
    assert [block.sum(dtype=np.float64) for block, _ in kept] == [total for _, total in kept]
    np.testing.assert_array_equal(bundle["v"], array)


@pytest.mark.parametrize("lengths", [(2, 2), (4, 3)])
def test_blocks_that_do_not_add_up_are_refused(lengths: tuple[int, ...], tmp_path: Path) -> None:
    dataset = MemmapBundleDataset(filepath=str(tmp_path / "bundle"))
    message = f"6 rows were announced, the blocks hold {sum(lengths)}"
    with pytest.raises(DatasetError, match=message):
        dataset.save(Bundle({"vectors": BlockArray((6, 2), "float32", _blocks(*lengths))}))
    assert os.listdir(tmp_path) == []


def test_blocks_of_another_width_are_refused(tmp_path: Path) -> None:
    dataset = MemmapBundleDataset(filepath=str(tmp_path / "bundle"))
    with pytest.raises(DatasetError, match="array 'vectors', row 0"):
        dataset.save(Bundle({"vectors": BlockArray((4, 3), "float32", _blocks(4))}))


def test_a_value_too_large_for_the_stored_type_is_refused(tmp_path: Path) -> None:
    blocks = [np.zeros((3, 1)), np.array([[0.0], [1e6]])]
    dataset = MemmapBundleDataset(filepath=str(tmp_path / "bundle"))
    with pytest.raises(DatasetError, match=r"array 'v', row 4: not finite .* float16"):
        dataset.save(Bundle({"v": BlockArray((5, 1), "float16", blocks)}))


def test_an_error_of_the_producer_is_kept_and_leaves_nothing(tmp_path: Path) -> None:
    def failing() -> Iterator[np.ndarray]:
        yield np.zeros((2, 2))
        msg = "tasks/a.jsonl:3: no text"
        raise DataError(msg)

    dataset = MemmapBundleDataset(filepath=str(tmp_path / "bundle"))
    with pytest.raises(DatasetError, match=r"tasks/a.jsonl:3: no text") as error:
        dataset.save(Bundle({"v": BlockArray((4, 2), "float32", failing())}))
    assert isinstance(error.value.__cause__, DataError)
    assert os.listdir(tmp_path) == []


def test_a_killed_save_never_looks_complete(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import os, signal, sys
        import numpy as np
        from kedro.io.core import Version
        from domain_embeddings.core.bundle import BlockArray, Bundle
        from domain_embeddings.datasets.memmap_bundle import MemmapBundleDataset

        def blocks():
            yield np.zeros((2, 2))
            os.kill(os.getpid(), signal.SIGKILL)

        MemmapBundleDataset(filepath=sys.argv[1], version=Version(None, None)).save(
            Bundle({"v": BlockArray((4, 2), "float32", blocks())})
        )
        """
    )
    path = str(tmp_path / "bundle")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script, path], check=False, env=environment)
    assert done.returncode == -9
    assert list(tmp_path.rglob("*.npy"))  # it was killed in the middle of writing
    dataset = MemmapBundleDataset(filepath=path, version=Version(None, None))
    assert not dataset.exists()
    with pytest.raises(DatasetError):
        dataset.load()


def test_a_damaged_directory_is_refused(tmp_path: Path) -> None:
    dataset = MemmapBundleDataset(filepath=str(tmp_path / "bundle"))
    dataset.save(_bundle())
    np.save(tmp_path / "bundle" / "source.npy", np.zeros(3, dtype="int32"))
    with pytest.raises(DatasetError, match=r"source\.npy: holds"):
        dataset.load()


def test_a_safetensors_file_of_somebody_else_is_refused(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"a": np.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(DatasetError, match="without the header"):
        SafetensorsBundleDataset(filepath=str(tmp_path / "other.safetensors")).load()
