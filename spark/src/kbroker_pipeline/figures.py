"""Plots as Plotly's `data` and `layout`, with the page's colour names. The page's script adds the
properties that all plots share.

Labels may contain text from records and names of topics. Plotly interprets a few tags in labels, so
they are escaped here.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from kbroker_pipeline.report import Figure

COLOURS = ("@blue", "@orange", "@teal", "@pink", "@violet", "@green", "@yellow", "@red")

_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_000


def colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def label(text: object) -> str:
    return html.escape(str(text), quote=False)


def moment(moment_ms: int) -> str:
    """A time on a time axis, in UTC, limited to the years 1 to 9999, the range of Python and
    roughly that of Plotly."""
    at = datetime.fromtimestamp(min(max(moment_ms, _FIRST_MS), _LAST_MS) / 1000, UTC)
    return at.replace(tzinfo=None).isoformat(" ", "milliseconds")


def over_time(
    title: str,
    note: str,
    series: Mapping[str, Sequence[tuple[int, float]]],
    *,
    unit: str,
    stacked: bool = False,
    steps: bool = True,
    dashed: frozenset[str] = frozenset(),
    colours: Mapping[str, str] | None = None,
) -> Figure:
    """Lines over time; points are (time in ms, value). `stacked`: stacked areas."""
    data = []
    for number, (name, points) in enumerate(series.items()):
        line_colour = (colours or {}).get(name, colour(number))
        line = {
            "color": line_colour,
            "width": 2,
            "shape": "hv" if steps else "linear",
            "dash": "dot" if name in dashed else "solid",
        }
        trace: dict[str, Any] = {
            "type": "scatter",
            "mode": "lines+markers" if len(points) < 60 else "lines",
            "marker": {"size": 5},
            "name": label(name),
            "x": [moment(at) for at, _ in points],
            "y": [value for _, value in points],
            "line": line,
            "hovertemplate": f"%{{y:,}} {unit}",
        }
        if stacked:
            trace |= {"stackgroup": "all", "fillcolor": f"{line_colour}/0.35"}
        data.append(trace)
    layout = {
        "hovermode": "x unified",
        "xaxis": {"type": "date"},
        "yaxis": {"title": {"text": unit}, "rangemode": "tozero"},
    }
    return Figure(title, note, data, layout)


def columns(
    title: str,
    note: str,
    series: Mapping[str, Sequence[tuple[Any, float]]],
    *,
    unit: str,
    x_title: str = "",
    log: bool = False,
    time: bool = False,
    stacked: bool = True,
    colours: Mapping[str, str] | None = None,
) -> Figure:
    """Vertical bars. With `time`, the x values are times in ms."""
    data = [
        {
            "type": "bar",
            "name": label(name),
            "x": [moment(x) if time else label(x) if isinstance(x, str) else x for x, _ in points],
            "y": [y for _, y in points],
            "marker": {"color": (colours or {}).get(name, colour(number)), "line": {"width": 0}},
            "hovertemplate": f"%{{y:,}} {unit}",
        }
        for number, (name, points) in enumerate(series.items())
    ]
    places = {x for points in series.values() for x, _ in points if isinstance(x, str)}
    named = (
        {"type": "category", "categoryarray": sorted(places, key=lambda place: (len(place), place))}
        if places
        else {}
    )
    layout: dict[str, Any] = {
        "barmode": "stack" if stacked and not log else "group",
        "hovermode": "x unified",
        "bargap": 0.25,
        "xaxis": {"title": {"text": x_title}, **({"type": "date"} if time else named)},
        "yaxis": {
            "title": {"text": unit},
            **({"type": "log", "dtick": 1} if log else {"rangemode": "tozero"}),
        },
    }
    return Figure(title, note, data, layout)


def rows(
    title: str,
    note: str,
    series: Mapping[str, Sequence[tuple[str, float]]],
    *,
    unit: str,
    colours: Mapping[str, str] | None = None,
) -> Figure:
    """Horizontal bars, the first on top, each divided into parts."""
    names = list(dict.fromkeys(name for points in series.values() for name, _ in points))
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": label(part),
            "y": [label(name) for name, _ in points],
            "x": [value for _, value in points],
            "marker": {"color": (colours or {}).get(part, colour(number)), "line": {"width": 0}},
            "hovertemplate": f"%{{x:,}} {unit}",
        }
        for number, (part, points) in enumerate(series.items())
    ]
    layout = {
        "barmode": "stack",
        "hovermode": "y unified",
        "bargap": 0.35,
        "xaxis": {"title": {"text": unit}, "rangemode": "tozero"},
        "yaxis": {
            "type": "category",
            "categoryorder": "array",
            "categoryarray": [label(name) for name in names],
            "autorange": "reversed",
        },
    }
    return Figure(title, note, data, layout, height_px=max(170, 70 + 30 * len(names)), stretch=False)


def spans(
    title: str,
    note: str,
    bars: Mapping[str, Sequence[tuple[str, int, int]]],
    *,
    unit: str = "offset",
    marks: Sequence[tuple[str, int, str]] = (),
    colours: Mapping[str, str] | None = None,
) -> Figure:
    """Ranges of offsets, with a row for each partition. `bars` maps the kind of a range to (row,
    first, end). `marks`: (row, offset, text)."""
    names = list(dict.fromkeys(name for pieces in bars.values() for name, _, _ in pieces))
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": label(part),
            "y": [label(name) for name, _, _ in pieces],
            "base": [first for _, first, _ in pieces],
            "x": [end - first for _, first, end in pieces],
            "customdata": [[first, end] for _, first, end in pieces],
            "marker": {"color": (colours or {}).get(part, colour(number)), "line": {"width": 0}},
            "hovertemplate": "%{y}: %{customdata[0]:,} to %{customdata[1]:,} (%{x:,} offsets)",
        }
        for number, (part, pieces) in enumerate(bars.items())
    ]
    if marks:
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "findings",
                "y": [label(name) for name, _, _ in marks],
                "x": [offset for _, offset, _ in marks],
                "text": [label(text) for _, _, text in marks],
                "marker": {
                    "color": "@red",
                    "size": 11,
                    "symbol": "diamond",
                    "line": {"width": 1, "color": "@card"},
                },
                "hovertemplate": "%{y} at %{x:,}: %{text}",
            }
        )
    layout = {
        "barmode": "overlay",
        "hovermode": "closest",
        "bargap": 0.45,
        "xaxis": {"title": {"text": unit}, "rangemode": "tozero"},
        "yaxis": {
            "type": "category",
            "categoryorder": "array",
            "categoryarray": [label(name) for name in names],
            "autorange": "reversed",
        },
    }
    return Figure(title, note, data, layout, height_px=max(170, 70 + 30 * len(names)), stretch=False)


def buckets(first_ms: int, last_ms: int, most: int = 48) -> int:
    """A round width, in ms, that divides the time span into about `most` pieces or fewer."""
    span = max(last_ms - first_ms, 1)
    second = 1000
    widths = [
        second * each
        for each in (
            1,
            2,
            5,
            10,
            15,
            30,
            60,
            120,
            300,
            600,
            900,
            1800,
            3600,
            7200,
            10_800,
            21_600,
            43_200,
            86_400,
        )
    ]
    for width in widths:
        if span / width <= most:
            return width
    return widths[-1] * -(-span // (widths[-1] * most))
