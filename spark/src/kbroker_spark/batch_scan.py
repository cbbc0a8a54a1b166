"""The record batches of a log as they are stored, one by one, with their defects. Damage is a
finding here, not an error.

A batch is accepted if its header is plausible and its CRC matches. After damage the scan asks the
engine for the next readable offset. Some engines know where each batch begins, others only where
each chunk begins. Good batches between two damaged ones that lie close together may therefore be
reported as damaged; the reverse never happens. Must not know Spark, nor the contents of records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple
from uuid import UUID

from kbroker.formats.batches import HEADER_SIZE, MAGIC, BatchHeader, crc_is_valid, read_header
from kbroker.storage.spi import LogId, LogReader, SegmentInfo

READ_BYTES = 4 << 20


class LogRange(NamedTuple):
    """The batches that begin in [first, end).

    - `topic`: None if the log belongs to no topic.
    - `is_first`: a batch that begins before `first` is included.
    - `is_last`: the log ends at `end`.
    """

    topic: str | None
    topic_id: UUID
    partition: int
    first: int
    end: int
    size_bytes: int
    is_first: bool
    is_last: bool

    @property
    def log(self) -> LogId:
        return LogId(self.topic_id, self.partition)


class FoundBatch(NamedTuple):
    """`header` is None if no header can be read at [first_offset, last_offset], `crc_ok` if the CRC
    was not checked."""

    first_offset: int
    last_offset: int
    header: BatchHeader | None
    crc_ok: bool | None
    problem: str | None


def split(topic: str | None, log: LogId, segments: Sequence[SegmentInfo], most_bytes: int) -> list[LogRange]:
    """Ranges of about `most_bytes`: several segments, or a part of one."""
    pieces: list[tuple[int, int, int]] = []
    for segment in segments:
        parts = max(1, min(-(-segment.size_bytes // most_bytes), segment.end_offset - segment.base_offset))
        edges = [
            segment.base_offset + (segment.end_offset - segment.base_offset) * part // parts
            for part in range(parts + 1)
        ]
        size = segment.size_bytes // parts
        for first, end in pairwise(edges):
            if pieces and pieces[-1][2] + size <= most_bytes:
                pieces[-1] = (pieces[-1][0], end, pieces[-1][2] + size)
            else:
                pieces.append((first, end, size))
    last = len(pieces) - 1
    return [LogRange(topic, *log, *piece, number == 0, number == last) for number, piece in enumerate(pieces)]


def scan(logs: LogReader, wanted: LogRange, *, check_crc: bool) -> Iterator[FoundBatch]:
    """The batches in offset order. Batches removed during the scan are left out, as is the rest of
    a deleted log."""
    due, is_first_batch = wanted.first, True
    while due < wanted.end:
        views = _read(logs, wanted, due)
        if views is None:
            return
        if isinstance(views, str) or not views:
            due, problem = _nothing(logs, wanted, due, views if isinstance(views, str) else None)
            if problem is not None:
                yield problem
            continue
        before = due
        for header, crc_ok in _walk(views, wanted, check_crc):
            found = _judged(
                logs, wanted, header, crc_ok, due, may_begin_before=is_first_batch and not wanted.is_first
            )
            due, is_first_batch = found.last_offset + 1, False
            if wanted.is_first or found.first_offset >= wanted.first:
                yield found
        if due <= before:
            due = _resume(logs, wanted, before)
            yield FoundBatch(before, due - 1, None, None, "no batch with these offsets was found")


def _judged(
    logs: LogReader,
    wanted: LogRange,
    header: BatchHeader | None,
    crc_ok: bool | None,
    due: int,
    *,
    may_begin_before: bool,
) -> FoundBatch:
    """The finding at the place of offset `due`. No CRC protects a base offset, so it is checked
    against its neighbours."""
    if header is None or crc_ok is False:
        resume = _resume(logs, wanted, due)
        if header is not None and due <= header.base_offset < resume:
            return FoundBatch(header.base_offset, resume - 1, header, False, "its CRC does not match")
        return FoundBatch(
            due, resume - 1, None, crc_ok, "what is stored here is not a record batch, or a damaged one"
        )
    problem, first, last = None, header.base_offset, header.last_offset
    if first < due and not may_begin_before:
        problem = f"its offsets begin before the end of the batch before it: {due} was due"
    elif first > due and _read(logs, wanted, due, max_bytes=1, end=first):
        problem = f"its header says offset {first} where {due} was due"
        first, last = due, due + header.last_offset_delta
    return FoundBatch(first, last, header, crc_ok, problem)


def _read(
    logs: LogReader, wanted: LogRange, offset: int, *, max_bytes: int = READ_BYTES, end: int | None = None
) -> Sequence[memoryview] | str | None:
    """The stored chunks; a text if the engine cannot read there; None if the log was deleted."""
    try:
        return logs.read(
            wanted.log, offset, max_bytes=max_bytes, end_offset=wanted.end if end is None else end
        )
    except KeyError:
        return None
    except Exception as error:  # an engine's library may raise anything for damaged files
        return " ".join(str(error).split())


def _nothing(
    logs: LogReader, wanted: LogRange, offset: int, error: str | None
) -> tuple[int, FoundBatch | None]:
    """The offset at which the scan continues, and the damage, if any. Holes are not damage, but no
    log ends in one."""
    try:
        start, end = logs.bounds(wanted.log)
    except KeyError:
        return wanted.end, None
    if start > offset:
        return start, None  # Removed meanwhile.
    if error is not None:
        resume = _resume(logs, wanted, offset)
        return resume, FoundBatch(offset, resume - 1, None, None, f"it cannot be read: {error}")
    if not wanted.is_last or end < wanted.end:
        return wanted.end, None
    text = f"nothing can be read from offset {offset} on, although the log ends at {wanted.end}"
    return wanted.end, FoundBatch(offset, wanted.end - 1, None, None, text)


def _walk(
    views: Sequence[memoryview], wanted: LogRange, check_crc: bool
) -> Iterator[tuple[BatchHeader | None, bool | None]]:
    """The headers of the batches read and whether their CRCs match, up to and including the first
    damaged batch. The header is None if it is not plausible."""
    for view in views:
        position = 0
        while position < len(view):
            header = _plausible(view, position, wanted)
            crc_ok = crc_is_valid(view, position, header) if header is not None and check_crc else None
            yield header, crc_ok
            if header is None or crc_ok is False:
                return
            position += header.size_bytes


def _plausible(view: memoryview, position: int, wanted: LogRange) -> BatchHeader | None:
    """The header at `position`, or None if it cannot be that of a batch of the range."""
    if position + HEADER_SIZE > len(view):
        return None
    header = read_header(view, position)
    is_whole = HEADER_SIZE <= header.size_bytes <= len(view) - position
    has_offsets = 0 <= header.base_offset < wanted.end and header.last_offset_delta >= 0
    return header if header.magic == MAGIC and is_whole and has_offsets else None


def _resume(logs: LogReader, wanted: LogRange, damaged: int) -> int:
    """An offset after `damaged` at which a good batch or the end of the range can be read, found by
    doubling and halving."""
    step, bad = 1, damaged
    while (good := min(damaged + step, wanted.end)) < wanted.end and not _is_good(logs, wanted, good):
        step, bad = 2 * step, good
    while good - bad > 1:
        middle = (good + bad) // 2
        if _is_good(logs, wanted, middle):
            good = middle
        else:
            bad = middle
    return good


def _is_good(logs: LogReader, wanted: LogRange, offset: int) -> bool:
    views = _read(logs, wanted, offset, max_bytes=1)
    if isinstance(views, str):
        return False
    header = _plausible(views[0], 0, wanted) if views else None
    return not views or (
        header is not None and header.last_offset >= offset and crc_is_valid(views[0], 0, header)
    )
