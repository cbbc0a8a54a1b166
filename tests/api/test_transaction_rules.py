"""Rules of docs/behaviour.md about transactions, over single requests."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode
from kbroker.formats.batches import TRANSACTIONAL, ProducerInfo, Record, build_batch
from tests.api.conftest import Client, Connect, versions

OK = ErrorCode.none
Who = tuple[int, int]


async def begin(client: Client) -> Who:
    """A topic `a` with one partition, and the producer of `t`."""
    await client.create_topic("a")
    answer = await client.call(
        "init_producer_id", 4, transactional_id="t", transaction_timeout=60_000, producer_id=-1,
        producer_epoch=-1,
    )  # fmt: skip
    return answer.producer_id, answer.producer_epoch


async def add(client: Client, who: Who, *partitions: int) -> dict[int, ErrorCode]:
    answer = await client.call(
        "add_partitions_to_txn",
        3,
        v3_and_below_transactional_id="t",
        v3_and_below_producer_id=who[0],
        v3_and_below_producer_epoch=who[1],
        v3_and_below_topics=[{"name": "a", "partitions": partitions}],
    )
    (topic,) = answer.results_by_topic_v3_and_below
    return {row.partition_index: row.partition_error_code for row in topic.results_by_partition}


async def end(client: Client, version: int, who: Who, *, committed: bool = True) -> Any:
    named = {"transactional_id": "t", "producer_id": who[0], "producer_epoch": who[1]}
    return await client.call("end_txn", version, **named, committed=committed)


@pytest.mark.parametrize("version", versions("end_txn"))
async def test_ends(connect: Connect, version: int) -> None:
    """BASE-3, BASE-62, BASE-65."""
    async with connect() as client:
        who = producer_id, epoch = await begin(client)
        fenced = ErrorCode.producer_fenced if version >= 2 else ErrorCode.invalid_producer_epoch
        for wrong, code in (
            (who, ErrorCode.invalid_txn_state),
            ((producer_id, epoch + 1), fenced),
            ((producer_id + 1000, epoch), ErrorCode.invalid_producer_id_mapping),
        ):
            assert (await end(client, version, wrong)).error_code == code
        assert await add(client, who, 0) == {0: OK}
        for _ in range(2):
            answer = await end(client, version, who)
            assert answer.error_code == OK
            if version >= 5:
                assert (answer.producer_id, answer.producer_epoch) == (producer_id, epoch + 1)
        answer = await end(client, version, who, committed=False)
        assert answer.error_code == ErrorCode.invalid_txn_state


@pytest.mark.parametrize("version", versions("produce"))
async def test_a_partition_that_was_not_added(connect: Connect, version: int) -> None:  # BASE-63
    async with connect() as client:
        who = await begin(client)
        batch = build_batch(
            [Record(0, wall_clock_ms(), None, b"x")],
            producer=ProducerInfo(*who, 0),
            attributes=TRANSACTIONAL,
        )
        topic = client.partition("a").topic
        row = {"index": 0, "records": batch}
        data = {"name": topic.name, "topic_id": topic.topic_id, "partition_data": [row]}
        answer = await client.call("produce", version, transactional_id="t", acks=-1, topic_data=[data])
        (found,) = answer.responses[0].partition_responses
        if version >= 12:
            assert found.error_code == OK
        elif version == 11:
            assert (found.error_code, found.error_message) == (ErrorCode.transaction_abortable, None)
        else:
            assert found.error_code == ErrorCode.invalid_txn_state
            assert version < 8 or found.error_message == "Partition was not added to the transaction"


async def test_an_unknown_partition_refuses_the_others(connect: Connect) -> None:  # BASE-64
    async with connect() as client:
        who = await begin(client)
        assert await add(client, who, 0, 1) == {
            0: ErrorCode.operation_not_attempted,
            1: ErrorCode.unknown_topic_or_partition,
        }
        assert (await end(client, 4, who)).error_code == ErrorCode.invalid_txn_state, "nothing was added"
