"""The reze stage."""

from domain_embeddings.pipelines.reze.pipeline import create_pipeline

__all__ = ["create_pipeline"]
