"""Work queues on small disks, on every engine: whatever fills the disk, acknowledgements and
retention continue, and the broker accepts jobs again when there was something to remove.

Each test makes a queue as `kbroker queues create` does, and sends jobs until the broker refuses
them. Then workers do one of the things that a nearly full disk meets. The judge is at the end:
every job was accepted once or is a dead letter once, and the queue takes new jobs.

Uses a small tmpfs, and ext4 on a small loop device, so it needs the right to mount them; skipped
without it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from uuid import UUID

import pytest
import trio

from kbroker.broker.broker import Broker
from kbroker.broker.logs import retention
from kbroker.broker.logs.partition import Partition
from kbroker.broker.queues import dead_letter_room, dead_letters
from kbroker.client.queues.settings import ALWAYS, DEAD_LETTER_TOPIC, SETTINGS, Part
from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode
from kbroker.formats.batches import Record, build_batch
from kbroker.share.dead_letter import origin_of
from tests.api.conftest import Client
from tests.api.dead_letter_queues import batches_of, until
from tests.api.share_consumers import ACCEPT, REJECT, RELEASE, Member, initialize, rows, set_up_group
from tests.small_disk import broker_on, fill_the_rest, free_bytes, small_disk, small_loop_disk

DISK_BYTES = 96 << 20
JOB_BYTES = 64 << 10
QUEUE, LETTERS = "jobs", "dlq.jobs"
STANDSTILL_S = 20.0
"""Nothing at all happens for so long: the queue stands."""
KINDS = {"tmpfs": small_disk, "loop": small_loop_disk}
ENGINES = ["segment", "lmdb", "rocksdb"]
EVERYWHERE = [(engine, kind) for engine in ENGINES for kind in KINDS]
ON_EACH_ENGINE = [
    pytest.param(*each, marks=() if each[1] == "tmpfs" else pytest.mark.full) for each in EVERYWHERE
]
"""In the short form on tmpfs only."""
FEW_LOCKS = {"share.partition.max.record.locks": "100"}

Job: TypeAlias = tuple[int, int]
"""Its partition and its offset."""


@pytest.fixture
def disk(kind: str, tmp_path: Path) -> Iterator[Path]:
    with KINDS[kind](tmp_path / "disk", DISK_BYTES) as disk:
        yield disk


@pytest.fixture(autouse=True)
def quick_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "WORK_QUEUE_CHECK_S", 0.05)
    monkeypatch.setattr(dead_letters, "ROOM_RETRY_S", 0.1)
    monkeypatch.setattr(dead_letter_room, "TURN_S", 0.0)


class Standstill(AssertionError):
    """Nothing is delivered, written or removed any more."""


@dataclass
class Queue:
    """A queue with one worker. `sent`: how many jobs its partitions took; `ended`: how often the
    worker ended a job in this way."""

    client: Client
    disk: Path
    topic_id: UUID
    sent: list[int]
    accepted: Counter[Job] = field(default_factory=Counter)
    rejected: Counter[Job] = field(default_factory=Counter)
    refused_acks: int = 0
    unsaid: dict[Job, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.worker = Member(self.client.another(2), "m", QUEUE)

    async def send(self, size_bytes: int = JOB_BYTES, jobs: int = 1) -> ErrorCode:
        """Jobs to the partition that has the fewest."""
        index = self.sent.index(min(self.sent))
        records = [Record(0, wall_clock_ms(), None, bytes(size_bytes))] * jobs
        partition_data = [{"index": index, "records": build_batch(records)}]
        topics = [{"topic_id": self.topic_id, "partition_data": partition_data}]
        answer = await self.client.call(
            "produce", 13, transactional_id=None, acks=-1, timeout=1000, topic_data=topics
        )
        (row,) = answer.responses[0].partition_responses
        self.sent[index] += 0 if row.error_code else jobs
        return ErrorCode(row.error_code)

    async def fill(self, size_bytes: int = JOB_BYTES, jobs: int = 1) -> int:
        """Returns how many jobs there are."""
        while (code := await self.send(size_bytes, jobs)) is ErrorCode.none:  # noqa: ASYNC110
            await trio.sleep(0.002)  # Faster than any disk, it would outrun the checks.
        assert code is ErrorCode.kafka_storage_error
        return sum(self.sent)

    async def work(
        self, decide: Callable[[Job], int], *, until: Callable[[], bool], at_once: int = 20
    ) -> None:
        """A worker takes jobs and ends each as `decide` says, until the condition holds. What the
        broker refuses, the worker says again."""
        moved_at, before = trio.current_time(), self._progress()
        while not until():
            if not self.unsaid:
                keys = () if self.worker.epoch else [(self.topic_id, each) for each in range(len(self.sent))]
                answer = await self.worker.fetch(keys, wait_ms=100, max_records=at_once)
                assert answer.error_code == 0, answer
                jobs = [
                    (index, offset)
                    for (_, index), row in rows(answer).items()
                    for run in row.acquired_records
                    for offset in range(run.first_offset, run.last_offset + 1)
                ]
                self.unsaid = {job: decide(job) for job in jobs}
            if self.unsaid:
                await self._say()
            if (now := self._progress()) != before:
                moved_at, before = trio.current_time(), now
            elif trio.current_time() - moved_at > STANDSTILL_S:
                raise Standstill(self.describe())

    async def _say(self) -> None:
        acks: dict[tuple[UUID, int], list[tuple[int, int, list[int]]]] = {}
        for (index, offset), how in self.unsaid.items():
            acks.setdefault((self.topic_id, index), []).append((offset, offset, [how]))
        answer = await self.worker.acknowledge(acks)
        refused = {index for (_, index), row in rows(answer).items() if row.error_code}
        if answer.error_code or refused:
            self.refused_acks += 1
            await trio.sleep(0.1)
        said = (
            {}
            if answer.error_code
            else {job: self.unsaid[job] for job in self.unsaid if job[0] not in refused}
        )
        self.accepted.update(job for job, how in said.items() if how == ACCEPT)
        self.rejected.update(job for job, how in said.items() if how == REJECT)
        self.unsaid = {job: how for job, how in self.unsaid.items() if job not in said}

    def _partitions(self, topic: str) -> list[Partition]:
        return [self.client.partition(topic, index) for index in range(len(self.sent))]

    def _count_letters(self) -> int:
        return sum(each.high_watermark for each in self._partitions(LETTERS))

    def _progress(self) -> tuple[int, ...]:
        starts = sum(each.log_start_offset for each in self._partitions(QUEUE))
        return self.accepted.total(), self.rejected.total(), starts, self._count_letters()

    def is_over(self) -> bool:
        """All jobs are ended, and the rejected ones are dead letters."""
        ended = len(self.accepted) + len(self.rejected)
        return ended >= sum(self.sent) and self._count_letters() >= len(self.rejected)

    def is_open(self) -> bool:
        return not self.client.broker.disk_floor.is_short

    def describe(self) -> str:
        return (
            f"{free_bytes(self.disk) >> 10} KiB free; {sum(self.sent)} jobs, logs begin at "
            f"{[each.log_start_offset for each in self._partitions(QUEUE)]}, "
            f"{self._count_letters()} dead letters; {len(self.accepted)} accepted, "
            f"{len(self.rejected)} rejected, {self.refused_acks} acknowledgements refused; "
            f"short: {not self.is_open()}"
        )

    def letters(self) -> list[Job]:
        origins = (
            origin_of(letter.headers)
            for index in range(len(self.sent))
            for batch in batches_of(self.client, LETTERS, index)
            for letter in batch
        )
        return sorted((origin.partition, origin.offset) for origin in origins if origin is not None)

    async def judge(self) -> None:
        """Every job ended once, and the queue takes jobs again when an operator has removed dead
        letters that are not needed."""
        assert max((self.accepted | self.rejected).values()) == 1
        assert self.letters() == sorted(self.rejected)
        jobs = [(index, offset) for index, sent in enumerate(self.sent) for offset in range(sent)]
        assert sorted([*self.accepted, *self.rejected]) == jobs
        purged = [{"partition_index": index, "offset": -1} for index in range(len(self.sent))]
        answer = await self.client.call("delete_records", 2, topics=[{"name": LETTERS, "partitions": purged}])
        assert {row.error_code for row in answer.topics[0].partitions} == {0}, answer
        await until(self.is_open)
        assert await self.send() is ErrorCode.none


async def create_queue(
    broker: Broker, disk: Path, partitions: int = 1, config: dict[str, str] = FEW_LOCKS
) -> Queue:
    """With the settings of client/queues, as `kbroker queues create` makes it."""
    client = Client(broker)
    configs: dict[Part, dict[str, str]] = {
        part: {each.config: each.default for each in SETTINGS.values() if each.part is part}
        | dict(ALWAYS[part])
        for part in Part
    }
    await client.create_topic(LETTERS, partitions, configs=configs[Part.DEAD_LETTERS])
    group = {**configs[Part.GROUP], DEAD_LETTER_TOPIC: LETTERS, "kbroker.queue.prefetch": "20", **config}
    await set_up_group(client, group, QUEUE)
    topic: Any = await client.create_topic(QUEUE, partitions, configs=configs[Part.TOPIC])
    await initialize(client, topic.topic_id, partitions, QUEUE)
    names = {"group_id": QUEUE, "member_epoch": 0, "rack_id": None, "subscribed_topic_names": [QUEUE]}
    joined = await client.call("share_group_heartbeat", 1, member_id="m", **names)
    assert joined.error_code == 0
    return Queue(client, disk, topic.topic_id, [0] * partitions)


def every_third(job: Job) -> int:
    return REJECT if job[1] % 3 == 0 else ACCEPT


@pytest.mark.parametrize(("engine", "kind"), EVERYWHERE)
async def test_a_worker_that_rejects_every_job(disk: Path, engine: str) -> None:
    """Its dead letters are as large as the jobs. Later its service works again."""
    async with broker_on(disk, engine) as broker:
        queue = await create_queue(broker, disk)
        jobs = await queue.fill()
        await queue.work(lambda _: REJECT, until=lambda: len(queue.rejected) >= jobs // 3)
        await queue.work(lambda _: ACCEPT, until=queue.is_over)
        assert not queue.refused_acks
        await queue.judge()


@pytest.mark.parametrize(("engine", "kind"), [(engine, "tmpfs") for engine in ENGINES])
async def test_many_partitions_have_few_rejected_jobs_each(disk: Path, engine: str) -> None:
    """No segment can be removed before nearly all of its dead letters are written, and the disk has
    no room for those of all partitions. LMDB writes them into the holes of its file."""
    async with broker_on(disk, engine) as broker:
        queue = await create_queue(broker, disk, partitions=24)
        jobs = await queue.fill()
        await queue.work(lambda _: REJECT, until=lambda: len(queue.rejected) >= jobs // 2, at_once=1)
        await queue.work(lambda _: ACCEPT, until=queue.is_over)
        assert not queue.refused_acks
        await queue.judge()


@pytest.mark.parametrize(("engine", "kind"), ON_EACH_ENGINE)
async def test_some_jobs_are_rejected(disk: Path, engine: str) -> None:
    async with broker_on(disk, engine) as broker:
        queue = await create_queue(broker, disk)
        await queue.fill()
        await queue.work(every_third, until=queue.is_over)
        assert not queue.refused_acks
        await queue.judge()


@pytest.mark.parametrize(("engine", "kind"), ON_EACH_ENGINE)
async def test_small_jobs_are_accepted_one_by_one(disk: Path, engine: str) -> None:
    """Here the acknowledgements write as much as the jobs had."""
    async with broker_on(disk, engine) as broker:
        queue = await create_queue(broker, disk, config={})
        await queue.fill(1000, 100)
        await queue.work(lambda _: ACCEPT, until=queue.is_open)
        assert not queue.refused_acks


@pytest.mark.parametrize(("engine", "kind"), ON_EACH_ENGINE)
async def test_jobs_fail_at_first(disk: Path, engine: str) -> None:
    """They are parked, and delivered again."""
    async with broker_on(disk, engine) as broker:
        delays = {"kbroker.queue.redelivery.delay.ms": "1500", "kbroker.queue.redelivery.jitter": "0"}
        queue = await create_queue(broker, disk, config=delays)
        await queue.fill()
        failed: set[Job] = set()

        def decide(job: Job) -> int:
            if job in failed:
                return ACCEPT
            failed.add(job)
            return RELEASE

        await queue.work(decide, until=queue.is_over)
        assert not queue.refused_acks
        await queue.judge()


@pytest.mark.parametrize(("engine", "kind"), ON_EACH_ENGINE)
async def test_another_program_fills_the_disk(disk: Path, engine: str) -> None:
    """To the last byte. When that program has removed its file, the queue continues."""
    async with broker_on(disk, engine) as broker:
        queue = await create_queue(broker, disk, config={})
        while sum(queue.sent) < 200 and await queue.send() is ErrorCode.none:  # noqa: ASYNC110
            await trio.sleep(0.002)
        ballast = fill_the_rest(disk)
        freed_at = trio.current_time() + 1.0
        await queue.work(every_third, until=lambda: trio.current_time() > freed_at)
        ballast.unlink()
        await queue.work(every_third, until=queue.is_over)
        await queue.judge()
