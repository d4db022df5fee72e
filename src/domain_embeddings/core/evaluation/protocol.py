"""The part of mteb's encoder protocol that is the same for all encoders of this package."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from mteb.models.model_meta import ModelMeta
from mteb.similarity_functions import cos_sim, pairwise_cos_sim
from mteb.types import PromptType


class CosineEncoder(ABC):
    """An encoder for mteb whose vectors are compared by their cosine.

    Args:
        meta: Metadata that the results are filed under.
    """

    def __init__(self, meta: ModelMeta) -> None:
        """Keep the metadata."""
        self._meta = meta

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
            task_metadata: mteb's description of the task, which selects the prompt.
            hf_split: Ignored.
            hf_subset: Ignored.
            prompt_type: Query, document, or neither.
            **kwargs: Ignored; batches are none of mteb's business.

        Returns:
            Unit vectors of shape (n, width), float32.
        """
        # The slice reads the column at once; iterating over it would read it row by row.
        return self._encode(inputs.dataset["text"][:], task_metadata, prompt_type)

    @abstractmethod
    def _encode(
        self, texts: Sequence[str], task_metadata: Any, prompt_type: PromptType | None
    ) -> np.ndarray:
        """Return the embeddings of texts of a task."""

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return the cosine similarity of all pairs of rows."""
        return cos_sim(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return the cosine similarity of corresponding rows."""
        return pairwise_cos_sim(embeddings1, embeddings2)
