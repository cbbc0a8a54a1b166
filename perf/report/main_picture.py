"""The main picture: throughput and records per broker CPU second of the default engine in selected
rows, as ratios to Apache Kafka's.

In the page it is one of the plots. For the README, Plotly's kaleido writes it as an SVG, which
needs Chromium or Chrome.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perf.report.data import OURS, THEIRS, TIMES, Report, parse, times
from perf.report.plots import Plot, label, log_axis
from perf.suite.results import Ratio, RowResult

ROWS: Mapping[str, str] = {
    "produce-100b-1p": "Produce 100 B",
    "produce-1kb-6p-16kb": "Produce 1 KB, 16 KB batches",
    "produce-1kb-6p-lz4": "Produce 1 KB, lz4",
    "fetch-100b-1p": "Fetch 100 B",
    "fetch-1kb-6p": "Fetch 1 KB",
    "share-implicit-8": "Share group, 8 consumers",
    "share-mixed-8": "Share group, releases and rejects",
    "share-small-explicit-8": "Share group, small batches",
    "one-8": "Queue, one record at a time",
}
"""The selected rows, from top to bottom, and their names in the picture."""

BARS: Mapping[str, tuple[str, str]] = {
    "rate": ("throughput", "@segment"),
    "per_cpu_s": ("records per broker CPU second", "@segmentsoft"),
}

_COLOURS = {
    "segment": "#0072b2",
    "segmentsoft": "#8cc4e6",
    "kafka": "#c77f00",
    "ink": "#16202e",
    "soft": "#5b6779",
    "grid": "#e3e8ef",
}
"""Colours of the standalone picture, on white."""

_WIDTH_PX, _HEIGHT_PX = 900, 565
_HOW = "Same run and clients: median of the rounds, lowest to highest."


def plot(report: Report) -> Plot | None:
    """None if fewer than two of the rows have readings of both sides."""
    rows = [
        row for key in ROWS if (row := report.results.row(key)) is not None and _ratio(report, row, "rate")
    ]
    if len(rows) < 2:
        return None
    data, texts, ends = [], [], [1.0]
    for metric, (name, colour) in BARS.items():
        found = {ROWS[row.key]: ratio for row in rows if (ratio := _ratio(report, row, metric)) is not None}
        ends += [end for ratio in found.values() for end in ratio]
        data.append(_trace(name, colour, found))
        texts += [_written(rows, title, ratio, len(data) - 1) for title, ratio in found.items()]
    axis = log_axis(ends, free=0.08)
    steps = [step * ten for ten in (0.1, 1, 10, 100) for step in (1, 2, 5)]
    kafka = next((each for each in report.results.candidates if each.key == THEIRS), None)
    named = f"Apache Kafka {kafka.version if kafka else ''}".strip()
    layout = {
        "barmode": "group",
        "bargap": 0.3,
        "bargroupgap": 0.06,
        "xaxis": {
            **axis,
            "tickvals": steps,
            "ticktext": [f"{step:g} {TIMES}" for step in steps],
            "zeroline": False,
        },
        "yaxis": {
            "type": "category",
            "categoryarray": [label(ROWS[row.key]) for row in rows],
            "range": [len(rows) - 0.5, -0.5],
            "ticks": "",
            "ticksuffix": "  ",
            "showgrid": False,
            "fixedrange": True,
            "tickfont": {"size": 13, "color": "@ink"},
        },
        "shapes": [
            {
                "type": "line",
                "x0": 1,
                "x1": 1,
                "y0": 0,
                "y1": 1,
                "yref": "paper",
                "line": {"color": "@kafka", "width": 2},
            }
        ],
        "annotations": [_kafka_mark(named), *texts],
        "margin": {"l": 8, "r": 12, "t": 28, "b": 8},
    }
    note = (
        f"The default engine with durability os as a multiple of {named} with its defaults: neither "
        "syncs before it answers."
    )
    return Plot("kbroker against Apache Kafka", f"{note} {_HOW}", data, layout, 70 + 50 * len(rows))


def _ratio(report: Report, row: RowResult, metric: str) -> Ratio | None:
    return report.results.ratio(row.key, metric, OURS, THEIRS)


def _trace(name: str, colour: str, found: Mapping[str, Ratio]) -> dict[str, Any]:
    """Bars from 1, which is Kafka, to the right if kbroker is better. On a log axis, a bar's length
    is counted from its base."""
    ratios = list(found.values())
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "base": 1,
        "x": [ratio.median - 1 for ratio in ratios],
        "y": [label(title) for title in found],
        "marker": {"color": colour, "line": {"width": 0}},
        "error_x": {
            "type": "data",
            "array": [ratio.high - ratio.median for ratio in ratios],
            "arrayminus": [ratio.median - ratio.low for ratio in ratios],
            "color": "@ink",
            "thickness": 1,
            "width": 3,
            "visible": any(ratio.high > ratio.low for ratio in ratios),
        },
        "hovertext": [
            f"{times(ratio.median)} ({times(ratio.low)} to {times(ratio.high)})" for ratio in ratios
        ],
        "hoverinfo": "text",
    }


def _written(rows: Sequence[RowResult], title: str, ratio: Ratio, count: int) -> dict[str, Any]:
    """The text after a bar and its error line. A row's two bars are a quarter of its height above
    and below its middle."""
    at = next(index for index, row in enumerate(rows) if ROWS[row.key] == title)
    place = {
        "x": math.log10(max(ratio.high, 1)),
        "y": at + (0.18, -0.18)[count == 0],
        "xanchor": "left",
        "yanchor": "middle",
        "xshift": 5,
    }
    return {"text": times(ratio.median), "showarrow": False, "font": {"color": "@ink", "size": 12}, **place}


def _kafka_mark(named: str) -> dict[str, Any]:
    font = {"color": "@kafka", "size": 12.5}
    place = {"x": 0, "xref": "x", "y": 1, "yref": "paper", "yanchor": "bottom"}
    return {"text": f"{label(named)} = 1", "showarrow": False, "font": font, **place}


def write(data: Mapping[str, Any], path: Path) -> None:
    """Writes an SVG or PNG, depending on the suffix of `path`. Raises ValueError if the run lacks
    the rows of the picture."""
    import plotly.io

    report = parse(data)
    found = plot(report)
    if found is None:
        raise ValueError(f"no picture: the run lacks {OURS} or {THEIRS} in the rows {', '.join(ROWS)}")
    path.write_bytes(
        plotly.io.to_image(
            painted(standalone(report, found)), format=path.suffix[1:], width=_WIDTH_PX, height=_HEIGHT_PX
        )
    )


def standalone(report: Report, found: Plot) -> dict[str, Any]:
    """The plot with title, legend and machine, which the page's plot does not have."""
    machine = report.results.machine
    where = ", ".join(
        str(part)
        for part in (f"{machine.get('cpus')} CPUs ({machine.get('processor')})", report.results.began[:10])
        if part
    )
    axis = {
        "gridcolor": "@grid",
        "linecolor": "@grid",
        "tickfont": {"color": "@soft", "size": 12},
        "automargin": True,
        "ticks": "",
    }
    who = found.note.removesuffix(_HOW)
    below = {"text": f"{label(who)}<br>{label(f'{_HOW} {where}')}", "font": {"color": "@soft", "size": 12}}
    title = {"text": f"<b>{found.title}</b>", "subtitle": below}
    layout = {
        **found.layout,
        "title": {
            **title,
            "x": 0.02,
            "xanchor": "left",
            "y": 0.96,
            "yanchor": "top",
            "font": {"size": 19, "color": "@ink"},
        },
        "xaxis": {**axis, **found.layout["xaxis"]},
        "yaxis": {**axis, **found.layout["yaxis"]},
        "font": {
            "family": "system-ui, -apple-system, Segoe UI, Roboto, Liberation Sans, sans-serif",
            "color": "@ink",
        },
        "legend": {
            "orientation": "h",
            "x": 0.5,
            "xanchor": "center",
            "y": -0.08,
            "yanchor": "top",
            "traceorder": "normal",
        },
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "margin": {"l": 16, "r": 40, "t": 124, "b": 16},
    }
    return {"data": list(found.data), "layout": layout}


def painted(value: Any) -> Any:  # noqa: ANN401
    """The value with colour names replaced by colours."""
    if isinstance(value, Mapping):
        return {name: painted(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [painted(each) for each in value]
    return _COLOURS[value[1:]] if isinstance(value, str) and value.startswith("@") else value
