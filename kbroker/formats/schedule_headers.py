"""Records that are scheduled: headers that say when a work queue delivers them
(`kbroker.queue.scheduling`).

    kbroker-deliver-at    milliseconds since 1970, as decimal text
    kbroker-delay-ms      milliseconds from the record's timestamp on, as decimal text

`kbroker-deliver-at` wins over the other, and of one name the last header counts. Ordinary consumers
see such records at once. Nothing here knows a clock.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from kbroker.formats.batches import NO_TIMESTAMP, Record

DELIVER_AT: Final = "kbroker-deliver-at"
DELAY_MS: Final = "kbroker-delay-ms"
DEAD_LETTER_PREFIX: Final = "__dlq.errors."
"""Of the headers of a dead letter (share/dead_letter.py). It may have kept those that scheduled its
record: they count no more."""
MARK: Final = b"kbroker-de"
"""A payload without these bytes has neither header."""
_DIGITS_AT_MOST: Final = 18
_BEYOND_ALL_MS: Final = 10**_DIGITS_AT_MOST
"""Stands for each number of more digits: later than any bound allows."""


class Oddity(Enum):
    """What is wrong with such a header; the label of a metric."""

    MALFORMED = "malformed"
    TOO_FAR = "too_far"


class Schedule(NamedTuple):
    """`due_ms`: since 1970; None: at once."""

    due_ms: int | None
    oddity: Oddity | None = None


_AT_ONCE = Schedule(None)


def schedule_of(record: Record, now_ms: int, max_delay_ms: int) -> Schedule:
    """`now_ms`: the wall clock. What cannot be read is delivered at once; what is too far away is
    brought as near as is allowed."""
    due_ms, oddity = due_of(record, now_ms)
    if due_ms is None:
        return Schedule(None, oddity)
    if due_ms > now_ms + max_delay_ms:
        return Schedule(now_ms + max_delay_ms, Oddity.TOO_FAR)
    return Schedule(due_ms) if due_ms > now_ms else _AT_ONCE


def due_of(record: Record, now_ms: int) -> Schedule:
    """What its headers ask for, whether that has passed or is too far away. `now_ms`: the time of a
    record without a timestamp."""
    found: dict[str, bytes | None] = {
        name: value for name, value in record.headers if name in (DELIVER_AT, DELAY_MS)
    }
    if not found or any(name.startswith(DEAD_LETTER_PREFIX) for name, _ in record.headers):
        return _AT_ONCE
    is_absolute = DELIVER_AT in found
    number = _number(found[DELIVER_AT if is_absolute else DELAY_MS])
    if number is None:
        return Schedule(None, Oddity.MALFORMED)
    sent_ms = now_ms if record.timestamp_ms == NO_TIMESTAMP else record.timestamp_ms
    return Schedule(number if is_absolute else sent_ms + number)


def _number(value: bytes | None) -> int | None:
    text = (value or b"").strip()
    if not text.isdigit():
        return None
    text = text.lstrip(b"0")
    return int(text or b"0") if len(text) <= _DIGITS_AT_MOST else _BEYOND_ALL_MS
