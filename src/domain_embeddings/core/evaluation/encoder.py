"""mteb's encoder protocol served from an embedding bank: nothing is encoded twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from mteb.models.model_meta import ModelMeta, ScoringFunction
from mteb.similarity_functions import cos_sim, pairwise_cos_sim
from mteb.types import PromptType

from domain_embeddings.core.encoders.bank import EmbeddingBank
from domain_embeddings.core.encoders.prefix import prefix
from domain_embeddings.core.encoders.prompts import Role, prompt_for
from domain_embeddings.core.evaluation.transforms import Transform

TaskPrompts = Mapping[str, Mapping[Role, str]]


def task_prompts(
    specs: Sequence[Mapping[str, Any]], model_prompts: Mapping[str, str | None]
) -> dict[str, dict[Role, str]]:
    """Resolve the prompt of each side of each task.

    Args:
        specs: Task specifications.
        model_prompts: Prompts saved with the model.

    Returns:
        Prompts by task name and role.
    """
    roles: tuple[Role, Role] = ("anchor", "positive")
    return {
        str(spec["name"]): {role: prompt_for(spec, role, model_prompts) for role in roles}
        for spec in specs
    }


class BankEncoder:
    """An encoder for mteb that transforms, truncates and normalises stored embeddings.

    Args:
        bank: Full-width embeddings of every text of the tasks.
        prompts: Prompts by task name and role, as used when the bank was built.
        transform: Applied at full width, before the prefix is taken.
        width: Number of leading coordinates that are kept.
        name: Model name for mteb, of the form ``organisation/model``.
    """

    def __init__(
        self,
        bank: EmbeddingBank,
        prompts: TaskPrompts,
        transform: Transform,
        width: int,
        *,
        name: str = "local/bank",
    ) -> None:
        """Keep the bank; vectors are looked up when mteb asks."""
        self.bank = bank
        self.prompts = prompts
        self.transform = transform
        self.width = width
        self._meta = ModelMeta.create_empty(
            overwrites={
                "name": name,
                "revision": str(bank.header.get("weight_hash", "local")),
                "embed_dim": width,
                "similarity_fn_name": ScoringFunction.COSINE,
            }
        )

    @property
    def mteb_model_meta(self) -> ModelMeta:
        """Metadata of the model."""
        return self._meta

    def encode(
        self,
        inputs: Any,
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        prompt_type: PromptType | None = None,
        **kwargs: Any,
    ) -> np.ndarray:
        """Return the embeddings of the texts of a data loader.

        Args:
            inputs: mteb's data loader; only the column ``text`` of its data set is read.
            task_metadata: Metadata whose name selects the prompts.
            hf_split: Ignored.
            hf_subset: Ignored.
            prompt_type: ``document`` for the documents of a retrieval task, else the anchor's side.
            **kwargs: Ignored; there is nothing to compute in batches.

        Returns:
            Unit vectors of shape (n, width), float32.
        """
        role: Role = "positive" if prompt_type == PromptType.document else "anchor"
        texts = list(inputs.dataset["text"])
        vectors = self.bank.lookup(texts, self.prompts[task_metadata.name][role])
        return np.asarray(prefix(self.transform.apply(vectors), self.width), dtype=np.float32)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return the cosine similarity of all pairs of rows."""
        return cos_sim(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return the cosine similarity of corresponding rows."""
        return pairwise_cos_sim(embeddings1, embeddings2)
