"""The curation stage."""

from domain_embeddings.pipelines.curation.pipeline import create_pipeline

__all__ = ["create_pipeline"]
