"""The reporting stage."""

from domain_embeddings.pipelines.reporting.pipeline import create_pipeline

__all__ = ["create_pipeline"]
