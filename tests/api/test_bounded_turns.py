"""What clients send and what batches contain does not hold the loop: counted are the bytes that the
loop's thread inflates and the records that it walks over, not seconds.

`bounded_turns` in tests/conftest.py judges each turn of all tests. Here the batches are hostile.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
import trio

from kbroker.broker.logs import append_queues
from kbroker.broker.logs.recompression import stored_form
from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode
from kbroker.formats.batches import Record, build_batch
from kbroker.formats.compression import DEFAULT_MAX_BYTES, Codec, compress
from kbroker.formats.turns import TURN_BYTES, TURN_RECORDS
from tests.api.conftest import Connect
from tests.api.producing import batch, produce
from tests.api.share_consumers import ACCEPT, Member, acquired, prepare, set_up_group
from tests.api.test_work_queue import FAST
from tests.odd_batches import payload_of, with_header, with_payload
from tests.turns import watch

PATIENCE_S = 60
_DAY_MS = 86_400_000
_PARTITIONS = 10
LIMITED = {"message.timestamp.before.max.ms": str(_DAY_MS)}


def inflating(time_ms: int) -> bytes:
    """A batch of 2.3 KB or so, whose one record has almost 64 MiB."""
    payload = compress(Codec.ZSTD, payload_of(bytes(DEFAULT_MAX_BYTES - 100)))
    return with_payload(payload, codec=Codec.ZSTD, claimed=1, time_ms=time_ms)


def many(time_ms: int, codec: Codec) -> bytes:
    return build_batch([Record(0, time_ms, b"k", b"")] * 50_000, codec=codec)


def request_of(topic: Any, records: list[bytes]) -> dict[str, Any]:
    data = [{"index": index, "records": each} for index, each in enumerate(records)]
    topics = [{"topic_id": topic, "partition_data": data}]
    return {"transactional_id": None, "acks": -1, "topic_data": topics}


def rows_of(answer: Any) -> list[Any]:
    (topic_row,) = answer.responses
    return list(topic_row.partition_responses)


@pytest.mark.parametrize("days", [11, 0], ids=["too new", "limited"])
async def test_others_are_served_while_a_request_of_large_payloads_waits(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    """Two payloads at a time are inflated, in threads. Each costs no more than 64 MiB, and the loop
    inflates nothing but the first TURN_BYTES that a small batch is tried with."""
    may_go, begun = threading.Event(), threading.Semaphore(0)

    def gate(*arguments: Any, **more: Any) -> Any:
        begun.release()
        assert may_go.wait(PATIENCE_S)
        return stored_form(*arguments, **more)

    monkeypatch.setattr(append_queues, "stored_form", gate)
    async with connect() as client, trio.open_nursery() as nursery:
        hostile = (await client.create_topic("hostile", _PARTITIONS, configs=LIMITED)).topic_id
        other = (await client.create_topic("other")).topic_id
        records = [inflating(wall_clock_ms() + days * _DAY_MS)] * _PARTITIONS
        assert sum(map(len, records)) < 100_000
        answers: list[Any] = []
        before = watch.inflated_bytes

        async def send() -> None:
            answers.append(await client.call("produce", 13, **request_of(hostile, records)))

        nursery.start_soon(send)
        another = client.another(2)
        try:
            await trio.to_thread.run_sync(begun.acquire)
            for number in range(20):
                assert (await produce(another, other, batch(b"a"))).base_offset == number
            assert not answers
            assert client.broker.append_queues.statistics() == (_PARTITIONS, _PARTITIONS)
        finally:
            may_go.set()
        with trio.fail_after(PATIENCE_S):
            while not answers:
                await produce(another, other, batch(b"a"))
    assert watch.inflated_bytes - before <= TURN_BYTES
    codes = {row.error_code for row in rows_of(answers[0])}
    assert codes == ({ErrorCode.invalid_timestamp} if days else {ErrorCode.none})
    if days:
        assert [[each.batch_index for each in row.record_errors] for row in rows_of(answers[0])] == [
            [0]
        ] * _PARTITIONS


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD, Codec.GZIP])
@pytest.mark.parametrize(
    "configs",
    [{}, LIMITED, {"cleanup.policy": "compact"}, {"kbroker.payload.check": "true"}],
    ids=["plain", "limited", "compacted", "checked"],
)
@pytest.mark.parametrize("days", [0, 11])
async def test_many_records(connect: Connect, codec: Codec, configs: dict[str, str], days: int) -> None:
    """Good ones, and refused ones whose errors are listed."""
    async with connect() as client:
        topic = (await client.create_topic("orders", configs=configs)).topic_id
        before = watch.walked_records
        row = await produce(client, topic, many(wall_clock_ms() + days * _DAY_MS, codec))
        assert row.error_code == (ErrorCode.invalid_timestamp if days else 0)
        assert len(row.record_errors) == (1000 if days else 0)
        assert watch.walked_records - before <= TURN_RECORDS


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
async def test_a_claim_of_the_topic_s_time(connect: Connect, codec: Codec) -> None:
    """Refused from the header: nothing waits for a thread."""
    async with connect() as client:
        topic = (
            await client.create_topic("orders", configs={"message.timestamp.type": "LogAppendTime"})
        ).topic_id
        before = watch.inflated_bytes, watch.walked_records
        row = await produce(client, topic, with_header(many(wall_clock_ms(), codec), attributes=codec | 0x08))
        assert (row.error_code, len(row.record_errors)) == (ErrorCode.invalid_timestamp, 1000)
        assert (watch.inflated_bytes, watch.walked_records) == before


async def test_the_small_batches_of_one_request(connect: Connect) -> None:
    """Each of them could be checked on the loop, but not all of them in one turn."""
    async with connect() as client:
        configs = {"kbroker.payload.check": "true"}
        topic = (await client.create_topic("orders", 40, configs=configs)).topic_id
        small = build_batch([Record(0, wall_clock_ms(), None, bytes(500))] * 60, codec=Codec.LZ4)
        before = watch.inflated_bytes, watch.walked_records
        answer = await client.call("produce", 13, **request_of(topic, [small] * 40))
        assert [row.error_code for row in rows_of(answer)] == [0] * 40
        assert 30_000 < watch.inflated_bytes - before[0] <= TURN_BYTES
        assert watch.walked_records - before[1] <= TURN_RECORDS


async def test_small_batches_that_wait_behind_a_large_one(connect: Connect) -> None:
    """They are worked off by one task, which may not check all of them in one turn."""
    async with connect() as client, trio.open_nursery() as nursery:
        topic = (await client.create_topic("orders", configs={"kbroker.payload.check": "true"})).topic_id
        now_ms, codes = wall_clock_ms(), list[int]()

        async def send(records: bytes) -> None:
            codes.append((await produce(client, topic, records)).error_code)

        nursery.start_soon(send, inflating(now_ms))
        for _ in range(20):
            small = build_batch([Record(0, now_ms, None, bytes(500))] * 60, codec=Codec.LZ4)
            nursery.start_soon(send, small)
    assert codes == [0] * 21


async def test_a_record_of_very_many_headers(connect: Connect) -> None:
    """It counts by its size."""
    async with connect() as client:
        topic = (await client.create_topic("orders", configs={"kbroker.payload.check": "true"})).topic_id
        headers = (("", None),) * 200_000
        before = watch.walked_records
        row = await produce(client, topic, build_batch([Record(0, wall_clock_ms(), None, b"", headers)]))
        assert (row.error_code, watch.walked_records - before) == (0, 0)


def few_large(time_ms: int) -> bytes:
    """A batch of a KB or so, whose three records have 3 MB."""
    return build_batch([Record(0, time_ms, b"k", bytes(1 << 20))] * 3, codec=Codec.ZSTD)


_QUEUES = {
    "plain": {},
    "schedules": {"kbroker.queue.scheduling": "true"},
    "order": {"kbroker.queue.ordering": "key"},
    "time to live": {"kbroker.queue.ttl.ms": str(_DAY_MS)},
}


@pytest.mark.parametrize("kind", _QUEUES)
async def test_a_queue_of_such_batches(connect: Connect, kind: str) -> None:
    """Small ones that inflate, plain and compressed ones of many records, and many small ones: a
    member that takes a few records at a time gets them in order, and no turn opens too much."""
    now_ms = wall_clock_ms()
    small = [Record(0, now_ms, b"k%d" % n, bytes(300), (("kbroker-delay-ms", b"0"),)) for n in range(400)]
    async with connect(config=FAST) as client:
        key = await prepare(client)
        await set_up_group(client, _QUEUES[kind])
        for each in (few_large(now_ms), plain(now_ms), few_large(now_ms)):
            await client.append_raw("orders", each)
        for codec in (Codec.NONE, Codec.LZ4):
            for _ in range(6):
                await client.append_raw("orders", build_batch(small, codec=codec))
        total = client.partition("orders").high_watermark
        assert total == 3 + 3000 + 3 + 12 * 400
        member, found = Member(client, "M1"), list[int]()
        with trio.fail_after(PATIENCE_S):
            while len(found) < total:
                answer = await member.fetch(
                    [key] if member.epoch == 0 else (),
                    wait_ms=2000,
                    max_records=501,
                    share_acquire_mode=1,
                    max_bytes=64 << 20,
                )
                taken = acquired(answer)
                found += [offset for first, last, _ in taken for offset in range(first, last + 1)]
                if taken:
                    acks = [(first, last, [ACCEPT]) for first, last, _ in taken]
                    await member.acknowledge({key: acks})
    if kind != "order":
        assert found == list(range(len(found)))


def plain(time_ms: int) -> bytes:
    return build_batch([Record(0, time_ms, b"k%d" % n, b"") for n in range(3000)])
