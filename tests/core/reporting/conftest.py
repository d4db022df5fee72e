from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
import report_data

from domain_embeddings.core.reporting.html import ReportInputs, render_report
from domain_embeddings.core.reporting.recommend import recommend_width


def html_inputs(**changes: Any) -> ReportInputs:
    """Inputs of the HTML report, with some entries replaced."""
    entries = report_data.report_inputs(**changes)
    data = {
        "Rows read": entries.pop("ingestion_report"),
        "Rows dropped while cleaning": entries.pop("curation_report"),
        "Training pairs": entries.pop("pairing_report"),
    }
    return ReportInputs(
        width_recommendation=recommend_width(entries["truncation_scores"], report_data.WIDTHS),
        **entries,
        data_reports=data,
        leakage_policy="drop",
        settings={"training": {"learning_rate": 5e-5}},
        confidence=0.95,
        seed=0,
    )


@pytest.fixture(scope="session")
def scores() -> pd.DataFrame:
    return report_data.truncation_scores()


@pytest.fixture(scope="session")
def make_inputs() -> Callable[..., ReportInputs]:
    return html_inputs


@pytest.fixture(scope="session")
def page() -> str:
    """The report of the made-up run."""
    return render_report(html_inputs())
