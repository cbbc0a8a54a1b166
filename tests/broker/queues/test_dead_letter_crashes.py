"""Dead letters over crashes at every write of the stores: each archived record has exactly one, and
the queue keeps working. Each rejection gives another reason, or none, and a dead letter has that
of the last one.

The stores are in memory. While a group works through its topic, both are copied after every
operation of either: the state that a kill -9 would leave at that moment. A broker starts from each
copy. While it makes up for missing dead letters, copies are taken again, for a second crash.
tests/crash does the same to real brokers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import deepcopy
from itertools import count
from pathlib import Path
from random import Random
from threading import Lock
from typing import Any, ClassVar, TypeAlias
from uuid import UUID

import pytest
import trio

from kbroker.broker.broker import open_broker
from kbroker.broker.logs.disk_floor import DiskFloor
from kbroker.broker.options import StartOptions
from kbroker.broker.queues import dead_letter_room, dead_letter_writer, dead_letters
from kbroker.errors import NoSpace
from kbroker.formats.parked_records import REASON
from kbroker.formats.state import DeadLetterKey, ParkedKey, read_entries
from kbroker.settings.altering import BrokerConfig
from kbroker.share.dead_letter import origin_of, reason_of
from kbroker.share.persister import TopicPartition
from kbroker.share.reasons import Reason
from kbroker.storage import memory_store
from kbroker.storage.keyvalue.memory_map import MemoryMap
from tests.api.conftest import Client
from tests.api.dead_letter_queues import NAME, QUEUE, all_done, letters_of, prepare_dead_letters
from tests.api.share_consumers import ACCEPT, GROUP, REJECT, RELEASE, Member, acquired, rows

REJECTED, EXHAUSTED, RECORDS = {0, 1, 5}, {3}, 7
POISON = REJECTED | EXHAUSTED
CREATE = {"errors.deadletterqueue.auto.create.topics.enable": "true"}
OTHER = "dlq.other"
PERSISTERS = pytest.mark.parametrize("persister", ["default", "control-records"])

Moment: TypeAlias = tuple[Any, Any, Mapping[int, Reason | None]]
"""The contents of the log store and of the state store, and the reasons given so far."""
After: TypeAlias = Callable[[Client], Awaitable[object]]
"""Actions on the broker after a crash."""


class Disk:
    """The content of both stores, and after each of their operations since `moments` was
    emptied."""

    opened: ClassVar[dict[int, Disk]] = {}
    lock = Lock()
    rejections = count()

    def __init__(
        self, path: Path, contents: Moment = ({}, {}, {}), *, seed: int | None = None, persister: str
    ) -> None:
        """`seed`: writes are refused at random, as on a full disk."""
        self.path = path
        self.persister = persister
        self.logs, self.state = deepcopy(contents[:2])
        self.given = dict(contents[2])
        self.moments: list[Moment] = []
        self.refused = 0
        self._chooser = None if seed is None else Random(seed)
        self.is_open = False

    def refuse_perhaps(self) -> None:
        if self.is_open and self._chooser is not None and self._chooser.random() < 0.2:
            self.refused += 1
            raise NoSpace("the disk is full")

    def note(self) -> None:
        self.moments.append((deepcopy(self.logs), dict(self.state), dict(self.given)))

    def reasons_for(self, offsets: Sequence[int]) -> dict[int, Reason]:
        """For the next rejection of these offsets; every third one gives none."""
        for offset in offsets:
            number = next(self.rejections)
            self.given[offset] = Reason("E", f"rejection {number}", "") if number % 3 else None
        return {offset: reason for offset in offsets if (reason := self.given[offset]) is not None}

    @asynccontextmanager
    async def broker(self) -> AsyncIterator[Client]:
        memory_store._all_logs[(self.path / "log-memory").resolve()] = self.logs
        state = MemoryMap(self.state)
        memory_store._all_states[(self.path / "state-memory").resolve()] = state
        config = BrokerConfig({**CREATE, "kbroker.persister": self.persister})
        options = StartOptions(
            data_dir=self.path, storage="memory", state_storage="memory", config=config, durability="os"
        )
        Disk.opened = {id(self.logs): self, id(state): self}
        async with open_broker(options) as broker:
            self.is_open = True
            yield Client(broker)
            self.is_open = False


@pytest.fixture(autouse=True)
def _noting(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LINGER_S", "FIRST_RETRY_S", "LAST_RETRY_S"):
        monkeypatch.setattr(dead_letters, name, 0.001)

    def noting(original: Callable[..., None]) -> Callable[..., None]:
        def call(store: Any, *arguments: Any, **named: Any) -> None:
            with Disk.lock:
                disk = Disk.opened[id(store._logs if hasattr(store, "_logs") else store._map)]
                if original.__name__ == "write":
                    disk.refuse_perhaps()
                original(store, *arguments, **named)
                disk.note()

        return call

    for operation in ("write", "create", "drop", "trim"):
        monkeypatch.setattr(
            memory_store.MemoryLogStore, operation, noting(getattr(memory_store.MemoryLogStore, operation))
        )
    monkeypatch.setattr(memory_store.MemoryStateStore, "write", noting(memory_store.MemoryStateStore.write))


def source_of(client: Client) -> tuple[UUID, int]:
    found = client.broker.topics.by_name("orders")
    assert found is not None
    return found.topic_id, 0


async def drain(client: Client, disk: Disk) -> None:
    """Consume to the end: reject, release or accept, and wait until all dead letters are done."""
    key = source_of(client)
    member = Member(client, "M1")
    answer = await member.fetch([key])
    held: set[int] = set()
    while True:
        held.update(offset for run in acquired(answer) for offset in range(run[0], run[1] + 1))
        for some in ({each for each in held if each < 3}, {each for each in held if each >= 3}):
            if some:
                await all_done(client)
                kinds = [
                    (each, each, [REJECT if each in REJECTED else RELEASE if each in EXHAUSTED else ACCEPT])
                    for each in sorted(some)
                ]
                reasons = disk.reasons_for(sorted(some & REJECTED))
                given = [(*key, *each) for each in reasons.items()]
                if rows(await member.acknowledge({key: kinds}, reasons=given))[key].error_code == 0:
                    held -= some
        if not held and is_drained(client, key):
            await all_done(client)
            return
        await trio.lowlevel.checkpoint()
        answer = await member.fetch()


def is_drained(client: Client, key: tuple[UUID, int]) -> bool:
    """Every record is done. The start offset may lag behind where loaded state had a gap, and may
    have passed control records."""
    loaded = client.broker.share_partitions.find(GROUP, TopicPartition(*key))
    if loaded is None or loaded.engine is None:
        return False
    found = loaded.engine.statistics()
    return found.start_offset + found.acknowledged + found.archived >= RECORDS


def check(client: Client, disk: Disk) -> None:
    """Each record has one dead letter, in whichever topic, with the reason of its last
    rejection."""
    topics = [topic for topic in client.broker.topics if topic.name.startswith("dlq.")]
    letters = [
        letter
        for topic in topics
        for index in range(len(topic.partitions))
        for letter in letters_of(client, topic.name, index)
    ]
    assert Counter(origin.offset for each in letters if (origin := origin_of(each.headers))) == dict.fromkeys(
        POISON, 1
    )
    found = {
        origin.offset: reason_of(each.headers) for each in letters if (origin := origin_of(each.headers))
    }
    assert found == {**dict.fromkeys(EXHAUSTED), **disk.given}


async def nothing(client: Client) -> None:
    """The same broker as before the crash."""


async def switch(client: Client) -> None:
    """Give the group another dead letter queue, if there is space to store that."""
    entries = [{"name": NAME, "config_operation": 0, "value": OTHER}]
    resource = {"resource_type": 32, "resource_name": GROUP, "configs": entries}
    await client.call("incremental_alter_configs", 1, resources=[resource], validate_only=False)


async def grow(client: Client) -> None:
    """Add partitions to the queue, so that these dead letters go to another one."""
    if client.broker.topics.by_name(QUEUE) is not None:
        topic = {"name": QUEUE, "count": 2, "assignments": None}
        await client.call("create_partitions", 3, topics=[topic], validate_only=False)


async def crashed(
    path: Path, moment: Moment, after: After, persister: str, *, seed: int | None = None
) -> list[Moment]:
    """Start from that moment and finish. Returns the moments of that life."""
    disk = Disk(path, moment, seed=seed, persister=persister)
    async with disk.broker() as client:
        await after(client)
        await drain(client, disk)
        check(client, disk)
        disk.is_open = False
        await client.broker.state_commits.commit([])  # Submitted changes are written.
        assert disk.refused or list(client.broker.state_store.scan(DeadLetterKey.namespace)) == [], (
            "a cursor is left"
        )
        await client.broker.parked_cleaner.work(ParkedKey.namespace)
        assert disk.refused or reasons_left(client) == [], "reasons are left"
    return disk.moments


def reasons_left(client: Client) -> list[ParkedKey]:
    entries = read_entries(client.broker.state_store.scan(ParkedKey.namespace))
    return [key for key, _ in entries if isinstance(key, ParkedKey) and key.kind == REASON]


async def prepared(path: Path, persister: str) -> Moment:
    """The stores before the first fetch."""
    disk = Disk(path, persister=persister)
    async with disk.broker() as client:
        await prepare_dead_letters(client, 3, 4, queue=None, configs={"share.delivery.count.limit": "2"})
    return disk.moments[-1]


async def first_life(home: Path, persister: str) -> list[Moment]:
    """All moments from the first fetch on."""
    return await crashed(home / "first", await prepared(home / "prepared", persister), nothing, persister)


@PERSISTERS
@pytest.mark.parametrize("after", [nothing, switch, grow])
async def test_every_record_has_one_dead_letter_whenever_the_broker_crashed(
    tmp_path: Path, after: After, persister: str
) -> None:
    """DLQ-32, DLQ-20, DLQ-14: also if the group has another queue after the crash."""
    moments = await first_life(tmp_path, persister)
    assert len(moments) > 12
    for number, moment in enumerate(moments):
        await crashed(tmp_path / str(number), moment, after, persister)


async def crashed_twice(home: Path, after: After, again: After, persister: str, *, every: int) -> int:
    """Crash after every moment of the first life, and after some of the second; returns how
    often."""
    names, runs = count(), 0
    for moment in await first_life(home, persister):
        moments = await crashed(home / str(next(names)), moment, after, persister)
        for second in moments[next(names) % every :: every]:
            await crashed(home / str(next(names)), second, again, persister)
            runs += 1
    return runs


@PERSISTERS
async def test_and_whenever_it_crashed_again(tmp_path: Path, persister: str) -> None:
    """DLQ-32: while it makes up for the first crash."""
    assert await crashed_twice(tmp_path, nothing, nothing, persister, every=4) > 20


@pytest.mark.full
@PERSISTERS
@pytest.mark.parametrize("after", [nothing, switch, grow])
@pytest.mark.parametrize("again", [nothing, switch, grow])
async def test_and_at_every_moment_again(tmp_path: Path, after: After, again: After, persister: str) -> None:
    assert await crashed_twice(tmp_path, after, again, persister, every=1) > 80


@PERSISTERS
@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.full) for seed in range(3, 60))]
)
async def test_on_a_disk_that_is_full_now_and_then(tmp_path: Path, seed: int, persister: str) -> None:
    """DLQ-32, DLQ-16, DLQ-21: every fifth write is refused, and the broker crashes in between."""
    chooser, moment = Random(seed), await prepared(tmp_path / "prepared", persister)
    for life in range(6):
        after = chooser.choice([nothing, nothing, switch, grow])
        moments = await crashed(
            tmp_path / str(life), moment, after if life else nothing, persister, seed=seed * 100 + life
        )
        moment = chooser.choice(moments[len(moments) // 8 :])


@PERSISTERS
async def test_while_the_disk_has_room_for_few_dead_letters_only(
    tmp_path: Path, persister: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try admits one batch of the smallest size, or none: the cursor is saved long before. A
    crash may come at each moment in between."""
    chooser, refusals = Random(1), []

    def room(_: DiskFloor, *, last_half: bool) -> int:
        if chooser.random() < 0.5:
            refusals.append(last_half)
            return 0
        return 9500

    monkeypatch.setattr(DiskFloor, "letter_room", room)
    monkeypatch.setattr(dead_letter_writer, "LEAST_BATCH_BYTES", 1)
    monkeypatch.setattr(dead_letter_room, "LEAST_BATCH_BYTES", 1)
    monkeypatch.setattr(dead_letters, "ROOM_RETRY_S", 0.01)
    moments = await first_life(tmp_path, persister)
    assert len(refusals) > len(POISON)
    for number, moment in enumerate(moments):
        await crashed(tmp_path / str(number), moment, nothing, persister)
