"""The plots of the page, as Plotly's `data` and `layout`. Names such as `@segment` are colours,
which the page maps for its light or dark theme.

There is one card for each row, with its candidates below each other, so that every workload has its
own scale; and there are scaling curves.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from perf.report.data import ABOUT_RATES, PERCENTILES, Report, Spread, kind, number, times, with_unit
from perf.suite.results import CandidateFacts, RowResult

COLOURS = ("segment", "lmdb", "rocksdb", "memory", "kafka", "redis", "nats", "rabbitmq")
"""The kinds with a colour in report.css; all others are grey."""

_LINE_PX, _HEAD_PX, _TICKS_PX = 21, 40, 22
_LABELS = 0.2
"""The part of a card's width that the candidates' names take."""


@dataclass(frozen=True, slots=True)
class Plot:
    title: str
    note: str
    data: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any]
    height_px: int


class Curve(NamedTuple):
    """A scaling curve. `points`: the row of each number."""

    title: str
    along: str
    points: Mapping[int, str]


CURVES = (
    Curve("Share-partitions", "share-partitions", {10: "share-partitions-10", 1000: "share-partitions-1000"}),
    Curve("Members of a group", "members", {8: "members-8", 500: "members-500"}),
    Curve(
        "Consumers on one partition, large batches",
        "consumers",
        {1: "share-implicit-1", 8: "share-implicit-8", 32: "share-implicit-32"},
    ),
    Curve("Consumers that take one record at a time", "consumers", {1: "one-1", 8: "one-8"}),
)

_RATES = ("rate", "per_cpu_s")
_PANELS = (
    ("percentiles", "cpu_s"),
    _RATES,
    ("ms", "cpu_s"),
    ("idle_mb", "rss_anon_mb"),
    ("rss_anon_mb", "grew_mb"),
)
"""The panels of a row: the first of these tuples whose first metric was read. For groups about
rates, the rates come first."""


def label(text: object) -> str:
    """Escapes a text, since Plotly interprets a few tags."""
    return html.escape(str(text), quote=False)


def colour(candidate: CandidateFacts) -> str:
    return f"@{kind(candidate)}" if kind(candidate) in COLOURS else "@grey"


def row_plot(report: Report, row: RowResult) -> Plot:
    """The card of a row: side-by-side panels with the main metrics of its group, for each
    candidate."""
    candidates = report.shown_in([row])
    panels = panels_of(report, row)
    data: list[dict[str, Any]] = []
    layout: dict[str, Any] = {"annotations": [], "bargap": 0.24, "shapes": []}
    for count, (metric, (left, right)) in enumerate(zip(panels, _domains(panels), strict=True), 1):
        number_of_axis = "" if count == 1 else str(count)
        draw = _percentiles if metric == "percentiles" else _bars
        traces, axis, texts = draw(report, row, candidates, metric)
        data += [{**trace, "xaxis": f"x{number_of_axis}", "yaxis": f"y{number_of_axis}"} for trace in traces]
        layout[f"xaxis{number_of_axis}"] = {"domain": [left, right], "anchor": f"y{number_of_axis}", **axis}
        layout[f"yaxis{number_of_axis}"] = _names(candidates, f"x{number_of_axis}", shown=count == 1)
        layout["annotations"] += [
            {**text, "xref": f"x{number_of_axis}", "yref": f"y{number_of_axis}"} for text in texts
        ]
        layout["annotations"].append(_head(_panel_title(report, metric), left))
    height_px = _HEAD_PX + _LINE_PX * len(candidates) + (_TICKS_PX if "percentiles" in panels else 0)
    return Plot(row.title, row.note, data, layout, height_px)


def panels_of(report: Report, row: RowResult) -> list[str]:
    found = report.metrics_of(row)
    if any(metric in found for metric in PERCENTILES):
        found = ["percentiles", *found]
    possible = (_RATES, *_PANELS) if row.group in ABOUT_RATES else _PANELS
    for panels in possible:
        if panels[0] in found:
            return [metric for metric in panels if metric in found]
    return found[:2] or ["rate"]


def _domains(panels: Sequence[str]) -> list[tuple[float, float]]:
    """Left and right of each panel; percentiles have more room than bars."""
    weights = [1.9 if panel == "percentiles" else 1.0 for panel in panels]
    gap = 0.04
    unit = (1 - _LABELS - gap * (len(panels) - 1)) / sum(weights)
    domains, left = [], _LABELS
    for weight in weights:
        domains.append((round(left, 4), round(left + weight * unit, 4)))
        left += weight * unit + gap
    return domains


def _names(candidates: Sequence[CandidateFacts], anchor: str, *, shown: bool) -> dict[str, Any]:
    """The axis of the candidates, the first one on top. Its range is fixed, so that a candidate
    without readings has a line too."""
    keys = [label(each.key) for each in candidates]
    return {
        "type": "category",
        "categoryorder": "array",
        "categoryarray": keys,
        "tickvals": keys,
        "range": [len(keys) - 0.5, -0.5],
        "anchor": anchor,
        "showticklabels": shown,
        "ticks": "",
        "ticksuffix": " ",
        "showgrid": False,
        "zeroline": False,
    }


def _head(text: str, left: float) -> dict[str, Any]:
    """The title above a panel."""
    font = {"size": 12, "color": "@soft"}
    place = {"x": left, "xref": "paper", "xanchor": "left", "y": 1, "yref": "paper", "yanchor": "bottom"}
    return {"text": label(text), "showarrow": False, "font": font, **place}


def _panel_title(report: Report, metric: str) -> str:
    if metric == "percentiles":
        return "p50 ●  p99 ◆  p99.9 ■   (ms, log)"
    return with_unit(report, metric)


_Panel = tuple[list[dict[str, Any]], dict[str, Any], list[dict[str, Any]]]
"""Traces, the axis, annotations."""


def _bars(report: Report, row: RowResult, candidates: Sequence[CandidateFacts], metric: str) -> _Panel:
    """A bar for each candidate, with its value, and for kbroker with its ratio to Kafka of the same
    durability."""
    found = [
        (each, spread) for each in candidates if (spread := report.spread(row, each.key, metric)) is not None
    ]
    most = max((spread.high for _, spread in found), default=1.0)
    least = min((spread.low for _, spread in found), default=0.0)
    # space for the numbers; the panel beside percentiles is narrow
    room = 1.4 if "percentiles" in panels_of(report, row) else 0.75
    trace = {
        "type": "bar",
        "orientation": "h",
        "x": [spread.median for _, spread in found],
        "y": [label(each.key) for each, _ in found],
        "marker": {
            "color": [colour(each) for each, _ in found],
            "line": {"color": [colour(each) for each, _ in found], "width": 1},
            "pattern": _pattern(each for each, _ in found),
        },
        "error_x": _errors([spread for _, spread in found]),
        "hovertext": [_hover(report, row, each, metric, spread) for each, spread in found],
        "hoverinfo": "text",
    }
    texts = [
        _beside(each, max(0.0, spread.high), _value_text(report, row, each, metric, spread))
        for each, spread in found
    ]
    texts += [
        _beside(each, 0, "not measured", faint=True) for each in candidates if not row.readings.get(each.key)
    ]
    left, right = min(0.0, least), max(0.0, most)
    axis = {
        "range": [left, right + room * (right - left or 1)],
        "showticklabels": False,
        "ticks": "",
        "showgrid": False,
        "showline": False,
    }
    return ([trace] if found else []), axis, texts


def _pattern(candidates: Iterable[CandidateFacts]) -> dict[str, Any]:
    """`disk` is hatched, so that durabilities differ without colour."""
    shapes = ["/" if each.durability == "disk" else "" for each in candidates]
    return {"shape": shapes, "fillmode": "replace", "bgcolor": "@card", "size": 5, "solidity": 0.55}


def _errors(spreads: Sequence[Spread]) -> dict[str, Any]:
    above, below = [each.high - each.median for each in spreads], [each.median - each.low for each in spreads]
    return {
        "type": "data",
        "array": above,
        "arrayminus": below,
        "color": "@ink",
        "thickness": 1,
        "width": 3,
        "visible": any(above + below),
    }


def _beside(candidate: CandidateFacts, x: float, text: str, *, faint: bool = False) -> dict[str, Any]:
    font = {"size": 11, "color": "@faint" if faint else "@ink"}
    place = {"x": x, "y": label(candidate.key), "xanchor": "left", "yanchor": "middle", "xshift": 3}
    return {"text": text, "showarrow": False, "font": font, **place}


def _value_text(
    report: Report, row: RowResult, candidate: CandidateFacts, metric: str, spread: Spread
) -> str:
    ratio = report.against_kafka(row, candidate, metric)
    return number(spread.median) + (f"  ({times(ratio.median)})" if ratio else "")


def _hover(report: Report, row: RowResult, candidate: CandidateFacts, metric: str, spread: Spread) -> str:
    described = report.metric(metric)
    line = f"{number(spread.median)} {described.unit} ({number(spread.low)} to {number(spread.high)})"
    ratio = report.against_kafka(row, candidate, metric)
    beside = f"<br>{times(ratio.median)} Kafka ({times(ratio.low)} to {times(ratio.high)})" if ratio else ""
    return f"<b>{label(candidate.key)}</b>, {label(described.title)}<br>{label(line)}{beside}"


_SYMBOLS = ("circle", "diamond", "square")


def _percentiles(
    report: Report, row: RowResult, candidates: Sequence[CandidateFacts], _metric: str
) -> _Panel:
    """A line for each candidate from the median to the highest percentile. `disk` has open
    symbols."""
    traces: list[dict[str, Any]] = []
    texts: list[dict[str, Any]] = []
    ends: list[float] = []
    for each in candidates:
        found = [
            (name, spread)
            for name in PERCENTILES
            if (spread := report.spread(row, each.key, name)) is not None
        ]
        if not found:
            continue
        ends += [end for _, spread in found for end in (spread.low, spread.high) if end > 0]
        suffix = "-open" if each.durability == "disk" else ""
        symbols = [_SYMBOLS[PERCENTILES.index(name)] + suffix for name, _ in found]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "x": [spread.median for _, spread in found],
                "y": [label(each.key)] * len(found),
                "line": {"color": colour(each), "width": 2, "dash": "dot" if suffix else "solid"},
                "marker": {
                    "color": colour(each),
                    "size": 9,
                    "symbol": symbols,
                    "line": {"width": 2, "color": colour(each)},
                },
                "error_x": {**_errors([spread for _, spread in found]), "color": colour(each)},
                "hovertext": [_hover(report, row, each, name, spread) for name, spread in found],
                "hoverinfo": "text",
            }
        )
        texts += _written(each, [spread.median for _, spread in found])
    axis = log_axis(ends, free=0.4)
    texts += [
        _beside(each, axis["range"][0], "not measured", faint=True)
        for each in candidates
        if not row.readings.get(each.key)
    ]
    return traces, axis, texts


def _written(candidate: CandidateFacts, medians: Sequence[float]) -> list[dict[str, Any]]:
    """All medians at the end of the line, since beside their points they would overlap."""
    text = _beside(candidate, math.log10(max(medians)), " · ".join(map(number, medians)))
    return [text | {"xshift": 9}]


def log_axis(values: Sequence[float], *, free: float = 0.0) -> dict[str, Any]:
    """A log axis over all values, with the part `free` at its right end empty. Ticks are at powers
    of ten, and between them if there are few."""
    low, high = (math.log10(min(values)) - 0.1, math.log10(max(values)) + 0.1) if values else (0.0, 1.0)
    high = low + (high - low) / (1 - free)
    tens = [10.0**power for power in range(math.floor(low), math.ceil(high) + 1)]
    if high - low < 1.5:
        tens = [step * ten for ten in tens for step in (1, 2, 5)]
    return {
        "type": "log",
        "range": [low, high],
        "tickvals": tens,
        "ticktext": [f"{ten:g}" if ten < 1000 else number(ten) for ten in tens],
        "fixedrange": True,
    }


# --- scaling curves ---


def curve_plots(report: Report) -> list[Plot]:
    """The curves of which at least two rows were run."""
    plots = []
    for curve in CURVES:
        rows = {
            count: row for count, key in curve.points.items() if (row := report.results.row(key)) is not None
        }
        if len(rows) > 1:
            plots.append(_curve_plot(report, curve, rows))
    return plots


def _curve_plot(report: Report, curve: Curve, rows: Mapping[int, RowResult]) -> Plot:
    data: list[dict[str, Any]] = []
    layout: dict[str, Any] = {"annotations": []}
    for count, (metric, (left, right)) in enumerate(zip(_RATES, ((0.0, 0.46), (0.56, 1.0)), strict=True), 1):
        axis = "" if count == 1 else str(count)
        traces, values = _lines(report, rows, metric)
        data += [{**trace, "xaxis": f"x{axis}", "yaxis": f"y{axis}"} for trace in traces]
        places = {
            "tickvals": list(rows),
            "ticktext": [number(each) for each in rows],
            "title": {"text": curve.along},
        }
        layout[f"xaxis{axis}"] = {
            "type": "log",
            "domain": [left, right],
            "anchor": f"y{axis}",
            "showgrid": False,
            **places,
        }
        layout[f"yaxis{axis}"] = {"anchor": f"x{axis}", **_fine_log_axis(values)}
        layout["annotations"].append(_head(f"{_panel_title(report, metric)} (log)", left))
    return Plot(curve.title, _joined(row.note for row in rows.values()), data, layout, 330)


def _joined(notes: Iterable[str]) -> str:
    """The notes, with each sentence only once."""
    return " ".join(
        dict.fromkeys(sentence for note in notes for sentence in re.split(r"(?<=\.) ", note) if sentence)
    )


def _lines(
    report: Report, rows: Mapping[int, RowResult], metric: str
) -> tuple[list[dict[str, Any]], list[float]]:
    traces: list[dict[str, Any]] = []
    values: list[float] = []
    for each in report.shown_in(rows.values()):
        points = {
            count: spread
            for count, row in rows.items()
            if (spread := report.spread(row, each.key, metric)) is not None
        }
        if not points:
            continue
        values += [end for spread in points.values() for end in (spread.low, spread.high) if end > 0]
        is_disk = each.durability == "disk"
        spreads = list(points.values())
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": label(each.key),
                "x": list(points),
                "y": [spread.median for spread in spreads],
                "line": {"color": colour(each), "width": 2, "dash": "dot" if is_disk else "solid"},
                "marker": {
                    "color": colour(each),
                    "size": 8,
                    "symbol": "diamond-open" if is_disk else "circle",
                },
                "error_y": {**_errors(spreads), "color": colour(each)},
                "hovertext": [
                    _hover(report, rows[count], each, metric, spread) for count, spread in points.items()
                ],
                "hoverinfo": "text",
            }
        )
    return traces, values


def _fine_log_axis(values: Sequence[float]) -> dict[str, Any]:
    """Ticks at 1, 2 and 5 of each power of ten."""
    axis = log_axis(values)
    steps = sorted(
        {step * 10 ** math.floor(math.log10(tick)) for tick in axis["tickvals"] for step in (1, 2, 5)}
    )
    return {**axis, "tickvals": steps, "ticktext": [number(step) for step in steps], "showline": False}
