"""From texts to embeddings: loading, prompts, batching, prefixes, rotation, banks."""
