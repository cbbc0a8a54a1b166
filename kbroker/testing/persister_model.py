"""The requests of the Persister contract suite, and the plain model with which it compares a
persister.

This module must not know any persister.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kbroker.broker.broker import Broker
from kbroker.errors import ErrorCode
from kbroker.formats.state import GivenUp, GivenUpKey, read_entries
from kbroker.share.effects import StateBatch
from kbroker.share.persister import (
    InitializeRequest,
    Persister,
    ReadRequest,
    ReadResult,
    SummaryResult,
    TopicPartition,
    WriteRequest,
)

A, K, G, R = 0, 2, 3, 4
"""AVAILABLE, ACKNOWLEDGED, ARCHIVING, ARCHIVED."""
GROUP = "workers"
LEADER = 7
"""The leader epoch with which tests of this suite read and write by default."""

TOPIC_NAME = "orders"
PARTITIONS = 4

_OK = ErrorCode.none


class Asked:
    """Calls a persister with one row at a time. `P` and `Q` are two partitions of a topic;
    `missing` does not exist."""

    def __init__(self, broker: Broker) -> None:
        self.persister: Persister = broker.persister
        self._state_store = broker.state_store
        self._topics = broker.topics
        topic = broker.topics.by_name(TOPIC_NAME)
        assert topic is not None
        self.partitions = [TopicPartition(topic.topic_id, number) for number in range(PARTITIONS)]
        self.P, self.Q = self.partitions[:2]
        self.missing = TopicPartition(topic.topic_id, PARTITIONS)

    async def initialize(
        self, state_epoch: int, start: int, *, at: TopicPartition | None = None, group: str = GROUP
    ) -> ErrorCode:
        (result,) = await self.persister.initialize(
            group, [InitializeRequest(at or self.P, state_epoch, start)]
        )
        return result.code

    async def read(
        self, leader: int = LEADER, *, at: TopicPartition | None = None, group: str = GROUP
    ) -> ReadResult:
        (result,) = await self.persister.read(group, [ReadRequest(at or self.P, leader)])
        return result

    async def write(
        self,
        *batches: StateBatch,
        start: int = 100,
        complete: int = 0,
        leader: int = LEADER,
        state: int = 5,
        at: TopicPartition | None = None,
        group: str = GROUP,
        given_up: int = 0,
    ) -> ErrorCode:
        (result,) = await self.persister.write(
            group,
            [WriteRequest(at or self.P, state, leader, start, complete, batches, given_up=given_up)],
        )
        return result.code

    def given_up(self) -> dict[tuple[str, int], int]:
        """The counts in the state store, by group and partition."""
        entries = read_entries(self._state_store.scan(GivenUpKey.namespace))
        return {
            (key.group_id, key.partition): value.records
            for key, value in entries
            if isinstance(key, GivenUpKey) and isinstance(value, GivenUp)
        }

    async def delete(self, *, at: TopicPartition | None = None, group: str = GROUP) -> ErrorCode:
        (result,) = await self.persister.delete(group, [at or self.P])
        return result.code

    async def summary(self, *, at: TopicPartition | None = None, group: str = GROUP) -> SummaryResult:
        """The summary without the offsets of the persister's own records, which it counts as
        delivered. Nothing else is in the log in these tests."""
        (result,) = await self.persister.read_summary(group, [ReadRequest(at or self.P, 0)])
        partition = self._topics.partition(*result.partition)
        if partition is None or min(result.start_offset, result.delivery_complete_count) < 0:
            return result
        own = max(0, partition.high_watermark - result.start_offset)
        return replace(result, delivery_complete_count=result.delivery_complete_count - own)

    async def begin(self, *, at: TopicPartition | None = None, group: str = GROUP) -> None:
        """Initialize with state epoch 5 and start offset 100, and read with LEADER."""
        assert await self.initialize(5, 100, at=at, group=group) is _OK
        assert (await self.read(at=at, group=group)).code is _OK

    async def batches(
        self, *, leader: int = LEADER, at: TopicPartition | None = None, group: str = GROUP
    ) -> tuple[StateBatch, ...]:
        return tuple((await self.read(leader, at=at, group=group)).batches)


@dataclass
class Model:
    """The model of a share-partition. `offsets`: (delivery count, state) of each."""

    state_epoch: int
    start: int
    complete: int
    leader: int = 0
    offsets: dict[int, tuple[int, int]] = field(default_factory=dict)

    def write(self, start: int, complete: int, batches: Sequence[StateBatch]) -> None:
        if start == self.start:
            self.complete = max(self.complete, complete)
        elif start > self.start:
            self.start, self.complete = start, complete
        for batch in batches:
            for offset in range(batch.first_offset, batch.last_offset + 1):
                self.offsets[offset] = max(
                    self.offsets.get(offset, (-1, -1)), (batch.delivery_count, batch.state)
                )
        self.offsets = {offset: value for offset, value in self.offsets.items() if offset >= self.start}

    async def compare(self, asked: Asked, at: TopicPartition, group: str) -> None:
        summary = await asked.summary(at=at, group=group)
        found = (
            summary.code,
            summary.state_epoch,
            summary.leader_epoch,
            summary.start_offset,
            summary.delivery_complete_count,
        )
        assert found == (_OK, self.state_epoch, self.leader, self.start, self.complete)
        read = await asked.read(self.leader, at=at, group=group)
        offsets = {
            offset: (batch.delivery_count, batch.state)
            for batch in read.batches
            for offset in range(batch.first_offset, batch.last_offset + 1)
        }
        assert (read.code, read.state_epoch, read.start_offset, offsets) == (
            _OK,
            self.state_epoch,
            self.start,
            self.offsets,
        )


async def random_step(
    asked: Asked, rng: random.Random, models: dict[tuple[str, int], Model], group: str, number: int
) -> None:
    """Make one random call for one share-partition, and apply it to its model."""
    at, model = asked.partitions[number], models.get((group, number))
    if model is None:
        await _initialize(asked, models, (group, number), rng.randrange(2), rng.randrange(-1, 30))
        return
    match rng.choice(("initialize", "read", "write", "write", "write", "write", "delete")):
        case "initialize":
            await _initialize(
                asked, models, (group, number), model.state_epoch + rng.randrange(2), rng.randrange(-1, 30)
            )
        case "read":
            model.leader += rng.randrange(2)
            assert (await asked.read(model.leader, at=at, group=group)).code is _OK
            await model.compare(asked, at, group)
        case "write":
            start, complete = model.start + rng.choice((-1, 0, 0, 0, 0, 1, 2)), rng.randrange(-1, 9)
            batches = [
                StateBatch(first, first + rng.randrange(4), rng.choice((A, K, G, R)), rng.randrange(1, 4))
                for first in rng.sample(range(60), 3)
            ]
            epochs = {"leader": model.leader, "state": model.state_epoch}
            assert (
                await asked.write(*batches, start=start, complete=complete, at=at, group=group, **epochs)
                is _OK
            )
            model.write(start, complete, batches)
        case _ if rng.random() < 0.3:
            assert await asked.delete(at=at, group=group) is _OK
            del models[group, number]


async def _initialize(
    asked: Asked, models: dict[tuple[str, int], Model], key: tuple[str, int], state_epoch: int, start: int
) -> None:
    (group, number), old = key, models.get(key)
    at = asked.partitions[number]
    assert await asked.initialize(state_epoch, start, at=at, group=group) is _OK
    if old is not None and (old.state_epoch, old.start) == (state_epoch, start):
        return
    models[key] = Model(state_epoch, start, -1 if start == -1 else 0)
    if old is not None:  # A persister may or may not fence older leaders here.
        models[key].leader = old.leader + 1
        assert (await asked.read(old.leader + 1, at=at, group=group)).code is _OK
