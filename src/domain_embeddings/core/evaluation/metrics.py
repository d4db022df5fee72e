"""Names of metrics that every tracking server accepts."""

from __future__ import annotations

import re

METRIC_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


def metric_name(name: str) -> str:
    """Turn a metric's name into one that MLflow accepts, for example ``ndcg@10``.

    Args:
        name: Any non-empty name.

    Returns:
        Letters, digits and underscores only: ``ndcg_at_10``.
    """
    spelled = re.sub(r"[^A-Za-z0-9_]+", "_", name.replace("@", "_at_")).strip("_")
    return spelled if METRIC_NAME.fullmatch(spelled) else f"metric_{spelled}"
