"""Adapt a text-embedding model to a domain and make it truncatable."""

__version__ = "0.1.0"
