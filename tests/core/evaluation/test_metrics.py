"""Tests of metric names."""

from __future__ import annotations

import pytest

from domain_embeddings.core.evaluation.metrics import METRIC_NAME, metric_name


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("ndcg@10", "ndcg_at_10"),
        ("ndcg_at_10", "ndcg_at_10"),
        ("nAUC NDCG@1/max", "nAUC_NDCG_at_1_max"),
        ("V-measure (%)", "V_measure"),
        ("1st", "metric_1st"),
        ("é", "metric_"),
    ],
)
def test_names_become_safe(name, safe):
    assert metric_name(name) == safe
    assert METRIC_NAME.fullmatch(metric_name(name))


def test_safe_names_pass_the_check_of_mlflow():
    from mlflow.utils.validation import _validate_metric_name

    for name in ("ndcg@10", "a b", "x%y", "map@1,5"):
        _validate_metric_name(metric_name(name))
