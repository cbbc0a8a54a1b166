"""Answers of the APIs of transactions to odd requests, as recordings of Kafka show them."""

from __future__ import annotations

import pytest

from kbroker.errors import ErrorCode
from kbroker.formats.batches import ProducerInfo
from tests.api.conftest import Connect, versions
from tests.api.transaction_clients import describe, topic_key
from tests.api.transactional_producer import (
    VERIFY_FROM,
    add,
    both,
    init,
    opened,
    produce_rows,
    transactional_batch,
)

LOG = ("a", 0)
EMPTY = ""


@pytest.mark.parametrize("version", versions("produce"))
async def test_a_batch_of_the_empty_id(connect: Connect, version: int) -> None:
    async with opened(connect) as (client, producer):
        batch = producer.batch(LOG, b"one")
        rows = await produce_rows(client, EMPTY, {LOG: batch}, version=version)
        assert rows[LOG].error_code == ErrorCode.invalid_request


@pytest.mark.parametrize("version", versions("txn_offset_commit"))
async def test_offsets_of_the_empty_id(connect: Connect, version: int) -> None:
    async with opened(connect) as (client, producer):
        row = {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}
        answer = await client.call(
            "txn_offset_commit",
            version,
            transactional_id=EMPTY,
            group_id="g",
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            topics=[{**topic_key(client, "a"), "partitions": [row]}],
        )
        assert answer.topics[0].partitions[0].error_code == ErrorCode.invalid_request


@pytest.mark.parametrize("verify", [False, True])
async def test_partitions_of_the_empty_id(connect: Connect, verify: bool) -> None:
    async with opened(connect) as (client, producer):
        found = await add(client, EMPTY, producer.who, LOG, version=VERIFY_FROM, verify=verify)
        assert found == {LOG: ErrorCode.invalid_request}


@pytest.mark.parametrize("version", versions("txn_offset_commit"))
async def test_offsets_of_no_partition(connect: Connect, version: int) -> None:
    async with opened(connect) as (client, producer):
        answer = await client.call(
            "txn_offset_commit",
            version,
            transactional_id=producer.transactional_id,
            group_id="g",
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            topics=[{**topic_key(client, "a"), "partitions": []}],
        )
        assert list(answer.topics) == []


@pytest.mark.parametrize("version", versions("write_txn_markers"))
async def test_markers_of_no_partition(connect: Connect, version: int) -> None:
    async with opened(connect) as (client, producer):
        marker = {
            "producer_id": producer.producer_id,
            "producer_epoch": producer.epoch,
            "transaction_result": False,
            "coordinator_epoch": 0,
            "transaction_version": 0,
        }
        for topics in ([], [{"name": "a", "partition_indexes": []}]):
            answer = await client.call("write_txn_markers", version, markers=[{**marker, "topics": topics}])
            assert list(answer.markers) == []


async def test_producers_of_topics_that_are_none(connect: Connect) -> None:
    async with opened(connect) as (client, _):
        topics = [{"name": name, "partition_indexes": [9]} for name in ("a", "missing", "", "a/b")]
        answer = await client.call("describe_producers", 0, topics=topics)
        unknown, invalid = ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_topic_exception
        found = [
            (row.error_code, row.error_message is None) for (row,) in (t.partitions for t in answer.topics)
        ]
        assert found == [(unknown, True), (unknown, False), (invalid, False), (invalid, False)]


@both
async def test_a_new_epoch_has_no_start_time(connect: Connect, generation: int) -> None:
    async with opened(connect, generation=generation) as (client, producer):
        before = producer.who
        await producer.send(LOG, b"one")
        await producer.commit()
        (row,) = await describe(client, producer.transactional_id)
        assert row.transaction_start_time > 0
        await init(client, producer.transactional_id, own=before)
        (row,) = await describe(client, producer.transactional_id)
        assert row.transaction_start_time == -1


async def test_two_producers_in_a_request_get_the_reason(connect: Connect) -> None:
    async with opened(connect, "t", "u") as (client, first, second):
        batches = {LOG: first.batch(LOG, b"one"), ("a", 1): second.batch(("a", 1), b"two")}
        rows = await produce_rows(client, "t", batches)
        assert [row.error_message is None for row in rows.values()] == [False, False]


async def test_a_sequence_that_begins_above_0_is_refused_by_the_log(connect: Connect) -> None:
    async with opened(connect) as (client, producer):
        batch = transactional_batch(ProducerInfo(*producer.who, 5), b"five")
        row = (await produce_rows(client, producer.transactional_id, {LOG: batch}))[LOG]
        assert (row.error_code, row.log_start_offset) == (ErrorCode.out_of_order_sequence_number, 0)
