"""Produce and Fetch in every version: what is stored is what is read; refusals; sessions; waiting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
import trio

from kbroker.api import APIS
from kbroker.broker.connection import CloseConnection, PeerGone
from kbroker.clock import wall_clock_ms
from kbroker.compression import Codec
from kbroker.errors import ErrorCode
from kbroker.records import Record, build_batch, iter_headers, iter_records
from tests.api.conftest import Client, Connect

PRODUCE = range(APIS[0].first, APIS[0].last + 1)
FETCH = range(APIS[1].first, APIS[1].last + 1)
NO_ID = UUID(int=0xDEAD)


def batch(*values: bytes, codec: Codec = Codec.NONE) -> bytes:
    now_ms = wall_clock_ms()
    return build_batch((Record(0, now_ms, None, value) for value in values), codec=codec)


async def produce(client: Client, topic: Any, records: bytes | None, *, version: int = 13, partition: int = 0, acks: int = -1) -> Any:
    by_id = version >= 13
    data = {
        "name": topic,
        "topic_id": topic if by_id else None,
        "partition_data": [{"index": partition, "records": records}],
    }
    answer = await client.call("produce", version, transactional_id=None, acks=acks, topic_data=[data])
    return None if answer is None else answer.responses[0].partition_responses[0]


async def fetch(
    client: Client, topic: Any, offset: int, *, version: int = 18, wait_ms: int = 0, min_bytes: int = 1, partition: int = 0, **more: Any
) -> Any:
    row = {
        "partition": partition,
        "current_leader_epoch": more.pop("leader_epoch", -1),
        "fetch_offset": offset,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": more.pop("partition_max_bytes", 1 << 20),
    }
    topics = [{"topic": topic, "topic_id": topic, "partitions": [row]}] if topic is not None else []
    fields = {"replica_id": -1, "max_bytes": 1 << 20, "isolation_level": 0, "session_id": 0, "session_epoch": -1, "rack_id": "", **more}
    return await client.call("fetch", version, max_wait=wait_ms, min_bytes=min_bytes, topics=topics, forgotten_topics_data=[], **fields)


def values(row: Any) -> list[bytes | None]:
    data = row.records or b""
    return [record.value for position, _ in iter_headers(data) for record in iter_records(data, position)]


@pytest.mark.parametrize("version", PRODUCE)
async def test_every_version_of_produce(connect: Connect, version: int) -> None:
    async with connect() as client:
        topic = await client.create_topic("orders")
        name = topic.topic_id if version >= 13 else "orders"
        first = await produce(client, name, batch(b"a", b"b"), version=version)
        second = await produce(client, name, batch(b"c"), version=version)
        assert (first.error_code, first.base_offset, second.base_offset) == (0, 0, 2)


@pytest.mark.parametrize("version", FETCH)
async def test_every_version_of_fetch(connect: Connect, version: int) -> None:
    async with connect() as client:
        topic = await client.create_topic("orders")
        await produce(client, topic.topic_id, batch(b"a", b"b"))
        await produce(client, topic.topic_id, batch(b"c"))
        answer = await fetch(client, topic.topic_id if version >= 13 else "orders", 1, version=version)
        row = answer.responses[0].partitions[0]
        assert (row.error_code, row.high_watermark, row.last_stable_offset) == (0, 3, 3)
        assert values(row) == [b"a", b"b", b"c"], "whole batches from the one that holds the offset"


@pytest.mark.parametrize("codec", list(Codec))
async def test_codecs_pass_through_untouched(connect: Connect, every_engine: str, codec: Codec) -> None:
    async with connect(engine=every_engine) as client:
        topic = await client.create_topic("orders")
        sent = batch(b"x" * 100, b"y" * 100, codec=codec)
        await produce(client, topic.topic_id, sent)
    async with connect(engine=every_engine) as client:
        row = (await fetch(client, topic.topic_id, 0)).responses[0].partitions[0]
        assert row.records[16:] == sent[16:], "all but the base offset and the leader epoch"


async def refused(client: Client, topic: Any, records: bytes | None, **more: Any) -> ErrorCode:
    return (await produce(client, topic, records, **more)).error_code


async def test_produce_refusals(connect: Connect) -> None:  # BASE-27, BASE-28, BASE-32
    async with connect() as client:
        topic = (await client.create_topic("orders")).topic_id
        assert await refused(client, NO_ID, batch(b"a")) == ErrorCode.unknown_topic_id
        assert await refused(client, "nowhere", batch(b"a"), version=12) == ErrorCode.unknown_topic_or_partition
        assert await refused(client, topic, batch(b"a"), partition=1) == ErrorCode.unknown_topic_or_partition
        assert await refused(client, topic, batch(b"a"), partition=-1) == ErrorCode.unknown_topic_or_partition
        assert await refused(client, topic, batch(b"a"), acks=2) == ErrorCode.invalid_required_acks
        assert await refused(client, topic, None) == ErrorCode.invalid_record
        assert await refused(client, topic, b"") == ErrorCode.invalid_record
        assert await refused(client, topic, batch(b"a" * 2_000_000)) == ErrorCode.message_too_large
        assert client.broker.topics.by_id(topic).partitions[0].next_offset == 0  # type: ignore[union-attr]


async def test_one_bad_partition_does_not_spoil_the_others(connect: Connect) -> None:
    async with connect() as client:
        topic = await client.create_topic("orders", 2)
        rows = [{"index": 0, "records": b"junk" * 20}, {"index": 1, "records": batch(b"a")}]
        data = [{"topic_id": topic.topic_id, "partition_data": rows}]
        answer = await client.call("produce", 13, transactional_id=None, acks=-1, topic_data=data)
        codes = [row.error_code for row in answer.responses[0].partition_responses]
        assert codes[0] != 0
        assert codes[1] == 0


async def test_transactional_requests_are_fatal(connect: Connect) -> None:
    async with connect() as client:
        topic = await client.create_topic("orders")
        data = [{"topic_id": topic.topic_id, "partition_data": [{"index": 0, "records": batch(b"a")}]}]
        answer = await client.call("produce", 13, transactional_id="t", acks=-1, topic_data=data)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.transactional_id_authorization_failed
        answer = await client.call("init_producer_id", 5, transactional_id="t", transaction_timeout=1000, producer_id=-1, producer_epoch=-1)
        assert answer.error_code == ErrorCode.transactional_id_authorization_failed


async def test_acks_0_answers_nothing_and_ends_the_connection_on_an_error(connect: Connect) -> None:  # BASE-29
    async with connect() as client:
        topic = await client.create_topic("orders")
        assert await produce(client, topic.topic_id, batch(b"a"), acks=0) is None
        assert (await produce(client, topic.topic_id, batch(b"b"))).base_offset == 1
        with pytest.raises(CloseConnection):
            await produce(client, topic.topic_id, b"junk", acks=0)


async def test_fetch_beyond_the_log_is_answered_at_once(connect: Connect) -> None:  # BASE-44
    async with connect() as client:
        topic = await client.create_topic("orders")
        await produce(client, topic.topic_id, batch(b"a"))
        with trio.fail_after(5):
            for offset in (2, -1):
                row = (await fetch(client, topic.topic_id, offset, wait_ms=60_000)).responses[0].partitions[0]
                assert (row.error_code, row.high_watermark, row.log_start_offset) == (ErrorCode.offset_out_of_range, -1, -1)


async def test_fetch_of_unknown_things(connect: Connect) -> None:  # BASE-46
    async with connect() as client:
        topic = await client.create_topic("orders")
        rows: Sequence[tuple[Any, dict[str, int], ErrorCode]] = (
            (NO_ID, {}, ErrorCode.unknown_topic_id),
            ("nowhere", {"version": 12}, ErrorCode.unknown_topic_or_partition),
            (topic.topic_id, {"partition": 9}, ErrorCode.unknown_topic_or_partition),
            (topic.topic_id, {"leader_epoch": 99}, ErrorCode.unknown_leader_epoch),
        )
        with trio.fail_after(5):
            for name, more, code in rows:
                answer = await fetch(client, name, 0, wait_ms=60_000, **more)
                assert answer.responses[0].partitions[0].error_code == code
            assert (await fetch(client, topic.topic_id, 0, isolation_level=7)).error_code == ErrorCode.unknown_server_error


async def test_a_small_limit_still_gives_the_first_batch(connect: Connect) -> None:  # BASE-48
    async with connect() as client:
        topic = await client.create_topic("orders")
        for value in (b"a" * 1000, b"b" * 1000):
            await produce(client, topic.topic_id, batch(value))
        for limits in ({"max_bytes": 1}, {"partition_max_bytes": 1}, {"max_bytes": 0}):
            row = (await fetch(client, topic.topic_id, 0, **limits)).responses[0].partitions[0]
            assert values(row) == [b"a" * 1000]


async def test_a_waiting_fetch_is_woken_by_a_produce(connect: Connect) -> None:  # BASE-43
    async with connect() as client:
        topic = await client.create_topic("orders")
        answers: list[Any] = []

        async def wait() -> None:
            answers.append(await fetch(client, topic.topic_id, 0, wait_ms=60_000))

        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await trio.testing.wait_all_tasks_blocked()
                assert answers == []
                await produce(client, topic.topic_id, batch(b"a"))
        assert values(answers[0].responses[0].partitions[0]) == [b"a"]


async def test_a_fetch_ends_when_its_peer_hangs_up(connect: Connect) -> None:
    async with connect() as client:
        topic = await client.create_topic("orders")
        gone = trio.Event()
        client.connection.hang_up = gone.wait
        with trio.fail_after(10), pytest.RaisesGroup(PeerGone):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: fetch(client, topic.topic_id, 0, wait_ms=60_000))
                await trio.testing.wait_all_tasks_blocked()
                gone.set()
        assert len(client.broker.topics.by_name("orders").partitions[0].waiters) == 0  # type: ignore[union-attr]


class TestFetchSessions:
    async def test_only_what_changes_is_answered(self, connect: Connect) -> None:
        async with connect() as client:
            topic = (await client.create_topic("orders")).topic_id
            first = await fetch(client, topic, 0, session_epoch=0)
            assert first.session_id != 0
            assert len(first.responses) == 1
            second = await fetch(client, None, 0, session_id=first.session_id, session_epoch=1)
            assert len(second.responses) == 0
            await produce(client, topic, batch(b"a"))
            third = await fetch(client, None, 0, session_id=first.session_id, session_epoch=2)
            assert values(third.responses[0].partitions[0]) == [b"a"]

    async def test_errors(self, connect: Connect) -> None:  # BASE-47
        async with connect() as client:
            topic = (await client.create_topic("orders")).topic_id
            session = (await fetch(client, topic, 0, session_epoch=0)).session_id
            assert (await fetch(client, None, 0, session_id=session, session_epoch=5)).error_code == ErrorCode.invalid_fetch_session_epoch
            assert (
                await fetch(client, None, 0, session_id=session + 1, session_epoch=1)
            ).error_code == ErrorCode.fetch_session_id_not_found
            assert (await fetch(client, None, 0, session_id=0, session_epoch=1)).error_code == ErrorCode.fetch_session_id_not_found
            by_name = await fetch(client, "orders", 0, version=12, session_id=session, session_epoch=1)
            assert by_name.error_code == ErrorCode.fetch_session_topic_id_error

    async def test_a_final_epoch_ends_the_session(self, connect: Connect) -> None:
        async with connect() as client:
            topic = (await client.create_topic("orders")).topic_id
            session = (await fetch(client, topic, 0, session_epoch=0)).session_id
            assert (await fetch(client, topic, 0, session_id=session, session_epoch=-1)).session_id == 0
            assert (await fetch(client, None, 0, session_id=session, session_epoch=1)).error_code == ErrorCode.fetch_session_id_not_found

    async def test_a_full_cache_drops_the_oldest(self, connect: Connect) -> None:
        async with connect(config={"max.incremental.fetch.session.cache.slots": "2"}) as client:
            topic = (await client.create_topic("orders")).topic_id
            ids = [(await fetch(client, topic, 0, session_epoch=0)).session_id for _ in range(3)]
            codes = [(await fetch(client, None, 0, session_id=each, session_epoch=1)).error_code for each in ids]
            assert codes == [ErrorCode.fetch_session_id_not_found, 0, 0]
