"""Scoring prefixes: mteb tasks from local data, an embedding bank, post-hoc transforms."""
