"""The judges of queues fail where a queue lacks the property: in each case one setting has the
default of a share group."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.queue_world import World, open_world
from tests.clients.test_queue_backoff import Backoff, break_down, fate
from tests.clients.test_queue_fairness import Row, jobs_of, work_off

pytestmark = pytest.mark.full


@pytest.fixture
def world() -> Iterator[World]:
    with open_world() as world:
        yield world


def test_whole_batches_are_not_fair(world: World) -> None:
    world.create_queue("jobs", "--prefetch", "0")
    with pytest.raises(AssertionError, match="a worker got no job"):
        work_off(world, "jobs", Row(), jobs_of(80, 0.3, seed=1))


def test_a_partition_for_each_worker_is_not_fair(world: World) -> None:
    world.create_queue("jobs", "--assignment", "simple", "--partitions", "4")
    with pytest.raises(AssertionError, match="a worker got no job"):
        work_off(world, "jobs", Row(partitions=4), jobs_of(80, 0.3, seed=1))


def test_without_longer_locks_a_long_job_runs_twice(world: World) -> None:
    world.create_queue("jobs", "--lock-max", "0", "--delay", "0")
    world.configure("jobs", share__record__lock__duration__ms="1000")
    workers = world.start(2, "jobs")
    world.send("jobs", [{"job": 0, "work": [3, 0]}])
    world.until_empty("jobs")
    world.until("both have an answer", lambda: not any(worker.holds() for worker in workers))
    with pytest.raises(AssertionError, match="1 jobs were not done at one delivery"):
        world.check_each_once("jobs", [0])


@pytest.mark.parametrize(
    ("made", "judged", "why"),
    [
        (Backoff(3, delay_s=0.1), Backoff(3, delay_s=0.5), "before its wait was over"),
        (Backoff(3, delay_s=0.5), Backoff(4, delay_s=0.5), "deliveries"),
        (Backoff(3, delay_s=0.5, multiplier=1), Backoff(3, delay_s=0.5), "before its wait was over"),
    ],
    ids=["shorter", "fewer", "equal"],
)
def test_other_waits_are_seen(world: World, made: Backoff, judged: Backoff, why: str, tmp_path: Path) -> None:
    world.create_queue("jobs", *made.options())
    world.start(2, "jobs")
    break_down(world, tmp_path / "service", ["jobs"], 2.5, waves=2)
    with pytest.raises(AssertionError, match=why):
        fate(world, "jobs", judged)
