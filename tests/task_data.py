"""Small tasks of every type whose texts come from one vocabulary."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from tiny_models import WORDS

from domain_embeddings.core.bundle import Bundle
from domain_embeddings.core.encoders.bank import KEY_BYTES, EmbeddingBank, text_key
from domain_embeddings.core.encoders.prefix import prefix
from domain_embeddings.core.tasks.labels import join_labels

BANK_WIDTH = 24

EMPTY: dict[str, Any] = {
    "origin": "made.jsonl:1",
    "text": None,
    "text2": None,
    "label": None,
    "score": np.nan,
    "text_id": None,
    "text2_id": None,
}
TYPES = (
    "classification",
    "multilabel",
    "clustering",
    "retrieval",
    "reranking",
    "pair_classification",
    "sts",
    "bitext_mining",
    "summarization",
)


def specs(*types: str, prompts: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """Return one specification per type, named after it."""
    return [
        {"name": kind, "type": kind, "prompts": prompts, "uses": ["train", "evaluate"]}
        for kind in (types or TYPES)
    ]


def records(rows: int = 40, seed: int = 0) -> pd.DataFrame:  # noqa: PLR0912
    """Return records of one task per type, in the splits train and test."""
    rng = np.random.default_rng(seed)
    table: list[dict[str, Any]] = []

    def text(number: int) -> str:
        return " ".join(rng.choice(WORDS, size=rng.integers(3, 8))) + f" {number}"

    def add(task: str, split: str, **fields: Any) -> None:
        table.append({"task": task, "split": split, **EMPTY, **fields})

    for task in ("classification", "clustering"):
        for split in ("train", "test"):
            for i in range(rows):
                own = WORDS[10 + i % 4]
                add(task, split, text=f"{own} {own} {text(i)}", label=f"label {i % 4}")
    for task in ("retrieval", "reranking"):
        for i in range(rows):
            document = text(i)
            query = {"text": " ".join(document.split()[1:]), "text_id": f"q{i}"}
            add(task, "test", **query, text2=f" {document} ", score=1.0, text2_id=f"d{i}")
            if task == "reranking":
                for j in range(3):
                    wrong = {"text2": text(j), "text2_id": f"w{i}-{j}", "score": 0.0}
                    add(task, "test", **query, **wrong)
        if task == "retrieval":
            for i in range(rows):
                add(task, "test", text2=text(i), text2_id=f"x{i}")
    for i in range(rows):
        first = text(i)
        other = f"{first} card" if i % 2 else text(i)
        add("pair_classification", "test", text=first, text2=other, label=str(i % 2))
        add("bitext_mining", "test", text=first, text2=f"{first} bank")
        second = text(i)
        shared = len(set(first.split()) & set(second.split()))
        add("sts", "test", text=first, text2=second, score=float(shared))
    for split in ("train", "test"):
        for i in range(rows):
            own = [WORDS[10 + i % 4], *([WORDS[14 + i % 3]] if i % 2 else [])]
            add("multilabel", split, text=f"{' '.join(own * 2)} {text(i)}", label=join_labels(own))
    for i in range(rows // 4):
        whole = text(i)
        add("summarization", "test", text=whole, text2=f"{whole} card")
        for kept in range(1, 5):
            part = " ".join([*whole.split()[:kept], *rng.choice(WORDS, size=5 - kept)])
            add("summarization", "test", text=whole, text2=part, score=float(kept + i % 3))
    frame = pd.DataFrame(table)
    frame.insert(2, "row", frame.groupby(["task", "split"]).cumcount())
    return frame


def pairs(rows: int = 30, seed: int = 1) -> pd.DataFrame:
    """Return training pairs of two tasks."""
    frame = records(rows, seed)
    train = frame[(frame["split"] == "train") & (frame["task"] != "multilabel")]
    shifted = train.groupby("task")["text"].shift(-4)
    made = pd.DataFrame(
        {
            "task": train["task"],
            "anchor": train["text"],
            "positive": shifted,
            "label": train["label"],
        }
    ).dropna(subset=["positive"])
    made.insert(0, "pair_id", range(len(made)))
    made["negatives"] = [[] for _ in range(len(made))]
    made["origin"] = "made.jsonl:1"
    return made.reset_index(drop=True)


def make_bank(noise: float = 0.0, seed: int = 0, **header) -> EmbeddingBank:
    """Embed a text as the sum of random vectors of its words, plus noise."""
    frame, drawn = records(), pairs()
    sides = [frame["text"], frame["text2"].str.strip(), drawn["anchor"], drawn["positive"]]
    texts = sorted(set(pd.concat(sides).dropna()))
    rng = np.random.default_rng(seed)
    words = {
        word: np.random.default_rng(sum(map(ord, word)) * 7 + len(word)).normal(size=BANK_WIDTH)
        for text in texts
        for word in text.split()
    }
    vectors = np.array([sum(words[word] for word in text.split()) for text in texts])
    vectors = prefix(
        (vectors + noise * rng.normal(size=vectors.shape)).astype(np.float32), BANK_WIDTH
    )
    keys = np.frombuffer(b"".join(text_key("", text) for text in texts), dtype=np.uint8)
    keys = keys.reshape(-1, KEY_BYTES)
    order = np.array(sorted(range(len(texts)), key=lambda row: bytes(keys[row])))
    about = {"prompts": {}, "max_length": 64, "model": "made", "weight_hash": "0", **header}
    return EmbeddingBank(Bundle({"vectors": vectors[order], "keys": keys[order]}, about))
