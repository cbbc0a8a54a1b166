"""Locks of running jobs: renewed while they run, and lost."""

from __future__ import annotations

import time

import anyio
import pytest

from clients.python.tests.worker.queues import QUICK, NewQueue, sleeper
from kbroker.testing.broker import RunningBroker, open_test_broker
from kbroker_client.worker import App, Job, JobEvent

pytestmark = pytest.mark.anyio
TEN_MINUTES_S = 600.0
SHORT_LOCKS = {"share.record.lock.duration.ms": "1000", "kbroker.queue.lock.max.ms": "0"}


@pytest.mark.parametrize("is_plain", [False, True])
async def test_a_job_outlasts_its_lock(broker: RunningBroker, new_queue: NewQueue, is_plain: bool) -> None:
    app, attempts = App(), list[int]()
    task = app.task(queue=new_queue(SHORT_LOCKS), concurrency=2)(sleeper(3.5, attempts, is_plain=is_plain))
    async with app.testing(broker.bootstrap) as worker:
        await task.send(1)
        await task.send(2)
        outcomes = await worker.drain()
    assert [each.outcome for each in outcomes] == ["succeeded"] * 2
    assert attempts == [1, 1]


@pytest.mark.full
async def test_ten_minutes_under_locks_of_a_second(broker: RunningBroker, new_queue: NewQueue) -> None:
    """On the event loop and in a thread, at the same time; each runs once."""
    app, attempts = App(), list[int]()
    for is_plain in (False, True):
        app.task(queue=new_queue(SHORT_LOCKS))(sleeper(TEN_MINUTES_S, attempts, is_plain=is_plain))
    async with app.testing(broker.bootstrap) as worker:
        for task in app.tasks.values():
            await task.send(TEN_MINUTES_S)
        outcomes = await worker.drain(TEN_MINUTES_S + 60)
        found = worker.statistics().values()
    assert [each.outcome for each in outcomes] == ["succeeded"] * 2
    assert attempts == [1, 1]
    assert [(each.started, each.locks_lost) for each in found] == [(1, 0)] * 2


async def test_renewal_ends_at_the_timeout(broker: RunningBroker, new_queue: NewQueue) -> None:
    """A job that does not end when it is cancelled loses its lock."""
    app, attempts = App(), []

    @app.task(queue=new_queue(SHORT_LOCKS), concurrency=2, timeout=0.5)
    async def task(payload: object, job: Job) -> None:
        attempts.append(job.attempt)
        if job.attempt == 1:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(3)

    async with app.testing(broker.bootstrap) as worker:
        await task.send(1)
        outcomes = await worker.drain()
    assert attempts == [1, 2]
    assert sorted(each.outcome for each in outcomes) == ["lock lost", "succeeded"]


async def test_a_lock_that_ran_out(broker: RunningBroker, new_queue: NewQueue) -> None:
    """A job that blocks the loop for longer than a lock: its result does not count."""
    app, attempts = App(), []
    lost: list[JobEvent] = []
    app.on_lock_lost(lost.append)

    @app.task(queue=new_queue(SHORT_LOCKS))
    async def task(payload: object, job: Job) -> None:
        attempts.append(job.attempt)
        if job.attempt == 1:
            time.sleep(2.0)  # noqa: ASYNC251

    async with app.testing(broker.bootstrap) as worker:
        await task.send(1)
        outcomes = await worker.drain()
        (statistics,) = worker.statistics().values()
    assert attempts == [1, 2]
    assert [each.outcome for each in outcomes] == ["lock lost", "succeeded"]
    assert (lost[0].job.attempt, len(lost)) == (1, 1)
    assert (statistics.locks_lost, statistics.succeeded, statistics.started) == (1, 1, 2)


async def test_a_job_that_comes_again_while_the_worker_drains(
    broker: RunningBroker, new_queue: NewQueue
) -> None:
    """Its lock ran out just before; the answer with its second delivery is on its way meanwhile."""
    app, running = App(), anyio.Event()
    lost: list[JobEvent] = []
    app.on_lock_lost(lost.append)

    @app.task(queue=new_queue(SHORT_LOCKS))
    async def task(payload: object) -> None:
        running.set()
        with anyio.CancelScope(shield=True):
            await anyio.sleep(1.5)  # Until after the next renewal.

    async with app.testing(broker.bootstrap) as worker:
        await task.send(1)
        await running.wait()
        (runner,) = worker._service._runners
        (job,) = runner._active
        runner._consumer._ready.append(job.record._replace(delivery_count=2))
    assert [event.job.attempt for event in lost] == [1]


async def test_a_restart_of_the_broker() -> None:
    """The locks of running jobs are lost: the jobs are cancelled, and run again."""
    with open_test_broker() as broker:
        broker.create_queue("jobs", {**QUICK, **SHORT_LOCKS})
        app, attempts, running = App(), [], anyio.Event()

        @app.task(queue="jobs")
        async def task(payload: object, job: Job) -> None:
            attempts.append(job.attempt)
            running.set()
            if len(attempts) == 1:
                await anyio.sleep_forever()

        async with app.testing(broker.bootstrap) as worker:
            await task.send(1)
            await running.wait()
            await anyio.to_thread.run_sync(broker.kill)
            await anyio.to_thread.run_sync(broker.start)
            outcomes = await worker.drain()
    assert len(attempts) == 2
    assert [each.outcome for each in outcomes] == ["lock lost", "succeeded"]


async def test_locks_that_become_shorter_under_a_job(broker: RunningBroker, new_queue: NewQueue) -> None:
    """The worker has no free slot, so only the answers to its renewals tell it."""
    app, attempts = App(), []
    queue = new_queue({**SHORT_LOCKS, "share.record.lock.duration.ms": "6000"})

    @app.task(queue=queue)
    async def task(payload: object, job: Job) -> None:
        attempts.append(job.attempt)
        shorter = {"share.record.lock.duration.ms": "1000"}
        await anyio.to_thread.run_sync(broker.set_group_config, queue, shorter)
        await anyio.sleep(6)

    async with app.testing(broker.bootstrap) as worker:
        await task.send(1)
        (outcome,) = await worker.drain()
    assert (outcome.outcome, attempts) == ("succeeded", [1])
