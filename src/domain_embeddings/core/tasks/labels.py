"""Several labels of one text, as one column of text."""

from __future__ import annotations

import json
from collections.abc import Iterable


def join_labels(labels: Iterable[str]) -> str:
    """Write a set of labels as text: a sorted JSON list, so that equal sets are equal texts."""
    return json.dumps(sorted(set(labels)), ensure_ascii=False)


def split_labels(text: str) -> list[str]:
    """Read the labels back."""
    return [str(label) for label in json.loads(text)]
