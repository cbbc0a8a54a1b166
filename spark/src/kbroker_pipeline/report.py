"""One self-contained HTML page per job: headline numbers, notices, plots and tables. A page needs
no network and can be printed.

The jobs describe a page with the classes below, and know no HTML. Texts may come from records. The
template escapes all of them, and data inside scripts is JSON that cannot contain a closing tag.
Plots are Plotly's (figures.py). Each page contains Plotly's JavaScript, about 5 MB.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias

Tone: TypeAlias = Literal["neutral", "good", "warn", "bad"]
Align: TypeAlias = Literal["left", "right"]
Cell: TypeAlias = "str | int | float | Tagged | None"
"""None is shown as a dash."""


@dataclass(frozen=True, slots=True)
class Tagged:
    """A cell shown as a label in the colour of its tone, or (`mono`) as bytes of a record."""

    text: str
    tone: Tone = "neutral"
    mono: bool = False


@dataclass(frozen=True, slots=True)
class Headline:
    """One of the large numbers at the top. `value` is formatted, with its unit."""

    label: str
    value: str
    note: str = ""
    tone: Tone = "neutral"


@dataclass(frozen=True, slots=True)
class Notice:
    """A message about something that needs attention."""

    title: str
    text: str
    tone: Tone = "warn"


@dataclass(frozen=True, slots=True)
class Figure:
    """A plot, with Plotly's `data` and `layout`. Colours are names such as `@blue`, which the page
    maps for its light or dark theme. `stretch`: make it as high as the plot beside it."""

    title: str
    note: str
    data: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any]
    height_px: int = 320
    stretch: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    columns: Sequence[tuple[str, Align]]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    empty: str = "Nothing."


@dataclass(frozen=True, slots=True)
class Section:
    """`wide`: show the parts below each other; otherwise two side by side if there is room."""

    title: str
    note: str
    parts: Sequence[Figure | Table]
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """`facts`: the data that was read and the time, as pairs of a name and a text."""

    title: str
    summary: str
    status: Tagged
    facts: Sequence[tuple[str, str]]
    headlines: Sequence[Headline]
    notices: Sequence[Notice] = ()
    sections: Sequence[Section] = field(default_factory=list)


def render(page: Page) -> str:
    """The page as HTML. Jinja and Plotly's JavaScript are loaded only here, since they are slow to
    load."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from plotly.offline import get_plotlyjs

    environment = Environment(
        loader=PackageLoader("kbroker_pipeline"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["cell"] = cell_text
    environment.tests["tagged"] = lambda value: isinstance(value, Tagged)
    environment.tests["figure"] = lambda value: isinstance(value, Figure)
    figures = [part for section in page.sections for part in section.parts if isinstance(part, Figure)]
    return environment.get_template("page.html.j2").render(
        page=page,
        plots={id(figure): f"plot-{number}" for number, figure in enumerate(figures)},
        figures=script_json([{"data": figure.data, "layout": figure.layout} for figure in figures]),
        plotly=get_plotlyjs() if figures else "",
        identity=id,
    )


def write(page: Page, path: Path) -> Path:
    """Replaces the file atomically, so that readers see either the old page or the new one. Returns
    the absolute path."""
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(render(page), encoding="utf-8")
    temporary.replace(path)
    return path


def script_json(value: object) -> str:
    """JSON that is safe in a script element: no text of a record can close it."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), default=str)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def cell_text(cell: Cell) -> str:
    match cell:
        case None:
            return "-"
        case bool():
            return "yes" if cell else "no"
        case int():
            return f"{cell:,}"
        case float():
            return f"{cell:,.2f}"
        case Tagged():
            return cell.text
    return cell


# --- the format of numbers and times, on pages and on the terminal ---


def human_count(value: float) -> str:
    """`950`, `12,400`, `1.24 M`."""
    for limit, divisor, unit in ((1e9, 1e9, " G"), (1e6, 1e6, " M")):
        if abs(value) >= limit:
            return f"{value / divisor:.2f}{unit}"
    return f"{value:,.0f}"


def counted(count: int, word: str) -> str:
    """`1 topic`, `2 topics`."""
    return f"{human_count(count)} {word}" + ("" if count == 1 else "s")


def human_bytes(size: float) -> str:
    """`1.5 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


def human_duration(seconds: float | None) -> str:
    """`450 ms`, `12.0 s`, `3 min 20 s`, `2 h 5 min`, `4 d 2 h`; a dash for None."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    for size, unit, smaller, small in (
        (86_400, "d", 3_600, "h"),
        (3_600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit}" + (f" {rest} {small}" if rest else "")
    raise AssertionError("unreachable")


def human_time(moment_ms: int | None) -> str:
    """`2026-03-01 12:00:30 UTC`; a dash for None. Records may have timestamps outside Python's
    range, which are shown as numbers."""
    if moment_ms is None:
        return "-"
    try:
        return datetime.fromtimestamp(moment_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError):
        return f"{moment_ms} ms"


def human_share(part: float, whole: float) -> str:
    """`12.5 %`; a dash if `whole` is 0."""
    return f"{100 * part / whole:.1f} %" if whole else "-"


def excerpt(content: bytes | None, most: int = 120) -> str | None:
    """The start of a key or value as text, with control characters escaped; hexadecimal if it is
    not UTF-8."""
    if content is None:
        return None
    head = bytes(content[: 4 * most])
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        if len(head) == len(content) or error.start < len(head) - 4:
            text = "0x" + head[: most // 2].hex()
            return text + ("…" if len(content) > most // 2 else "")
        text = head[: error.start].decode()
    text = "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )
    return text if len(text) <= most and len(head) == len(content) else text[: most - 1] + "…"
