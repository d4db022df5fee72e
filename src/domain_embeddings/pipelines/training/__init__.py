"""The training stage."""

from domain_embeddings.pipelines.training.pipeline import create_pipeline

__all__ = ["create_pipeline"]
