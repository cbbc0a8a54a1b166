"""The content of dead letters: copies of any size, kept headers and timestamps."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import pytest
import trio

from kbroker.broker.logs.retention import apply_retention
from kbroker.broker.queues import dead_letters
from kbroker.clock import wall_clock_ms
from kbroker.errors import StoreFailed
from kbroker.formats.batches import HEADER_SIZE, Record, build_batch, iter_headers
from kbroker.formats.compression import Codec
from kbroker.storage.spi import LogId
from tests.api.conftest import Client, Connect
from tests.api.dead_letter_queues import (
    COPY,
    ENABLED,
    QUEUE,
    all_done,
    batches_of,
    counters_of,
    damaged_batch,
    letters_of,
    offsets_of,
    prepare_dead_letters,
    reframed,
    reject,
    set_up_topic,
    until,
)
from tests.api.share_consumers import (
    GROUP,
    REJECT,
    Member,
    set_up_group,
)

pytestmark = pytest.mark.usefixtures("without_lingering")

CREATE = "errors.deadletterqueue.auto.create.topics.enable"
PREFIX = "errors.deadletterqueue.topic.name.prefix"
KEEP_HEADERS = "kbroker.errors.deadletterqueue.keep.headers.enable"
KEEP_TIMESTAMP = "kbroker.errors.deadletterqueue.keep.timestamp.enable"


def start_offset(client: Client) -> int:
    (loaded,) = client.broker.share_partitions.loaded()
    assert loaded.engine is not None
    return loaded.engine.start_offset


async def produce(client: Client, *records: Record, codec: Codec = Codec.NONE) -> None:
    await client.append_raw("orders", build_batch(records, codec=codec))


@pytest.mark.parametrize("codec", Codec)
async def test_copies(connect: Connect, codec: Codec) -> None:
    """DLQ-26: key and value, of compressed batches as well; not the headers and not the
    timestamp."""
    async with connect() as client:
        key = await prepare_dead_letters(client, configs={COPY: "true"})
        headers = (("trace", b"7"),)
        await produce(
            client,
            Record(0, 1000, b"k0", b"v0", headers),
            Record(0, 1001, None, b"v1"),
            Record(0, 1002, b"k2", None),
            codec=codec,
        )
        await reject(client, key, 0, 1, 2)
        await all_done(client)
        letters = letters_of(client)
        assert [(each.key, each.value) for each in letters] == [(b"k0", b"v0"), (None, b"v1"), (b"k2", None)]
        assert all(len(each.headers) == 6 and each.timestamp_ms > 1_600_000_000_000 for each in letters)
        assert counters_of(client).without_copy == 0


async def test_kept_headers_and_timestamps(connect: Connect) -> None:
    """Settings that only kbroker has. A timestamp that the queue would refuse is replaced by the
    time of writing."""
    async with connect() as client:
        key = await prepare_dead_letters(
            client,
            queue={**ENABLED, "message.timestamp.before.max.ms": "3600000"},
            configs={KEEP_HEADERS: "true", KEEP_TIMESTAMP: "true"},
        )
        now_ms = wall_clock_ms()
        headers = (("trace", b"7"), ("trace", None))
        await produce(
            client,
            Record(0, now_ms - 60_000, b"k", b"v", headers),
            Record(0, now_ms - 7_200_000, b"k", b"v"),
            Record(0, -1, None, None),
        )
        await reject(client, key, 0, 1, 2)
        await all_done(client)
        first, second, third = letters_of(client)
        assert (first.key, first.value, first.headers[6:]) == (None, None, headers)
        assert first.timestamp_ms == now_ms - 60_000
        assert min(second.timestamp_ms, third.timestamp_ms) >= now_ms
        assert [len(each.headers) for each in (second, third)] == [6, 6]


async def test_timestamps_that_are_no_time_are_not_kept(connect: Connect) -> None:
    """Regression: nothing validates the single records of a produced batch. Records with such times
    got no dead letters, and the queue stalled."""
    first, last = -(1 << 63), (1 << 63) - 1
    async with connect() as client:
        queue = {**ENABLED, "message.timestamp.after.max.ms": str(last)}
        key = await prepare_dead_letters(client, queue=queue, configs={KEEP_TIMESTAMP: "true"})
        before_ms = wall_clock_ms()
        for times in ([last, last + 1], [first, first - 1], [-1]):
            await client.append_raw("orders", build_batch_of_times(times))
        await reject(client, key, *range(5))
        await all_done(client)
        assert offsets_of(letters_of(client)) == [0, 1, 2, 3, 4]
        times = [each.timestamp_ms for each in letters_of(client)]
        assert times[0] == last
        assert all(before_ms <= each <= wall_clock_ms() for each in times[1:])


def build_batch_of_times(times: Sequence[int]) -> bytes:
    """The header has the first of them as base timestamp, and 0 as the greatest."""
    batch = bytearray(build_batch([Record(0, each - times[0], None, None) for each in times]))
    batch[27:43] = struct.pack(">qq", times[0], 0)
    return reframed(bytes(batch), bytes(batch[HEADER_SIZE:]))


@pytest.mark.parametrize("name", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("copies", ["true", "false"])
async def test_letters_in_the_codec_of_their_topic(
    connect: Connect, every_engine: str, name: str, copies: str
) -> None:
    """compression.type, as for produced batches."""
    async with connect(every_engine) as client:
        queue = {**ENABLED, "compression.type": name, "max.message.bytes": "2000"}
        key = await prepare_dead_letters(client, queue=queue, configs={COPY: copies})
        await produce(client, Record(0, 1000, b"k0", b"v0"), Record(0, 1001, b"k1", b"large " * 1000))
        await reject(client, key, 0, 1)
        await all_done(client)
        expected = [(b"k0", b"v0"), (b"k1", b"large " * 1000)] if copies == "true" else [(None, None)] * 2
        assert [(each.key, each.value) for each in letters_of(client)] == expected
        assert offsets_of(letters_of(client)) == [0, 1]
        codec = Codec.NONE if name == "uncompressed" else Codec[name.upper()]
        partition = client.partition(QUEUE)
        views = partition.read_now(0, max_bytes=1 << 20, end_offset=partition.high_watermark)
        assert {header.codec_id for view in views for _, header in iter_headers(view)} == {codec}


async def test_a_queue_may_stamp_its_own_time(connect: Connect) -> None:
    async with connect() as client:
        key = await prepare_dead_letters(
            client,
            1,
            queue={**ENABLED, "message.timestamp.type": "LogAppendTime"},
            configs={KEEP_TIMESTAMP: "true"},
        )
        before_ms = wall_clock_ms()
        await reject(client, key, 0)
        await all_done(client)
        assert letters_of(client)[0].timestamp_ms >= before_ms, "the record's own is 1000"


async def test_what_cannot_be_copied(connect: Connect) -> None:
    """DLQ-27: removed with the log's start, damaged, a decompression bomb: the six headers are
    always there. A record that is too large for the dead letter topic is copied."""
    bomb = build_batch([Record(0, 1, None, b"b" * 1000)], codec=Codec.GZIP)
    packed = zlib.compress(bytes(65 << 20), wbits=31)
    async with connect() as client:
        key = await prepare_dead_letters(
            client, configs={COPY: "true"}, queue={**ENABLED, "max.message.bytes": "2000"}
        )
        await produce(client, Record(0, 1, None, b"gone"), Record(0, 1, None, b"there"))
        await produce(client, Record(0, 1, None, b"damaged"))
        await client.append_raw("orders", reframed(bomb, packed))
        large = os.urandom(1900)
        await produce(client, Record(0, 1, None, large))
        await produce(client, Record(0, 1, b"k", b"fine"))
        member = Member(client, "M1")
        await member.fetch([key], wait_ms=5000)
        log = client.partition("orders").log
        store: Any = client.broker.log_store
        batches = store._logs[log].segments[0].batches
        batches[1] = batches[1]._replace(
            data=batches[1].data[:HEADER_SIZE] + b"\xff" * (len(batches[1].data) - HEADER_SIZE)
        )
        # as DeleteRecords does; the share-partition notices it later
        client.partition("orders").log_start_offset = 1
        await member.acknowledge({key: [(0, 5, [REJECT])]})
        await all_done(client)
        assert offsets_of(letters_of(client)) == [0, 1, 2, 3, 4, 5]
        assert [(each.key, each.value) for each in letters_of(client)] == [
            (None, None), (None, b"there"), (None, None), (None, None), (None, large), (b"k", b"fine"),
        ]  # fmt: skip
        assert counters_of(client).without_copy == 3


async def test_packing(connect: Connect) -> None:
    """DLQ-28: batches as large as the queue accepts."""
    async with connect() as client:
        key = await prepare_dead_letters(
            client, queue={**ENABLED, "max.message.bytes": "1500"}, configs={COPY: "true"}
        )
        await produce(client, *[Record(0, 1, None, b"v" * 300) for _ in range(10)])
        await reject(client, key, *range(10))
        await all_done(client)
        assert [len(batch) for batch in batches_of(client)] == [2, 2, 2, 2, 2]
        assert offsets_of(letters_of(client)) == list(range(10))
        assert counters_of(client).produce_requests == 5


async def test_a_larger_copy_is_alone_in_its_batch(connect: Connect, every_engine: str) -> None:
    """DLQ-27, DLQ-28: neither max.message.bytes nor segment.bytes of the dead letter topic cuts a
    copy. The rejected jobs are as large as producers may send, compressed or not."""
    keep = {COPY: "true", KEEP_HEADERS: "true", KEEP_TIMESTAMP: "true"}
    now_ms, headers = wall_clock_ms(), (("trace", b"7"),)
    values = [b"small", os.urandom(1_048_400), bytes(3_000_000), bytes(30_000_000), os.urandom(500_000), b"s"]
    sent = [Record(offset, now_ms, b"k", value, headers) for offset, value in enumerate(values)]
    async with connect(engine=every_engine) as client:
        key = await prepare_dead_letters(
            client, queue={**ENABLED, "segment.bytes": str(1 << 20)}, configs=keep
        )
        for record in sent:
            await produce(client, record, codec=Codec.ZSTD)
        member = Member(client, "M1")
        await member.fetch([key], wait_ms=5000, max_bytes=1 << 26)
        await member.acknowledge({key: [(0, 5, [REJECT])]})
        await all_done(client)
        assert counters_of(client).without_copy == 0
    async with connect(engine=every_engine) as client:  # As a broker reads it after its start.
        letters = letters_of(client)
        assert offsets_of(letters) == list(range(6))
        assert [
            Record(offset, each.timestamp_ms, each.key, each.value, each.headers[6:])
            for offset, each in enumerate(letters)
        ] == sent
        assert [len(batch) for batch in batches_of(client)] == [1, 1, 1, 1, 2]


@pytest.mark.usefixtures("queues_are_left_alone")  # Records of 1970 that no group holds yet.
@pytest.mark.parametrize("what", ["bomb", "unreadable"])
async def test_a_record_that_cannot_be_copied_stays_in_a_work_queue(
    connect: Connect, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Its dead letter would be all that is left of it. The others get theirs, also those that are
    rejected later. Without copies enabled it gets one too."""
    bomb = build_batch([Record(0, 1, None, b"b" * 1000)], codec=Codec.GZIP)
    monkeypatch.setattr(dead_letters, "FIRST_RETRY_S", 0.01)
    async with connect() as client:
        key = await prepare_dead_letters(client, configs={COPY: "true"})
        await set_up_topic(client, "orders", {"kbroker.queue.retention": "workqueue"})
        await produce(client, Record(0, 1, None, b"one"))
        await client.append_raw("orders", reframed(bomb, zlib.compress(bytes(65 << 20), wbits=31)))
        await produce(client, Record(0, 1, None, b"two"), Record(0, 1, None, b"three"))
        fields = {"group_id": GROUP, "member_id": "M1", "rack_id": None, "subscribed_topic_names": ["orders"]}
        assert (await client.call("share_group_heartbeat", 1, member_epoch=0, **fields)).error_code == 0
        member = Member(client, "M1")
        await member.fetch([key], wait_ms=5000)
        if what == "unreadable":
            fail_reads_at(client, monkeypatch, 1)
        await member.acknowledge({key: [(0, 2, [REJECT])]})
        await until(lambda: len(letters_of(client)) == 2)
        await member.acknowledge({key: [(3, 3, [REJECT])]})
        await until(lambda: len(letters_of(client)) == 3)
        assert [each.value for each in letters_of(client)] == [b"one", b"two", b"three"]
        await until(lambda: "cannot be copied" in caplog.text)
        (line,) = [each.getMessage() for each in caplog.records if "cannot be copied" in each.getMessage()]
        assert "1 records cannot be copied and are kept, the first at offset 1 of orders-0" in line
        assert start_offset(client) == 1
        source, topics = client.partition("orders"), client.broker.topics
        config = topics.by_name("orders").config
        assert not await apply_retention(topics, source, config, client.broker.held_logs), "1970 is long ago"
        await set_up_group(client, {COPY: "false"})
        await all_done(client)
        assert offsets_of(letters_of(client)) == [0, 2, 3, 1]
        assert start_offset(client) == 4


async def test_a_record_is_copied_once_it_can_be_read(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often others are rejected meanwhile."""
    monkeypatch.setattr(dead_letters, "FIRST_RETRY_S", 0.5)
    async with connect() as client:
        key = await prepare_dead_letters(client, configs={COPY: "true"})
        await set_up_topic(client, "orders", {"kbroker.queue.retention": "workqueue"})
        for _ in range(101):
            await produce(client, Record(0, wall_clock_ms(), None, b"job"))
        member = Member(client, "M1")
        await member.fetch([key], wait_ms=5000)
        with monkeypatch.context() as failing:
            fail_reads_at(client, failing, 0)
            await member.acknowledge({key: [(0, 0, [REJECT])]})
            await until(lambda: any(work.stuck for work in client.broker.dead_letters._works.values()))
        for offset in range(1, 101):
            await member.acknowledge({key: [(offset, offset, [REJECT])]})
            await until(lambda offset=offset: offset in offsets_of(letters_of(client)))
            if 0 in offsets_of(letters_of(client)):
                return
            await trio.sleep(0.02)
        pytest.fail("no attempt for two seconds")


def fail_reads_at(client: Client, monkeypatch: pytest.MonkeyPatch, offset: int) -> None:
    """Fail reads of `orders` at these offsets. A read holds one batch."""
    store, source = client.broker.log_store, client.partition("orders").log
    read = store.read

    def failing(log: LogId, first: int, *, max_bytes: int, end_offset: int) -> Sequence[memoryview]:
        if log == source and first == offset:
            raise StoreFailed("the disk fails")
        return read(log, first, max_bytes=1 if log == source else max_bytes, end_offset=end_offset)

    monkeypatch.setattr(store, "read", failing)


async def test_many_are_written_in_portions(connect: Connect) -> None:
    """DLQ-27: 1 MiB of the log at a time."""
    async with connect() as client:
        key = await prepare_dead_letters(client, configs={COPY: "true"})
        for number in range(8):
            await produce(client, *[Record(0, 1, None, bytes([number]) * 1000) for _ in range(300)])
        member = Member(client, "M1")
        await member.fetch([key], max_records=2400, wait_ms=5000, max_bytes=1 << 24, batch_size=2400)
        await member.acknowledge({key: [(0, 1999, [REJECT])]})
        await all_done(client)
        assert offsets_of(letters_of(client)) == list(range(2000))
        assert all(
            each.value == bytes([number // 300]) * 1000 for number, each in enumerate(letters_of(client))
        )
        assert all(len(build_batch(batch)) <= 1_048_588 for batch in batches_of(client))


async def test_a_missing_copy_is_logged(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    """DLQ-27: at intervals, with the number of missing copies."""
    async with connect() as client:
        key = await prepare_dead_letters(client, configs={COPY: "true"})
        await client.append_raw("orders", damaged_batch())
        await produce(client, Record(0, 1, None, b"small"))
        await client.append_raw("orders", damaged_batch())
        member = await reject(client, key, 0, 1)
        await all_done(client)
        await member.acknowledge({key: [(2, 2, [REJECT])]})
        await all_done(client)
        assert counters_of(client).without_copy == 2
        (line,) = [
            record.getMessage() for record in caplog.records if "without the copy" in record.getMessage()
        ]
        assert line == (
            "share-partition g1:orders-0: 1 dead letters are without the copy that they should have (1 of "
            "the group so far), since the records cannot be read"
        )
