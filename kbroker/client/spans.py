"""Durations as people write them: `500ms`, `1h30m`, `forever`."""

from __future__ import annotations

import re

_UNITS_WRITTEN = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_UNITS_READ = {"w": 7 * _UNITS_WRITTEN["d"], **_UNITS_WRITTEN}
_SPAN = re.compile(r"(?:[0-9]{1,19}(?:\.[0-9]{1,6})?(?:ms|s|m|h|d|w))+")
_SPAN_PART = re.compile(r"([0-9.]+)(ms|s|m|h|d|w)")
FOREVER = "forever"


def parse_span(text: str) -> int:
    """Milliseconds of `500ms`, `30s`, `10m`, `1h30m`, `30d`, `1w` or `0`. Raises ValueError, whose
    text is a line for a person."""
    content = "".join(text.split())
    if content == "0":
        return 0
    if not _SPAN.fullmatch(content):
        no_unit = " has no unit:" if content.replace(".", "", 1).isdigit() else " is not a duration:"
        raise ValueError(f"{text!r}{no_unit} write 500ms, 30s, 10m, 1h or 30d")
    from decimal import Decimal

    return round(sum(Decimal(number) * _UNITS_READ[unit] for number, unit in _SPAN_PART.findall(content)))


def span_text(duration_ms: int) -> str:
    """The inverse of parse_span, in the largest unit that needs no fraction; `forever` for -1."""
    if duration_ms == -1:
        return FOREVER
    unit = (
        next(unit for unit, size_ms in _UNITS_WRITTEN.items() if duration_ms % size_ms == 0)
        if duration_ms
        else "s"
    )
    return f"{duration_ms // _UNITS_WRITTEN[unit]}{unit}"
