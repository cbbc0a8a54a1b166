"""The performance suite's reports of an invented run: they contain every measurement, escaped, and
load nothing from the network."""

from __future__ import annotations

import html
import json
import re
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from perf.report import main_picture, terminal
from perf.report import page as html_page
from perf.report.__main__ import main
from perf.report.data import goal_title, limit_text, number, parse, sign, times
from tests.perf import made_up

MISSING = "not installed: no <rabbitmq-server> & no Erlang"


class Reader(HTMLParser):
    """The page's text outside scripts and styles, its tags, and all addresses that a browser would
    load."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        self.text = re.sub(r"[ \n]+", " ", " ".join(self.words))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]
        if tag in ("script", "style"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._open and self._open[-1] == tag:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if not self._open:
            self.words.append(data)


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    return made_up.results()


@pytest.fixture(scope="module")
def page(data: dict[str, Any]) -> str:
    return html_page.render(data)


@pytest.fixture(scope="module")
def read(page: str) -> Reader:
    return Reader(page)


def shown(data: dict[str, Any], width: int = 250) -> str:
    console = Console(file=StringIO(), width=width)
    terminal.show(data, console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def plots(page: str) -> list[dict[str, Any]]:
    found = re.search(r'<script type="application/json" id="plots">(.*?)</script>', page, re.DOTALL)
    assert found
    every: list[dict[str, Any]] = json.loads(found[1])
    return every


def test_the_page_has_every_row_note_and_candidate(data: dict[str, Any], read: Reader) -> None:
    texts = [row["title"] for row in data["rows"]] + data["notes"]
    texts += [each["key"] for each in data["candidates"]] + [each["title"] for each in data["candidates"]]
    texts += [row["note"] for row in data["rows"]]
    assert [text for text in texts if text not in read.text] == []


def test_the_page_has_every_goal(data: dict[str, Any], read: Reader) -> None:
    report = parse(data)
    texts = [text for goal in report.goals for text in (goal_title(report, goal), limit_text(goal))]
    texts += [times(goal.ratio) for goal in report.goals if goal.ratio is not None]
    assert [text for text in texts if text not in read.text] == []
    met, missed, unmeasured = report.counts()
    assert (met, missed, unmeasured) == (56, 6, 1)
    assert "56 goals met, 6 missed, 1 not measured" in read.text


def test_the_page_has_every_median_and_spread(data: dict[str, Any], read: Reader) -> None:
    report = parse(data)
    for row in report.results.rows:
        for candidate in row.readings:
            for metric in report.metrics_of(row):
                spread = report.spread(row, candidate, metric)
                assert spread is not None
                assert number(spread.median) in read.text
                assert f"{number(spread.low)} to {number(spread.high)}" in read.text


def test_the_page_and_the_facts_of_the_machine(data: dict[str, Any], read: Reader) -> None:
    assert [str(value) for value in data["machine"].values() if str(value) not in read.text] == []
    assert data["began"] in read.text
    assert "55 min 1 s" in read.text


def test_texts_are_escaped(page: str, read: Reader) -> None:
    assert MISSING in read.text
    assert "<b>gave up</b> & continued" in read.text
    assert "b" not in read.tags
    assert "rabbitmq-server" not in read.tags
    assert html.escape(MISSING) in page


def test_no_text_closes_a_script_or_is_read_by_plotly(data: dict[str, Any]) -> None:
    evil = "</script><b>evil</b>"
    candidates = [
        {**each, "key": evil if each["key"] == "nats" else each["key"]} for each in data["candidates"]
    ]
    rows = [
        {**row, "readings": {evil if key == "nats" else key: each for key, each in row["readings"].items()}}
        for row in data["rows"]
    ]
    page = html_page.render({**data, "candidates": candidates, "rows": rows})
    assert evil not in page
    assert page.count("</script>") == 3
    labels = {
        label
        for plot in plots(page)
        for trace in plot["data"]
        for label in trace["y"]
        if isinstance(label, str)
    }
    assert html.escape(evil, quote=False) in labels
    assert evil not in labels


def test_nothing_comes_from_the_network(page: str, read: Reader) -> None:
    assert [link for link in read.links if not link.startswith(("#", "data:"))] == []
    styles = "".join(re.findall(r"<style>(.*?)</style>", page, re.DOTALL))
    assert "url(" not in styles
    assert "@import" not in styles


def test_one_copy_of_plotly(page: str) -> None:
    assert page.count("plotly.js v") == 1


def test_every_plot_has_its_place(page: str) -> None:
    places = re.findall(r'id="plot-(\d+)"', page)
    assert sorted(map(int, places)) == list(range(len(plots(page))))


def test_every_colour_is_the_pages(page: str) -> None:
    named = set(re.findall(r'"@([a-z]+)"', json.dumps(plots(page))))
    defined = set(re.findall(r"--([a-z]+):", page))
    assert {"segment", "lmdb", "rocksdb", "kafka", "redis", "nats", "rabbitmq"} <= named <= defined


def test_durabilities_differ_without_colour(page: str) -> None:
    bars = next(
        trace for plot in plots(page) for trace in plot["data"] if "pattern" in trace.get("marker", {})
    )
    shapes = dict(zip(bars["y"], bars["marker"]["pattern"]["shape"], strict=True))
    assert shapes["segment-os"] == "" != shapes["segment-disk"]


def test_the_terminal_has_every_row_goal_and_note(data: dict[str, Any]) -> None:
    report, text = parse(data), shown(data)
    wanted = (
        [row["title"] for row in data["rows"]]
        + data["notes"]
        + [each["key"] for each in data["candidates"]]
        + [MISSING]
    )
    wanted += [each for goal in report.goals for each in (goal_title(report, goal), limit_text(goal))]
    assert [each for each in wanted if each not in text] == []
    assert "✓ 56 goals met" in text
    assert "✗ 6 missed" in text


def test_the_terminal_has_every_median(data: dict[str, Any]) -> None:
    report, text = parse(data), shown(data)
    for row in report.results.rows:
        for metric in (
            "rate",
            "per_cpu_s",
            "p50_ms",
            "p99_ms",
            "p999_ms",
            "ms",
            "idle_mb",
            "grew_mb",
            "made_up_ms",
        ):
            for candidate in row.readings:
                spread = report.spread(row, candidate, metric)
                assert spread is None or number(spread.median) in text


def test_what_failed_in_every_round_is_not_measured() -> None:
    """Two goals of the default engine; of LMDB its row, and with it the mean over all rows."""
    data = made_up.results()
    (row,) = (row for row in data["rows"] if row["key"] == "one-8")
    row["readings"] |= {"segment-os": [], "lmdb-disk": []}
    data = made_up.judged(data)
    assert parse(data).counts() == (56 - 3, 6, 1 + 4)
    page, text = Reader(html_page.render(data)).text, shown(data)
    assert "53 goals met, 6 missed, 5 not measured" in page
    assert "○ 5 not measured" in text
    for each in (page, text):
        assert "geometric mean over 23 of 24 rows of clients" in each


def test_without_kafka_without_goals_and_with_one_round() -> None:
    data = made_up.results(rounds=1)
    for each in data["candidates"]:
        if each["family"] == "kafka":
            each["missing"] = "not installed: no java"
    for row in data["rows"]:
        row["readings"] = {key: each for key, each in row["readings"].items() if not key.startswith("kafka")}
    data |= {"goals": [], "engines": []}
    page, text = Reader(html_page.render(data)).text, shown(data)
    for each in (page, text):
        assert "not installed: no java" in each
        assert "One round only" in each
    assert main_picture.plot(parse(data)) is None


def test_a_run_of_one_row() -> None:
    data = made_up.results()
    data |= {"rows": data["rows"][:1], "goals": [], "engines": [], "notes": []}
    assert data["rows"][0]["title"] in Reader(html_page.render(data)).text
    assert data["rows"][0]["title"] in shown(data)


def test_a_run_that_measured_nothing(data: dict[str, Any]) -> None:
    nothing = {**data, "rows": [], "goals": [], "engines": []}
    assert "segment-os" in Reader(html_page.render(nothing)).text
    assert "segment-os" in shown(nothing)


def test_the_picture_has_both_ratios_of_its_rows(data: dict[str, Any]) -> None:
    found = main_picture.plot(parse(data))
    assert found is not None
    assert [trace["y"] for trace in found.data] == [list(main_picture.ROWS.values())] * 2
    report = parse(data)
    for trace, metric in zip(found.data, main_picture.BARS, strict=True):
        ratios = [report.results.ratio(key, metric, "segment-os", "kafka") for key in main_picture.ROWS]
        assert [each + trace["base"] for each in trace["x"]] == pytest.approx(
            [ratio.median for ratio in ratios if ratio]
        )


def test_the_picture_alone_names_no_colour(data: dict[str, Any]) -> None:
    report = parse(data)
    found = main_picture.plot(report)
    assert found is not None
    assert '"@' not in json.dumps(main_picture.painted(main_picture.standalone(report, found)))


def test_the_picture_says_which_durability_is_compared(data: dict[str, Any]) -> None:
    found = main_picture.plot(parse(data))
    assert found is not None
    alone = main_picture.standalone(parse(data), found)["layout"]["title"]["subtitle"]["text"]
    for each in (found.note, alone):
        assert "durability os as a multiple of Apache Kafka 4.3.1 with its defaults" in each


def test_rows_that_would_count_twice_are_in_no_mean(data: dict[str, Any]) -> None:
    rows = [row for row in data["rows"] if not row["key"].endswith("-acks1")]
    backlog = next(row for row in rows if row["key"] == "one-8") | {"key": "one-8-backlog"}
    assert len(rows) == len(data["rows"]) - 2
    assert parse({**data, "rows": [*data["rows"], backlog]}).mean_ratio("rate") == parse(
        {**data, "rows": rows}
    ).mean_ratio("rate")


def test_signs(data: dict[str, Any]) -> None:
    report = parse(data)
    assert {sign(goal) for goal in report.results.goals} == {"✓", "✗", "○"}
    assert {sign(goal) for goal in report.results.engines} == {"✓", "·"}


def test_right_is_better_on_the_scorecard(data: dict[str, Any]) -> None:
    """For values that should be small the bar shows how many times smaller, so a goal that is met
    always ends to the right of its mark."""
    report = parse(data)
    for goal in report.results.goals:
        limit = goal.at_least if goal.at_least is not None else goal.at_most
        if goal.ratio is not None and limit is not None:
            assert (html_page.better(goal, goal.ratio) >= html_page.better(goal, limit)) == goal.met


def test_the_scale_keeps_everything_on_it() -> None:
    scale = html_page.Scale([0.05, 20])
    assert 0 < scale.place(0.05) < scale.place(1) < scale.place(20) < 100
    assert scale.place(1) == pytest.approx(50, abs=0.1)
    assert [text.partition(" ")[0] for _, text in scale.ticks()] == [
        "0.05",
        "0.1",
        "0.2",
        "0.5",
        "1",
        "2",
        "5",
        "10",
        "20",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (0.0049, "0.005"), (0.41, "0.410"), (9.996, "10.0"), (54, "54"), (543.2, "543"),
        (999.6, "1\u202f000"),
        (4_500, "4\u202f500"), (69_300, "69.3 k"), (99_960, "100 k"), (999_900, "1.00 M"),
        (1_424_000, "1.42 M"), (2e9, "2 G"),
    ],
)  # fmt: skip
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text


def test_the_command(tmp_path: Path, data: dict[str, Any]) -> None:
    results, page = tmp_path / "run.json", tmp_path / "new" / "page.html"
    results.write_text(json.dumps(data))
    done = CliRunner().invoke(main, [str(results), "--html", str(page)])
    assert done.exit_code == 0, done.output
    assert "56 goals met" in done.output
    assert "56 of 62" in page.read_text()
    assert [each.name for each in page.parent.iterdir()] == ["page.html"]


def test_the_command_and_another_file(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"machine": {}}')
    done = CliRunner().invoke(main, [str(other)])
    assert done.exit_code == 1
    assert "is not a run of the suite" in done.output
