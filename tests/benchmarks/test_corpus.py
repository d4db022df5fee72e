"""The corpus benchmark on a few documents: what is planted is found, block by block."""

from __future__ import annotations

import pytest

from benchmarks import corpus
from domain_embeddings.core.encoders.bank import EmbeddingBank
from domain_embeddings.core.evaluation import encoder

DOCUMENTS, QUERIES, WIDTHS = 700, 20, [8, 64]
TRANSFORMS = ["none", "pca"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    corpus.write_bank(folder, DOCUMENTS, QUERIES, WIDTHS[-1])
    return folder


def scored(folder) -> dict[str, float]:
    found = corpus.score(folder, DOCUMENTS, QUERIES, WIDTHS, TRANSFORMS)
    return {name: value for name, value in found.items() if name.startswith("recall")}


def test_every_query_finds_the_document_it_lies_near_to(folder):
    recall = scored(folder)
    assert recall["recall_at_10.none.64"] == recall["recall_at_10.pca.64"] == 1.0
    assert recall["recall_at_10.none.8"] < 1.0


def test_blocks_change_no_score_and_no_block_is_larger_than_allowed(folder, monkeypatch):
    whole = scored(folder)
    vectors, texts = [], []
    take, rows = EmbeddingBank.take, EmbeddingBank.rows
    monkeypatch.setattr(
        EmbeddingBank, "take", lambda self, asked: vectors.append(len(asked)) or take(self, asked)
    )
    monkeypatch.setattr(
        EmbeddingBank,
        "rows",
        lambda self, asked, prompt: texts.append(len(asked)) or rows(self, asked, prompt),
    )
    monkeypatch.setattr(encoder, "BLOCK_ROWS", 64)
    assert scored(folder) == whole
    assert max(vectors) == max(texts) == 64
    # Documents once per transform, whatever the number of widths; queries and the pair besides.
    for asked in (texts, vectors):
        assert 0 < sum(asked) - len(TRANSFORMS) * DOCUMENTS < 2 * (len(TRANSFORMS) * QUERIES + 10)
