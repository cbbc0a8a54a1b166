"""Decodes records into Arrow columns with numpy alone.

The start of a record is known only once the record before it has been read. All batches of a group
therefore advance together: step k finds the k-th record of every batch with a few operations on
whole arrays. Once all records are found, each field is read with a few operations on all of them.
This needs many batches side by side. The tails of a few large batches are read by `_walk_alone`, a
Python loop that reads one length per record, and the only loop over records.

Keys and values are copied once, by Arrow. The group's memory becomes a binary array whose even
entries are the wanted bytes and whose odd entries are the bytes between them; `take` selects the
even entries.

No length is trusted: positions only grow, and a gather beyond the memory raises IndexError. The end
of every field is compared with the end of its record, and the end of every record with the end of
its batch. `find_damage` then describes the damage.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kbroker_spark.arrow_columns import MAX_MILLISECONDS, TYPES, bitmap, header_column
from kbroker_spark.batch_groups import Group, Integers, Size, find_damage

GROUP = Size(100_000, 12 << 20)
"""Larger than PIECE, for more batches side by side: a step costs the same few numpy calls for any
number of them."""

_MIN_WIDTH = 32
"""With fewer batches side by side, a Python loop is faster than numpy."""

_VARINT_BYTES, _VARLONG_BYTES = 5, 10


class _Damaged(Exception):
    """Something impossible was read."""


def _two_byte_values() -> NDArray[np.int32]:
    """For every pair of bytes (little-endian), the varint at its start; _LONG if that is longer."""
    low, high = np.arange(1 << 16) & 0xFF, np.arange(1 << 16) >> 8
    zigzag = np.where(low < 0x80, low, (low & 0x7F) | (high << 7))
    values = (zigzag >> 1) ^ -(zigzag & 1)
    return np.where((low >= 0x80) & (high >= 0x80), _LONG, values).astype(np.int32)


_LONG = np.iinfo(np.int32).min
_TWO_BYTES = _two_byte_values()
_STEPS = np.where(_TWO_BYTES > 0, _TWO_BYTES + 1 + ((np.arange(1 << 16) >> 7) & 1), 0)
"""For the first two bytes of a record, the distance to the next one; 0 if two bytes do not
suffice."""


def decode_group(
    group: Group, first: int, end: int, columns: Collection[str]
) -> tuple[int, dict[str, pa.Array]]:
    """(number of rows, Arrow arrays of `columns`) of the records with first <= offset < end. Raises
    CorruptBatch for damage."""
    try:
        return _decode(group, first, end, columns)
    except (IndexError, _Damaged) as error:
        raise find_damage(group) from error


def _decode(group: Group, first: int, end: int, columns: Collection[str]) -> tuple[int, dict[str, pa.Array]]:
    memory = Memory(group.data)
    counts = group.field("record_count")
    batch = np.repeat(np.arange(len(counts)), counts)
    length, at = memory.varints(_record_starts(memory, group, counts))
    record_end = at + length
    _must((length > 0) & (record_end <= group.ends[batch]))
    timestamp_delta, at = memory.varints(at + 1, _VARLONG_BYTES)
    offset_delta, at = memory.varints(at)
    _must((offset_delta >= 0) & (offset_delta <= group.field("last_offset_delta")[batch]))
    key_length, key_at = memory.varints(at)
    at = key_at + np.maximum(key_length, 0)
    _must(at < record_end)
    value_length, value_at = memory.varints(at)
    at = value_at + np.maximum(value_length, 0)
    _must(at < record_end)
    header_count, at = memory.varints_at_end(at)
    headers = _Headers(memory, header_count, at, record_end)

    offset = group.field("base_offset")[batch] + offset_delta
    is_kept = (offset >= first) & (offset < end)
    kept = slice(None) if is_kept.all() else np.flatnonzero(is_kept)  # a slice makes views, not copies
    arrays: dict[str, pa.Array] = {}
    if "key" in columns:
        arrays["key"] = memory.binary(key_at[kept], key_length[kept])
    if "value" in columns:
        arrays["value"] = memory.binary(value_at[kept], value_length[kept])
    if "offset" in columns:
        arrays["offset"] = pa.array(offset[kept])
    if "timestamp" in columns:
        arrays["timestamp"] = _timestamps(group, batch[kept], timestamp_delta[kept])
    if "timestampType" in columns:
        arrays["timestampType"] = pa.array(group.is_log_append_time.astype(np.int32)[batch[kept]])
    if "headers" in columns:
        arrays["headers"] = headers.column(kept)
    return len(offset[kept]), arrays


def _must(holds: NDArray[np.bool_]) -> None:
    if not holds.all():
        raise _Damaged


def _record_starts(memory: Memory, group: Group, counts: Integers) -> Integers:
    """The position of every record, in order. Only lengths are read, and not checked against the
    ends of batches."""
    order = np.argsort(-counts, kind="stable")  # so that the unfinished batches are always the first ones
    falling = counts[order]
    # for each step k, the number of batches with more than k records
    widths = np.searchsorted(-falling, -np.arange(falling[0]), "left")
    together = int(np.searchsorted(-widths, -_MIN_WIDTH, "right"))
    at = group.starts[order]
    found = []
    for width in widths[:together].tolist():
        at = at[:width]
        found.append(at)
        at = memory.next_records(at)
    row = np.cumsum(counts) - counts
    starts = np.empty(int(counts.sum()), np.int64)
    if found:
        lengths = widths[:together]
        step = np.repeat(np.arange(together), lengths)
        place = np.arange(len(step)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        starts[row[order][place] + step] = np.concatenate(found)
    alone = int(widths[together]) if together < len(widths) else 0
    for index in range(alone):
        batch = order[index]
        _walk_alone(
            group, int(batch), int(at[index]), starts[row[batch] + together : row[batch] + counts[batch]]
        )
    return starts


def _walk_alone(group: Group, batch: int, position: int, starts: Integers) -> None:
    """The loop described in the module's docstring: from length to length in a single batch."""
    data = bytes(group.data[position : group.ends[batch]])
    at = 0
    found = []
    for _ in range(len(starts)):
        found.append(at)
        byte = data[at]
        at += 1
        zigzag, shift = byte & 0x7F, 7
        while byte >= 0x80:
            byte = data[at]
            at += 1
            zigzag |= (byte & 0x7F) << shift
            shift += 7
        if zigzag & 1:
            raise _Damaged
        at += zigzag >> 1
    starts[:] = found
    starts += position


def _timestamps(group: Group, batch: Integers, delta: Integers) -> pa.Array:
    """Microseconds; the broker's time for LogAppendTime batches. Null where 64 bits do not
    suffice."""
    by_broker = group.is_log_append_time
    base = np.where(by_broker, group.field("max_timestamp"), group.field("base_timestamp"))[batch]
    if by_broker.any():
        delta = np.where(by_broker[batch], 0, delta)
    milliseconds = base + delta
    wrapped = ((base ^ milliseconds) & (delta ^ milliseconds)) < 0
    is_valid = (
        (np.abs(milliseconds) <= MAX_MILLISECONDS) & (milliseconds != np.iinfo(np.int64).min) & ~wrapped
    )
    valid = bitmap(is_valid)
    microseconds = (milliseconds if valid is None else np.where(is_valid, milliseconds, 0)) * 1000
    return pa.Array.from_buffers(TYPES["timestamp"], len(microseconds), [valid, pa.py_buffer(microseconds)])


class Memory:
    """The bytes of a group, for gathers at arrays of positions."""

    def __init__(self, data: memoryview) -> None:
        self._buffer = pa.py_buffer(data)
        self._bytes = np.frombuffer(data, np.uint8)
        self._pairs = np.ndarray((max(len(data) - 1, 0),), "<u2", data, strides=(1,))

    def next_records(self, at: Integers) -> Integers:
        """The positions of the records after those at `at`."""
        step = _STEPS[self._pairs[at]]
        if step.all():
            behind: Integers = at + step
            return behind
        length, body = self.varints(at)
        _must(length > 0)
        return body + length

    def varints(self, at: Integers, most_bytes: int = _VARINT_BYTES) -> tuple[Integers, Integers]:
        """(values, positions after them). Not for the last byte of a batch, since two bytes are
        read at once."""
        pairs = self._pairs[at]
        values = _TWO_BYTES[pairs].astype(np.int64)
        behind: Integers = at + 1 + ((pairs >> 7) & 1)
        longer = np.flatnonzero(values == _LONG)
        if len(longer):
            values[longer], behind[longer] = self.varints_at_end(at[longer], most_bytes)
        return values, behind

    def varints_at_end(self, at: Integers, most_bytes: int = _VARINT_BYTES) -> tuple[Integers, Integers]:
        """The same, byte by byte."""
        byte = self._bytes[at]
        zigzag = (byte & 0x7F).astype(np.uint64)
        behind = at + 1
        longer = np.flatnonzero(byte >= 0x80)
        shift = 7
        while len(longer):
            if shift == 7 * most_bytes:
                raise _Damaged
            byte = self._bytes[behind[longer]]
            zigzag[longer] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            behind[longer] += 1
            longer = longer[byte >= 0x80]
            shift += 7
        return (zigzag >> np.uint64(1)).view(np.int64) ^ -(zigzag & np.uint64(1)).view(np.int64), behind

    def binary(self, at: Integers, length: Integers) -> pa.Array:
        """A binary column of the bytes at increasing positions; a negative length is null."""
        rows = len(at)
        bounds = np.empty(2 * rows + 1, np.int32)
        bounds[0:-1:2] = at
        bounds[1::2] = at + np.maximum(length, 0)
        bounds[-1] = bounds[-2] if rows else 0
        between = pa.Array.from_buffers(pa.binary(), 2 * rows, [None, pa.py_buffer(bounds), self._buffer])
        is_null = length < 0
        return between.take(
            pa.array(np.arange(0, 2 * rows, 2, dtype=np.int32), mask=is_null if is_null.any() else None)
        )


class _Headers:
    """The headers of all records, found step by step like records: step k reads the k-th header of
    every record that has one."""

    def __init__(self, memory: Memory, counts: Integers, at: Integers, record_end: Integers) -> None:
        self._memory = memory
        self._counts = np.maximum(counts, 0)
        _must(self._counts * 2 <= record_end - at)
        total = int(self._counts.sum())
        self._begin = np.cumsum(self._counts) - self._counts
        self._name_at, self._name_length, self._value_at, self._value_length = np.zeros((4, total), np.int64)
        at = at.copy()
        with_more = np.flatnonzero(self._counts)
        step = 0
        while len(with_more):
            where = self._begin[with_more] + step
            at[with_more] = self._read(where, at[with_more], record_end[with_more])
            step += 1
            with_more = with_more[self._counts[with_more] > step]
        _must(at == record_end)

    def _read(self, where: Integers, at: Integers, record_end: Integers) -> Integers:
        length, at = self._memory.varints_at_end(at)
        self._name_at[where], self._name_length[where] = at, np.maximum(length, 0)
        at = at + np.maximum(length, 0)
        _must(at < record_end)
        length, at = self._memory.varints_at_end(at)
        self._value_at[where], self._value_length[where] = at, length
        at = at + np.maximum(length, 0)
        _must(at <= record_end)
        return at

    def column(self, kept: Integers | slice) -> pa.Array:
        """The headers of the records at `kept`."""
        counts = self._counts[kept]
        offsets = np.zeros(len(counts) + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        chosen: Integers | slice = slice(None)
        if len(counts) != len(self._counts):
            chosen = np.repeat(self._begin[kept] - (np.cumsum(counts) - counts), counts) + np.arange(
                int(counts.sum())
            )
        names = self._memory.binary(self._name_at[chosen], self._name_length[chosen])
        values = self._memory.binary(self._value_at[chosen], self._value_length[chosen])
        return header_column(offsets, names, values)
