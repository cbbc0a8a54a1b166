"""A run of the suite on the terminal: the candidates, a table for each group of rows, and the
scorecard of goals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from perf.report.data import (
    GROUPS,
    Report,
    between,
    by_pair,
    goal_title,
    limit_text,
    number,
    parse,
    short_name,
    sign,
    times,
)
from perf.suite.results import CandidateFacts, GoalResult, RowResult

_STYLES = {"✓": "green", "✗": "bold red", "○": "yellow", "·": "dim"}
_OF_RATES = ("rate", "per_cpu_s", "of_ideal")
_ELSEWHERE = ("rate", "per_cpu_s", "cpu_share", "rss_mb")
"""Rows about a rate show only the metrics of `_OF_RATES`; the others show all except these. The
page and the JSON have everything."""
_LITTLE = ("cpu_s", "rss_mb", "idle_mb")
_IN_FULL = ("waiting", "transactions", "compaction")
"""Rows of these groups show all metrics except those of `_LITTLE`."""


def show(data: Mapping[str, Any], console: Console) -> None:
    """Shows `data`, the suite's JSON. Tables need about 140 columns, and wrap if there are
    fewer."""
    report = parse(data)
    console.print(_head(report))
    console.print(_candidates(report))
    for group in report.groups():
        console.print(_group(report, group))
    if report.goals:
        console.print(_scorecard(report))
        console.print(_verdict(report))
    for note in report.results.notes:
        console.print(Text(f"note: {note}", style="yellow"))


def _head(report: Report) -> Panel:
    lines = [Text.assemble((f"{name}: ", "dim"), text) for name, text in report.facts()]
    how = "One round only, so no spreads."
    if report.rounds() > 1:
        how = (
            f"Medians of {report.rounds()} interleaved rounds; under each the spread, half of lowest to "
            "highest in percent."
        )
    return Panel(
        Group(*lines, Text(how, style="dim")), title="kbroker, performance suite", title_align="left"
    )


def _candidates(report: Report) -> Table:
    table = Table(title="Candidates", title_justify="left")
    for column in ("key", "what", "version", "durability", ""):
        table.add_column(column)
    for each in report.results.candidates:
        found = (
            Text(each.missing, style="yellow")
            if each.missing is not None
            else Text("measured", style="green")
        )
        table.add_row(Text(each.key), Text(each.title), Text(each.version), Text(each.durability), found)
    return table


def _group(report: Report, group: str) -> Table:
    rows = report.rows_of(group)
    candidates = report.shown_in(rows)
    table = Table(title=GROUPS.get(group, (group, ""))[0], title_justify="left")
    table.add_column("workload", min_width=24)
    for each in candidates:
        table.add_column(Text(each.key.replace("-", "\n", 1)), justify="right", no_wrap=True)
    for row in rows:
        for count, metric in enumerate(_metrics(report, row)):
            described = report.metric(metric)
            name = Text.assemble(row.title, "\n") if not count else Text()
            name.append(
                described.unit if metric in ("rate", "per_cpu_s") else f"{described.title}, {described.unit}",
                style="dim",
            )
            table.add_row(name, *(_cell(report, row, each, metric) for each in candidates))
        table.add_section()
    return table


def _metrics(report: Report, row: RowResult) -> list[str]:
    found = report.metrics_of(row)
    if row.group in _IN_FULL:
        return [metric for metric in found if metric not in _LITTLE]
    if "rate" in found and row.group != "latency":
        return [metric for metric in found if metric in _OF_RATES]
    return [metric for metric in found if metric not in _ELSEWHERE] or found or ["rate"]


def _cell(report: Report, row: RowResult, candidate: CandidateFacts, metric: str) -> Text:
    spread = report.spread(row, candidate.key, metric)
    if spread is None:
        is_open = not row.readings.get(candidate.key) and candidate in report.shown_in([row])
        return Text("not\nmeasured" if is_open else "-", style="dim")
    beside = f"\n±{spread.percent:.0f} %" if report.rounds() > 1 else ""
    return Text.assemble(number(spread.median), (beside, "dim"))


def _scorecard(report: Report) -> Table:
    table = Table(title="Goals: ratios of the same round, median (lowest to highest)", title_justify="left")
    for column in ("", "workload", "metric"):
        table.add_column(column)
    for column in ("ratio", "of the rounds", "goal"):
        table.add_column(column, justify="right", no_wrap=True)
    for pair, goals in by_pair(report.goals).items():
        met, missed, open_ = report.counts(goals)
        counted = (
            f": {met} met, {missed} missed" + (f", {open_} not measured" if open_ else "")
            if met + missed + open_
            else ""
        )
        table.add_section()
        table.add_row("", Text(f"{pair}{counted}", style="bold"))
        for goal in goals:
            table.add_row(*_goal(report, goal))
    return table


def _goal(report: Report, goal: GoalResult) -> list[Text]:
    mark = sign(goal)
    ratio = times(goal.ratio) if goal.ratio is not None else "not measured"
    rounds = between(goal.low, goal.high) if goal.low is not None and goal.high is not None else ""
    cells = (goal_title(report, goal), short_name(report, goal.metric))
    style = _STYLES[mark]
    return [
        Text(mark, style=style),
        *map(Text, cells),
        Text(ratio, style=style),
        Text(rounds, style="dim"),
        Text(limit_text(goal)),
    ]


def _verdict(report: Report) -> Text:
    met, missed, unmeasured = report.counts()
    text = Text.assemble(
        (f"✓ {met} goals met", "green"), "   ", (f"✗ {missed} missed", "red" if missed else "dim")
    )
    return text.append(f"   ○ {unmeasured} not measured", style="yellow") if unmeasured else text
