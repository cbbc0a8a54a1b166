"""Pages: complete and self-contained, plots that Plotly accepts, and texts from records that remain
text."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import plotly.graph_objects as go
import pytest

from kbroker_pipeline import archive_page, figures, health_page, letters_page, report, verify_page
from kbroker_pipeline.report import Figure, Headline, Page, Section, Table, Tagged
from spark.tests.pipeline_samples import NASTY, archived, health, letters, verified

PAGES = {
    "archive": archive_page.page(archived()),
    "queue-health": health_page.page(health()),
    "dead-letter-report": letters_page.page(letters()),
    "verify": verify_page.page(verified()),
}
EMPTY = {
    "archive": archive_page.page(archived(empty=True)),
    "queue-health": health_page.page(health(empty=True)),
    "dead-letter-report": letters_page.page(letters(empty=True)),
    "verify": verify_page.page(verified(empty=True)),
}
VOID = {"meta", "link", "rect", "path", "br"}


class Outline(HTMLParser):
    """Elements that are open at the end, external addresses, and all text outside of scripts and
    styles."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loaded += [
            value or ""
            for name, value in attrs
            if name in ("src", "href") and not (value or "").startswith("data:")
        ]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.text.append(data)


def outline(html: str) -> Outline:
    found = Outline()
    found.feed(html)
    found.close()
    return found


@pytest.mark.parametrize("pages", [PAGES, EMPTY], ids=["full", "empty"])
@pytest.mark.parametrize("job", sorted(PAGES))
def test_pages_are_whole(job: str, pages: dict[str, Page]) -> None:
    page = pages[job]
    found = outline(report.render(page))
    assert found.open == []
    assert found.loaded == [], "a page loads nothing"
    text = " ".join(found.text)
    for expected in (
        page.title,
        page.summary,
        *(each.label for each in page.headlines),
        *(each.title for each in page.sections),
    ):
        assert expected in text


@pytest.mark.parametrize("job", sorted(PAGES))
def test_texts_of_records_stay_texts(job: str) -> None:
    html = report.render(PAGES[job])
    assert NASTY not in html
    script = re.search(r'<script type="application/json" id="figures">(.*?)</script>', html, re.DOTALL)
    assert script is not None
    assert "<" not in script[1]
    assert isinstance(json.loads(script[1]), list)


@pytest.mark.parametrize("job", sorted(PAGES))
def test_plots_are_plotlys(job: str) -> None:
    """Plotly checks every name and value; the page's script sets the colors."""
    plots = [
        part
        for page in (PAGES[job], EMPTY[job])
        for section in page.sections
        for part in section.parts
        if isinstance(part, Figure)
    ]
    assert plots
    for plot in plots:
        coloured = json.loads(
            re.sub(r'"@[a-z]+(?:/[\d.]+)?"', '"#123456"', json.dumps([plot.data, plot.layout]))
        )
        go.Figure(data=coloured[0], layout=coloured[1])
        css = (Path(report.__file__).parent / "templates" / "page.css").read_text()
        assert all(f"--{name}:" in css for name in re.findall(r'"@([a-z]+)', json.dumps(plot.data)))


def test_tables_have_a_cell_for_each_column() -> None:
    tables = [
        part
        for page in PAGES.values()
        for section in page.sections
        for part in section.parts
        if isinstance(part, Table)
    ]
    assert sum(len(table.rows) for table in tables) > 20
    assert [
        table.columns for table in tables if any(len(row) != len(table.columns) for row in table.rows)
    ] == []


def test_status_says_what_is_wrong() -> None:
    assert [PAGES[job].status.tone for job in ("queue-health", "verify")] == ["warn", "bad"]
    assert [EMPTY[job].status.tone for job in ("queue-health", "verify")] == ["good", "good"]


def test_checks_that_were_not_done_have_not_passed() -> None:
    page = verify_page.page(verified(empty=True)._replace(unread="dlq-0 is damaged"))
    assert (page.status.text, page.status.tone) == ("check incomplete", "bad")


def test_a_page_replaces_the_last_one(tmp_path: Path) -> None:
    page = Page(
        "One",
        "",
        Tagged("fine", "good"),
        (),
        [Headline("Number", "1")],
        sections=[Section("A", "", [Table("", [("x", "left")], [["y"]])])],
    )
    first = report.write(page, tmp_path / "new" / "page.html")
    second = report.write(page, tmp_path / "new" / "page.html")
    assert first == second
    assert [path.name for path in first.parent.iterdir()] == ["page.html"]
    assert "Plotly.react" in first.read_text(), "its script"
    assert len(first.read_text()) < 100_000, "without plots a page has no use for Plotly"


def test_numbers_as_people_write_them() -> None:
    assert [report.human_count(value) for value in (0, 950, 12_400, 1_240_000, 3.2e9)] == [
        "0",
        "950",
        "12,400",
        "1.24 M",
        "3.20 G",
    ]
    assert [report.human_bytes(size) for size in (12, 1536, 5 << 30)] == ["12 B", "1.5 KiB", "5.0 GiB"]
    durations = (None, 0.45, 12, 200, 3600, 7500, 360_000)
    assert [report.human_duration(each) for each in durations] == [
        "-",
        "450 ms",
        "12.0 s",
        "3 min 20 s",
        "1 h",
        "2 h 5 min",
        "4 d 4 h",
    ]
    assert report.human_time(1_795_334_400_000) == "2026-11-22 08:00:00 UTC"
    assert report.human_time(1_795_334_400_000_000) == "1795334400000000 ms", (
        "a producer has sent microseconds"
    )
    assert [figures.moment(at) for at in (-(10**17), 0, 10**17)] == [
        "0001-01-01 00:00:00.000", "1970-01-01 00:00:00.000", "9999-12-31 23:59:59.000",
    ]  # fmt: skip
    assert [report.human_share(1, 8), report.human_share(1, 0)] == ["12.5 %", "-"]


def test_excerpts() -> None:
    assert report.excerpt(None) is None
    assert report.excerpt(b"") == ""
    assert report.excerpt("grün\n\x1b[31m".encode()) == "grün\\n\\x1b[31m"
    assert report.excerpt(b"\x00\xff\x01") == "0x00ff01"
    assert report.excerpt(b"\xff" * 100, 10) == "0x" + "ff" * 5 + "…"
    assert report.excerpt(b"a" * 121) == "a" * 119 + "…"
    assert report.excerpt(("a" * 9 + "é" * 4000).encode(), 10) == "a" * 9 + "…", (
        "cut in the middle of a character"
    )


def test_buckets_are_round_and_few() -> None:
    for span_ms in (0, 1, 47_000, 86_400_000, 10**12):
        width = figures.buckets(1000, 1000 + span_ms)
        assert width % 1000 == 0
        assert span_ms / width <= 48
