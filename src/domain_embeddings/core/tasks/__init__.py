"""Task specs, readers, curation, leakage and pair building."""
