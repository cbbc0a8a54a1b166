"""A run of the suite as one self-contained HTML page. It needs no network, has a light and a dark
theme, and can be printed.

The template escapes texts of the run (reasons, notes). Data inside scripts is JSON that cannot
contain a closing tag.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from perf.report import main_picture
from perf.report.data import (
    GROUPS,
    OURS,
    THEIRS,
    TIMES,
    Report,
    Spread,
    between,
    by_pair,
    goal_title,
    kind,
    limit_text,
    number,
    parse,
    short_name,
    sign,
    times,
    with_unit,
)
from perf.report.plots import CURVES, Plot, curve_plots, row_plot
from perf.suite.results import CandidateFacts, GoalResult

_HERE = Path(__file__).with_name("templates")
_LOOK = Path(__file__).parents[2] / "spark" / "src" / "kbroker_pipeline" / "templates"
"""The templates of the pipeline's pages, whose style this page shares."""


@dataclass(frozen=True, slots=True)
class Headline:
    label: str
    value: str
    note: str
    tone: str = "neutral"


@dataclass(frozen=True, slots=True)
class Bar:
    """One goal on the scale of the scorecard. Positions are in percent of its width."""

    goal: GoalResult
    title: str
    metric: str
    sign: str
    ratio: str
    rounds: str
    limit: str
    start: float
    width: float
    low: float
    high: float
    mark: float | None
    lines: int
    """The number of bars of the same workload, counted from this one; 0 if it is not the first of
    them."""

    @property
    def tone(self) -> str:
        return {"✓": "good", "✗": "bad", "○": "open"}.get(self.sign, "plain")


@dataclass(frozen=True, slots=True)
class Section:
    key: str
    title: str
    note: str
    curves: Sequence[Plot]
    cards: Sequence[Plot]


class Scale:
    """A log scale that contains all of these values, and 1."""

    def __init__(self, values: Iterable[float]) -> None:
        found = [1.0, *(value for value in values if value > 0)]
        self._low = math.log10(min(found)) - 0.08
        self._high = math.log10(max(found)) + 0.08

    def place(self, value: float) -> float:
        """The position in percent from the left."""
        at = (math.log10(value) - self._low) / (self._high - self._low) if value > 0 else 0.0
        return round(100 * min(1.0, max(0.0, at)), 2)

    def ticks(self) -> list[tuple[float, str]]:
        steps = [
            step * 10.0**power
            for power in range(math.floor(self._low), math.ceil(self._high) + 1)
            for step in (1, 2, 5)
        ]
        return [
            (self.place(step), f"{step:g} {TIMES}")
            for step in steps
            if self._low <= math.log10(step) <= self._high
        ]


def write(data: Mapping[str, Any], path: Path) -> Path:
    """Writes the page of `data`, the suite's JSON. Replaces the file atomically. Returns the
    absolute path."""
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(render(data), encoding="utf-8")
    temporary.replace(path)
    return path


def render(data: Mapping[str, Any]) -> str:
    """The page as HTML. Jinja and Plotly's JavaScript are loaded only here, since they are slow to
    load."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from plotly.offline import get_plotlyjs

    report = parse(data)
    picture = main_picture.plot(report)
    curves = curve_plots(report)
    groups = dict.fromkeys([*report.groups(), *(["scale"] if curves else [])])
    sections = [_section(report, group, curves if group == "scale" else []) for group in groups]
    plots = [
        *([picture] if picture else []),
        *(plot for section in sections for plot in (*section.curves, *section.cards)),
    ]
    environment = Environment(
        loader=FileSystemLoader([_HERE, _LOOK]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["kind"] = kind
    return environment.get_template("report.html.j2").render(
        report=report,
        counts=report.counts(),
        headlines=list(_headlines(report)),
        picture=picture,
        picture_bars=main_picture.BARS.values(),
        goals=_scorecard(report, report.results.goals),
        engines=_engines(report),
        sections=sections,
        readings=_readings(report),
        numbers={id(plot): count for count, plot in enumerate(plots)},
        identity=id,
        plots=script_json([{"data": plot.data, "layout": plot.layout} for plot in plots]),
        plotly=get_plotlyjs() if plots else "",
    )


def script_json(value: object) -> str:
    """JSON that is safe in a script element: no text can close it."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _section(report: Report, group: str, curves: Sequence[Plot]) -> Section:
    """The section of a group. Rows of the group `scale` that are in a curve have no card, since the
    curve shows them."""
    title, note = GROUPS.get(group, (group, ""))
    drawn = {key for curve in CURVES for key in curve.points.values()} if curves else set()
    cards = [row_plot(report, row) for row in report.rows_of(group) if row.key not in drawn]
    return Section(group, title, note, curves, cards)


# --- the large numbers at the top ---


def _headlines(report: Report) -> Iterable[Headline]:
    met, missed, unmeasured = report.counts()
    if met + missed:
        note = f"{missed} missed" + (f", {unmeasured} not measured" if unmeasured else "")
        yield Headline("goals met", f"{met} of {met + missed}", note, "good" if not missed else "warn")
    for metric, title in (("rate", "throughput"), ("per_cpu_s", "per broker CPU second")):
        mean = report.mean_ratio(metric)
        if mean is not None:
            yield Headline(title, times(mean[0]), f"{OURS} / {THEIRS}, geometric mean of {mean[1]} rows")
    for key, metric, title in (
        ("e2e-1000", "p99_ms", "end to end, p99"),
        ("first-record", "ms", "subscribe to first record"),
        ("memory", "rss_anon_mb", "memory, loaded"),
    ):
        ours, theirs = (report.results.median(key, each, metric) for each in (OURS, THEIRS))
        if ours is not None:
            unit = report.metric(metric).unit
            yield Headline(
                title,
                f"{number(ours)} {unit}",
                f"{THEIRS}: {number(theirs)} {unit}" if theirs is not None else OURS,
            )


# --- the scorecard ---


def better(goal: GoalResult, value: float) -> float:
    """The value for a scale on which right is better: the inverse for metrics that should be
    small."""
    return 1 / value if goal.at_most is not None and value else value


@dataclass(frozen=True, slots=True)
class Scorecard:
    """`pairs`: the compared candidates, the numbers of goals met, missed and not measured, and the
    bars. `one`: the position of 1 in percent."""

    pairs: Sequence[tuple[str, tuple[int, int, int], Sequence[Bar]]]
    ticks: Sequence[tuple[float, str]]
    one: float


def _scorecard(report: Report, goals: Sequence[GoalResult]) -> Scorecard:
    found = [
        (goal, value)
        for goal in goals
        for value in (goal.low, goal.high, goal.ratio, goal.at_least, goal.at_most)
    ]
    scale = Scale(better(goal, value) for goal, value in found if value is not None)
    pairs = [
        (pair, report.counts(each), list(_bars(report, each, scale))) for pair, each in by_pair(goals).items()
    ]
    return Scorecard(pairs, scale.ticks(), scale.place(1))


@dataclass(frozen=True, slots=True)
class Engines:
    """The engines side by side, one column for each pair. `lines`: a workload and its bar in each
    column, or None."""

    card: Scorecard
    lines: Sequence[tuple[str, Sequence[Bar | None]]]


def _engines(report: Report) -> Engines:
    card = _scorecard(report, report.results.engines)
    columns = [{bar.title: bar for bar in bars} for _, _, bars in card.pairs]
    titles = dict.fromkeys(title for column in columns for title in column)
    return Engines(card, [(title, [column.get(title) for column in columns]) for title in titles])


def _bars(report: Report, goals: Sequence[GoalResult], scale: Scale) -> Iterable[Bar]:
    for _, same in groupby(goals, key=lambda goal: goal_title(report, goal)):
        of_one = list(same)
        yield from (
            _bar(report, goal, scale, 0 if count else len(of_one)) for count, goal in enumerate(of_one)
        )


def _bar(report: Report, goal: GoalResult, scale: Scale, lines: int) -> Bar:
    def place(value: float | None) -> float:
        return scale.place(better(goal, value if value is not None else 1.0))

    one, end = scale.place(1), place(goal.ratio)
    low, high = sorted((place(goal.low), place(goal.high)))
    limit = goal.at_least if goal.at_least is not None else goal.at_most
    known = goal.low is not None and goal.high is not None
    return Bar(
        goal=goal,
        title=goal_title(report, goal),
        metric=short_name(report, goal.metric),
        sign=sign(goal),
        ratio=times(goal.ratio) if goal.ratio is not None else "not measured",
        rounds=between(goal.low or 0, goal.high or 0) if known else "",
        limit=limit_text(goal),
        start=min(one, end),
        width=round(abs(end - one), 2),
        low=low,
        high=high,
        mark=place(limit) if limit is not None else None,
        lines=lines,
    )


# --- all readings ---


@dataclass(frozen=True, slots=True)
class Readings:
    """All readings. `lines`: row, candidate, rounds, and a pair of texts (median, lowest to
    highest) for each column."""

    columns: Sequence[str]
    lines: Sequence[tuple[str, CandidateFacts, int, Sequence[tuple[str, str]]]]


def _texts(spread: Spread) -> tuple[str, str]:
    return number(
        spread.median
    ), f"{number(spread.low)} to {number(spread.high)}" if spread.high > spread.low else ""


def _readings(report: Report) -> Readings:
    metrics = list(dict.fromkeys(metric for row in report.results.rows for metric in report.metrics_of(row)))
    metrics = [metric for metric in report.metrics if metric in metrics] + [
        metric for metric in metrics if metric not in report.metrics
    ]
    lines = []
    for row in report.results.rows:
        for each in report.shown_in([row]):
            spreads = [report.spread(row, each.key, metric) for metric in metrics]
            cells = [_texts(spread) if spread is not None else ("", "") for spread in spreads]
            lines.append((report.title(row.key), each, len(row.readings.get(each.key, ())), cells))
    return Readings([with_unit(report, metric) for metric in metrics], lines)
