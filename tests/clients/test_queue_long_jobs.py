"""Jobs that take longer than the lock, and workers that die, freeze or hang meanwhile.

A second worker is present and idle all the time, and would acquire any available job.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from kbroker.errors import ErrorCode
from tests.clients.queue_world import QueueWorker, World, open_world, setups
from tests.differential.apache_kafka import class_path
from tests.kafka_tools.java import HERE, MISSING

SHORT_LOCK = {"share__record__lock__duration__ms": "1000"}
SESSION_S, HEARTBEAT_S = 3.0, 0.5
WAITED_FOR = (*(() if MISSING else ("java",)), "hangs", "librdkafka")


@pytest.fixture(scope="module", params=setups(), ids="-".join)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """One broker, and a queue for each test. All long jobs start here, so that they overlap."""
    engine, persister, durability = request.param
    with open_world(engine, persister=persister, durability=durability) as world:
        for queue in WAITED_FOR:
            begin(world, queue)
        yield world


def begin(world: World, queue: str) -> None:
    """Two workers and one job."""
    world.create_queue(queue)
    world.configure(queue, **SHORT_LOCK)
    if queue == "hangs":
        world.kbroker("queues", "create", queue, "--lock-max", "2s", "--delay", "10ms", "--update")
    if queue == "java":
        run_java_workers(world, queue)
    else:
        world.start(2, queue)
    world.send(queue, [{"job": 0, "work": [4, 0] if queue == "hangs" else 4}])


def run_java_workers(world: World, queue: str) -> None:
    """Two workers in one process. Does not wait for them."""
    program = str(HERE / "QueueWorker.java")
    options = ["-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", class_path()]
    world.run(["java", *options, program, world.broker.bootstrap, queue, "2"])


def holder_of(world: World, queue: str) -> QueueWorker:
    """The worker that holds the queue's only job, as soon as there is one."""
    world.until("a worker holds the job", lambda: bool(world.deliveries(queue)))
    return world.deliveries(queue)[0].worker


def counter(world: World, name: str, queue: str) -> float:
    return world.metrics().get(f"kbroker_share_partition_{name}_total{{{queue}}}", 0)


@pytest.mark.full
def test_a_job_of_five_minutes_under_a_lock_of_thirty_seconds() -> None:
    """With librdkafka and with Java, on three engines at the same time, since they only wait. All
    settings are those of `create`."""
    three = [
        ("segment", "default", "disk"),
        ("lmdb", "control-records", "disk"),
        ("rocksdb", "default", "os"),
    ]
    if MISSING is not None:
        pytest.skip(MISSING)
    with ExitStack() as stack:
        worlds = [
            stack.enter_context(open_world(engine, persister=persister, durability=durability))
            for engine, persister, durability in three
        ]
        for world in worlds:
            for queue in ("librdkafka", "java"):
                world.create_queue(queue)
            world.start(2, "librdkafka")
            run_java_workers(world, "java")
            for queue in ("librdkafka", "java"):
                world.send(queue, [{"job": 0, "work": 300}])
        for world, setup in zip(worlds, three, strict=True):
            for queue in ("librdkafka", "java"):
                world.until_empty(queue, patience_s=400)
                world.until(
                    "it has its answer",
                    lambda each=world, name=queue: each.deliveries(name)[0].kind is not None,
                )  # type: ignore[misc]
                world.check_each_once(queue, [0])
                prolonged = counter(world, "prolonged_locks", queue)
                print(f"{'-'.join(setup)}, {queue}: once, {prolonged:.0f} prolongations")
                assert prolonged >= 9
                assert counter(world, "lock_timeouts", queue) == 0


def test_the_job_of_a_killed_worker_comes_again_at_once(world: World) -> None:
    """Its lock and its session had half a minute or more left: neither expired."""
    world.create_queue("killed", "--delay", "10ms")
    world.start(2, "killed")
    evictions = world.metrics()["kbroker_share_session_evictions_total"]
    world.send("killed", [{"job": 0, "work": [600, 0]}])
    holder_of(world, "killed").kill()
    world.until_empty("killed")
    first, second = world.deliveries("killed")
    assert (first.count, second.count, first.worker is second.worker) == (1, 2, False)
    assert counter(world, "lock_timeouts", "killed") == 0
    assert world.metrics()["kbroker_share_session_evictions_total"] == evictions + 1
    members = [each["client_id"] for each in world.describe("killed")["workers"]]
    assert len(members) == 2, "the dead worker is still a member: its session did not end"


def test_the_job_of_a_frozen_worker_comes_again_after_its_session(world: World) -> None:
    """The session is longer than the lock here, as it is by default: the broker renews the lock
    until the session ends."""
    world.create_queue("frozen", "--delay", "10ms")
    session, heartbeat = (str(round(1000 * each)) for each in (SESSION_S, HEARTBEAT_S))
    world.configure(
        "frozen", **SHORT_LOCK, share__session__timeout__ms=session, share__heartbeat__interval__ms=heartbeat
    )
    world.start(2, "frozen")
    world.send("frozen", [{"job": 0, "work": [0.5, 0]}])
    frozen = holder_of(world, "frozen")
    frozen.freeze()
    world.until_empty("frozen")
    world.until("the other one has its answer", lambda: world.deliveries("frozen")[-1].is_done)
    frozen.thaw()
    world.until("the frozen worker has an answer", lambda: not frozen.holds())
    first, second = world.deliveries("frozen")
    assert (first.count, second.count, first.worker is second.worker) == (1, 2, False)
    assert second.at - first.at >= SESSION_S - 2 * HEARTBEAT_S, "before the session could have ended"
    assert counter(world, "prolonged_locks", "frozen") >= 1
    assert counter(world, "lock_timeouts", "frozen") == 1
    assert not first.is_done, "an answer of a worker that has lost its job"
    print(f"late answer: {ErrorCode(first.code or 0).name}, {first.code}")


def test_a_worker_that_hangs_loses_its_job_at_the_total(world: World) -> None:
    """The worker is alive, and its lock is renewed, but only up to the configured total. The
    broker's log names the setting."""
    world.until_empty("hangs")
    first, second = world.deliveries("hangs")
    assert (first.count, second.count, first.worker is second.worker) == (1, 2, False)
    assert second.at - first.at >= 1, "longer than a lock: it was prolonged"
    assert counter(world, "prolonged_locks", "hangs") >= 1
    line = "group hangs: consumers that are alive held 1 records for 2000 ms, as long as the broker prolongs"
    world.until("the log has a line", lambda: line in world.broker.logs())
    (said,) = [each for each in world.broker.logs().splitlines() if line in each]
    assert "kbroker.queue.lock.max.ms=4000" in said
    world.until("the late answer is refused", lambda: first.worker.deliveries()[0].kind is not None)
    assert not first.worker.deliveries()[0].is_done


@pytest.mark.parametrize("client", ["librdkafka", "java"])
def test_a_job_under_a_shorter_lock_runs_once(world: World, client: str) -> None:
    """The job takes four times the lock."""
    if client == "java" and MISSING is not None:
        pytest.skip(MISSING)
    world.until_empty(client)
    world.until("it has its answer", lambda: world.deliveries(client)[0].kind is not None)
    world.check_each_once(client, [0])
    assert counter(world, "prolonged_locks", client) >= 3
    assert counter(world, "lock_timeouts", client) == 0
