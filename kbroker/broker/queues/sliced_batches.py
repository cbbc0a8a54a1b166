"""The records of a ShareFetch answer, as bytes: whole stored batches, or batches cut down to the
acquired records.

    stored   | header: 8000 records, last delta 7999 | 0 | 1 | ... | 4711 | 4712 | ... | 7999 |
    sent     | header:    2 records, last delta 4712 | 4711 | 4712 |

In record_limit mode (KIP-1206) a client takes few records, perhaps one, of a batch that may have
thousands. It would parse all of them at every poll, so it is sent only those that it takes.

A slice is a batch like those that compaction leaves. Base offset, both timestamps, producer and
attributes are the stored ones, so that the deltas inside the records stay valid, and LogAppendTime
too. Length, last offset delta, record count and CRC are its own. Records that are finished, or that
other members hold, divide a batch into several slices. A slice of a compressed batch is
uncompressed: the batch was opened before any record of it was acquired (opened_batches.py).

These are sent whole, as in Kafka:

- batches that are taken whole
- those with a wrong CRC, because a new CRC would hide the damage from the client
- those that cannot be opened or walked over
- those whose slice is larger than the client wants, while the batch is not

A client that acquired a record which was not sent would acknowledge a gap, and that is final. So a
slice is sent only if it has a record for each acquired offset, or the batch has holes (compaction).

A member that takes exact numbers of records gets none for a hole, so the broker passes over holes
as it does over control batches. Other members get the batch whole and acknowledge its holes as
gaps, as in Kafka.

This module knows bytes and offsets, and neither locks nor clients.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from kbroker.broker.queues.opened_batches import BatchOpener, OpenedBatch, Refusal, must_be_opened
from kbroker.broker.queues.record_places import UNWALKABLE, Runs, is_sparse
from kbroker.formats.batches import (
    CODEC_AT,
    CODEC_MASK,
    CONTROL,
    HEADER_SIZE,
    LENGTH_END,
    MAGIC,
    BatchHeader,
    Buffer,
    crc_is_valid,
    read_header,
    sliced_header,
)
from kbroker.formats.turns import TURN_RECORDS
from kbroker.share.acquire import Control
from kbroker.share.effects import AcquiredRange

_COPY_BELOW_BYTES = 4 << 10
"""A smaller slice is copied behind its header: one buffer to send instead of two."""


class StoredBatch(NamedTuple):
    """Where a record batch is in the bytes that were read. `is_control`: it is not delivered, as it
    is a control batch (KIP-98, or the broker's own), or compaction has left no record in it."""

    base_offset: int
    last_offset: int
    is_control: bool
    view: memoryview
    start: int
    end: int


_unpack_batch = struct.Struct(">qi4xb4xhi30xi").unpack_from
"""The needed header fields: base offset, length, magic, attributes, last offset delta, count."""
producer_of = struct.Struct(">21xh20xq6xi").unpack_from
"""Attributes, producer id and record count of a batch header."""
_LEAST_LENGTH = HEADER_SIZE - LENGTH_END
_base_offset, _last_offset = itemgetter(0), itemgetter(1)

Walked: TypeAlias = tuple[int, int, bool, memoryview, int, int]
"""The fields of a StoredBatch, as a plain tuple. An answer may have hundreds of batches of which
only the offsets are used, and creating a StoredBatch for each would add half to the time."""


def walk(views: Sequence[memoryview], fetch_offset: int, wanted: int, end_offset: int) -> list[Walked]:
    """The first batches of `views`, as many as contain `wanted` offsets. The result is that of
    iter_possible() in stored_batches.py, with only two calls for each. The offsets are counted from
    the first batch on if compaction has removed those before it."""
    batches: list[Walked] = []
    least_offset, beyond = 0, fetch_offset + wanted
    for view in views:
        last, at, size = 0, 0, len(view)
        while at + HEADER_SIZE <= size:
            base_offset, length, magic, attributes, last_delta, count = _unpack_batch(view, at)
            end = at + length + LENGTH_END
            if (
                magic != MAGIC
                or length < _LEAST_LENGTH
                or end > size
                or not least_offset <= base_offset < end_offset
                or last_delta < 0
            ):
                break
            if base_offset >= beyond:
                if batches:
                    return batches
                beyond = base_offset + wanted
            least_offset = base_offset + last_delta + 1
            is_control = attributes & CONTROL != 0 or not count
            batches.append((base_offset, least_offset - 1, is_control, view, at, end))
            last, at = at, end
        if at < size:  # Either the bytes here are not a batch, or the length of the previous batch is wrong.
            if at and not crc_is_valid(view, last, read_header(view, last)):
                batches.pop()
            return batches
    return batches


def control_of(batches: Sequence[Walked], last: int) -> list[Control]:
    """The batches that members never get, up to offset `last`. Those of a producer are markers, or
    belong to an aborted transaction. Those without records are finished as well."""
    found: list[Control] = []
    for first, end_offset, is_control, view, start, _ in batches:
        if is_control and first <= last:
            _, producer_id, record_count = producer_of(view, start)
            found.append(Control(first, min(end_offset, last), producer_id >= 0 or not record_count))
    return found


def whole_batches(
    batches: Sequence[Walked], ranges: Sequence[AcquiredRange], *, has_control: bool = True
) -> list[memoryview]:
    """From the batch of the first acquired offset to that of the last, in as few views as they were
    read. `has_control`: there may be control batches among them."""
    first, last = ranges[0].first_offset, ranges[-1].last_offset
    i = bisect_left(batches, first, key=_last_offset)
    j = bisect_right(batches, last, lo=i, key=_base_offset)
    if not has_control and i < j:
        _, _, _, view, start, _ = batches[i]
        _, _, _, last_view, _, end = batches[j - 1]
        if view is last_view:
            return [view[start:end]]
    return _views([batch for batch in map(StoredBatch._make, batches[i:j]) if not batch.is_control])


def _views(batches: Sequence[StoredBatch]) -> list[memoryview]:
    """Adjacent batches of one view become one view."""
    if not batches:
        return []
    views: list[memoryview] = []
    first, end = batches[0], batches[0].start
    for batch in batches:
        if batch.view is not first.view or end != batch.start:
            views.append(first.view[first.start : end])
            first = batch
        end = batch.end
    views.append(first.view[first.start : end])
    return views


class Front(NamedTuple):
    """Records of the first `ready` batches may be acquired now, because any part of them can be
    sent at once. If `ready` is 0, batch number `to_open` must be opened first."""

    ready: int
    to_open: int = 0


def front_of(
    batches: Sequence[Walked], room: int, acquirable: Callable[[int, int], int], opener: BatchOpener
) -> Front:
    """How many of these batches can be acquired from without waiting; small ones are opened on the
    way. Of plain batches that are taken in part, only as many are acquired from as can be cut in a
    turn of the loop. `acquirable(first, last)`: how many of these offsets are free for a member,
    which takes up to `room`.

    A batch that is taken whole or not at all need not be opened, unless it has holes. If the engine
    takes less than is expected here (throttling), an unopened batch is sent whole, and nothing is
    lost. A batch that could not be opened is sent whole in an answer of its own, because librdkafka
    acknowledges all records behind a batch that it cannot read as gaps."""
    taken = walked = 0
    for number, (base_offset, last_offset, is_control, view, start, end) in enumerate(batches):
        if taken >= room:
            break
        if is_control:
            continue
        wanted = min(acquirable(base_offset, last_offset), room - taken)
        span = last_offset - base_offset + 1
        if wanted and (view[start + CODEC_AT] & CODEC_MASK or span > TURN_RECORDS):
            opened = opener.find(base_offset, read_header(view, start).crc)
            if opened is None and (wanted < span or is_sparse(view, start)):
                opened = opener.open_quickly(view[start:end])
                if opened is None:
                    return Front(number) if taken else Front(0, number)
            if isinstance(opened, Refusal):
                return Front(number if taken else number + 1)
        elif taken and 0 < wanted < span:
            walked += span
            if walked > TURN_RECORDS:
                return Front(number)
        taken += wanted
    return Front(len(batches))


def taken_records(
    batches: Sequence[Walked], ranges: Sequence[AcquiredRange], opener: BatchOpener, max_bytes: int
) -> list[Buffer]:
    """The records of `ranges` for an exact fetch, in offset order; the module head lists the
    batches that are sent whole. A batch of which only holes were taken is sent whole too, because
    clients expect records for the ranges.

    `max_bytes`: limit for plain slices that are larger than their compressed batches."""
    buffers: list[Buffer] = []
    unsent: list[StoredBatch] = []
    for batch in map(StoredBatch._make, batches):
        runs = [] if batch.is_control else _runs_within(batch, ranges)
        if not runs:
            continue
        slices = None
        if runs[0] != (batch.base_offset, batch.last_offset):
            header = read_header(batch.view, batch.start)
            if must_be_opened(header):
                slices = _slices(batch, header, runs, opener, max_bytes)
                max_bytes -= sum(map(len, slices or ()))
            else:
                slices = _slices(batch, header, runs, opener, None)
        if slices:
            buffers += _views(unsent)
            buffers += slices
            unsent = []
        else:
            unsent.append(batch)
    buffers += _views(unsent)
    return buffers


def _slices(
    batch: StoredBatch, header: BatchHeader, runs: Runs, opener: BatchOpener, max_bytes: int | None
) -> list[Buffer] | None:
    """None: send it whole."""
    opened = opener.to_cut(batch.view[batch.start : batch.end], header)
    if opened is None:
        return None
    try:
        found = _find(header, opened, runs)
    except UNWALKABLE:
        opener.cannot_be_walked(header)
        return None
    if max_bytes is not None:
        size = sum(HEADER_SIZE + end - begin for _, _, begin, end in found)
        if size > max_bytes and size > header.size_bytes:
            return None
    return _cut(batch, opened.payload, found)


def split(batches: Sequence[Walked], offset: int, opener: BatchOpener) -> tuple[Runs, list[Control]]:
    """From `offset` on: what members may get of these batches, and the holes in them."""
    runs: list[tuple[int, int]] = []
    holes: list[Control] = []
    for base, last, _, view, start, end in batches:
        here = runs_in(view[start:end], opener)
        if not here:
            runs.append((base, last))
            continue
        runs += [run for run in here if run[1] >= offset]
        holes += [hole for hole in holes_of(base, last, here) if hole.last_offset >= offset]
    return runs, holes


def runs_in(stored: memoryview, opener: BatchOpener) -> Runs | None:
    """The offsets of a sparse batch that have records. None: it is not sparse, or they are not
    known, because the batch is not opened or cannot be read."""
    opened = opener.to_cut(stored, read_header(stored)) if is_sparse(stored) else None
    return None if opened is None else opened.runs


def holes_of(base: int, last: int, runs: Runs) -> list[Control]:
    """The offsets of the batch base..last that are in none of the runs."""
    edges = [(base - 1, base - 1), *runs, (last + 1, last + 1)]
    return [
        Control(before[1] + 1, after[0] - 1, True)
        for before, after in pairwise(edges)
        if before[1] + 1 < after[0]
    ]


def _runs_within(batch: StoredBatch, ranges: Sequence[AcquiredRange]) -> list[tuple[int, int]]:
    """The taken runs of offsets within the batch. Runs that differ only in the delivery count are
    joined."""
    runs: list[tuple[int, int]] = []
    for first, last, _ in ranges:
        if first > batch.last_offset:
            break
        if last >= batch.base_offset:
            first, last = max(first, batch.base_offset), min(last, batch.last_offset)
            if runs and runs[-1][1] + 1 == first:
                first = runs.pop()[0]
            runs.append((first, last))
    return runs


_Found: TypeAlias = tuple[int, int, int, int]
"""A run of records: last offset delta, record count, begin and end in the payload."""


def _find(header: BatchHeader, opened: OpenedBatch, runs: Runs) -> list[_Found]:
    """Raises one of UNWALKABLE, also if a batch without holes has no record for an offset."""
    payload, places, _ = opened
    has_holes = header.record_count != header.last_offset_delta + 1
    found = []
    for first, last in runs:
        number, begin = places.find(payload, first - header.base_offset)
        end_number, end = places.find(payload, last + 1 - header.base_offset)
        count = end_number - number
        if count != last - first + 1 and not (has_holes and count < last - first + 1):
            raise ValueError(f"{count} records for the offsets {first} to {last}")
        if count:
            found.append((last - header.base_offset, count, begin, end))
    return found


def _cut(batch: StoredBatch, payload: bytes | memoryview, found: Sequence[_Found]) -> list[Buffer]:
    buffers: list[Buffer] = []
    for last_delta, count, begin, end in found:
        records = payload[begin:end]
        head = sliced_header(
            batch.view, batch.start, records, last_offset_delta=last_delta, record_count=count
        )
        if len(records) < _COPY_BELOW_BYTES:
            buffers.append(b"".join((head, records)))
        else:
            buffers += (head, records)
    return buffers
