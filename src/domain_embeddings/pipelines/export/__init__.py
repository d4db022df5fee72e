"""The export pipeline, which is asked for by name."""

from domain_embeddings.pipelines.export.pipeline import create_pipeline

__all__ = ["create_pipeline"]
