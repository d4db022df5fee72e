"""Small data sets in the form in which mteb's own tasks find them on the hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from tiny_models import WORDS

# Task and type, and where its data lie.
OWN_TASKS = {
    "Banking77Classification": "mteb/banking77",
    "STS12": "mteb/sts12-sts",
    "SprintDuplicateQuestions": "mteb/sprintduplicatequestions-pairclassification",
    "SciFact": "mteb/scifact",
    "AskUbuntuDupQuestions": "mteb/AskUbuntuDupQuestions",
    "SummEvalSummarization.v2": "mteb/summeval",
}


def make_mteb_folder(folder: Path, seed: int = 0) -> Path:
    """Write the data of `OWN_TASKS` below a folder; there is something to find in all of them."""
    rng = np.random.default_rng(seed)

    def text(length: int = 6) -> str:
        return " ".join(rng.choice(WORDS, size=length))

    def near(other: str) -> str:
        return " ".join([*other.split()[:4], *rng.choice(WORDS, size=2)])

    def labelled(rows: int) -> list[dict[str, Any]]:
        return [{"text": f"{text(4)} {WORDS[10 + i % 4]}", "label": i % 4} for i in range(rows)]

    write(folder / "mteb/banking77/train.jsonl", labelled(60))
    write(folder / "mteb/banking77/test.jsonl", labelled(40))
    pairs = []
    for i in range(40):
        first = text()
        second = near(first) if i % 2 else text()
        shared = len(set(first.split()) & set(second.split()))
        pairs.append({"sentence1": first, "sentence2": second, "score": float(shared)})
    write(folder / "mteb/sts12-sts/test.jsonl", pairs)
    asked = {
        "sent1": [pair["sentence1"] for pair in pairs],
        "sent2": [pair["sentence2"] for pair in pairs],
        "labels": [i % 2 for i in range(40)],
    }
    duplicates = folder / OWN_TASKS["SprintDuplicateQuestions"]
    write(duplicates / "test.jsonl", [dict(zip(asked, row)) for row in zip(*asked.values())])
    documents = [text() for _ in range(60)]
    for name in ("SciFact", "AskUbuntuDupQuestions"):
        place = folder / OWN_TASKS[name]
        write(
            place / "corpus.jsonl",
            [{"_id": f"d{i}", "title": "the", "text": d} for i, d in enumerate(documents)],
        )
        write(
            place / "queries.jsonl",
            [{"_id": f"q{i}", "text": near(documents[i])} for i in range(30)],
        )
        write(
            place / "qrels.jsonl",
            [{"query-id": f"q{i}", "corpus-id": f"d{i}", "score": 1} for i in range(30)],
        )
        configs = {"corpus": "corpus", "queries": "queries", "default": "qrels"}
        if name == "AskUbuntuDupQuestions":
            configs["top_ranked"] = "top"
            ranked = [
                {"query-id": f"q{i}", "corpus-ids": [f"d{(i + j) % 60}" for j in range(6)]}
                for i in range(30)
            ]
            write(place / "top.jsonl", ranked)
        card = "".join(
            f"- config_name: {config}\n  data_files:\n  - split: test\n    path: {file}.jsonl\n"
            for config, file in configs.items()
        )
        (place / "README.md").write_text(f"---\nconfigs:\n{card}---\n")
    summaries = []
    for i in range(10):
        whole = text()
        machine = [" ".join([*whole.split()[:kept], text(6 - kept)]) for kept in range(1, 6)]
        scores = [float(kept + i % 2 * (kept % 3)) / 2 for kept in range(5)]
        summaries.append(
            {
                "text": text(),
                "human_summaries": [whole, text()],
                "machine_summaries": machine,
                "relevance": scores,
            }
        )
    write(folder / "mteb/summeval/test.jsonl", summaries)
    return folder


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
