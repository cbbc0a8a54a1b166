"""Lag (KIP-1226): the example of the KIP, and a count by an independent function, over the log and
the stored state.

The count does not use the broker: it walks the offsets from the saved start offset and checks which
of them the saved batches mark as done. It is made in the same step of the loop as the broker's own
answer, at random moments under a load of all operations that change share state.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import trio
import trio.testing

from kbroker.broker.broker import Broker, open_broker
from kbroker.broker.options import Durability, StartOptions
from kbroker.formats.share_records import ShareSnapshot
from kbroker.formats.state import parse_key, share_partition_prefix
from kbroker.settings.altering import BrokerConfig
from kbroker.storage.spi import LogId
from tests.api.conftest import ENGINES, Client, Connect
from tests.api.share_consumers import (
    ACCEPT,
    FAST,
    GAP,
    GROUP,
    REJECT,
    RELEASE,
    Member,
    acquired,
    prepare,
    set_up_group,
)

PARTITIONS = 2
ACKNOWLEDGED, ARCHIVED = 2, 4


async def lags(
    client: Client, topics: Mapping[str, list[int]] | None, group_id: str = GROUP
) -> dict[int, tuple[int, int]]:
    """Start offset and lag by partition; without a checkpoint, so that all of it is one step of the
    loop."""
    rows = (
        None
        if topics is None
        else [{"topic_name": name, "partitions": partitions} for name, partitions in topics.items()]
    )
    answer = await client.call(
        "describe_share_group_offsets", 1, groups=[{"group_id": group_id, "topics": rows}]
    )
    (group,) = answer.groups
    assert group.error_code == 0
    return {
        row.partition_index: (row.start_offset, row.lag) for topic in group.topics for row in topic.partitions
    }


async def test_the_example_of_the_kip(connect: Connect) -> None:  # OFF-9, OFF-11
    """Offsets 0 to 10: 0 and 1 archived, 2 and 4 held, 5 acknowledged, 6 archived, the others
    available. Lag 7: 2, 3, 4 and 7 to 10."""
    async with connect() as client:
        key = await prepare(client, *[1] * 11)
        member = Member(client.another(2), "M1")
        assert acquired(await member.fetch([key], max_records=10, wait_ms=5000)) == [(0, 9, 1)]
        await member.acknowledge({key: [(0, 1, [REJECT])]})
        await member.acknowledge(
            {key: [(3, 3, [RELEASE]), (5, 5, [ACCEPT]), (6, 6, [REJECT]), (7, 9, [RELEASE])]}
        )
        again = Member(client.another(3), "M2")
        assert acquired(await again.fetch([key], max_records=1, share_acquire_mode=1)) == [(3, 3, 2)]
        await again.acknowledge({key: [(3, 3, [RELEASE])]})
        loaded = client.broker.share_partitions.loaded()[0].engine
        assert loaded is not None
        seen = loaded.statistics()
        assert (
            seen.start_offset,
            seen.end_offset,
            seen.acquired,
            seen.available,
            seen.delivery_complete_count,
        ) == (2, 9, 2, 4, 2)
        assert await lags(client, {"orders": [0]}) == {0: (2, 7)}


# --- the count ---


def counted(broker: Broker, topic_id: UUID, index: int) -> tuple[int, int]:
    """The saved start offset, and how many offsets of the log from there on are not known to be
    done; -1 without state. If the start is beyond the end, the distance between them, negative."""
    start, found = -1, dict[int, tuple[int, int]]()
    for key, value in broker.state_store.scan(share_partition_prefix(GROUP, topic_id, index)):
        record: Any = parse_key(key).decode_value(value)  # type: ignore[union-attr]
        if isinstance(record, ShareSnapshot):
            found.clear()
        if isinstance(record, ShareSnapshot) or record.start_offset != -1:
            start = record.start_offset
        for batch in record.state_batches:
            for offset in range(batch.first_offset, batch.last_offset + 1):
                found[offset] = max(found.get(offset, (-1, -1)), (batch.delivery_count, batch.delivery_state))
    if start == -1:
        return -1, -1
    end = broker.log_store.bounds(LogId(topic_id, index)).end_offset
    done = {offset for offset, (_, state) in found.items() if state in (ACKNOWLEDGED, ARCHIVED)}
    first = max(start, broker.topics.by_id(topic_id).partitions[index].log_start_offset)  # type: ignore[union-attr]
    return start, sum(offset not in done for offset in range(first, end)) if start <= end else end - start


class Load:
    """All operations that change share state, at random. The group has no members, so that its
    offsets may be altered at any time."""

    def __init__(self, client: Client, topic_id: UUID, seed: int) -> None:
        self.client = client
        self.topic_id = topic_id
        self.random = random.Random(seed)
        self.done: dict[str, int] = {}

    def count(self, what: str) -> None:
        self.done[what] = self.done.get(what, 0) + 1

    def had_everything(self) -> bool:
        kinds = (
            GAP,
            ACCEPT,
            RELEASE,
            REJECT,
            "hold",
            "disconnect",
            "alter",
            "delete offsets",
            "delete records",
        )
        return all(self.done.get(str(kind), 0) for kind in kinds)

    async def pause(self) -> None:
        for _ in range(self.random.randrange(6)):
            await trio.lowlevel.checkpoint()

    async def produce(self) -> None:
        while True:
            await self.pause()
            await self.client.append(
                "orders", *range(self.random.randint(1, 5)), partition=self.random.randrange(PARTITIONS)
            )

    async def consume(self, number: int) -> None:
        while True:
            client = self.client.another(10 * number + self.random.randrange(10))
            member = Member(client, f"M{number}")
            keys = [(self.topic_id, index) for index in range(PARTITIONS)]
            for _ in range(self.random.randint(2, 20)):
                await self.pause()
                size = self.random.randint(1, 12)
                answer = await member.fetch(
                    keys if member.epoch == 0 else (),
                    max_records=size,
                    max_bytes=1 << self.random.randint(7, 12),
                )
                if answer.error_code:
                    break
                acks = {
                    (topic.topic_id, row.partition_index): self.acks(row)
                    for topic in answer.responses
                    for row in topic.partitions
                }
                await self.pause()
                if (
                    any(acks.values())
                    and (
                        await member.acknowledge({key: found for key, found in acks.items() if found})
                    ).error_code
                ):
                    break
            client.disconnect()  # its records are released, except those forgotten by an alteration
            self.count("disconnect")

    def acks(self, row: Any) -> list[tuple[int, int, list[int]]]:
        """Acknowledge some of the acquired records; the others are acknowledged never, or by
        disconnecting."""
        found = []
        for run in row.acquired_records:
            first = run.first_offset
            while first <= run.last_offset:
                last = min(run.last_offset, first + self.random.randrange(4))
                kind = self.random.choice((None, GAP, ACCEPT, ACCEPT, ACCEPT, RELEASE, REJECT))
                if kind is not None:
                    found.append((first, last, [kind]))
                    self.count(str(kind))
                first = last + 1
        return found

    async def hold(self) -> None:
        """A member that acquires records and lets its locks expire."""
        member = Member(self.client.another(2), "holder")
        keys = [(self.topic_id, index) for index in range(PARTITIONS)]
        while True:
            await self.pause()
            answer = await member.fetch(keys if member.epoch == 0 else (), max_records=2)
            self.count("hold" if acquired(answer) else "hold nothing")

    async def administer(self) -> None:
        while True:
            for _ in range(self.random.randint(20, 60)):
                await self.pause()
            index = self.random.randrange(PARTITIONS)
            partition = self.client.partition("orders", index)
            match self.random.randrange(5):
                case 0:
                    await self.client.call(
                        "delete_share_group_offsets", 0, group_id=GROUP, topics=[{"topic_name": "orders"}]
                    )
                    await self.alter({each: 0 for each in range(PARTITIONS)})
                    self.count("delete offsets")
                case 1:
                    offset = self.random.randint(partition.log_start_offset, partition.high_watermark)
                    rows = [{"name": "orders", "partitions": [{"partition_index": index, "offset": offset}]}]
                    answer = await self.client.call("delete_records", 2, topics=rows)
                    assert answer.topics[0].partitions[0].error_code == 0
                    self.count("delete records")
                case _:
                    await self.alter(
                        {
                            index: self.random.choice(
                                (-1, self.random.randint(0, partition.high_watermark + 5))
                            )
                        }
                    )

    async def alter(self, starts: dict[int, int]) -> None:
        rows = [{"partition_index": index, "start_offset": start} for index, start in starts.items()]
        topics = [{"topic_name": "orders", "partitions": rows}]
        answer = await self.client.call("alter_share_group_offsets", 0, group_id=GROUP, topics=topics)
        assert answer.error_code == 0
        self.count("alter")


def settled(broker: Broker) -> bool:
    """Nothing is queued for the stores: their content is complete."""
    partitions = list(broker.topics.partitions())
    return broker.share_state.statistics().unsaved == 0 and all(
        each.next_offset == each.high_watermark for each in partitions
    )


async def run(
    tmp_path: Path,
    clock: trio.testing.MockClock,
    engine: str,
    durability: Durability,
    moments: int,
    seed: int,
) -> None:
    """With durability `os` any moment will do: a written change is visible in the same step, unless
    a thread writes it."""
    config = BrokerConfig({**FAST, "group.share.delivery.count.limit": "3"})
    options = StartOptions(
        data_dir=tmp_path / engine, storage=engine, state_storage=engine, config=config, durability=durability
    )
    async with open_broker(options) as broker:
        client = Client(broker)
        topic = await client.create_topic("orders", PARTITIONS)
        await set_up_group(client, {"share.auto.offset.reset": "earliest"})
        load = Load(client, topic.topic_id, seed)
        await load.alter({index: -1 for index in range(PARTITIONS)})
        any_moment = durability == "os" and not (
            broker.state_store.write_in_thread or broker.log_store.write_in_thread
        )
        async with trio.open_nursery() as nursery:
            for task in (load.produce, load.hold, load.administer):
                nursery.start_soon(task)
            for number in range(3):
                nursery.start_soon(load.consume, number + 1)
            for moment in itertools.count():
                if moment >= moments and load.had_everything():
                    break
                assert moment < 50 * moments, load.done
                for _ in range(load.random.randint(1, 12)):
                    await trio.lowlevel.checkpoint()
                if load.random.random() < 0.05:
                    clock.jump(0.5)
                while not (any_moment or settled(broker)):
                    await trio.lowlevel.checkpoint()
                said = await lags(client, {"orders": list(range(PARTITIONS))})
                for index, (start, lag) in said.items():
                    saved_start, saved_lag = counted(broker, topic.topic_id, index)
                    assert start == saved_start
                    # After the log's start has moved, changes that are decided but not saved yet
                    # may be counted as done.
                    if lag != saved_lag:
                        assert not settled(broker)
                        assert 0 <= start < client.partition("orders", index).log_start_offset
                        assert 0 <= lag < saved_lag
            nursery.cancel_scope.cancel()


def check_that_it_was_a_load(load: Load) -> None:
    kinds = (GAP, ACCEPT, RELEASE, REJECT, "hold", "disconnect", "alter", "delete offsets", "delete records")
    assert all(load.done.get(str(kind), 0) for kind in kinds), load.done


def count_at_random_moments(
    tmp_path: Path, engine: str, durability: Durability, moments: int, seed: int
) -> None:
    clock = trio.testing.MockClock(rate=1.0)  # Locks take a second, and clock jumps shorten that.
    trio.run(run, tmp_path, clock, engine, durability, moments, seed, clock=clock)


@pytest.mark.parametrize("durability", ["os", "disk"])
# OFF-9, OFF-11, OFF-12
def test_lag_is_what_a_count_over_log_and_state_gives(tmp_path: Path, durability: Durability) -> None:
    count_at_random_moments(tmp_path, "memory", durability, 200, seed=1226)


@pytest.mark.full
@pytest.mark.parametrize("durability", ["os", "disk"])
@pytest.mark.parametrize("engine", ENGINES)
# OFF-9, OFF-11, OFF-12
def test_lag_is_what_a_count_gives_a_thousand_times(
    tmp_path: Path, engine: str, durability: Durability
) -> None:
    count_at_random_moments(tmp_path, engine, durability, 1000, seed=932)
