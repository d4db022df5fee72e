"""Measurements of speed and memory; run one with ``python -m benchmarks.<name>``."""
