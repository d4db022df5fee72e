"""Catalog data sets that the ecosystem lacks."""
