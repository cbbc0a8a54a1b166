"""What the transactions of producers leave in their logs, and what readers of both levels get."""

from __future__ import annotations

import pytest
import trio

from kbroker.errors import ErrorCode
from kbroker.formats.batches import crc_is_valid, iter_headers, iter_records
from kbroker.formats.transactions import MarkerType
from tests.api.conftest import Client, Connect
from tests.api.producing import fetch
from tests.api.transactional_producer import (
    aborted,
    both,
    committed,
    ends,
    every_batch,
    markers,
    opened,
    read,
)

A, B, C = ("a", 0), ("a", 1), ("b", 0)
OK = ErrorCode.none


@both
@pytest.mark.parametrize("is_commit", [True, False])
async def test_the_bytes_of_a_marker(connect: Connect, generation: int, is_commit: bool) -> None:
    async with opened(connect, generation=generation) as (client, producer):
        await producer.send(A, b"x")
        who = producer.who
        await producer.end(is_commit)
        data = (await read(client, A, 1, level=0)).records
        (_, header), *more = iter_headers(data)
        assert more == []
        assert (header.base_offset, header.attributes, header.size_bytes) == (1, 0x30, 78)
        epoch = who[1] + (generation == 2)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (who[0], epoch, -1)
        assert header.base_timestamp_ms == header.max_timestamp_ms > 0
        assert crc_is_valid(data, 0, header)
        (record,) = iter_records(data)
        assert (record.key, record.headers) == (bytes((0, 0, 0, is_commit)), ())
        assert record.value is not None
        assert (len(record.value), record.value[:2]) == (6, b"\0\0")


async def test_reading_from_inside_an_open_transaction(connect: Connect) -> None:
    async with opened(connect) as (client, producer):
        await producer.send(A, b"1")
        await producer.send(A, b"2")
        for offset in (1, 2):
            row = await read(client, A, offset)
            assert (row.records or b"", row.last_stable_offset, row.high_watermark) == (b"", 0, 2)
        answer = await fetch(client, "a", 3, version=12, isolation_level=1)
        row = answer.responses[0].partitions[0]
        assert (row.error_code, row.aborted_transactions or []) == (ErrorCode.offset_out_of_range, [])


@both
@pytest.mark.parametrize("is_commit", [True, False])
async def test_a_transaction_without_records(connect: Connect, generation: int, is_commit: bool) -> None:
    async with opened(connect, generation=generation) as (client, producer):
        await producer.add(A)
        assert await ends(client, A) == (0, 0)
        await producer.end(is_commit)
        assert await markers(client, A) == [MarkerType(is_commit)]
        row = await read(client, A)
        assert (row.last_stable_offset, row.high_watermark, aborted(row)) == (1, 1, [])


@both
async def test_a_commit_shows_the_records(connect: Connect, generation: int) -> None:
    async with opened(connect, generation=generation) as (client, producer):
        await producer.send(A, b"1", b"2")
        await producer.send(A, b"3")
        row = await read(client, A)
        assert (row.records or b"", aborted(row)) == (b"", [])
        assert (row.last_stable_offset, row.high_watermark) == (0, 3)
        await producer.commit()
        row = await read(client, A)
        assert (row.last_stable_offset, row.high_watermark, aborted(row)) == (4, 4, [])
        assert await committed(client, A) == [b"1", b"2", b"3"]
        last = (await every_batch(client, A))[-1]
        assert (last.marker, last.base_offset, last.producer_id) == (
            MarkerType.COMMIT,
            3,
            producer.producer_id,
        )
        assert last.epoch == (1 if generation == 2 else 0)


@both
async def test_an_abort_names_the_producer(connect: Connect, generation: int) -> None:
    async with opened(connect, generation=generation) as (client, producer):
        await producer.send(B, b"elsewhere")
        await client.append("a", 1000)
        await producer.send(A, b"1", b"2")
        await producer.abort()
        for offset, wanted in ((0, [(producer.producer_id, 1)]), (3, [(producer.producer_id, 1)]), (4, [])):
            row = await read(client, A, offset)
            assert (aborted(row), row.last_stable_offset, row.high_watermark) == (wanted, 4, 4)
        assert await committed(client, A) == [b"x"]
        row = await read(client, A, level=0)
        assert row.aborted_transactions is None


@both
@pytest.mark.parametrize("is_commit", [True, False])
async def test_a_waiting_reader_is_woken_by_the_end(
    connect: Connect, generation: int, is_commit: bool
) -> None:
    async with opened(connect, generation=generation) as (client, producer):
        await producer.send(A, b"x")
        found = []

        async def wait() -> None:
            found.append(await read(client.another(2), A, wait_ms=600_000))

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await trio.testing.wait_all_tasks_blocked()
                await producer.end(is_commit)
        assert (found[0].last_stable_offset, found[0].high_watermark) == (2, 2)


@both
async def test_interleaved_producers(connect: Connect, generation: int) -> None:
    async with opened(connect, "t", "u", "v", generation=generation) as (client, first, second, third):
        for step in range(3):
            for producer in (first, second, third):
                await producer.send(A, f"{producer.transactional_id}{step}".encode())
        assert await ends(client, A) == (0, 9)
        await second.abort()
        assert (await ends(client, A), await committed(client, A)) == ((0, 10), [])
        await first.commit()
        assert await ends(client, A) == (2, 11), "the third one's first record"
        assert await committed(client, A) == [b"t0"]
        await second.send(A, b"u3")
        await third.abort()
        assert await ends(client, A) == (11, 13)
        assert await committed(client, A) == [b"t0", b"t1", b"t2"]
        await second.commit()
        assert await committed(client, A) == [b"t0", b"t1", b"t2", b"u3"]
        row = await read(client, A)
        assert aborted(row) == [(second.producer_id, 1), (third.producer_id, 2)]


@both
@pytest.mark.parametrize("is_commit", [True, False])
async def test_several_partitions_and_topics(connect: Connect, generation: int, is_commit: bool) -> None:
    logs = (A, B, C)
    async with opened(connect, generation=generation) as (client, producer):
        for value in (b"1", b"2"):
            for log in logs:
                await producer.send(log, value)
        assert [await ends(client, log) for log in logs] == [(0, 2)] * 3
        await producer.end(is_commit)
        assert [await ends(client, log) for log in logs] == [(3, 3)] * 3
        assert [await markers(client, log) for log in logs] == [[MarkerType(is_commit)]] * 3
        assert [await committed(client, log) for log in logs] == [[b"1", b"2"] if is_commit else []] * 3
        await producer.send(A, b"3")
        await producer.commit()
        assert [await ends(client, log) for log in logs] == [(5, 5), (3, 3), (3, 3)], "only where it wrote"


async def delete_topic(client: Client, name: str) -> None:
    (row,) = (await client.call("delete_topics", 6, topics=[{"name": name, "topic_id": None}])).responses
    assert row.error_code == OK


@both
@pytest.mark.parametrize("is_made_again", [True, False])
@pytest.mark.parametrize("is_commit", [True, False])
async def test_a_topic_that_is_deleted_meanwhile(
    connect: Connect, generation: int, is_made_again: bool, is_commit: bool
) -> None:
    async with opened(connect, generation=generation) as (client, producer):
        await producer.send(A, b"1")
        await producer.send(C, b"2")
        await delete_topic(client, "b")
        if is_made_again:
            await client.create_topic("b")
        with trio.fail_after(30):
            await producer.end(is_commit)
        assert await committed(client, A) == ([b"1"] if is_commit else [])
        if is_made_again:
            assert await ends(client, C) == (0, 0), "the new topic was not part of it"
        await producer.send(A, b"3")
        await producer.commit()
        assert (await committed(client, A))[-1] == b"3"


@both
async def test_only_a_deleted_topic(connect: Connect, generation: int) -> None:
    async with opened(connect, generation=generation) as (client, producer):
        await producer.send(C, b"1")
        await delete_topic(client, "b")
        with trio.fail_after(30):
            await producer.commit()
            await producer.init()


@both
@pytest.mark.parametrize("is_commit", [True, False])
async def test_records_that_are_deleted_meanwhile(connect: Connect, generation: int, is_commit: bool) -> None:
    async with opened(connect, generation=generation) as (client, producer):
        await producer.send(A, b"1", b"2")
        rows = [{"name": "a", "partitions": [{"partition_index": 0, "offset": -1}]}]
        answer = await client.call("delete_records", 2, topics=rows)
        assert answer.topics[0].partitions[0].low_watermark == 2
        row = await read(client, A, 2)
        assert (row.log_start_offset, row.last_stable_offset, row.high_watermark) == (2, 2, 2)
        await producer.send(A, b"3")
        row = await read(client, A, 2)
        assert (row.last_stable_offset, row.high_watermark) == (2, 3), "it is still open"
        await producer.end(is_commit)
        row = await read(client, A, 2)
        assert (row.last_stable_offset, row.high_watermark) == (4, 4)
        if not is_commit:
            assert [producer_id for producer_id, _ in aborted(row)] == [producer.producer_id]


@both
async def test_partitions_that_are_made_meanwhile(connect: Connect, generation: int) -> None:
    grown = ("b", 2)
    async with opened(connect, generation=generation) as (client, producer):
        await producer.send(C, b"1")
        topics = [{"name": "b", "count": 3, "assignments": None}]
        answer = await client.call("create_partitions", 3, topics=topics, validate_only=False)
        assert answer.results[0].error_code == OK
        await producer.send(grown, b"2")
        await producer.send(C, b"3")
        await producer.commit()
        assert [await committed(client, log) for log in (C, grown)] == [[b"1", b"3"], [b"2"]]
        assert await ends(client, ("b", 1)) == (0, 0)
