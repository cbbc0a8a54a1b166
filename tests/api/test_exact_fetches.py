"""ShareFetch in record_limit mode over batches of every codec: a response has exactly the records
that it acquires.

A record that is acquired but not sent would be lost silently: its client acknowledges a gap, and
that is final.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeAlias
from uuid import UUID

import pytest
import trio
import trio.testing

from kbroker.broker.logs import partition
from kbroker.broker.queues import opened_batches
from kbroker.broker.queues.opened_batches import OpenedBatch, Refusal, open_batch
from kbroker.formats import turns
from kbroker.formats.batches import (
    ProducerInfo,
    Record,
    build_batch,
    crc_is_valid,
    iter_headers,
    iter_records,
    read_header,
)
from kbroker.formats.compression import Codec
from tests.api.conftest import Client, Connect
from tests.api.share_consumers import (
    ACCEPT,
    RELEASE,
    Member,
    acquired,
    prepare,
    rows,
    sent,
    set_up_group,
)
from tests.broker.queues.test_sliced_batches import batch_of, numbered
from tests.odd_batches import odd_batch

ENGINES = ("segment", "lmdb", "rocksdb")
COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]
EXACT: dict[str, Any] = {"share_acquire_mode": 1}
Key: TypeAlias = tuple[UUID, int]


@pytest.fixture
def _in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small batches too, which the loop normally opens itself."""
    monkeypatch.setattr(turns, "_MOST_COMPRESSED_BYTES", 0)


def offsets_of(answer: Any) -> list[int]:
    return [offset for first, last, _ in acquired(answer) for offset in range(first, last + 1)]


def records_of(answer: Any) -> list[Record]:
    """The records that a client decodes from the response, before it filters those that it has
    acquired."""
    data = b"".join(bytes(row.records) for row in rows(answer).values())
    records: list[Record] = []
    for position, header in iter_headers(data):
        assert crc_is_valid(data, position, header)
        records += iter_records(data, position)
    return records


async def queue_of(client: Client, *stored: bytes, time: str = "CreateTime") -> tuple[Key, list[Record]]:
    """A queue with these batches, and the records that an ordinary consumer reads from it."""
    key = await prepare(client)
    await set_up_group(client, {"share.delivery.count.limit": "10"})
    configs = [{"name": "message.timestamp.type", "config_operation": 0, "value": time}]
    resource = {"resource_type": 2, "resource_name": "orders", "configs": configs}
    await client.call("incremental_alter_configs", 1, resources=[resource], validate_only=False)
    for batch in stored:
        await client.append_raw("orders", batch)
    orders = client.partition("orders")
    views = orders.read_now(0, max_bytes=1 << 30, end_offset=orders.high_watermark)
    return key, [
        record for view in views for at, _ in iter_headers(view) for record in iter_records(view, at)
    ]


@pytest.mark.usefixtures("_in_threads")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("codec", COMPRESSED)
async def test_one_job_at_a_time_of_a_compressed_batch(connect: Connect, engine: str, codec: Codec) -> None:
    async with connect(engine=engine) as client:
        key, records = await queue_of(
            client, build_batch(numbered(300), codec=codec), build_batch(numbered(3), codec=codec)
        )
        one, two = Member(client, "M1"), Member(client.another(2), "M2")
        for offset in range(0, 100, 2):
            for member, expected in ((one, offset), (two, offset + 1)):
                answer = await member.fetch(
                    [] if member.epoch else [key], max_records=1, wait_ms=5000, **EXACT
                )
                assert acquired(answer) == [(expected, expected, 1)]
                assert records_of(answer) == [records[expected]]
        await one.acknowledge({key: [(42, 42, [RELEASE])]})
        answer = await two.fetch(max_records=1, **EXACT)
        assert (acquired(answer), sent(answer)) == ([(42, 42, 2)], [42])
        assert sent(await one.fetch(max_records=1, **EXACT)) == [100]
        assert sent(await two.fetch(max_records=500, **EXACT)) == [*range(101, 303)]
        opened = client.broker.opened_batches.statistics()
        assert (opened.batches, opened.misses, opened.hits) == (1, 1, 102), (
            "the one that was taken whole is not opened"
        )


@pytest.mark.parametrize("quick_bytes", [0, 4096])
@pytest.mark.parametrize("time", ["CreateTime", "LogAppendTime"])
@pytest.mark.parametrize("engine", ENGINES)
async def test_every_kind_of_record_and_batch(
    connect: Connect, engine: str, time: str, quick_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members acquire, release and reject at random until all is done. The cache has room for one
    batch, so that each turn may have to open one again."""
    async with connect(engine=engine) as client:
        monkeypatch.setattr(client.broker.opened_batches, "_max_bytes", 1)
        monkeypatch.setattr(turns, "_MOST_COMPRESSED_BYTES", quick_bytes)
        monkeypatch.setattr(
            partition, "validate", lambda records, *_: read_header(records)
        )  # Otherwise no batch could have holes.
        random = Random(7)
        batches = [batch for codec in Codec for batch in _batches_of_every_kind(codec, random)]
        key, records = await queue_of(client, *batches, time=time)
        assert (records[0].timestamp_ms == 1000) == (time == "CreateTime")
        there = {record.offset: record for record in records}
        end_offset = client.partition("orders").high_watermark
        members = [Member(client.another(number), f"M{number}") for number in range(3)]
        done: set[int] = set()
        while len(done) < len(there):
            member = random.choice(members)
            most = random.choice([1, 1, 2, 5, 30])
            answer = await member.fetch(
                [] if member.epoch else [key], max_records=most, wait_ms=5000, max_bytes=8 << 20, **EXACT
            )
            offsets = offsets_of(answer)
            assert 0 < len(offsets) <= most
            expected = [there[offset] for offset in offsets]
            assert records_of(answer) == expected, "each of them, as it was stored, and no other"
            verdicts = [
                (
                    offset,
                    offset,
                    [random.choice([ACCEPT, ACCEPT, ACCEPT, RELEASE])],
                )
                for offset in offsets
            ]
            acknowledged = await member.acknowledge({key: verdicts})
            assert rows(acknowledged)[key].error_code == 0
            finished = {offset for offset, _, (verdict,) in verdicts if verdict != RELEASE}
            assert not finished & done, "no finished record is redelivered"
            done |= finished
        assert offsets_of(await members[0].fetch([] if members[0].epoch else [key], **EXACT)) == []
        (loaded,) = client.broker.share_partitions.loaded()
        assert loaded.engine is not None
        assert loaded.engine.start_offset == end_offset


def _batches_of_every_kind(codec: Codec, random: Random) -> list[bytes]:
    odd = [
        Record(0, 1000, None, None),
        Record(0, 1 << 40, None, b"x"),
        Record(0, 5, b"", b""),
        Record(0, 1000, b"k", None, (("h", None), ("h", b"2"), ("", b""))),
        Record(0, 1001, b"k" * 300, b"v", (("name", bytes(range(256))),)),
    ]
    holes = [record for record in numbered(60) if record.offset % 7 and record.offset not in range(20, 40)]
    large = [
        Record(0, 1, b"k", random.randbytes(1 << 20)),
        Record(0, 2, None, b"y" * (1 << 20)),
        Record(0, 3, None, b"z"),
    ]
    return [
        build_batch(odd, codec=codec),
        build_batch(numbered(100), codec=codec, producer=ProducerInfo(1000 + codec, 0, 0)),
        batch_of(holes, 0, 64, codec=codec),
        build_batch(large, codec=codec),
        build_batch([Record(0, 1, None, b"1")], codec=codec),
    ]


@pytest.mark.usefixtures("_in_threads")
async def test_records_that_came_back_lie_in_many_batches(connect: Connect) -> None:
    """A batch that has to be opened does not delay those before it, and is delivered in turn."""
    async with connect() as client:
        key, records = await queue_of(
            client, *[build_batch(numbered(10), codec=Codec.LZ4) for _ in range(20)]
        )
        member = Member(client, "M1")
        assert sent(await member.fetch([key], max_records=200, wait_ms=5000, **EXACT)) == [*range(200)]
        assert client.broker.opened_batches.statistics().misses == 0
        accepted = [offset for offset in range(200) if offset % 10 != 3]
        await member.acknowledge(
            {key: [(offset, offset, [ACCEPT if offset % 10 != 3 else RELEASE]) for offset in range(200)]}
        )
        again: list[int] = []
        while len(again) < 20:
            answer = await member.fetch(max_records=200, wait_ms=5000, **EXACT)
            assert records_of(answer) == [records[offset] for offset in offsets_of(answer)]
            again += offsets_of(answer)
        assert again == [offset for offset in range(200) if offset not in accepted]
        assert client.broker.opened_batches.statistics().misses == 20


async def test_records_that_came_back_in_small_batches_are_one_answer(connect: Connect) -> None:
    async with connect() as client:
        key, records = await queue_of(
            client, *[build_batch(numbered(10), codec=Codec.LZ4) for _ in range(20)]
        )
        member = Member(client, "M1")
        assert sent(await member.fetch([key], max_records=200, wait_ms=5000, **EXACT)) == [*range(200)]
        verdicts = [(offset, offset, [RELEASE if offset % 10 == 3 else ACCEPT]) for offset in range(200)]
        answer = await member.fetch(acks={key: verdicts}, max_records=200, wait_ms=5000, **EXACT)
        assert records_of(answer) == [records[offset] for offset in range(3, 200, 10)]
        assert client.broker.opened_batches.statistics()[2:4] == (0, 20)


async def test_batches_that_come_back_whole_are_not_opened(connect: Connect) -> None:
    async with connect() as client:
        key, records = await queue_of(
            client, *[build_batch(numbered(10), codec=Codec.LZ4) for _ in range(20)]
        )
        one, two = Member(client.another(1), "M1"), Member(client.another(2), "M2")
        assert sent(await one.fetch([key], max_records=200, wait_ms=5000, **EXACT)) == [*range(200)]
        one.client.disconnect()
        assert records_of(await two.fetch([key], max_records=200, wait_ms=5000, **EXACT)) == records
        assert client.broker.opened_batches.statistics().misses == 0


@pytest.mark.usefixtures("_in_threads")
async def test_under_the_lock_limit(connect: Connect) -> None:
    """The response must be cut to what the limit leaves of a batch, not to what the request asks
    for."""
    async with connect() as client:
        key, _ = await queue_of(
            client, build_batch(numbered(80), codec=Codec.ZSTD), build_batch(numbered(80), codec=Codec.ZSTD)
        )
        await set_up_group(client, {"share.partition.max.record.locks": "100"})
        member = Member(client, "M1")
        assert sent(await member.fetch([key], max_records=500, wait_ms=5000, **EXACT)) == [*range(80)]
        assert sent(await member.fetch(max_records=500, wait_ms=5000, **EXACT)) == [*range(80, 100)]


async def test_a_start_offset_inside_a_batch(connect: Connect) -> None:
    async with connect() as client:
        key, _ = await queue_of(client, build_batch(numbered(100), codec=Codec.GZIP))
        deleted = [{"name": "orders", "partitions": [{"partition_index": 0, "offset": 60}]}]
        await client.call("delete_records", 2, topics=deleted)
        assert sent(await Member(client, "M1").fetch([key], max_records=500, wait_ms=5000, **EXACT)) == [
            *range(60, 100)
        ]


@pytest.mark.parametrize(
    "kind", ["no lz4", "zstd of nothing", "a bomb", "zstd with too few records", "lz4 with too many records"]
)
async def test_what_cannot_be_cut_goes_whole_and_is_tried_once(connect: Connect, kind: str) -> None:
    async with connect() as client:
        bad = odd_batch(kind)
        key, _ = await queue_of(client)
        for batch in (
            build_batch(numbered(5), codec=Codec.LZ4),
            bad,
            build_batch(numbered(5), codec=Codec.LZ4),
        ):
            await client.append_raw("orders", batch)
        member = Member(client, "M1")
        assert sent(await member.fetch([key], max_records=4, wait_ms=5000, **EXACT)) == [0, 1, 2, 3]
        whole: list[int] = []
        while (answer := await member.fetch(max_records=2, wait_ms=5000, **EXACT)) and offsets_of(answer)[
            0
        ] < 8:
            whole += offsets_of(answer)
            if set(offsets_of(answer)) & {5, 6, 7}:
                assert b"".join(bytes(row.records) for row in rows(answer).values()).endswith(bad[17:])
        assert whole == [4, 5, 6, 7]
        assert sent(answer) == [8, 9]
        assert sum(client.broker.opened_batches.statistics().refused.values()) == 1


class Gate:
    """Replaces the opening of batches: blocks each thread until it is released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = 0
        self._reached, self._may_go = threading.Semaphore(0), threading.Semaphore(0)
        monkeypatch.setattr(opened_batches, "open_batch", self)

    def __call__(self, stored: memoryview) -> OpenedBatch | Refusal:
        self.opened += 1
        self._reached.release()
        assert self._may_go.acquire(timeout=30)
        return open_batch(stored)

    async def until_reached(self) -> None:
        assert await trio.to_thread.run_sync(lambda: self._reached.acquire(timeout=30))

    def let_go(self) -> None:
        self._may_go.release()


@pytest.mark.usefixtures("_in_threads")
async def test_several_members_want_the_same_batch(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    async with connect() as client:
        key, records = await queue_of(client, build_batch(numbered(100), codec=Codec.LZ4))
        answers: list[Any] = []

        async def fetch(number: int) -> None:
            answers.append(
                await Member(client.another(number), f"M{number}").fetch(
                    [key], max_records=3, wait_ms=60_000, **EXACT
                )
            )

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for number in range(8):
                    nursery.start_soon(fetch, number)
                await gate.until_reached()
                await trio.testing.wait_all_tasks_blocked()
                gate.let_go()
        assert gate.opened == 1
        for answer in answers:
            assert records_of(answer) == [records[offset] for offset in offsets_of(answer)]
        assert sorted(offset for answer in answers for offset in offsets_of(answer)) == [*range(24)]


Happening: TypeAlias = Callable[[Client, Member, Key], Any]


async def _end_the_session(client: Client, member: Member, key: Key) -> None:
    await member.acknowledge({}, epoch=-1)


async def _disconnect(client: Client, member: Member, key: Key) -> None:
    member.client.disconnect()


async def _delete_the_topic(client: Client, member: Member, key: Key) -> None:
    await client.call("delete_topics", 6, topics=[{"name": "orders", "topic_id": None}])


@pytest.mark.usefixtures("_in_threads")
@pytest.mark.parametrize("happening", [_end_the_session, _disconnect, _delete_the_topic])
async def test_nothing_is_acquired_where_things_changed_meanwhile(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, happening: Happening
) -> None:
    gate = Gate(monkeypatch)
    async with connect() as client:
        key, _ = await queue_of(client, build_batch(numbered(100), codec=Codec.LZ4))
        member = Member(client.another(2), "M1")
        answers: list[Any] = []
        await member.fetch([key], max_records=0)

        async def fetch() -> None:
            answers.append(await member.fetch([key], max_records=3, wait_ms=1000, **EXACT))

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fetch)
                await gate.until_reached()
                (loaded,) = client.broker.share_partitions.loaded()
                await happening(client, member, key)
                gate.let_go()
        assert offsets_of(answers[0]) == []
        assert loaded.engine is not None
        assert loaded.engine.statistics().acquired_records == 0


@pytest.mark.usefixtures("_in_threads")
async def test_what_others_took_meanwhile_is_not_given_twice(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    async with connect() as client:
        key, records = await queue_of(
            client, build_batch(numbered(50), codec=Codec.LZ4), build_batch(numbered(50), codec=Codec.LZ4)
        )
        answers: list[Any] = []

        async def fetch() -> None:
            answers.append(await Member(client, "M1").fetch([key], max_records=3, wait_ms=60_000, **EXACT))

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fetch)
                await gate.until_reached()
                assert sent(await Member(client.another(2), "M2").fetch([key], max_records=50, **EXACT)) == [
                    *range(50)
                ]
                gate.let_go()
                await gate.until_reached()
                gate.let_go()
        assert records_of(answers[0]) == records[50:53]


async def test_a_batch_is_not_in_memory_as_long_as_an_answer_to_a_slow_client(connect: Connect) -> None:
    async with connect() as client:
        key, _ = await queue_of(
            client, build_batch([Record(0, 1, None, b"x" * 50_000)] * 20, codec=Codec.LZ4)
        )
        await Member(client, "M1").fetch([key], max_records=2, wait_ms=5000, **EXACT)
        opened = client.broker.opened_batches
        ((batch, _),) = opened._batches._entries.values()
        (loaded,) = client.broker.share_partitions.loaded()
        (header_and_records,) = _pieces(client, loaded, batch)
        assert all(not isinstance(piece, memoryview) for piece in header_and_records)


def _pieces(client: Client, loaded: Any, batch: OpenedBatch) -> Sequence[Sequence[Any]]:
    from kbroker.broker.queues.opened_batches import BatchOpener
    from kbroker.broker.queues.sliced_batches import taken_records, walk
    from kbroker.share.effects import AcquiredRange

    batches = walk(loaded.partition.read_now(0, max_bytes=1, end_offset=20), 0, 20, 20)
    opener = BatchOpener(client.broker.opened_batches, loaded.partition.log, {})
    return [taken_records(batches, [AcquiredRange(5, 6, 1)], opener, 1 << 20)]
