"""Recommendation, figures, report, model card and closing table."""
