"""Which prompt a text carries, decided in one place for training, relations and evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

Role = Literal["anchor", "positive"]

# The types whose two sides are different kinds of text; everywhere else both sides are alike.
ASYMMETRIC_TYPES = frozenset({"retrieval", "reranking", "summarization"})

# sentence-transformers accepts these names for the prompt of a document, in this order.
_DOCUMENT_NAMES = ("document", "passage", "corpus")


def prompt_for(spec: Mapping[str, Any], role: Role, model_prompts: Mapping[str, str | None]) -> str:
    """Return the text that is put in front of every input of one side of a task.

    The prompt of the task wins over the prompt of the model. The positive of a symmetric task is
    the same kind of text as its anchor and so carries the same prompt.

    Args:
        spec: A task specification with the keys ``type`` and ``prompts``.
        role: The side of the pair.
        model_prompts: Prompts saved with the model, by name.

    Returns:
        The prompt, empty where neither the task nor the model has one.
    """
    own = spec.get("prompts") or {}
    if role == "positive" and spec["type"] in ASYMMETRIC_TYPES:
        names: tuple[str, ...] = _DOCUMENT_NAMES
        prompt = own.get("document")
    else:
        names = ("query",)
        prompt = own.get("query")
    if prompt is not None:
        return str(prompt)
    return next((text for name in names if (text := model_prompts.get(name))), "")
