"""Work queues on small disks, on every engine: whatever fills the disk, acknowledgements and
retention continue, and the broker accepts jobs again when there was something to remove.

Each test makes a queue as `kbroker queues create` does, and sends jobs until the broker refuses
them. Then workers do one of the things that a nearly full disk meets. The judge is at the end:
every job was accepted once or is a dead letter once, and the queue takes new jobs.

Uses a small tmpfs, so it needs the right to mount one; skipped without it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import trio

from kbroker.broker.broker import Broker, open_broker
from kbroker.broker.logs import retention
from kbroker.broker.options import StartOptions
from kbroker.client.queues.settings import ALWAYS, DEAD_LETTER_TOPIC, SETTINGS, Part
from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode
from kbroker.formats.batches import Record, build_batch
from kbroker.settings.altering import BrokerConfig
from tests.api.conftest import Client
from tests.api.dead_letter_queues import letters_of, offsets_of
from tests.api.share_consumers import (
    ACCEPT,
    REJECT,
    RELEASE,
    Member,
    acquired,
    initialize,
    rows,
    set_up_group,
)
from tests.small_disk import fill_the_rest, free_bytes, small_disk

DISK_BYTES = 96 << 20
JOB_BYTES = 64 << 10
QUEUE, LETTERS = "jobs", "dlq.jobs"
FEW_LOCKS = 100
STANDSTILL_S = 20.0
"""Nothing at all happens for so long: the queue stands."""
KINDS = {"tmpfs": small_disk}
ENGINES = ["segment", "lmdb", "rocksdb"]


@pytest.fixture(params=KINDS)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    with KINDS[request.param](tmp_path / "disk", DISK_BYTES) as disk:
        yield disk


@pytest.fixture(autouse=True)
def quick_retention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "WORK_QUEUE_CHECK_S", 0.05)


class Standstill(AssertionError):
    """Nothing is delivered, written or removed any more."""


@dataclass
class Queue:
    """A queue with one worker. `sent`: how many jobs it took; `ended`: how often the worker ended a
    job, by offset."""

    client: Client
    disk: Path
    topic_id: UUID
    sent: int = 0
    accepted: Counter[int] = field(default_factory=Counter)
    rejected: Counter[int] = field(default_factory=Counter)
    refused_acks: int = 0
    unsaid: list[tuple[int, int, list[int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.worker = Member(self.client.another(2), "m", QUEUE)

    @property
    def key(self) -> tuple[UUID, int]:
        return self.topic_id, 0

    async def send(self, size_bytes: int = JOB_BYTES, jobs: int = 1) -> ErrorCode:
        records = [Record(0, wall_clock_ms(), None, bytes(size_bytes))] * jobs
        rows = [{"index": 0, "records": build_batch(records)}]
        topics = [{"topic_id": self.topic_id, "partition_data": rows}]
        answer = await self.client.call(
            "produce", 13, transactional_id=None, acks=-1, timeout=1000, topic_data=topics
        )
        (row,) = answer.responses[0].partition_responses
        self.sent += 0 if row.error_code else jobs
        return ErrorCode(row.error_code)

    async def fill(self, size_bytes: int = JOB_BYTES, jobs: int = 1) -> None:
        while (code := await self.send(size_bytes, jobs)) is ErrorCode.none:  # noqa: ASYNC110
            await trio.sleep(0.002)  # Faster than any disk, it would outrun the checks.
        assert code is ErrorCode.kafka_storage_error
        assert self.sent

    async def work(self, decide: Callable[[int], int], *, until: Callable[[], bool]) -> None:
        """A worker takes jobs and ends each as `decide(offset)` says, until the condition holds.
        What the broker refuses, the worker says again."""
        moved_at, before = trio.current_time(), self._progress()
        while not until():
            if not self.unsaid:
                answer = await self.worker.fetch(
                    () if self.worker.epoch else [self.key], wait_ms=100, max_records=20
                )
                assert answer.error_code == 0, answer
                self.unsaid = [
                    (offset, offset, [decide(offset)])
                    for first, last, _ in acquired(answer)
                    for offset in range(first, last + 1)
                ]
            if self.unsaid:
                await self._say()
            if (now := self._progress()) != before:
                moved_at, before = trio.current_time(), now
            elif trio.current_time() - moved_at > STANDSTILL_S:
                raise Standstill(self.describe())

    async def _say(self) -> None:
        answer = await self.worker.acknowledge({self.key: self.unsaid})
        if answer.error_code or rows(answer)[self.key].error_code:
            self.refused_acks += 1
            await trio.sleep(0.1)
            return
        for offset, _, (how,) in self.unsaid:
            self.accepted[offset] += how == ACCEPT
            self.rejected[offset] += how == REJECT
        self.accepted, self.rejected = +self.accepted, +self.rejected
        self.unsaid = []

    def _progress(self) -> tuple[int, ...]:
        partition = self.client.partition(QUEUE)
        letters = self.client.partition(LETTERS).high_watermark
        return self.accepted.total(), self.rejected.total(), partition.log_start_offset, letters

    def is_over(self) -> bool:
        """All jobs are ended, and the rejected ones are dead letters."""
        return len(self.accepted) + len(self.rejected) >= self.sent and self.client.partition(
            LETTERS
        ).high_watermark >= len(self.rejected)

    def is_open(self) -> bool:
        return not self.client.broker.disk_floor.is_short

    def describe(self) -> str:
        partition, letters = self.client.partition(QUEUE), self.client.partition(LETTERS)
        return (
            f"{free_bytes(self.disk) >> 10} KiB free; jobs {partition.log_start_offset}.."
            f"{partition.high_watermark} of {self.sent}, {letters.high_watermark} dead letters; "
            f"{len(self.accepted)} accepted, {len(self.rejected)} rejected, "
            f"{self.refused_acks} acknowledgements refused; short: {not self.is_open()}"
        )

    async def purge_letters(self) -> None:
        """What an operator does with dead letters that are not needed."""
        self._note_letters()
        topics = [{"name": LETTERS, "partitions": [{"partition_index": 0, "offset": -1}]}]
        answer = await self.client.call("delete_records", 2, topics=topics)
        assert answer.topics[0].partitions[0].error_code == 0, answer

    def _note_letters(self) -> None:
        self.letters = offsets_of(letters_of(self.client, LETTERS))

    async def judge(self) -> None:
        """Every job ended once, and the queue takes jobs again."""
        self._note_letters()
        assert max((self.accepted | self.rejected).values()) == 1
        assert sorted(self.letters) == sorted(self.rejected)
        assert sorted([*self.accepted, *self.rejected]) == list(range(self.sent))
        await self.purge_letters()
        with trio.fail_after(STANDSTILL_S):
            while not self.is_open():  # noqa: ASYNC110
                await trio.sleep(0.02)
        assert await self.send() is ErrorCode.none


@asynccontextmanager
async def running(disk: Path, engine: str) -> AsyncIterator[Broker]:
    options = StartOptions(
        data_dir=disk / "data",
        storage=engine,
        state_storage=engine,
        config=BrokerConfig({}),
        listen=("127.0.0.1", 9092),
    )
    async with open_broker(options) as broker:
        yield broker


async def create_queue(broker: Broker, disk: Path, **settings: str) -> Queue:
    """With the settings of client/queues, as `kbroker queues create` makes it."""
    client = Client(broker)
    configs: dict[Part, dict[str, str]] = {
        part: {each.config: each.default for each in SETTINGS.values() if each.part is part}
        | dict(ALWAYS[part])
        for part in Part
    }
    await client.create_topic(LETTERS, configs=configs[Part.DEAD_LETTERS])
    group = {**configs[Part.GROUP], DEAD_LETTER_TOPIC: LETTERS, "kbroker.queue.prefetch": "20", **settings}
    await set_up_group(client, group, QUEUE)
    topic: Any = await client.create_topic(QUEUE, configs=configs[Part.TOPIC])
    await initialize(client, topic.topic_id, 1, QUEUE)
    names = {"group_id": QUEUE, "member_epoch": 0, "rack_id": None, "subscribed_topic_names": [QUEUE]}
    joined = await client.call("share_group_heartbeat", 1, member_id="m", **names)
    assert joined.error_code == 0
    return Queue(client, disk, topic.topic_id)


def every_third(offset: int) -> int:
    return REJECT if offset % 3 == 0 else ACCEPT


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_worker_that_rejects_every_job(disk: Path, engine: str) -> None:
    """Its dead letters are as large as the jobs. Later its service works again."""
    async with running(disk, engine) as broker:
        queue = await create_queue(broker, disk, **{"share.partition.max.record.locks": str(FEW_LOCKS)})
        await queue.fill()
        enough = queue.sent // 3
        await queue.work(lambda _: REJECT, until=lambda: len(queue.rejected) >= enough)
        await queue.work(lambda _: ACCEPT, until=queue.is_over)
        assert not queue.refused_acks
        await queue.judge()


@pytest.mark.parametrize("engine", ENGINES)
async def test_some_jobs_are_rejected(disk: Path, engine: str) -> None:
    async with running(disk, engine) as broker:
        queue = await create_queue(broker, disk, **{"share.partition.max.record.locks": str(FEW_LOCKS)})
        await queue.fill()
        await queue.work(every_third, until=queue.is_over)
        assert not queue.refused_acks
        await queue.judge()


@pytest.mark.parametrize("engine", ENGINES)
async def test_small_jobs_are_accepted_one_by_one(disk: Path, engine: str) -> None:
    """Here the acknowledgements write as much as the jobs had."""
    async with running(disk, engine) as broker:
        queue = await create_queue(broker, disk)
        await queue.fill(1000, 100)
        await queue.work(lambda _: ACCEPT, until=queue.is_open)
        assert not queue.refused_acks


@pytest.mark.parametrize("engine", ENGINES)
async def test_jobs_fail_at_first(disk: Path, engine: str) -> None:
    """They are parked, and delivered again."""
    async with running(disk, engine) as broker:
        delays = {"kbroker.queue.redelivery.delay.ms": "1500", "kbroker.queue.redelivery.jitter": "0"}
        queue = await create_queue(broker, disk, **delays)
        await queue.fill()
        failed: set[int] = set()

        def decide(offset: int) -> int:
            if offset in failed:
                return ACCEPT
            failed.add(offset)
            return RELEASE

        await queue.work(decide, until=queue.is_over)
        assert not queue.refused_acks
        await queue.judge()


@pytest.mark.parametrize("engine", ENGINES)
async def test_another_program_fills_the_disk(disk: Path, engine: str) -> None:
    """To the last byte. When that program has removed its file, the queue continues."""
    async with running(disk, engine) as broker:
        queue = await create_queue(broker, disk)
        while queue.sent < 200 and await queue.send() is ErrorCode.none:  # noqa: ASYNC110
            await trio.sleep(0.002)
        ballast = fill_the_rest(disk)
        with trio.move_on_after(1.0):
            await queue.work(every_third, until=lambda: False)
        ballast.unlink()
        await queue.work(every_third, until=queue.is_over)
        await queue.judge()
