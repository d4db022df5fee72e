"""The relations stage."""

from domain_embeddings.pipelines.relations.pipeline import create_pipeline

__all__ = ["create_pipeline"]
