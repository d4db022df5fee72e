"""Moments, eigenspace, task variance, shrinkage, geometry and bootstrap (NumPy, float64)."""
