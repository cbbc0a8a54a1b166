"""Transactions that move the metrics of a World's broker."""

from __future__ import annotations

from functools import partial

import trio

from kbroker.formats.batches import ProducerInfo
from kbroker.transactions.coordinator import ProducerEpoch
from tests.api.conftest import Client
from tests.api.transaction_clients import add, begin, end, init
from tests.api.transactional_producer import transactional_batch
from tests.metrics.world import World, blocked


async def send(client: Client, name: str, producer: ProducerEpoch, topic: str = "wire") -> None:
    """A batch of the transaction."""
    batch = transactional_batch(ProducerInfo(producer.producer_id, producer.epoch, 0), b"one")
    rows = [{"name": topic, "partition_data": [{"index": 0, "records": batch}]}]
    answer = await client.call("produce", 9, transactional_id=name, acks=-1, timeout=1000, topic_data=rows)
    (found,) = answer.responses[0].partition_responses
    assert found.error_code == 0, found


async def send_offset(client: Client, name: str, producer: ProducerEpoch, group: str) -> None:
    """An offset of a group that the transaction commits."""
    who = {"transactional_id": name, "producer_id": producer.producer_id, "producer_epoch": producer.epoch}
    answer = await client.call("add_offsets_to_txn", 3, **who, group_id=group)
    assert answer.error_code == 0, answer
    row = {"partition_index": 0, "committed_offset": 1, "committed_metadata": None}
    answer = await client.call(
        "txn_offset_commit",
        3,
        **who,
        group_id=group,
        generation_id=-1,
        member_id="",
        group_instance_id=None,
        topics=[{"name": "wire", "partitions": [row]}],
    )
    assert answer.topics[0].partitions[0].error_code == 0, answer


async def transactions(world: World) -> None:
    """One that is committed, one that is aborted, and one that lasts too long."""
    client = world.client
    for name, is_commit in (("to commit", True), ("to abort", False)):
        producer = await begin(client, name, wire=[0])
        await send(client, name, producer)
        await send_offset(client, name, producer, "transactional")
        await world.scrape()
        await end(client, name, producer, commit=is_commit)
    await world.scrape()
    async with trio.open_nursery() as nursery:
        with blocked(world.broker.state_commits):
            nursery.start_soon(partial(init, client, "pending"))
            await world.until("kbroker_transaction_changes_pending")
    late = await init(client, "late", timeout_ms=1)
    await add(client, "late", late, wire=[0])
    await world.until("kbroker_transactions_timed_out_total")
