"""Dead letters over crashes at every write of the stores: each record that was given up has exactly one, and the queue goes on.

The stores are in memory. While a group works through its topic, a copy of both is taken after everything that either is made to do:
what a kill -9 at that moment leaves. From each copy a broker is started, and while that one makes up for what is missing copies are
taken again, to crash a second time. tests/crash does it to real brokers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from copy import deepcopy
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar, TypeAlias
from uuid import UUID

import pytest
import trio

from kbroker.broker import dead_letters
from kbroker.broker.broker import open_broker
from kbroker.broker.options import StartOptions
from kbroker.config import BrokerConfig
from kbroker.share.dead_letter import origin_of
from kbroker.share.persister import TopicPartition
from kbroker.state_records import DeadLetterKey
from kbroker.storage import memory_store
from tests.api.conftest import Client
from tests.api.dead_letter_queues import NAME, QUEUE, all_done, letters_of, prepare_dead_letters
from tests.api.share_consumers import ACCEPT, GROUP, REJECT, RELEASE, Member, acquired, set_up_group

REJECTED, EXHAUSTED, RECORDS = {0, 1, 5}, {3}, 7
POISON = REJECTED | EXHAUSTED
CREATE = {"errors.deadletterqueue.auto.create.topics.enable": "true"}
OTHER = "dlq.other"

Moment: TypeAlias = tuple[Any, Any]
"""The contents of the log store and of the state store."""
After: TypeAlias = Callable[[Client], Awaitable[object]]
"""What is done to the broker after a crash."""


class Disk:
    """What both stores hold, and how it was after each of their operations since `moments` was emptied."""

    opened: ClassVar[dict[int, Disk]] = {}
    lock = Lock()

    def __init__(self, path: Path, contents: Moment = ({}, {})) -> None:
        self.path = path
        self.logs, self.state = deepcopy(contents)
        self.moments: list[Moment] = []

    def note(self) -> None:
        self.moments.append((deepcopy(self.logs), dict(self.state)))

    @asynccontextmanager
    async def broker(self) -> AsyncIterator[Client]:
        memory_store._all_logs[(self.path / "log-memory").resolve()] = self.logs
        memory_store._all_states[(self.path / "state-memory").resolve()] = (self.state, Lock())
        config = BrokerConfig(CREATE)
        options = StartOptions(data_dir=self.path, storage="memory", state_storage="memory", config=config, durability="os")
        Disk.opened = {id(self.logs): self, id(self.state): self}
        async with open_broker(options) as broker:
            yield Client(broker)


@pytest.fixture(autouse=True)
def _noting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "LINGER_S", 0.001)

    def noting(original: Callable[..., None]) -> Callable[..., None]:
        def call(store: Any, *arguments: Any, **named: Any) -> None:
            with Disk.lock:
                original(store, *arguments, **named)
                disk = Disk.opened.get(id(store._logs if hasattr(store, "_logs") else store._contents))
                if disk is not None:
                    disk.note()

        return call

    for operation in ("write", "create", "drop", "trim"):
        monkeypatch.setattr(memory_store.MemoryLogStore, operation, noting(getattr(memory_store.MemoryLogStore, operation)))
    monkeypatch.setattr(memory_store.MemoryStateStore, "write", noting(memory_store.MemoryStateStore.write))


def source_of(client: Client) -> tuple[UUID, int]:
    found = client.broker.topics.by_name("orders")
    assert found is not None
    return found.topic_id, 0


async def drain(client: Client) -> None:
    """Consume to the end: reject, release or accept, and wait until the dead letters are done with."""
    key = source_of(client)
    member = Member(client, "M1")
    answer = await member.fetch([key])
    while True:
        offsets = [offset for run in acquired(answer) for offset in range(run[0], run[1] + 1)]
        for some in ([each for each in offsets if each < 3], [each for each in offsets if each >= 3]):
            if some:
                await all_done(client)
                kinds = [(each, each, [REJECT if each in REJECTED else RELEASE if each in EXHAUSTED else ACCEPT]) for each in some]
                await member.acknowledge({key: kinds})
        if not offsets and is_drained(client, key):
            await all_done(client)
            return
        await trio.lowlevel.checkpoint()
        answer = await member.fetch()


def is_drained(client: Client, key: tuple[UUID, int]) -> bool:
    loaded = client.broker.share_groups.find(GROUP, TopicPartition(*key))
    return loaded is not None and loaded.engine is not None and loaded.engine.start_offset == RECORDS


async def check(client: Client) -> None:
    """Each has one dead letter, wherever; nothing is left of how they came about."""
    topics = [topic for topic in client.broker.topics if topic.name.startswith("dlq.")]
    letters = [letter for topic in topics for index in range(len(topic.partitions)) for letter in letters_of(client, topic.name, index)]
    assert Counter(origin.offset for each in letters if (origin := origin_of(each.headers))) == dict.fromkeys(POISON, 1)
    await client.broker.state.commit([])
    assert list(client.broker.state_store.scan(DeadLetterKey.namespace)) == []


async def nothing(client: Client) -> None:
    """The same broker as before."""


async def switch(client: Client) -> None:
    """The group has another queue now."""
    await set_up_group(client, {NAME: OTHER})


async def grow(client: Client) -> None:
    """The queue has more partitions, and these dead letters go to another one."""
    if client.broker.topics.by_name(QUEUE) is not None:
        topic = {"name": QUEUE, "count": 2, "assignments": None}
        await client.call("create_partitions", 3, topics=[topic], validate_only=False)


async def crashed(path: Path, moment: Moment, after: After) -> list[Moment]:
    """Start from that moment and finish. Gives the moments of that."""
    disk = Disk(path, moment)
    async with disk.broker() as client:
        await after(client)
        await drain(client)
        await check(client)
    return disk.moments


async def first_life(path: Path) -> list[Moment]:
    """All moments from the first fetch on."""
    disk = Disk(path)
    async with disk.broker() as client:
        await prepare_dead_letters(client, 3, 4, queue=None, configs={"share.delivery.count.limit": "2"})
        disk.moments = [(deepcopy(disk.logs), dict(disk.state))]
        await drain(client)
        await check(client)
    return disk.moments


@pytest.mark.parametrize("after", [nothing, switch, grow])
async def test_every_record_has_one_dead_letter_whenever_the_broker_crashed(tmp_path: Path, after: After) -> None:
    """DLQ-32, DLQ-20, DLQ-14: also if the queue is another one after the crash."""
    moments = await first_life(tmp_path / "first")
    assert len(moments) > 12
    for number, moment in enumerate(moments):
        await crashed(tmp_path / str(number), moment, after)


async def crashed_twice(home: Path, after: After, again: After, *, every: int) -> int:
    """After every moment of the first life, after some of the second; how often."""
    names, runs = count(), 0
    for moment in await first_life(home / "first"):
        for second in (await crashed(home / str(next(names)), moment, after))[next(names) % every :: every]:
            await crashed(home / str(next(names)), second, again)
            runs += 1
    return runs


async def test_and_whenever_it_crashed_again(tmp_path: Path) -> None:
    """DLQ-32: while it makes up for what the first crash has left."""
    assert await crashed_twice(tmp_path, nothing, nothing, every=4) > 20


@pytest.mark.full
@pytest.mark.parametrize("after", [nothing, switch, grow])
@pytest.mark.parametrize("again", [nothing, switch, grow])
async def test_and_at_every_moment_again(tmp_path: Path, after: After, again: After) -> None:
    assert await crashed_twice(tmp_path, after, again, every=1) > 80
