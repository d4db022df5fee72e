"""Tests of the embedding store: nothing twice, nothing wrong, whatever happens to its files."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tiny_models import tiny_sentence_transformer

from domain_embeddings.core.encoders import bank, batching, store
from domain_embeddings.core.encoders.bank import text_key
from domain_embeddings.core.encoders.store import EmbeddingStore, Space, describe_space

TEXTS = ["the lost card", "a red tree", "fish in water", "sort the list"]
WIDTH = 8


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_sentence_transformer(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def encoded(monkeypatch):
    """Record what is really encoded."""
    seen: list[str] = []
    genuine = batching.encode

    def encode(model, texts, **options):
        seen.extend(texts)
        return genuine(model, texts, **options)

    monkeypatch.setattr(batching, "encode", encode)
    return seen


def keys_of(numbers) -> np.ndarray:
    """Return sorted keys of texts called after numbers."""
    keys = sorted(text_key("", str(number)) for number in numbers)
    return np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(-1, 16)


def planted(keys: np.ndarray) -> np.ndarray:
    """Return vectors that their keys tell."""
    return np.ascontiguousarray(keys[:, :WIDTH], dtype=np.float32) + 1


def make_space(folder: Path, **options) -> Space:
    return Space(folder / "space", WIDTH, EmbeddingStore(folder, **options))


def shards(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.shard"))


def test_a_later_run_encodes_only_what_no_run_has_encoded(model, encoded, tmp_path):
    first = EmbeddingStore(tmp_path).embed(model, TEXTS[:3], "query: ", show_progress=False)
    assert sorted(encoded) == sorted("query: " + text for text in TEXTS[:3])
    encoded.clear()
    asked = [TEXTS[3], TEXTS[1], TEXTS[1], TEXTS[0]]
    second = EmbeddingStore(tmp_path).embed(model, asked, "query: ", show_progress=False)
    assert encoded == ["query: " + TEXTS[3]]
    np.testing.assert_array_equal(second[[1, 2, 3]], first[[1, 1, 0]])
    expected = model.encode(["query: " + text for text in asked], normalize_embeddings=True)
    np.testing.assert_allclose(second, expected, atol=1e-6)


def test_it_says_how_many_texts_it_found_and_how_many_are_encoded(model, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    for texts in (TEXTS[:3], TEXTS):
        EmbeddingStore(tmp_path).embed(model, texts, show_progress=False)
    said = [message for message in caplog.messages if "texts found" in message]
    assert said == [
        "Embedding store: 0 texts found, 3 to encode",
        "Embedding store: 3 texts found, 1 to encode",
    ]


def test_a_text_under_another_prompt_is_another_text(model, encoded, tmp_path):
    kept = EmbeddingStore(tmp_path)
    plain = kept.embed(model, ["card"], "", show_progress=False)
    assert not np.allclose(plain, kept.embed(model, ["card"], "red ", show_progress=False))
    assert encoded == ["card", "red card"]


def test_models_share_vectors_only_if_they_embed_equally(model, tmp_path):
    same = tiny_sentence_transformer(tmp_path / "same")
    other = tiny_sentence_transformer(tmp_path / "other", seed=1)
    assert describe_space(same) == describe_space(model)
    # A call leaves its padding and truncation behind in the tokenizer.
    same.encode(TEXTS)
    same.tokenizer(TEXTS, padding=True, truncation=True, max_length=4)
    assert describe_space(same) == describe_space(model)
    same.max_seq_length = 5
    same_pooling = tiny_sentence_transformer(tmp_path / "pooling")
    same_pooling[1].pooling_mode = "cls"
    half = tiny_sentence_transformer(tmp_path / "half").half()
    kept = EmbeddingStore(tmp_path / "store")
    spaces = [kept.space(each).folder for each in (model, other, same, same_pooling, half)]
    assert len(set(spaces)) == len(spaces)


@pytest.mark.parametrize("place", ["magic", "rows", "key", "sum", "vector", "cut", "empty", "long"])
def test_a_damaged_shard_is_said_removed_and_made_again(place, tmp_path, caplog):
    keys = keys_of(range(10))
    make_space(tmp_path).add(keys, planted(keys))
    [path] = shards(tmp_path)
    content = bytearray(path.read_bytes())
    header = 32
    at = {"magic": 0, "rows": 9, "key": header + 3, "sum": header + 160 + 5, "vector": -7}
    if place in at:
        content[at[place]] ^= 0x40
    changed = {"cut": content[:-1], "empty": b"", "long": content + b"x"}
    path.write_bytes(changed.get(place, content))

    found, _ = make_space(tmp_path).read(keys)
    assert not found.any()
    assert "is damaged" in caplog.text
    assert shards(tmp_path) == []
    make_space(tmp_path).add(keys, planted(keys))
    assert make_space(tmp_path).read(keys)[0].all()


def test_other_shards_serve_on_beside_a_damaged_one(tmp_path):
    old, new = keys_of(range(10)), keys_of(range(10, 20))
    for keys in (old, new):
        make_space(tmp_path).add(keys, planted(keys))
    path = next(p for p in shards(tmp_path) if old[0].tobytes() in p.read_bytes())
    path.write_bytes(path.read_bytes()[:-9])
    both = keys_of(range(20))
    found, vectors = make_space(tmp_path).read(both)
    assert found.sum() == 10
    np.testing.assert_array_equal(vectors[found], planted(both)[found])
    assert make_space(tmp_path).read(new)[0].all()


def start_writer(folder: Path, first: int, count: int, rows: int) -> subprocess.Popen:
    """Store blocks of planted vectors, one after the other, in a process of its own."""
    program = (
        "import sys\n"
        "import numpy as np\n"
        "from pathlib import Path\n"
        "from domain_embeddings.core.encoders.bank import text_key\n"
        "from domain_embeddings.core.encoders.store import EmbeddingStore, Space\n"
        "folder, first, count, rows = Path(sys.argv[1]), *map(int, sys.argv[2:])\n"
        f"space = Space(folder / 'space', {WIDTH}, EmbeddingStore(folder))\n"
        "for block in range(first, first + count):\n"
        "    names = range(block * rows, (block + 1) * rows)\n"
        "    keys = b''.join(text_key('', str(name)) for name in names)\n"
        "    keys = np.frombuffer(keys, dtype=np.uint8).reshape(-1, 16)\n"
        f"    space.add(keys, keys[:, :{WIDTH}].astype(np.float32) + 1)\n"
        "    space.tidy()\n"
    )
    arguments = [str(folder), str(first), str(count), str(rows)]
    return subprocess.Popen([sys.executable, "-c", program, *arguments], env=os.environ.copy())


def test_a_killed_writer_leaves_a_store_that_serves_what_was_complete(tmp_path):
    writer = start_writer(tmp_path, first=0, count=100_000, rows=2_500)
    while len(shards(tmp_path)) < 3:
        assert writer.poll() is None
        time.sleep(0.01)
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    complete = len(shards(tmp_path))
    keys = keys_of(range(2_500 * (complete + 2)))
    found, vectors = make_space(tmp_path).read(keys)
    assert found.sum() == 2_500 * complete
    np.testing.assert_array_equal(vectors[found], planted(keys)[found])
    make_space(tmp_path).add(keys[~found], planted(keys[~found]))
    assert make_space(tmp_path).read(keys)[0].all()


def test_two_processes_write_the_same_and_other_texts_at_once(tmp_path):
    blocks, rows = 60, 20  # enough small shards that both merge what the other writes
    writers = [start_writer(tmp_path, first, blocks, rows) for first in (0, blocks // 2)]
    assert [writer.wait() for writer in writers] == [0, 0]
    keys = keys_of(range(rows * (blocks + blocks // 2)))
    found, vectors = make_space(tmp_path).read(keys)
    assert found.all()
    np.testing.assert_array_equal(vectors, planted(keys))
    assert len(shards(tmp_path)) < blocks


def test_small_shards_are_merged_into_one(tmp_path):
    for number in range(store._MAX_SMALL_SHARDS + 1):
        keys = keys_of([number, number + 1])
        make_space(tmp_path).add(keys, planted(keys))
    make_space(tmp_path).tidy()
    assert len(shards(tmp_path)) == 1
    keys = keys_of(range(store._MAX_SMALL_SHARDS + 2))
    found, vectors = make_space(tmp_path).read(keys)
    assert found.all()
    np.testing.assert_array_equal(vectors, planted(keys))


def test_above_its_limit_the_store_drops_what_was_unused_for_longest(tmp_path):
    blocks = [keys_of(range(10 * k, 10 * k + 10)) for k in range(3)]
    for age, keys in zip((300, 200, 100), blocks, strict=True):
        before = set(shards(tmp_path))
        make_space(tmp_path).add(keys, planted(keys))
        [path] = set(shards(tmp_path)) - before
        os.utime(path, (time.time() - age,) * 2)
    size = shards(tmp_path)[0].stat().st_size
    make_space(tmp_path).read(blocks[0])  # use makes the oldest one young
    make_space(tmp_path, max_bytes=2 * size).tidy()
    kept = [make_space(tmp_path).read(keys)[0].all() for keys in blocks]
    assert kept == [True, False, True]
    make_space(tmp_path, max_bytes=0).tidy()
    assert not list(tmp_path.iterdir())


def test_leftovers_of_killed_processes_are_removed_after_a_day(tmp_path):
    folder = tmp_path / "space"
    folder.mkdir()
    old, young = folder / "a.partial", folder / "b.partial"
    for path, age in ((old, 25 * 3_600), (young, 60)):
        path.write_bytes(b"x")
        os.utime(path, (time.time() - age,) * 2)
    make_space(tmp_path).tidy()
    assert (old.exists(), young.exists()) == (False, True)


def test_a_store_that_cannot_be_written_costs_a_warning(model, tmp_path, caplog):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder", encoding="utf-8")
    vectors = EmbeddingStore(blocked).embed(model, TEXTS, show_progress=False)
    np.testing.assert_allclose(vectors, model.encode(TEXTS, normalize_embeddings=True), atol=1e-6)
    assert "not kept" in caplog.text


def test_blocks_are_stored_as_they_are_encoded(model, encoded, tmp_path, monkeypatch):
    monkeypatch.setattr(bank, "BLOCK_TEXTS", 2)
    genuine = batching.encode

    def encode(model, texts, **options):
        if len(shards(tmp_path)) == 1:
            raise KeyboardInterrupt
        return genuine(model, texts, **options)

    monkeypatch.setattr(batching, "encode", encode)
    with pytest.raises(KeyboardInterrupt):
        EmbeddingStore(tmp_path).embed(model, TEXTS, show_progress=False)
    monkeypatch.setattr(batching, "encode", genuine)
    assert len(encoded) == 2
    EmbeddingStore(tmp_path).embed(model, TEXTS, show_progress=False)
    assert sorted(encoded) == sorted(TEXTS)


def test_no_texts_give_no_vectors(model, tmp_path):
    assert EmbeddingStore(tmp_path).embed(model, []).shape == (0, 32)
