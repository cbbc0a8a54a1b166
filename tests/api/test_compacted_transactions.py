"""Transactions in a compacted topic: readers with read_committed get every committed record, also
when an aborted transaction is gone with its marker."""

from __future__ import annotations

from typing import Any

import trio

from kbroker.formats.batches import TRANSACTIONAL, ProducerInfo
from kbroker.formats.transactions import aborted_prefix
from kbroker.transactions.coordinator import ProducerEpoch
from tests.api.conftest import Client, Connect
from tests.api.test_compaction import SMALL, append, compact, keyed
from tests.api.transaction_clients import add, begin, end
from tests.api.transactional_producer import aborted, committed, read

A = ("a", 0)
SOON = {**SMALL, "internal.segment.bytes": "100", "delete.retention.ms": "0"}
"""Each batch has a segment of its own, and a marker may go a millisecond after its transaction."""


class Sender:
    """A transactional producer of one log."""

    def __init__(self, client: Client, name: str, producer: ProducerEpoch) -> None:
        self._client, self._name, self.producer = client, name, producer
        self._sequence = 0

    async def send(self, key: str, value: str) -> None:
        info = ProducerInfo(self.producer.producer_id, self.producer.epoch, self._sequence)
        self._sequence += 1
        batch = keyed((key, value), producer=info, attributes=TRANSACTIONAL)
        rows = [{"name": "a", "partition_data": [{"index": 0, "records": batch}]}]
        answer: Any = await self._client.call(
            "produce", 9, transactional_id=self._name, acks=-1, timeout=1000, topic_data=rows
        )
        (found,) = answer.responses[0].partition_responses
        assert found.error_code == 0, found

    async def end(self, *, commit: bool) -> None:
        await end(self._client, self._name, self.producer, commit=commit)

    async def begin(self) -> None:
        await add(self._client, self._name, self.producer, a=[0])


async def pass_over(client: Client, topic: Any) -> None:
    """A pass over all that is there now: new segments make the log due."""
    for _ in range(2):
        await append(client, topic, keyed(("filler", "x")))
    await trio.sleep(0.002)
    await compact(client)


async def test_an_aborted_transaction_disappears_with_its_marker(connect: Connect, every_engine: str) -> None:
    async with connect(every_engine) as client:
        topic = (await client.create_topic("a", configs=SOON)).topic_id
        sender = Sender(client, "t", await begin(client, "t", a=[0]))
        await sender.send("k1", "aborted")
        await sender.end(commit=False)
        await sender.begin()
        await sender.send("k1", "committed")
        await sender.end(commit=True)
        assert aborted(await read(client, A)) == [(sender.producer.producer_id, 0)]
        for _ in range(4):
            await pass_over(client, topic)
            assert [value for value in await committed(client, A) if value != b"x"] == [b"committed"]
        assert aborted(await read(client, A)) == []
        prefix = aborted_prefix(*client.partition("a").log)
        assert list(client.broker.state_store.scan(prefix)) == []
    if every_engine != "memory":
        async with connect(every_engine) as client:
            assert [value for value in await committed(client, A) if value != b"x"] == [b"committed"]
            assert aborted(await read(client, A)) == []


async def test_nothing_goes_from_an_open_transaction_on(connect: Connect) -> None:
    async with connect() as client:
        topic = (await client.create_topic("a", configs=SOON)).topic_id
        for number in range(5):
            await append(client, topic, keyed(("k", f"{number}")))
        sender = Sender(client, "t", await begin(client, "t", a=[0]))
        await sender.send("k", "open")
        for number in range(5):
            await append(client, topic, keyed(("k", f"later {number}")))
        await compact(client)
        found = {each.base_offset for each in client.partition("a").segments() if each.size_bytes}
        assert found >= set(range(5, 11)), "all from the open transaction on"
        assert 0 not in found
        await sender.end(commit=True)
        await pass_over(client, topic)
        assert (await committed(client, A)).count(b"open") == 0, "overwritten"
