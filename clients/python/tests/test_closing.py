"""Consumers that are closed at a bad moment, or whose callback fails: `async with` ends."""

from __future__ import annotations

from collections.abc import Mapping

import anyio
import pytest

from clients.python.tests.targets import SHORT_LOCKS, Target
from kbroker.testing.broker import open_test_broker
from kbroker_client import Producer, Record, ShareConsumer, TopicPartition

pytestmark = pytest.mark.anyio


async def test_closing_waits_for_the_heartbeat_that_is_under_way() -> None:
    """A connection has one request at a time."""
    with open_test_broker(storage="memory", config=SHORT_LOCKS) as own:
        target = Target(own.port, own)
        topic, group = target.topic(), target.group()
        with anyio.fail_after(20):
            async with ShareConsumer(own.bootstrap, group=group, topics=[topic]) as consumer:
                while not consumer.assignment:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
                own.sigstop()
                consumer.subscribe([topic])  # Sends a heartbeat.
                await anyio.sleep(0.1)
                await consumer.close(timeout_s=1.0)
        own.sigcont()


async def test_a_callback_that_raises(target: Target) -> None:
    """It is called for the other acknowledgements later, and the consumer is closed."""
    topic, group = target.topic(partitions=3), target.group()
    async with Producer(target.bootstrap) as producer:
        for partition in range(3):
            await producer.send(topic, b"", partition=partition)
    seen: list[Mapping[TopicPartition, frozenset[int]]] = []

    def callback(offsets: Mapping[TopicPartition, frozenset[int]], error: Exception | None) -> None:
        seen.append(offsets)
        if len(seen) in (1, 3):
            raise RuntimeError(f"callback {len(seen)}")

    async def use() -> None:
        async with ShareConsumer(
            target.bootstrap, group=group, topics=[topic], mode="free", on_acknowledged=callback
        ) as consumer:
            held: list[Record] = []
            while len(held) < 3:
                held += await consumer.poll(30.0)
            for record in held:
                consumer.acknowledge(record)
            with pytest.raises(RuntimeError, match="callback 1"):
                await consumer.commit()

    with pytest.raises(RuntimeError, match="callback 3"):
        await use()
    assert sorted(partition for offsets in seen for partition in offsets) == [
        TopicPartition(topic, partition) for partition in range(3)
    ]
    with anyio.fail_after(1.0):
        await anyio.sleep(0.01)  # No scope of the consumer is left.
