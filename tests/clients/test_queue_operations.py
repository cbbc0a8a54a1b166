"""What an operator does to a queue while workers run: pause, priorities, restarts, a clock change,
offset resets, deletions, more partitions. Some jobs wait for their next delivery meanwhile.

To show that something does not happen, a test waits for a later event that does.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.clients.queue_world import SETUPS, Job, World, open_world, setups, stop
from tests.crash.stepped_clock import SteppedClock

on_every_engine = pytest.mark.parametrize("setup", setups(), ids="-".join)
Setup = tuple[str, str, str]
DELAY_S = 1.2
"""Longer than the waits that the window holds."""
DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with open_world() as world:
        yield world


def numbered(first: int, end: int, **more: object) -> list[Job]:
    return [{"job": number, **more} for number in range(first, end)]


def parked(world: World, queue: str) -> int:
    """The number of parked jobs, as `describe` counts them."""
    return int(world.describe(queue)["waiting"])


def until_fetched(world: World, workers: int) -> None:
    """Wait until so many workers have fetched in vain from now on."""
    name = "kbroker_requests_total{ShareFetch}"
    before = world.metrics().get(name, 0)
    world.until("fetches end", lambda: world.metrics().get(name, 0) >= before + 2 * workers)


def test_nothing_is_delivered_while_a_queue_is_paused(world: World) -> None:
    """Over a restart as well. Jobs at hand are finished."""
    world.create_queue("paused")
    workers = world.start(2, "paused")
    world.send("paused", numbered(0, 20, work=0.1))
    world.until("they are at work", lambda: len(world.deliveries("paused")) >= 6)
    world.kbroker("queues", "pause", "paused")
    world.until("nothing is in flight", lambda: world.describe("paused")["in_flight"] == 0)
    world.until("they finish what is at hand", lambda: not any(worker.holds() for worker in workers))
    begun = world.deliveries("paused")
    assert all(each.is_done for each in begun)
    assert len(begun) < 20
    world.broker.restart()
    world.until("they are back", lambda: world.metrics().get("kbroker_share_sessions", 0) >= 2)
    world.send("paused", numbered(20, 25))
    until_fetched(world, len(workers))
    assert world.deliveries("paused") == begun
    assert world.lag("paused") == 25 - len(begun)
    world.kbroker("queues", "resume", "paused")
    world.until_empty("paused")
    world.until("they have their answers", lambda: not any(worker.holds() for worker in workers))
    world.check_each_once("paused", range(25))
    stop(workers)


def test_urgent_jobs_come_first(world: World) -> None:
    """Including those that are sent while others wait. Each worker may have one delivery in flight
    at that moment."""
    world.create_queue("bulk")
    world.broker.create_topic("urgent")
    world.configure("bulk", kbroker__queue__priorities="urgent=10,bulk=1")
    workers = world.start(2, "bulk", "bulk", "urgent")
    world.kbroker("queues", "pause", "bulk")
    world.send("bulk", numbered(0, 30, work=0.05))
    world.send("urgent", numbered(0, 10, work=0.05))
    world.kbroker("queues", "resume", "bulk")
    world.until("bulk jobs are at work", lambda: len(world.deliveries("bulk")) >= 4)
    order = [each.topic for each in world.deliveries() if each.topic in ("bulk", "urgent")]
    assert order[:10] == ["urgent"] * 10
    world.send("urgent", numbered(10, 14, work=0.05))
    sent_at = time.monotonic()
    world.until_empty("bulk")
    late = [each for each in world.deliveries("urgent") if each.job >= 10]
    between = [each for each in world.deliveries("bulk") if sent_at < each.at < late[-1].at]
    assert len(late) == 4
    assert len(between) <= 2 * len(workers)
    world.check_each_once("bulk", range(30))
    world.check_each_once("urgent", range(14))
    stop(workers)


@pytest.mark.full
@pytest.mark.parametrize("wait_s", [0.3, DELAY_S], ids=["in the window", "parked"])
def test_an_urgent_job_that_waited_comes_before_the_rest(world: World, wait_s: float) -> None:
    bulk, urgent = f"bulk-{wait_s}", f"urgent-{wait_s}"
    world.create_queue(bulk, "--delay", f"{round(1000 * wait_s)}ms", "--jitter", "0")
    world.broker.create_topic(urgent)
    world.configure(bulk, kbroker__queue__priorities=f"{urgent}=10,{bulk}=1")
    workers = world.start(2, bulk, bulk, urgent)
    world.send(urgent, numbered(0, 4, fail=1))
    world.send(bulk, numbered(0, 100, work=0.05))
    world.until_empty(bulk)
    world.until("they have their answers", lambda: not any(worker.holds() for worker in workers))
    for first, second in world.by_job(urgent).values():
        assert first.answered_at is not None
        late = [each for each in world.deliveries(bulk) if first.answered_at + wait_s < each.at < second.at]
        assert len(late) <= 2 * len(workers)
        assert any(each.at > second.at for each in world.deliveries(bulk)), "there was a rest"
    stop(workers)


@pytest.mark.parametrize(
    ("setup", "restarts"),
    [
        pytest.param(SETUPS[0], 1, id="segment"),
        *(pytest.param(each, 7, id="-".join(each), marks=pytest.mark.full) for each in SETUPS),
    ],
)
def test_restarts_change_no_count_and_no_due_time(setup: Setup, restarts: int) -> None:
    """A hundred jobs are held at each restart; ten were released before, and ten are scheduled."""
    engine, persister, durability = setup
    wait_s = max(4, 4 * restarts)  # Later than all restarts, also on a busy machine.
    with open_world(engine, persister=persister, durability=durability) as world:
        world.create_queue(
            "jobs", "--prefetch", "100", "--delay", f"{round(1000 * wait_s)}ms", "--jitter", "0"
        )
        world.send("jobs", numbered(0, 10, fail=1))
        (first,) = world.start(1, "jobs")
        world.until("ten are released", lambda: is_released(world, "jobs", 10))
        stop([first])
        due_ms = round(1000 * (time.time() + wait_s))
        world.send("jobs", numbered(10, 20), headers={"kbroker-deliver-at": str(due_ms)})
        world.send("jobs", numbered(20, 140))
        next_due_ms = {hold_over_a_restart(world, "jobs", 100) for _ in range(restarts)} - {None}
        assert len(next_due_ms) <= 1, "of the jobs that wait, while they do: on a busy machine never"
        (last,) = world.start(1, "jobs")
        world.until_empty("jobs")
        world.until("it has its answers", lambda: not last.holds())
        deliveries = world.deliveries("jobs")[10:]
        assert sum(each.is_done for each in deliveries) == 140
        assert {each.count for each in deliveries if each.job >= 10} == {1}
        assert {each.count for each in deliveries if each.job < 10} == {2}
        released = {each.job: each for each in first.deliveries()[:10]}
        again = [each for each in deliveries if each.job < 10]
        assert all(each.at - (released[each.job].sent_at or 0) >= wait_s for each in again)
        check_not_before(world, range(10, 20), due_ms)
        seen = f"{len(deliveries)} deliveries over {restarts} restarts, due times {next_due_ms}"
        print(f"{'-'.join(setup)}: {seen}")


def hold_over_a_restart(world: World, queue: str, count: int) -> int | None:
    """A worker holds so many jobs while the broker stops cleanly, and dies with it. Returns when
    the next waiting job was due, if one still waited."""
    (holder,) = world.start(1, queue, hold="1")
    world.until(f"it holds {count}", lambda: world.describe(queue)["in_flight"] >= count)
    found = world.describe(queue)
    world.broker.stop()
    holder.kill()
    world.broker.start()
    return found["next_due_ms"] if found["waiting"] == 20 else None


def is_released(world: World, queue: str, count: int) -> bool:
    """All jobs delivered so far were released, and they are as many as given."""
    found = world.deliveries(queue)
    return len(found) == count and all(each.kind == "RELEASE" for each in found)


def check_not_before(world: World, jobs: range, due_ms: float) -> None:
    """By the wall clock of the machine."""
    ahead_s = time.time() - time.monotonic()
    assert all(1000 * (each.at + ahead_s) >= due_ms - 1 for each in world.deliveries() if each.job in jobs)


@pytest.mark.parametrize(
    ("setup", "step", "restart"),
    [
        pytest.param(SETUPS[0], -DAY, True, id="back, restart"),
        *(
            pytest.param(setup, step, restart, marks=pytest.mark.full)
            for setup in SETUPS
            for step in (-DAY, DAY)
            for restart in (False, True)
            if (setup, step, restart) != (SETUPS[0], -DAY, True)
        ),
    ],
)
def test_a_clock_that_is_set(setup: Setup, step: timedelta, restart: bool, tmp_path: Path) -> None:
    """A redelivery waits by the monotonic clock, which cannot be set; after a restart it waits at
    most the longest delay. A schedule follows the wall clock: a day forward makes a job of tonight
    due, a day back delays one that was due a moment ago."""
    engine, persister, durability = setup
    clock = SteppedClock(tmp_path / "clock")
    longest_s, day_ms = 1.5, DAY // timedelta(milliseconds=1)
    options = {"command": clock.command(), "env": clock.environment()}
    with open_world(engine, persister=persister, durability=durability, **options) as world:
        waits = ("--delay", "1200ms", "--max-delay", f"{round(1000 * longest_s)}ms")
        world.create_queue("jobs", *waits)
        world.create_queue("later", *waits)
        workers = world.start_each(("jobs", "later"))
        soon_ms = clock.now_ms() + 2500
        due_ms = soon_ms + day_ms // 2 if step > timedelta() else soon_ms
        world.send("later", [{"job": 0}], headers={"kbroker-deliver-at": str(due_ms)})
        world.send("later", [{"job": 1}], headers={"kbroker-deliver-at": str(soon_ms + 2 * day_ms)})
        world.send("jobs", numbered(0, 5, fail=1))
        world.until("they are released", lambda: is_released(world, "jobs", 5))
        world.until("all are parked", lambda: parked(world, "jobs") == 5 and parked(world, "later") == 2)
        if restart:
            world.broker.stop()
        clock.step(step)
        if restart:
            world.broker.start()
        world.until_empty("jobs")
        before = {each.job: each for each in world.deliveries("jobs")[:5]}
        again = world.deliveries("jobs")[5:]
        assert {each.count for each in again} == {2}
        if not restart:
            assert min(each.at - (before[each.job].sent_at or 0) for each in again) >= 1.2
        if step < timedelta():
            world.send("later", [{"job": 2}], timestamp_ms=clock.now_ms())
            world.until("a new job is done", lambda: any(each.is_done for each in world.deliveries("later")))
            assert [each.job for each in world.deliveries("later")] == [2], "the schedule has a day to go"
            clock.step(-step)
        world.until("the schedule is due", lambda: 0 in world.by_job("later"))
        assert 1 not in world.by_job("later")
        stop(workers)


SETTINGS = ("--delay", f"{round(1000 * DELAY_S)}ms", "--jitter", "0", "--retention", "unfinished")
QUEUES = ("earliest", "latest", "group", "topic", "grown")


@on_every_engine
def test_what_waits_when_offsets_groups_and_topics_change(setup: Setup) -> None:
    """In each queue five of ten jobs wait for their second delivery, and no worker runs."""
    engine, persister, durability = setup
    with open_world(engine, persister=persister, durability=durability) as world:
        for queue in QUEUES:
            world.create_queue(queue, *SETTINGS)
            world.configure(queue, share__heartbeat__interval__ms="500")
            world.send(queue, numbered(0, 5, fail=1) + numbered(5, 10))
        workers = world.start_each(QUEUES, burst="10")
        world.until(
            "all have an answer", lambda: len([each for each in world.deliveries() if each.kind]) == 50
        )
        stop(workers)
        for queue in QUEUES:
            assert world.lag(queue) == 5
        change(world)
        workers = world.start_each(QUEUES)
        for (
            queue
        ) in QUEUES:  # A job that waits as long as the others did: all others are delivered before it.
            world.send(queue, numbered(100, 101, fail=1))
        grow(world)
        for queue in QUEUES:
            until_done(world, queue, 100)
            world.until_empty(queue)
        stop(workers)
        judge(world)


def until_done(world: World, queue: str, job: int) -> None:
    world.until(f"job {job} of {queue} is done", lambda: is_done(world, queue, job))


def is_done(world: World, queue: str, job: int) -> bool:
    return any(each.is_done for each in world.by_job(queue).get(job, ()))


def change(world: World) -> None:
    reset = ("share-groups", "reset-offsets")
    for queue in ("earliest", "latest"):
        world.kbroker(*reset, queue, "--all-topics", f"--to-{queue}", "--execute")
    world.kbroker("share-groups", "delete", "group", "--force")
    world.create_queue("group", *SETTINGS, "--update")
    world.kbroker("queues", "delete", "topic", "--yes")
    world.create_queue("topic", *SETTINGS)
    assert [world.lag(queue) for queue in QUEUES] == [10, 0, 10, 0, 5]


def grow(world: World) -> None:
    """While a worker runs, with jobs that wait."""
    world.kbroker("topics", "alter", "grown", "--partitions", "4")
    world.forget_metadata()
    for partition in range(1, 4):
        world.send("grown", numbered(10 * partition, 10 * partition + 5, fail=1), partition=partition)
    jobs = [10 * partition + number for partition in range(1, 4) for number in range(5)]
    world.until("they are done", lambda: all(is_done(world, "grown", job) for job in jobs))


def judge(world: World) -> None:
    """Outcomes:
    - reset to the start, and a recreated group: all jobs are redelivered, with first counts
    - reset to the end, and a recreated topic: none is
    - more partitions: the waits continue, and the worker reads the new partitions

    A second count may be a third: a job that is sent to a worker that is leaving uses up a
    delivery.
    """
    waiting, others, grown = range(5), range(5, 10), [*range(10, 15), *range(20, 25), *range(30, 35)]
    for queue in QUEUES:
        found = {
            job: [min(each.count, 2) for each in all_of_it] for job, all_of_it in world.by_job(queue).items()
        }
        first, second = ([1], [1])
        if queue in ("earliest", "group"):
            first, second = [1, 1, 2], [1, 1]
        elif queue == "grown":
            first = [1, 2]
        expected = {100: [1, 2], **{job: first for job in waiting}, **{job: second for job in others}}
        if queue == "grown":
            expected |= {job: [1, 2] for job in grown}
        assert found == expected, queue
        assert world.dead_letters(queue) == []
