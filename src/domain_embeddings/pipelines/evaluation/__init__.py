"""The evaluation stage."""

from domain_embeddings.pipelines.evaluation.pipeline import create_pipeline

__all__ = ["create_pipeline"]
