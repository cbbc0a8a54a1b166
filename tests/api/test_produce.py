"""Produce: versions, codecs, refusals, idempotent producers and acks=0."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any
from uuid import UUID

import pytest
import trio
import trio.testing

from kbroker.api import APIS
from kbroker.api.request import CloseConnection
from kbroker.broker.options import Durability
from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode, StoreFailed
from kbroker.formats.batches import ProducerInfo, Record, build_batch
from kbroker.formats.compression import Codec
from tests.api.conftest import Client, Connect
from tests.api.producing import batch, fetch, produce
from tests.metrics.world import blocked

PRODUCE = range(APIS[0].first, APIS[0].last + 1)
NO_ID = UUID(int=0xDEAD)


@pytest.mark.parametrize("version", PRODUCE)
async def test_every_version_of_produce(connect: Connect, version: int) -> None:
    async with connect() as client:
        topic = await client.create_topic("orders")
        name = topic.topic_id if version >= 13 else "orders"
        first = await produce(client, name, batch(b"a", b"b"), version=version)
        second = await produce(client, name, batch(b"c"), version=version)
        assert (first.error_code, first.base_offset, second.base_offset) == (0, 0, 2)


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
        assert (
            await refused(client, "nowhere", batch(b"a"), version=12) == ErrorCode.unknown_topic_or_partition
        )
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


async def test_an_idempotent_producer_after_a_restart(connect: Connect, every_engine: str) -> None:
    """Its partitions first read its state. Rows of one request do not depend on each other."""

    def request(sequence: int, *, acks: int = -1) -> dict[str, Any]:
        now_ms = wall_clock_ms()
        known, refused, unknown = (
            build_batch([Record(0, now_ms, None, b"x")], producer=ProducerInfo(producer_id, 0, first))
            for producer_id, first in ((5, sequence), (5, sequence + 7), (9, sequence))
        )
        records = (known, refused, batch(b"plain"), unknown)
        rows = [{"index": index, "records": each} for index, each in enumerate(records)]
        return {
            "transactional_id": None,
            "acks": acks,
            "topic_data": [{"topic_id": topic_id, "partition_data": rows}],
        }

    async with connect(every_engine) as client:
        topic_id = (await client.create_topic("orders", 4)).topic_id
        for partition in range(2):
            for sequence in range(3):
                data = build_batch([Record(0, 1, None, b"x")], producer=ProducerInfo(5, 0, sequence))
                await client.append_raw("orders", data, partition)
    async with connect(every_engine) as client:
        for acks in (1, -1):
            answer = await client.call("produce", 13, **request(3, acks=acks))
            rows = answer.responses[0].partition_responses
            code = ErrorCode.out_of_order_sequence_number
            assert [(row.index, row.error_code) for row in rows] == [(0, 0), (1, code), (2, 0), (3, 0)]
            assert [row.base_offset for row in rows] == [3, -1, acks == -1, 0], (
                "the second time these are repeats"
            )
        assert [client.partition("orders", index).high_watermark for index in range(4)] == [4, 3, 2, 1]


async def test_what_is_listed_twice_counts_once(connect: Connect) -> None:  # BASE-31
    """Topics are merged, the last batch of a partition is used, and a topic without batches gets no
    answer."""
    async with connect() as client:
        topic, other = await client.create_topic("orders", 2), await client.create_topic("other")
        for version in (12, 13):
            rows = [
                {"topic_id": topic.topic_id, "name": "orders", "partition_data": [
                    {"index": 0, "records": batch(b"lost")}
                ]},
                {"topic_id": other.topic_id, "name": "other", "partition_data": []},
                {"topic_id": topic.topic_id, "name": "orders", "partition_data": [
                    {"index": 1, "records": batch(b"a")}, {"index": 0, "records": batch(b"b", b"c")}
                ]},
            ]  # fmt: skip
            answer = await client.call("produce", version, transactional_id=None, acks=-1, topic_data=rows)
            (answered,) = answer.responses
            assert sorted((row.index, row.error_code) for row in answered.partition_responses) == [
                (0, 0),
                (1, 0),
            ]
        assert [client.partition("orders", index).high_watermark for index in range(2)] == [4, 2]


async def test_what_is_refused_first(connect: Connect) -> None:  # BASE-28, BASE-30
    """Odd acks affect only valid batches in existing partitions; internal topics always exist."""
    async with connect() as client:
        await client.create_topic("orders")
        cases = (
            ("orders", 0, batch(b"a"), ErrorCode.invalid_required_acks),
            ("orders", 0, b"", ErrorCode.invalid_record),
            ("orders", 0, bytes(61), ErrorCode.corrupt_message),
            ("orders", 1, batch(b"a"), ErrorCode.unknown_topic_or_partition),
            ("nowhere", 0, b"", ErrorCode.unknown_topic_or_partition),
            ("__consumer_offsets", 0, batch(b"a"), ErrorCode.invalid_required_acks),
        )
        for name, partition, records, code in cases:
            assert await refused(client, name, records, partition=partition, acks=2, version=12) == code, name
        assert (
            await refused(client, "__consumer_offsets", batch(b"a"), version=12)
            == ErrorCode.invalid_topic_exception
        )


@pytest.mark.parametrize("version", [3, 6, 7])
async def test_zstd_in_old_versions(connect: Connect, version: int) -> None:
    """Clients that only support those versions cannot read it."""
    async with connect() as client:
        await client.create_topic("orders")
        codec = await refused(client, "orders", batch(b"a", codec=Codec.ZSTD), version=version)
        assert codec == (ErrorCode.none if version >= 7 else ErrorCode.unsupported_compression_type)
        assert (
            await refused(client, "orders", batch(b"a", codec=Codec.LZ4), version=version) == ErrorCode.none
        )


@pytest.mark.parametrize("version", range(5, 14))
async def test_a_refused_row(connect: Connect, version: int) -> None:  # BASE-22, BASE-33
    """The log's start if the log refused it; a message, and the records, only if single records are
    at fault."""
    async with connect() as client:
        topic = (
            (await client.create_topic("orders")).topic_id
            if version >= 13
            else (await client.create_topic("orders")).name
        )
        await client.append("orders", 1, 2, 3)
        await client.broker.topics.move_log_start(client.partition("orders"), 2)
        late = build_batch([Record(0, each, None, b"x") for each in (1, wall_clock_ms() + 4_000_000)])
        row = await produce(client, topic, late, version=version)
        assert (row.error_code, row.log_start_offset, row.base_offset) == (ErrorCode.invalid_timestamp, 2, -1)
        if version >= 8:
            assert row.error_message.startswith("One or more records have been rejected")
            assert [error.batch_index for error in row.record_errors] == [1]
        for records, start in (
            (b"\0\0\0\0\0\0\0\1" + late[8:], 2),
            (late + late, -1),
            (late[:-1], -1),
            (late[:-1] + b"?", -1),
        ):
            row = await produce(client, topic, records, version=version)
            assert (row.log_start_offset, row.base_offset) == (start, -1)
            assert row.error_code in (ErrorCode.invalid_record, ErrorCode.corrupt_message)
            assert version < 8 or (row.error_message, row.record_errors) == (None, ())


async def test_a_plain_batch_in_a_request_with_a_transactional_id(connect: Connect) -> None:
    """It belongs to no transaction."""
    async with connect() as client:
        topic = await client.create_topic("orders")
        data = [{"topic_id": topic.topic_id, "partition_data": [{"index": 0, "records": batch(b"a")}]}]
        answer = await client.call("produce", 13, transactional_id="t", acks=-1, topic_data=data)
        row = answer.responses[0].partition_responses[0]
        assert (row.error_code, row.base_offset) == (ErrorCode.none, 0)
        assert client.partition("orders").last_stable_offset == 1


# BASE-67
@pytest.mark.parametrize("durability", ["disk", "os"])
@pytest.mark.parametrize("acks", [1, -1])
async def test_an_answered_batch_is_visible(
    connect: Connect, every_engine: str, durability: Durability, acks: int
) -> None:
    """On any connection, below the latest offset and in a Fetch that does not wait. Until then the
    commit under way could still fail."""
    async with connect(engine=every_engine, durability=durability) as client:
        topic = await client.create_topic("orders")
        readers = client, client.another(2)
        for number in range(10):
            row = await produce(client, topic.topic_id, batch(b"a"), acks=acks)
            assert row.base_offset == number
            for reader in readers:
                assert reader.partition("orders").high_watermark == number + 1
                (read,) = (await fetch(reader, topic.topic_id, number)).responses[0].partitions
                assert read.high_watermark == number + 1
                assert read.records


@pytest.mark.parametrize("acks", [0, 1, -1])
async def test_a_batch_is_confirmed_by_its_sync(connect: Connect, acks: int) -> None:
    """No request ends before it."""
    async with connect(engine="segment") as client:
        topic = await client.create_topic("orders")
        ended = trio.Event()

        async def send() -> None:
            await produce(client, topic.topic_id, batch(b"a"), acks=acks)
            ended.set()

        async with trio.open_nursery() as nursery:
            with blocked(client.broker.log_commits):
                nursery.start_soon(send)
                await trio.testing.wait_all_tasks_blocked()
                assert client.partition("orders").next_offset == 1
                assert not ended.is_set()
        assert client.partition("orders").high_watermark == 1


# BASE-29
@pytest.mark.parametrize("acks", [0, 1, -1])
async def test_a_failed_sync_confirms_nothing(connect: Connect, acks: int) -> None:
    """With acks=0 it ends the connection."""
    async with connect(engine="segment") as client:
        topic = await client.create_topic("orders")

        def fail() -> None:
            raise StoreFailed("EIO")

        client.broker.log_commits._sync = fail
        with pytest.raises(CloseConnection) if acks == 0 else nullcontext():
            assert await refused(client, topic.topic_id, batch(b"a"), acks=acks) == (
                ErrorCode.kafka_storage_error
            )
        assert client.partition("orders").high_watermark == 0


# BASE-29
async def test_acks_0_answers_nothing_and_ends_the_connection_on_an_error(connect: Connect) -> None:
    async with connect() as client:
        topic = await client.create_topic("orders")
        assert await produce(client, topic.topic_id, batch(b"a"), acks=0) is None
        assert (await produce(client, topic.topic_id, batch(b"b"))).base_offset == 1
        with pytest.raises(CloseConnection):
            await produce(client, topic.topic_id, b"junk", acks=0)
