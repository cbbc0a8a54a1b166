"""Jobs that were produced in one batch, done by eight unmodified workers of a queue as `create`
configures it.

Each job is done once, no worker idles while jobs are available, and the broker sends little more
than the jobs' bytes. Shares and times are ratios to the work of the jobs within the same run. The
machine may be busy with other things: a ratio must hold in one of three runs, everything else in
each run.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.clients.queue_world import Job, QueueWorker, World, open_world, stop

WORKERS = 8
SHARE = 0.25
"""A worker's work may differ from the mean by this part."""
LONGER = 1.25
"""The total time may be this multiple of the ideal."""
ATTEMPTS = 5
PADDING = "x" * 900
"""A job of a kilobyte: otherwise the envelope of a batch with one record is most of the traffic."""


class Row(NamedTuple):
    codec: str = "none"
    partitions: int = 1
    moves: bool = False
    """Workers join and leave midway."""

    def __str__(self) -> str:
        partitions = f", {self.partitions} partitions, all in one" if self.partitions > 1 else ""
        return self.codec + partitions + (", join and leave" if self.moves else "")


ROWS = (Row(), Row("lz4"), Row("zstd"), Row(partitions=4), Row("lz4", moves=True))
EVERY_SETUP = [
    (engine, persister, durability)
    for engine in ("segment", "lmdb", "rocksdb")
    for persister in ("default", "control-records")
    for durability in ("disk", "os")
]


class Outcome(NamedTuple):
    """Results of one run:
    - `shares`: work of each worker, relative to the mean (of workers present all the time), or to
      what its time allowed
    - `longer`: the total time relative to the ideal
    - `sent`: bytes sent relative to the payload
    - `commit_ms`: how long the disk took for a commit, to explain an unfair run
    """

    shares: list[float]
    longer: float
    sent: float
    commit_ms: float

    @property
    def is_fair(self) -> bool:
        return max(abs(share - 1) for share in self.shares) <= SHARE and self.longer <= LONGER

    def __str__(self) -> str:
        shares = f"{min(self.shares):.2f} to {max(self.shares):.2f}"
        times = f"{self.longer:.3f} x the ideal, a commit took {self.commit_ms:.1f} ms"
        return f"shares {shares} of the mean, {times}, {self.sent:.2f} x the payload sent"


def jobs_of(count: int, factor: float, seed: int) -> list[Job]:
    chooser = random.Random(seed)
    return [
        {"job": n, "work": round(chooser.uniform(0.1, 0.5) * factor, 4), "pad": PADDING} for n in range(count)
    ]


def bytes_sent(world: World) -> float:
    found = world.metrics()
    name = "kbroker_response_bytes_total"
    return found.get(f"{name}{{ShareFetch}}", 0) + found.get(f"{name}{{ShareAcknowledge}}", 0)


def commit_ms(world: World, before: dict[str, float]) -> float:
    """The mean since that reading."""
    found, name = world.metrics(), "kbroker_commit_seconds"
    seconds, commits = (
        found[f"{name}_{each}"] - before.get(f"{name}_{each}", 0) for each in ("sum", "count")
    )
    return 1000 * seconds / max(1, commits)


def work_off(world: World, queue: str, row: Row, jobs: list[Job]) -> Outcome:
    """The workers start before the jobs are sent. Those that leave finish the job at hand first."""
    world.create_queue(queue, "--partitions", str(row.partitions))
    crew = world.start(WORKERS // 2 if row.moves else WORKERS, queue)
    before, all_before = bytes_sent(world), world.metrics()
    payload = world.send(queue, jobs, codec=row.codec)
    if row.moves:
        crew += move_midway(world, queue, crew, len(jobs))
    world.until(
        "all jobs are done", lambda: sum(each.is_done for each in world.deliveries(queue)) == len(jobs)
    )
    sent, took_ms = (bytes_sent(world) - before) / payload, commit_ms(world, all_before)
    stop(crew)
    world.check_each_once(queue, range(len(jobs)))
    assert world.lag(queue) == 0
    work = {each["job"]: each["work"] for each in jobs}
    shares, longer = judged(crew, work, queue)
    return Outcome(shares, longer, sent, took_ms)


def move_midway(world: World, queue: str, crew: list[QueueWorker], count: int) -> list[QueueWorker]:
    """Half as many join after a quarter of the jobs; two of the first ones leave after half of
    them."""
    world.until("a quarter is done", lambda: len(world.deliveries(queue)) >= count // 4)
    joined = world.start(WORKERS // 2, queue)
    world.until("half of it is done", lambda: len(world.deliveries(queue)) >= count // 2)
    for worker in crew[:2]:
        worker.leave()
    return joined


def judged(crew: list[QueueWorker], work: dict[int, float], queue: str) -> tuple[list[float], float]:
    """A worker is present from the first job, or from its first poll, until the end of all jobs, or
    its own last one. The ideal is the time that the present workers need for the work if they are
    never idle."""
    lives = [[each for each in worker.deliveries() if each.topic == queue] for worker in crew]
    assert all(lives), f"{[len(each) for each in lives]}: a worker got no job"
    begin = min(life[0].at for life in lives)
    ready = [next(each["at"] for each in worker.events if each["event"] == "ready") for worker in crew]
    end = max(each.answered_at or 0 for life in lives for each in life)
    done = [sum(work[each.job] for each in life) for life in lives]
    left = [any(each["event"] == "closed" and each["at"] < end for each in worker.events) for worker in crew]
    times = [
        (max(begin, since), (life[-1].answered_at or 0) if has_left else end)
        for life, since, has_left in zip(lives, ready, left, strict=True)
    ]
    mean = sum(done) / sum(until - since for since, until in times)
    shares = [part / (until - since) / mean for part, (since, until) in zip(done, times, strict=True)]
    return shares, (end - begin) / ideal_s(times, begin, sum(done))


def ideal_s(times: list[tuple[float, float]], begin: float, work: float) -> float:
    """How long workers that are present at these times need for so much work."""
    now, left = begin, work
    for moment in sorted({moment for each in times for moment in each if moment > begin}):
        there = sum(since <= now < until for since, until in times)
        if there and left <= there * (moment - now):
            return now + left / there - begin
        left -= there * (moment - now)
        now = moment
    return now - begin


def attempt(world: World, name: str, row: Row, count: int, factor: float) -> None:
    outcomes = []
    for number in range(ATTEMPTS):
        outcome = work_off(world, f"{name}-{number}", row, jobs_of(count, factor, seed=number))
        print(f"{row}: {outcome}")
        assert outcome.sent <= 2
        outcomes.append(outcome)
        if outcome.is_fair:
            return
    raise AssertionError("\n".join(map(str, outcomes)))


def test_eight_workers_share_one_batch() -> None:
    with open_world() as world:
        attempt(world, "jobs", Row("lz4"), 120, 1)


@pytest.fixture(scope="module")
def worlds(request: pytest.FixtureRequest) -> Iterator[World]:
    engine, persister, durability = request.param
    with open_world(engine, persister=persister, durability=durability) as world:
        yield world


@pytest.mark.full
@pytest.mark.parametrize("row", ROWS, ids=str)
@pytest.mark.parametrize("worlds", EVERY_SETUP, ids="-".join, indirect=True, scope="module")
def test_on_every_engine_with_every_codec(worlds: World, row: Row) -> None:
    """Jobs of a tenth to half a second, shortened to a third."""
    try:
        attempt(worlds, "q" + "".join(filter(str.isalnum, str(row))), row, 400, 1 / 3)
    finally:
        worlds.dispose()


@pytest.mark.full
@pytest.mark.parametrize("engine", ["segment", "lmdb", "rocksdb"])
def test_at_full_length(engine: str) -> None:
    with open_world(engine) as world:
        attempt(world, "jobs", Row(), 400, 1)
