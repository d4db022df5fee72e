"""The ingestion stage."""

from domain_embeddings.pipelines.ingestion.pipeline import create_pipeline

__all__ = ["create_pipeline"]
