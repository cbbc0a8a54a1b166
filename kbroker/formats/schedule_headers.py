"""Scheduled records: the headers that say when a work queue delivers a record
(`kbroker.queue.scheduling`).

    kbroker-deliver-at    milliseconds since 1970, as decimal text
    kbroker-delay-ms      milliseconds from the record's timestamp on, as decimal text

`kbroker-deliver-at` takes precedence, and of several headers with one name the last one applies.
Ordinary consumers see such records at once. This module must not know a clock.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from kio.serial.errors import BufferUnderflow

from kbroker.formats.batches import NO_TIMESTAMP, SIGNED, Buffer, Record, long_varint, read_header, varlong
from kbroker.formats.compression import CorruptPayload

DELIVER_AT: Final = "kbroker-deliver-at"
DELAY_MS: Final = "kbroker-delay-ms"
DEAD_LETTER_PREFIX: Final = "__dlq.errors."
"""Prefix of the headers of a dead letter (share/dead_letter.py). A dead letter may also have its
record's schedule headers, which are then ignored."""
MARK: Final = b"kbroker-de"
"""A payload without these bytes has neither header."""
_DIGITS_AT_MOST: Final = 18
_BEYOND_ALL_MS: Final = 10**_DIGITS_AT_MOST
"""Stands for all numbers with more digits: later than any bound allows."""


class Oddity(Enum):
    """A fault of a schedule header; also the label of a metric."""

    MALFORMED = "malformed"
    TOO_FAR = "too_far"


class Schedule(NamedTuple):
    """`due_ms`: since 1970, or None to deliver at once."""

    due_ms: int | None
    oddity: Oddity | None = None


_AT_ONCE = Schedule(None)


def schedule_of(record: Record, now_ms: int, max_delay_ms: int) -> Schedule:
    """The schedule of a record. `now_ms`: the wall clock. A record with an unreadable header is
    delivered at once; a due time that is too late is reduced to the latest one allowed."""
    due_ms, oddity = due_of(record, now_ms)
    if due_ms is None:
        return Schedule(None, oddity)
    if due_ms > now_ms + max_delay_ms:
        return Schedule(now_ms + max_delay_ms, Oddity.TOO_FAR)
    return Schedule(due_ms) if due_ms > now_ms else _AT_ONCE


def due_of(record: Record, now_ms: int) -> Schedule:
    """The due time that the headers request, even if it has passed or is too late. `now_ms`: used
    for a record without a timestamp."""
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


def offsets_without(mark: bytes, data: Buffer, payload: bytes) -> list[int]:
    """The offsets of the records of a stored batch whose bytes do not contain `mark`; `payload`:
    the batch's uncompressed records. Takes a tenth of the time of decoding the records. Raises
    CorruptPayload if the bytes are not those of a batch."""
    header = read_header(data)
    base_offset, last_offset = header.base_offset, header.last_offset
    found: list[int] = []
    least, start, find = base_offset, 0, payload.find
    marked_at = find(mark)
    try:
        for _ in range(header.record_count):
            length, at = (
                (SIGNED[number], start + 1)
                if (number := payload[start]) < 0x80
                else long_varint(payload, start)
            )
            end = at + length
            if length <= 0 or end > len(payload):
                raise ValueError("record length beyond the batch")
            if 0 <= marked_at < end:
                marked_at = find(mark, end)
            else:
                at += 1  # attributes
                _, at = varlong(payload, at)
                offset_delta, _ = long_varint(payload, at)
                if not least <= base_offset + offset_delta <= last_offset:
                    raise ValueError(f"its offset is {base_offset + offset_delta}")
                found.append(base_offset + offset_delta)
                least = found[-1] + 1
            start = end
    except (ValueError, IndexError, BufferUnderflow) as error:
        raise CorruptPayload(f"record at byte {start} cannot be read: {error}") from error
    return found
