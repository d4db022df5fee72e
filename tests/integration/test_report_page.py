"""Open the report in a real browser."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import report_data
from browser import CHROMIUM, FLAGS

from domain_embeddings.core.reporting.html import ReportInputs, render_report
from domain_embeddings.core.reporting.recommend import recommend_width

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH")


def open_page(page: Path, folder: Path, *flags: str) -> tuple[str, set[str]]:
    """Load a page; return its DOM and what the page itself asked the network for."""
    log = folder / f"{page.stem}.net.json"
    command = [
        str(CHROMIUM),
        *FLAGS,
        *flags,
        f"--user-data-dir={folder / page.stem}",
        f"--log-net-log={log}",
        "--dump-dom",
        page.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    events = json.loads(log.read_text(encoding="utf-8"))["events"]
    asked = {
        event["params"]["url"]
        for event in events
        # The browser's own requests (updates, clock) have no origin.
        if event.get("params", {}).get("initiator", "not an origin") != "not an origin"
    }
    return done.stdout, asked


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    entries = report_data.report_inputs()
    data = {"Rows read": entries.pop("ingestion_report")}
    data |= {"Rows dropped": entries.pop("curation_report"), "Pairs": entries.pop("pairing_report")}
    html = render_report(
        ReportInputs(
            width_recommendation=recommend_width(entries["truncation_scores"], report_data.WIDTHS),
            **entries,
            data_reports=data,
            leakage_policy="drop",
            settings={},
            confidence=0.95,
            seed=0,
        )
    )
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(html, encoding="utf-8")
    return path


def test_the_browser_shows_answer_table_and_drawings(report, tmp_path):
    dom, asked = open_page(report, tmp_path)
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", dom.split("</style>")[1]))
    assert text.strip().startswith("Adaptation report")
    assert "Ship width 128: 512" in text
    text = text.replace("&nbsp;", " ")
    assert re.search(r"recommended 128 512 MB 69\.4 \[68\.8, 70\.0\] 0\.4 \[0\.2, 0\.6\]", text)
    assert "Got worse: none" in text
    assert len(re.findall(r"<svg [^>]*role=\"img\"", dom)) == 9
    headings = re.findall(r"<h2>([^<]+)</h2>", dom)
    assert headings == [
        "What got better, what got worse",
        "Retention: what became of general text",
        "What else you could ship",
        "Quality by width",
        "What it costs",
        "Geometry before and after",
        "Data",
        "Training",
        "Provenance",
    ]
    assert asked == set()


def test_every_drawing_has_lines_or_points_and_readable_axes(report, tmp_path):
    dom, _ = open_page(report, tmp_path)
    drawings = re.findall(r"<svg [^>]*role=\"img\".*?</svg>", dom, flags=re.DOTALL)
    assert len(drawings) == 9
    for drawing in drawings:
        label = re.search(r'aria-label="([^"]+)"', drawing)
        assert label is not None
        assert drawing.count("<path") + drawing.count("<use") > 10, label[1]
        assert "var(--" in drawing, label[1]
        assert re.search(r"<text[^>]*>[^<]*[a-z]", drawing), label[1]
    text = " ".join(re.findall(r"<text[^>]*>([^<]+)</text>", "".join(drawings)))
    for unit in ("points of 100", "width (dimensions)", "% of the variance", "no unit", "step"):
        assert unit in text


def pages(report: Path, folder: Path, name: str, change=lambda html: html) -> int:
    """Print a changed copy of the report; count its sheets of paper."""
    page, paper = folder / f"{name}.html", folder / f"{name}.pdf"
    page.write_text(change(report.read_text(encoding="utf-8")), encoding="utf-8")
    command = [
        *(str(CHROMIUM), *FLAGS, f"--user-data-dir={folder / name}"),
        *("--no-pdf-header-footer", f"--print-to-pdf={paper}", page.as_uri()),
    ]
    subprocess.run(command, capture_output=True, timeout=120, check=True)
    return len(re.findall(rb"/Type\s*/Page\b", paper.read_bytes()))


def test_what_is_folded_on_the_screen_is_printed(report, tmp_path):
    printed = pages(report, tmp_path, "as_is")
    opened = pages(
        report, tmp_path, "opened", lambda html: html.replace("<details", "<details open")
    )
    without = pages(
        report, tmp_path, "without",
        lambda html: re.sub(r"<details.*?</details>", "", html, flags=re.DOTALL),
    )  # fmt: skip
    assert printed == opened > without


def test_a_page_that_asks_the_network_would_be_noticed(tmp_path):
    page = tmp_path / "asking.html"
    page.write_text('<img src="http://127.0.0.1:9/picture.png">', encoding="utf-8")
    _, asked = open_page(page, tmp_path)
    assert asked == {"http://127.0.0.1:9/picture.png"}


def test_light_and_dark_pages_differ_in_colour_only(report, tmp_path):
    image = pytest.importorskip("PIL.Image")
    brightness = {}
    for scheme, flags in (("light", []), ("dark", ["--blink-settings=preferredColorScheme=0"])):
        shot = tmp_path / f"{scheme}.png"
        command = [
            str(CHROMIUM),
            *FLAGS,
            *flags,
            f"--user-data-dir={tmp_path / scheme}",
            "--window-size=1200,1600",
            f"--screenshot={shot}",
            report.as_uri(),
        ]
        subprocess.run(command, capture_output=True, timeout=120, check=True)
        picture = image.open(shot).convert("L")
        brightness[scheme] = sum(picture.resize((60, 80)).tobytes()) / 4800
    assert brightness["light"] > 220
    assert brightness["dark"] < 60
