"""Slices of large batches that record_limit sends: exactly the acquired records, each as it was
stored, in batches that any client accepts as complete."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from random import Random
from uuid import UUID

import pytest
import trio
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from kbroker.broker.logs.stored_batches import iter_possible
from kbroker.broker.queues import opened_batches
from kbroker.broker.queues.opened_batches import BatchOpener, OpenedBatches, PlainBatches, must_be_opened
from kbroker.broker.queues.record_places import STRIDE, Places
from kbroker.broker.queues.sliced_batches import (
    Front,
    StoredBatch,
    front_of,
    taken_records,
    walk,
    whole_batches,
)
from kbroker.formats.batches import (
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
    records_payload,
    stamp_log_append_time,
)
from kbroker.formats.compression import Codec, compress
from kbroker.share import offers
from kbroker.share.effects import AckBatch, AcquiredRange, ShareSettings, StateBatch
from kbroker.share.record_state import RecordState
from kbroker.share.share_partition import AcquireMode, SharePartition
from kbroker.storage.spi import LogId
from tests.odd_batches import ODD_BATCHES, odd_batch

TRANSACTIONAL = 0x10
_END = 1 << 40
_MUCH = 1 << 30
ACCEPT, RELEASE = 1, 2
LOG = LogId(UUID(int=1), 0)
COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]


def batch_of(
    records: Sequence[Record],
    base_offset: int,
    last_offset: int,
    *,
    attributes: int = 0,
    codec: Codec = Codec.NONE,
) -> bytes:
    """As compaction leaves one: the records keep their offsets, wherever the batch begins and
    ends."""
    body: list[Buffer] = []
    for record in records:
        add_record(
            body,
            record,
            timestamp_delta=record.timestamp_ms - records[0].timestamp_ms,
            offset_delta=record.offset - base_offset,
        )
    attributes |= codec
    batch = bytearray(HEADER_SIZE) + compress(codec, b"".join(body))
    HEADER.pack_into(
        batch, 0, base_offset, len(batch) - LENGTH_END, 3, 2, 0, attributes, last_offset - base_offset,
        records[0].timestamp_ms,
        max(record.timestamp_ms for record in records), 77, 1, 5, len(records),
    )  # fmt: skip
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[CRC_START:]))
    return bytes(batch)


def read(*batches: bytes) -> list[StoredBatch]:
    return [StoredBatch._make(each) for each in walk([memoryview(b"".join(batches))], 0, _END, _END)]


def opener_of(*batches: bytes, max_bytes: int = _MUCH, quickly: bool = False) -> BatchOpener:
    """An opener that has opened the compressed ones of these batches. `quickly`: it may open small
    ones synchronously."""
    cache = OpenedBatches(max_bytes)

    async def open_all() -> None:
        for batch in batches:
            if must_be_opened(read_header(batch)):
                await BatchOpener(cache, LOG, {}).open(memoryview(batch))

    trio.run(open_all)
    opener = BatchOpener(cache, LOG, {})
    if not quickly:
        opener._turn.end()
        opener._turns_left = 1
    return opener


def records_of(
    batches: Iterable[bytes],
    ranges: Sequence[AcquiredRange],
    max_bytes: int = _MUCH,
) -> list[Buffer]:
    batches = list(batches)
    return taken_records(read(*batches), ranges, opener_of(*batches), max_bytes)


def numbered(count: int, first: int = 0) -> list[Record]:
    return [
        Record(first + n, 1000 + n, b"k%d" % n, b"v" * (n % 200), (("h", b"%d" % n),)) for n in range(count)
    ]


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


def _laid_out(*sizes: int) -> list[tuple[int, int]]:
    """(first offset, size) of each."""
    return [(sum(sizes[:number]), size) for number, size in enumerate(sizes)]


_BLOBS = st.none() | st.binary(max_size=200)
_RECORDS = st.builds(
    Record,
    st.just(0),
    st.integers(0, 1 << 41),
    _BLOBS,
    _BLOBS,
    st.lists(st.tuples(st.text(max_size=5), _BLOBS), max_size=2).map(tuple),
)


@st.composite
def _log(draw: st.DrawFn) -> tuple[list[bytes], list[Record]]:
    """Batches with holes inside, at their ends and between them, and the records that an ordinary
    consumer reads from them."""
    batches, records, offset = [], [], 0
    for _ in range(draw(st.integers(1, 4))):
        base_offset = offset = offset + draw(st.integers(0, 3))
        of_batch = []
        for record in draw(st.lists(_RECORDS, min_size=1, max_size=3 * STRIDE)):
            offset += draw(st.sampled_from([0, 0, 0, 0, 1, 5]))
            of_batch.append(record._replace(offset=offset))
            offset += 1
        offset += draw(st.integers(0, 2))
        attributes, codec = draw(st.sampled_from([0, TRANSACTIONAL])), draw(st.sampled_from(Codec))
        batch = bytearray(batch_of(of_batch, base_offset, offset - 1, attributes=attributes, codec=codec))
        if draw(st.booleans()):
            stamp_log_append_time(batch, 1 << 42)
        batches.append(bytes(batch))
        records += iter_records(batch)
    return batches, records


@given(_log(), st.lists(st.sets(st.integers(0, 400), min_size=1, max_size=12), min_size=1, max_size=8))
def test_a_client_reads_exactly_what_was_taken(
    log: tuple[list[bytes], list[Record]], turns: list[set[int]]
) -> None:
    """In any order, repeatedly: positions cached in one turn are right in the next."""
    batches, records = log
    last = read(*batches)[-1].last_offset
    opener = opener_of(*batches)
    for turn in turns:
        offsets = sorted(
            {offset for start in turn for offset in range(start, start + 1 + start % 7)}
            & set(range(last + 1))
        )
        if not offsets:
            continue
        ranges = [AcquiredRange(offset, offset, 1 + offset % 2) for offset in offsets]
        found = decoded(taken_records(read(*batches), ranges, opener, _MUCH))
        expected = [record for record in records if record.offset in offsets]
        assert [record for record in found if record.offset in offsets] == expected
        hole = [
            batch
            for batch in read(*batches)
            if not any(batch.base_offset <= each.offset <= batch.last_offset for each in expected)
        ]
        assert all(
            record in expected
            or any(batch.base_offset <= record.offset <= batch.last_offset for batch in hole)
            for record in found
        ), "others only of batches where no record was taken, but a hole"


@given(
    _log(),
    st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), max_size=3),
    st.integers(0, 300),
    st.integers(1, 3),
)
def test_walks_to_where_batches_are_possible(
    log: tuple[list[bytes], list[Record]], damage: list[tuple[int, int]], end: int, parts: int
) -> None:
    """Damage is detected as everywhere else in the broker (stored_batches.py), in every form that a
    read can return."""
    batches, _ = log
    size = -(-len(batches) // parts)
    views = []
    for at in range(0, len(batches), size):
        data = bytearray(b"".join(batches[at : at + size]))
        for position, byte in damage:
            data[position % len(data)] = byte
        views.append(memoryview(data))
    expected = [
        (
            header.base_offset,
            header.last_offset,
            header.is_control,
            view,
            position,
            position + header.size_bytes,
        )
        for view, position, header in iter_possible(views, end)
    ]
    assert walk(views, 0, _END, end) == expected
    first = expected[0][0] if expected else 0
    beyond = 8 if first < 8 else first + 5  # Compaction may have removed the first ones.
    assert walk(views, 3, 5, end) == [each for each in expected if each[0] < beyond]


@given(_log(), st.integers(0, 300), st.integers(0, 50))
def test_whole_batches_are_those_of_the_first_to_the_last_offset(
    log: tuple[list[bytes], list[Record]], first: int, size: int
) -> None:
    stored = read(*log[0])
    expected = [batch for batch in stored if batch.base_offset <= first + size and batch.last_offset >= first]
    for has_control in (False, True):
        views = whole_batches(stored, taken((first, first + size)), has_control=has_control)
        assert b"".join(views) == b"".join(batch.view[batch.start : batch.end] for batch in expected)
        assert len(views) <= 1


@pytest.mark.parametrize("codec", Codec)
def test_one_record_of_the_middle(codec: Codec) -> None:
    batch = batch_of(numbered(8000, 100), 100, 8099, attributes=TRANSACTIONAL, codec=codec)
    (sent,) = records_of([batch], taken((4811, 4812)))
    assert decoded([sent]) == numbered(8000, 100)[4711:4713]
    header, stored = read_header(sent), read_header(batch)
    assert header == stored._replace(
        batch_length=header.batch_length,
        crc=header.crc,
        attributes=TRANSACTIONAL,
        last_offset_delta=4712,
        record_count=2,
    ), "what records are relative to is as it was, and so are the producer and its sequence"
    assert len(sent) < 700


@pytest.mark.parametrize("codec", Codec)
def test_a_timestamp_of_the_broker_counts_for_a_slice(codec: Codec) -> None:
    batch = bytearray(batch_of(numbered(50), 0, 49, codec=codec))
    stamp_log_append_time(batch, 123_456)
    records = decoded(records_of([bytes(batch)], taken((7, 7), (20, 21))))
    assert [(record.offset, record.timestamp_ms) for record in records] == [
        (7, 123_456),
        (20, 123_456),
        (21, 123_456),
    ]


def test_gaps_part_a_batch_and_ranges_of_other_counts_do_not() -> None:
    ranges = [AcquiredRange(3, 4, 2), AcquiredRange(5, 9, 1), AcquiredRange(12, 12, 1)]
    buffers = records_of([batch_of(numbered(50), 0, 49)], ranges)
    assert [record.offset for record in decoded(buffers)] == [3, 4, 5, 6, 7, 8, 9, 12]
    assert [header.record_count for _, header in iter_headers(b"".join(buffers))] == [7, 1]


def test_batches_that_are_taken_whole_are_not_copied() -> None:
    stored = read(
        batch_of(numbered(10), 0, 9), batch_of(numbered(10, 10), 10, 19), batch_of(numbered(10, 20), 20, 29)
    )
    buffers = taken_records(stored, taken((0, 19), (25, 25)), opener_of(), _MUCH)
    assert bytes(buffers[0]) == bytes(stored[0].view[: stored[1].end])
    assert isinstance(buffers[0], memoryview)
    assert [record.offset for record in decoded(buffers)] == [*range(20), 25]


def test_control_batches_are_left_out() -> None:
    control = build_batch([Record(0, 1, b"\0\0\0\1", b"")], base_offset=10, attributes=CONTROL)
    batches = batch_of(numbered(10), 0, 9), control, batch_of(numbered(10, 11), 11, 20)
    assert [record.offset for record in decoded(records_of(batches, taken((8, 9), (11, 12))))] == [
        8,
        9,
        11,
        12,
    ]


class TestWhole:
    @pytest.mark.parametrize("codec", COMPRESSED)
    def test_compressed_and_not_opened(self, codec: Codec) -> None:
        batch = build_batch(numbered(50), codec=codec, producer=ProducerInfo(7, 0, 0))
        assert b"".join(taken_records(read(batch), taken((3, 3)), opener_of(), _MUCH)) == batch

    def test_a_new_crc_does_not_hide_damage(self) -> None:
        batch = bytearray(batch_of(numbered(50), 0, 49))
        batch[-1] ^= 1
        following = batch_of(numbered(5, 50), 50, 54)
        opener = opener_of()
        for _ in range(2):
            stored = read(bytes(batch), following)
            assert (
                b"".join(taken_records(stored, taken((3, 3), (52, 52)), opener, _MUCH))[: len(batch)] == batch
            )
        assert opener._cache.statistics().refused["crc"] == 1

    def test_records_that_are_none(self) -> None:
        """The header's CRC is right: its producer wrote it that way. Clients detect the error."""
        for at, wrong in (
            (HEADER_SIZE, b"\x7f"),
            (HEADER_SIZE, b"\0"),
            (HEADER_SIZE + 3, b"\x64"),
            (HEADER_SIZE, b"\xff" * 11),
        ):
            batch = bytearray(batch_of(numbered(50), 0, 49))
            batch[at : at + len(wrong)] = wrong
            struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[CRC_START:]))
            opener = opener_of()
            for _ in range(2):
                assert b"".join(taken_records(read(bytes(batch)), taken((3, 3)), opener, _MUCH)) == batch
            assert opener._cache.statistics().refused["records"] == 1

    @pytest.mark.parametrize("kind", ODD_BATCHES)
    @pytest.mark.parametrize("first", [0, 1, 2])
    def test_what_contradicts_its_header_lacks_no_acquired_record(self, kind: str, first: int) -> None:
        """A slice has a record for each acquired offset; otherwise clients see the stored bytes.
        The content of records is not checked."""
        batch = odd_batch(kind)
        sent = b"".join(records_of([batch], taken((first, first))))
        if sent != batch:
            header = read_header(sent)
            assert (header.size_bytes, header.record_count, header.last_offset) == (len(sent), 1, first)
            assert crc_is_valid(sent, 0, header)
            assert sent[HEADER_SIZE:] in bytes(records_payload(batch, read_header(batch)))
            assert Places().find(sent[HEADER_SIZE:], first) == (0, 0)

    def test_of_which_only_a_hole_was_taken(self) -> None:
        for codec in Codec:
            records = [record for record in numbered(50) if record.offset not in (7, 8)]
            batch = batch_of(records, 0, 49, codec=codec)
            assert b"".join(records_of([batch], taken((7, 8)))) == batch
            assert [record.offset for record in decoded(records_of([batch], taken((7, 9))))] == [9]

    def test_whose_plain_slice_is_larger_than_the_batch_and_than_wanted(self) -> None:
        records = [Record(offset, 1000, None, b"x" * 10_000) for offset in range(10)]
        batch = batch_of(records, 0, 9, codec=Codec.ZSTD)
        assert b"".join(records_of([batch], taken((2, 3)), max_bytes=20_000)) == batch
        assert decoded(records_of([batch], taken((2, 3)), max_bytes=21_000)) == records[2:4]
        assert decoded(records_of([batch], taken((2, 2)), max_bytes=20_000)) == records[2:3]
        random = [
            Record(offset, 1000, None, crc32c(b"%d" % offset).to_bytes(4, "big")) for offset in range(10)
        ]
        batch = batch_of(random, 0, 9, codec=Codec.ZSTD)
        assert decoded(records_of([batch], taken((2, 3)), max_bytes=1)) == random[2:4], (
            "smaller than the batch"
        )


class TestFront:
    """From how many batches at the front records may be acquired before one has to be opened."""

    PLAIN = batch_of(numbered(10), 0, 9)
    LZ4 = batch_of(numbered(10, 10), 10, 19, codec=Codec.LZ4)
    ZSTD = batch_of(numbered(10, 20), 20, 29, codec=Codec.ZSTD)
    ALL = PLAIN, LZ4, ZSTD

    def front(
        self,
        *batches: bytes,
        free: Iterable[int] = range(100),
        room: int = 100,
        opener: BatchOpener | None = None,
    ) -> Front:
        """`free`: offsets that may be acquired."""
        available = set(free)
        return front_of(
            read(*batches),
            room,
            lambda first, last: len(available & {*range(first, last + 1)}),
            opener or opener_of(),
        )

    def test_what_is_taken_whole_or_not_at_all_is_not_opened(self) -> None:
        assert self.front(*self.ALL) == Front(3)
        assert self.front(*self.ALL, room=30) == Front(3)
        assert self.front(*self.ALL, room=29) == Front(2)
        assert self.front(*self.ALL, room=20) == Front(3)
        assert self.front(*self.ALL, room=19) == Front(1)
        assert self.front(*self.ALL, free=range(20, 30)) == Front(3)
        assert self.front(*self.ALL, free=range(20, 30), room=9) == Front(0, to_open=2)
        assert self.front() == Front(0)

    def test_what_is_taken_in_part(self) -> None:
        assert self.front(*self.ALL, free=[3, 10, 12]) == Front(1)
        assert self.front(*self.ALL, free=[12]) == Front(0, to_open=1)
        assert self.front(self.LZ4, self.ZSTD, room=9) == Front(0, to_open=0)

    def test_what_is_opened(self) -> None:
        assert self.front(self.LZ4, self.ZSTD, free=[13, 20], opener=opener_of(self.LZ4)) == Front(1)
        assert self.front(self.LZ4, self.ZSTD, free=[13, 20], opener=opener_of(self.ZSTD)) == Front(
            0, to_open=0
        )
        assert self.front(self.LZ4, self.ZSTD, free=[13, 20], opener=opener_of(self.LZ4, self.ZSTD)) == Front(
            2
        )

    def test_small_ones_are_opened_on_the_way(self) -> None:
        opener = opener_of(quickly=True)
        assert self.front(*self.ALL, free=[3, 10, 12, 22], opener=opener) == Front(3)
        assert (opener._cache.statistics().misses, opener._cache.statistics().hits) == (2, 0)

    def test_no_more_than_the_loop_has_time_for(self) -> None:
        batches = [batch_of(numbered(10, 10 * n), 10 * n, 10 * n + 9, codec=Codec.LZ4) for n in range(200)]
        free, opener = range(0, 2000, 3), opener_of(quickly=True)
        front = self.front(*batches, free=free, room=2000, opener=opener)
        assert 15 < front.ready < 25
        assert opener.must_pause
        assert self.front(*batches, free=free, room=2000, opener=opener) == front
        assert self.front(*batches[front.ready :], free=free, room=2000, opener=opener) == Front(0)
        large = batch_of(
            [Record(n, 1, None, Random(n).randbytes(70)) for n in range(511)],
            0,
            510,
            codec=Codec.LZ4,
        )
        many = batch_of([Record(n, 1, None, b"") for n in range(1025)], 0, 1024, codec=Codec.ZSTD)
        bomb = batch_of(
            [Record(0, 1, None, bytes(65 << 10)), Record(1, 1, None, b"")], 0, 1, codec=Codec.GZIP
        )
        for batch in (large, many, bomb):
            assert self.front(batch, free=[1], opener=opener_of(quickly=True)) == Front(0)
            assert self.front(batch, free=[1], opener=opener_of(batch)) == Front(1)

    def test_control_batches_are_passed(self) -> None:
        control = build_batch([Record(0, 1, b"\0\0\0\1", b"")], base_offset=9, attributes=CONTROL)
        assert self.front(control, self.LZ4, room=1) == Front(0, to_open=1)

    def test_what_cannot_be_opened_goes_alone(self) -> None:
        bad = bytearray(odd_batch("no lz4"))
        struct.pack_into(">q", bad, 0, 10)
        opener = opener_of(bytes(bad))
        following = batch_of(numbered(10, 13), 13, 22)
        assert self.front(self.PLAIN, bytes(bad), following, room=11, opener=opener) == Front(1)
        assert self.front(self.PLAIN, bytes(bad), following, free=range(11, 40), opener=opener) == Front(2)
        assert self.front(bytes(bad), following, free=range(11, 40), opener=opener) == Front(1)
        assert self.front(self.PLAIN, bytes(bad), following, opener=opener) == Front(1), "also taken whole"
        assert self.front(bytes(bad), following, opener=opener) == Front(1)


_COMPRESSED_LOG = [
    batch_of(numbered(size, first), first, first + size - 1, codec=Codec.LZ4)
    for first, size in _laid_out(7, 1, 12, 5, 9)
]
_TURNS = st.lists(
    st.tuples(st.integers(1, 20), st.sampled_from([ACCEPT, RELEASE]), st.sets(st.integers(0, 4))),
    min_size=1,
    max_size=8,
)


@given(_TURNS, st.integers(0, 6), st.booleans())
def test_whatever_is_cut_has_been_opened(
    turns: list[tuple[int, int, set[int]]], start_offset: int, is_loaded: bool
) -> None:
    """Against the engine itself: the prediction covers the batches that the engine then acquires
    from."""
    settings = ShareSettings(delivery_count_limit=100, lock_duration_ms=1, max_record_locks=100)
    loaded = [StateBatch(start_offset + 4, start_offset + 9, RecordState.AVAILABLE, 1)] if is_loaded else []
    engine = SharePartition.load(
        settings, start_offset=start_offset, state_batches=loaded, state_epoch=0, leader_epoch=0
    )
    for room, verdict, known in turns:
        fetch_offset = engine.window.next_fetch_offset()
        batches = [batch for batch in read(*_COMPRESSED_LOG) if batch.last_offset >= fetch_offset]
        opener = opener_of(*[_COMPRESSED_LOG[number] for number in sorted(known)])
        ready, to_open = front_of(batches, room, partial(offers.acquirable_in, engine), opener)
        if not ready and batches:
            unopened = batches[to_open]
            assert opener.find(unopened.base_offset, read_header(unopened.view, unopened.start).crc) is None
            assert (
                sum(
                    offers.acquirable_in(engine, batch.base_offset, batch.last_offset)
                    for batch in batches[:to_open]
                )
                == 0
            )
            opener = opener_of(*_COMPRESSED_LOG)
            ready, _ = front_of(batches, room, partial(offers.acquirable_in, engine), opener)
            assert ready == len(batches)
        if not batches:
            break
        could = sum(
            offers.acquirable_in(engine, batch.base_offset, batch.last_offset) for batch in batches[:ready]
        )
        ranges = engine.acquire(
            "m",
            mode=AcquireMode.RECORD_LIMIT,
            batch_size=1,
            max_records=room,
            fetch_offset=fetch_offset,
            batches=batches[:ready],
            now_ms=0,
        )
        offsets = [offset for first, last, _ in ranges for offset in range(first, last + 1)]
        assert len(offsets) == min(room, could)
        assert [
            record.offset for record in decoded(taken_records(batches[:ready], ranges, opener, _MUCH))
        ] == offsets
        half = len(offsets) // 2 + 1
        for run, kind in ((offsets[:half], verdict), (offsets[half:], ACCEPT)):
            if run:
                persist = engine.acknowledge(
                    "m", [AckBatch(offset, offset, (kind,)) for offset in run], now_ms=0
                )
                assert persist is not None
                engine.persisted(persist.token)


class TestCost:
    """Counted work: function calls and memory, not seconds."""

    def calls(self, stored: list[StoredBatch], offset: int, opener: BatchOpener) -> int:
        calls = 0

        def count(_: object, event: str, __: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            taken_records(stored, taken((offset, offset)), opener, _MUCH)
        finally:
            sys.setprofile(None)
        return calls

    def test_a_record_far_inside_costs_no_walk_from_the_beginning(self) -> None:
        stored = read(batch_of(numbered(8000), 0, 7999))
        opener = opener_of()
        of_the_first = self.calls(stored, 1, opener)
        for offset in range(2, 7900):
            taken_records(stored, taken((offset, offset)), opener, _MUCH)
        assert self.calls(stored, 7900, opener) <= of_the_first + 10, "the next one"
        for again in (7000, 33, 5, 4211):
            assert self.calls(stored, again, opener) <= of_the_first + 3 * STRIDE, "delivered again"

    def test_nothing_of_an_opened_batch_costs_a_walk_from_the_beginning(self) -> None:
        batch = batch_of(numbered(8000), 0, 7999, codec=Codec.LZ4)
        stored, opener = read(batch), opener_of(batch)
        for offset in (7900, 1, 7000, 33, 5, 4211):
            assert self.calls(stored, offset, opener) <= 100 + 3 * STRIDE

    def test_few_batches_are_remembered(self) -> None:
        plain: PlainBatches = {}
        opener, most = BatchOpener(OpenedBatches(_MUCH), LOG, plain), opened_batches._PLAIN_REMEMBERED
        for number in range(most + 4):
            batch = batch_of(numbered(10, 10 * number), 10 * number, 10 * number + 9)
            taken_records(read(batch), taken((10 * number, 10 * number)), opener, _MUCH)
        assert [base_offset for base_offset, _ in plain] == [10 * number for number in range(4, most + 4)]
