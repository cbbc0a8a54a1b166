"""What record_limit sends of big batches: exactly the records taken, each as it was stored, in batches that any client takes for whole."""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from kbroker.broker.share_records import _BATCHES_REMEMBERED, _STRIDE, StoredBatch, TakenRecords, walk, whole_batches
from kbroker.broker.stored_batches import iter_possible
from kbroker.compression import Codec
from kbroker.records import (
    CONTROL,
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LENGTH_END,
    Buffer,
    ProducerInfo,
    Record,
    add_record,
    build_batch,
    crc_is_valid,
    iter_headers,
    iter_records,
    read_header,
    stamp_log_append_time,
)
from kbroker.share.effects import AcquiredRange

TRANSACTIONAL = 0x10
_END = 1 << 40


def batch_of(records: Sequence[Record], base_offset: int, last_offset: int, *, attributes: int = 0) -> bytes:
    """As compaction leaves one: the records keep their offsets, wherever the batch begins and ends."""
    body: list[Buffer] = []
    for record in records:
        add_record(body, record, timestamp_delta=record.timestamp_ms - records[0].timestamp_ms, offset_delta=record.offset - base_offset)
    batch = bytearray(HEADER_SIZE) + b"".join(body)
    HEADER.pack_into(
        batch, 0, base_offset, len(batch) - LENGTH_END, 3, 2, 0, attributes, last_offset - base_offset, records[0].timestamp_ms,
        max(record.timestamp_ms for record in records), 77, 1, 5, len(records),
    )  # fmt: skip
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[CRC_START:]))
    return bytes(batch)


def read(*batches: bytes) -> list[StoredBatch]:
    return [StoredBatch._make(each) for each in walk([memoryview(b"".join(batches))], 0, _END, _END)]


def numbered(count: int, first: int = 0) -> list[Record]:
    return [Record(first + n, 1000 + n, b"k%d" % n, b"v" * (n % 200), (("h", b"%d" % n),)) for n in range(count)]


def decoded(buffers: Sequence[Buffer]) -> list[Record]:
    """As a client reads them: every CRC is right, and no bytes are left over."""
    data, end, records = b"".join(buffers), 0, []
    for position, header in iter_headers(data):
        assert position == end
        assert crc_is_valid(data, position, header)
        of_batch = list(iter_records(data, position))
        assert len(of_batch) == header.record_count
        assert all(header.base_offset <= record.offset <= header.last_offset for record in of_batch)
        records += of_batch
        end = position + header.size_bytes
    assert end == len(data)
    return records


def taken(*runs: tuple[int, int]) -> list[AcquiredRange]:
    return [AcquiredRange(first, last, 1) for first, last in runs]


_BLOBS = st.none() | st.binary(max_size=200)
_RECORDS = st.builds(
    Record, st.just(0), st.integers(0, 1 << 41), _BLOBS, _BLOBS, st.lists(st.tuples(st.text(max_size=5), _BLOBS), max_size=2).map(tuple)
)


@st.composite
def _log(draw: st.DrawFn) -> tuple[list[bytes], list[Record]]:
    """Batches with holes inside, at their ends and between them, and what an ordinary consumer reads of them."""
    batches, records, offset = [], [], 0
    for _ in range(draw(st.integers(1, 4))):
        base_offset = offset = offset + draw(st.integers(0, 3))
        of_batch = []
        for record in draw(st.lists(_RECORDS, min_size=1, max_size=3 * _STRIDE)):
            offset += draw(st.sampled_from([0, 0, 0, 0, 1, 5]))
            of_batch.append(record._replace(offset=offset))
            offset += 1
        offset += draw(st.integers(0, 2))
        batch = bytearray(batch_of(of_batch, base_offset, offset - 1, attributes=draw(st.sampled_from([0, TRANSACTIONAL]))))
        if draw(st.booleans()):
            stamp_log_append_time(batch, 1 << 42)
        batches.append(bytes(batch))
        records += iter_records(batch)
    return batches, records


@given(_log(), st.lists(st.sets(st.integers(0, 400), min_size=1, max_size=12), min_size=1, max_size=8))
def test_a_client_reads_exactly_what_was_taken(log: tuple[list[bytes], list[Record]], turns: list[set[int]]) -> None:
    """In any order, again and again: what was learnt of a batch in one turn is right in the next."""
    batches, records = log
    last = read(*batches)[-1].last_offset
    slicer = TakenRecords()
    for turn in turns:
        offsets = sorted({offset for start in turn for offset in range(start, start + 1 + start % 7)} & set(range(last + 1)))
        if not offsets:
            continue
        found = decoded(slicer.of(read(*batches), [AcquiredRange(offset, offset, 1 + offset % 2) for offset in offsets]))
        expected = [record for record in records if record.offset in offsets]
        assert [record for record in found if record.offset in offsets] == expected
        hole = [batch for batch in read(*batches) if not any(batch.base_offset <= each.offset <= batch.last_offset for each in expected)]
        assert all(
            record in expected or any(batch.base_offset <= record.offset <= batch.last_offset for batch in hole) for record in found
        ), "others only of batches where no record was taken, but a hole"


@given(_log(), st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), max_size=3), st.integers(0, 300), st.integers(1, 3))
def test_walks_to_where_batches_are_possible(
    log: tuple[list[bytes], list[Record]], damage: list[tuple[int, int]], end: int, parts: int
) -> None:
    """Damage is met as everywhere else in the broker (stored_batches.py), in every shape that a read may have."""
    batches, _ = log
    size = -(-len(batches) // parts)
    views = []
    for at in range(0, len(batches), size):
        data = bytearray(b"".join(batches[at : at + size]))
        for position, byte in damage:
            data[position % len(data)] = byte
        views.append(memoryview(data))
    expected = [
        (header.base_offset, header.last_offset, header.is_control, view, position, position + header.size_bytes)
        for view, position, header in iter_possible(views, end)
    ]
    assert walk(views, 0, _END, end) == expected
    assert walk(views, 3, 5, end) == [each for each in expected if each[0] < 8]


@given(_log(), st.integers(0, 300), st.integers(0, 50))
def test_whole_batches_are_those_of_the_first_to_the_last_offset(log: tuple[list[bytes], list[Record]], first: int, size: int) -> None:
    stored = read(*log[0])
    expected = [batch for batch in stored if batch.base_offset <= first + size and batch.last_offset >= first]
    for has_control in (False, True):
        views = whole_batches(stored, taken((first, first + size)), has_control=has_control)
        assert b"".join(views) == b"".join(batch.view[batch.start : batch.end] for batch in expected)
        assert len(views) <= 1


def test_one_record_of_the_middle() -> None:
    batch = batch_of(numbered(8000, 100), 100, 8099)
    (sent,) = TakenRecords().of(read(batch), taken((4811, 4812)))
    assert decoded([sent]) == numbered(8000, 100)[4711:4713]
    header, stored = read_header(sent), read_header(batch)
    assert header == stored._replace(batch_length=header.batch_length, crc=header.crc, last_offset_delta=4712, record_count=2), (
        "what records are relative to is as it was, and so are the producer and its sequence"
    )
    assert len(sent) < 700


def test_a_timestamp_of_the_broker_counts_for_a_slice() -> None:
    batch = bytearray(batch_of(numbered(50), 0, 49))
    stamp_log_append_time(batch, 123_456)
    records = decoded(TakenRecords().of(read(bytes(batch)), taken((7, 7), (20, 21))))
    assert [(record.offset, record.timestamp_ms) for record in records] == [(7, 123_456), (20, 123_456), (21, 123_456)]


def test_gaps_part_a_batch_and_ranges_of_other_counts_do_not() -> None:
    ranges = [AcquiredRange(3, 4, 2), AcquiredRange(5, 9, 1), AcquiredRange(12, 12, 1)]
    buffers = TakenRecords().of(read(batch_of(numbered(50), 0, 49)), ranges)
    assert [record.offset for record in decoded(buffers)] == [3, 4, 5, 6, 7, 8, 9, 12]
    assert [header.record_count for _, header in iter_headers(b"".join(buffers))] == [7, 1]


def test_batches_that_are_taken_whole_are_not_copied() -> None:
    stored = read(batch_of(numbered(10), 0, 9), batch_of(numbered(10, 10), 10, 19), batch_of(numbered(10, 20), 20, 29))
    buffers = TakenRecords().of(stored, taken((0, 19), (25, 25)))
    assert bytes(buffers[0]) == bytes(stored[0].view[: stored[1].end])
    assert isinstance(buffers[0], memoryview)
    assert [record.offset for record in decoded(buffers)] == [*range(20), 25]


def test_control_batches_are_left_out() -> None:
    control = build_batch([Record(0, 1, b"\0\0\0\1", b"")], base_offset=10, attributes=CONTROL)
    stored = read(batch_of(numbered(10), 0, 9), control, batch_of(numbered(10, 11), 11, 20))
    assert [record.offset for record in decoded(TakenRecords().of(stored, taken((8, 9), (11, 12))))] == [8, 9, 11, 12]


class TestWhole:
    @pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
    def test_compressed(self, codec: Codec) -> None:
        batch = build_batch(numbered(50), codec=codec, producer=ProducerInfo(7, 0, 0))
        assert b"".join(TakenRecords().of(read(batch), taken((3, 3)))) == batch

    def test_a_new_crc_does_not_hide_damage(self) -> None:
        batch = bytearray(batch_of(numbered(50), 0, 49))
        batch[-1] ^= 1
        following = batch_of(numbered(5, 50), 50, 54)
        slicer = TakenRecords()
        for _ in range(2):
            stored = read(bytes(batch), following)
            assert b"".join(slicer.of(stored, taken((3, 3), (52, 52))))[: len(batch)] == batch

    def test_records_that_are_none(self) -> None:
        """The header's CRC is right: its producer wrote it so. Clients find out."""
        for at, wrong in ((HEADER_SIZE, b"\x7f"), (HEADER_SIZE, b"\0"), (HEADER_SIZE + 3, b"\x64"), (HEADER_SIZE, b"\xff" * 11)):
            batch = bytearray(batch_of(numbered(50), 0, 49))
            batch[at : at + len(wrong)] = wrong
            struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[CRC_START:]))
            slicer = TakenRecords()
            for _ in range(2):
                assert b"".join(slicer.of(read(bytes(batch)), taken((3, 3)))) == batch

    def test_of_which_only_a_hole_was_taken(self) -> None:
        records = [record for record in numbered(50) if record.offset not in (7, 8)]
        batch = batch_of(records, 0, 49)
        assert b"".join(TakenRecords().of(read(batch), taken((7, 8)))) == batch
        assert [record.offset for record in decoded(TakenRecords().of(read(batch), taken((7, 9))))] == [9]


class TestCost:
    """Counted work: function calls and memory, no seconds."""

    def calls(self, slicer: TakenRecords, stored: list[StoredBatch], offset: int) -> int:
        calls = 0

        def count(_: object, event: str, __: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            slicer.of(stored, taken((offset, offset)))
        finally:
            sys.setprofile(None)
        return calls

    def test_a_record_far_inside_costs_no_walk_from_the_beginning(self) -> None:
        stored = read(batch_of(numbered(8000), 0, 7999))
        slicer = TakenRecords()
        of_the_first = self.calls(slicer, stored, 1)
        for offset in range(2, 7900):
            slicer.of(stored, taken((offset, offset)))
        assert self.calls(slicer, stored, 7900) <= of_the_first + 10, "the next one"
        for again in (7000, 33, 5, 4211):
            assert self.calls(slicer, stored, again) <= of_the_first + 3 * _STRIDE, "delivered again"

    def test_few_batches_are_remembered(self) -> None:
        slicer = TakenRecords()
        for number in range(20):
            slicer.of(read(batch_of(numbered(10, 10 * number), 10 * number, 10 * number + 9)), taken((10 * number, 10 * number)))
        assert len(slicer._places) == _BATCHES_REMEMBERED
        assert [base_offset for base_offset, _ in slicer._places] == [160, 170, 180, 190]
