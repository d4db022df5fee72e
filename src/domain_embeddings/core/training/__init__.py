"""Training: batches, objective, trainer."""
