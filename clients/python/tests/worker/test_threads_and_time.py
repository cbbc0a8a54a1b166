"""Plain functions in threads, and jobs that run longer than their time."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import threading
from typing import Any

import anyio
import pytest

from clients.python.tests.worker.queues import NewQueue, until
from kbroker.testing.broker import RunningBroker
from kbroker_client.errors import IllegalState
from kbroker_client.worker import App, Job, Reject
from kbroker_client.worker.task import Task

pytestmark = pytest.mark.anyio


def noting(app: App, queue: str) -> tuple[Task[Any, Any], list[int]]:
    """A task that notes its payloads, and what it has noted."""
    seen: list[int] = []

    @app.task(queue=queue)
    async def second(payload: int) -> None:
        seen.append(payload)

    return second, seen


def is_asyncio() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def test_outcomes_in_threads(broker: RunningBroker, queue: str) -> None:
    app, threads = App(), set()

    @app.task(queue=queue, concurrency=4, retries=1)
    def task(payload: str, job: Job) -> None:
        threads.add(threading.current_thread())
        if payload == "reject":
            raise Reject("no use")
        if payload == "retry":
            raise OSError("down")

    async with app.testing(broker.bootstrap) as worker:
        for payload in ("ok", "reject", "retry"):
            await task.send(payload)
        outcomes = await worker.drain()
    assert sorted(each.outcome for each in outcomes) == ["rejected", "rejected", "retried", "succeeded"]
    assert threading.main_thread() not in threads


async def test_a_job_in_a_thread_sends_jobs(broker: RunningBroker, new_queue: NewQueue) -> None:
    app = App()
    second, seen = noting(app, new_queue())

    @app.task(queue=new_queue())
    def first(payload: int) -> None:
        second.send_blocking(payload + 1)

    async with app.testing(broker.bootstrap) as worker:
        await first.send(1)
        await worker.drain()
    assert seen == [2]


async def test_a_thread_sends_after_its_timeout(broker: RunningBroker, new_queue: NewQueue) -> None:
    app, is_late = App(), threading.Event()
    second, seen = noting(app, new_queue())

    @app.task(queue=new_queue(), retries=0, timeout=0.2)
    def first(payload: int) -> None:
        assert is_late.wait(20)
        second.send_blocking(payload)

    async with app.testing(broker.bootstrap) as worker:
        await first.send(1)
        await worker.drain()
        is_late.set()
        await until(lambda: seen == [1] and not worker.left)


async def test_a_thread_of_an_async_job_sends_jobs(broker: RunningBroker, new_queue: NewQueue) -> None:
    """Also one that has a copy of the job's context."""
    app = App()
    second, seen = noting(app, new_queue())

    @app.task(queue=new_queue(), retries=0)
    async def first(payload: int) -> None:
        await anyio.to_thread.run_sync(second.send_blocking, payload)
        if is_asyncio():
            await asyncio.to_thread(second.send_blocking, payload)
        with pytest.raises(IllegalState, match="would block the event loop"):
            second.send_blocking(payload)

    async with app.testing(broker.bootstrap) as worker:
        await first.send(1)
        await worker.drain()
    assert seen == [1] * (2 if is_asyncio() else 1)


async def test_a_process_that_a_job_forks_sends_jobs(broker: RunningBroker, new_queue: NewQueue) -> None:
    app = App()
    second, seen = noting(app, new_queue())

    @app.task(queue=new_queue(), retries=0)
    def first(payload: int) -> None:
        process = multiprocessing.get_context("fork").Process(target=second.send_blocking, args=(payload,))
        process.start()
        process.join(20)
        try:
            assert process.exitcode == 0
        finally:
            process.kill()
            process.join()

    async with app.testing(broker.bootstrap) as worker:
        await first.send(1)
        await worker.drain()
    assert seen == [1]


async def test_a_job_in_a_thread_with_a_loop_of_its_own(broker: RunningBroker, new_queue: NewQueue) -> None:
    app = App()
    second, seen = noting(app, new_queue())

    @app.task(queue=new_queue())
    def first(payload: int) -> None:
        async def send() -> None:
            with pytest.raises(IllegalState, match="here a plain function calls send_blocking"):
                await second.send(0)
            second.send_blocking(payload)

        anyio.run(send)

    async with app.testing(broker.bootstrap) as worker:
        await first.send(1)
        await worker.drain()
    assert seen == [1]


async def test_a_worker_belongs_to_the_main_thread(queue: str) -> None:
    app = App()

    @app.task(queue=queue)
    async def task(payload: object) -> None: ...

    with pytest.raises(IllegalState, match="needs the main thread: elsewhere use `await"):
        await anyio.to_thread.run_sync(app.run)


async def test_an_async_job_is_cancelled_at_its_timeout(broker: RunningBroker, queue: str) -> None:
    app, ended = App(), []

    @app.task(queue=queue, timeout=0.2, retries=1)
    async def task(payload: object) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(payload)

    async with app.testing(broker.bootstrap) as worker:
        await task.send("x")
        retried, rejected = await worker.drain()
    assert ended == ["x", "x"]
    assert (retried.outcome, rejected.outcome) == ("retried", "rejected")
    assert rejected.reason is not None
    assert rejected.reason[:2] == ("JobTimedOut", "the job ran for longer than its timeout, 0.2 s")
    assert "sleep_forever" in rejected.reason.traceback
    assert 0.2 <= rejected.seconds < 2.0


async def test_a_thread_goes_on_after_its_timeout(
    broker: RunningBroker, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    app, going_on, first_ended = App(), threading.Event(), threading.Event()

    @app.task(queue=queue, timeout=0.2)
    def task(payload: object, job: Job) -> None:
        if job.attempt == 1:
            going_on.wait(30)
            first_ended.set()

    async with app.testing(broker.bootstrap) as worker:
        await task.send("x")
        with caplog.at_level(logging.ERROR):
            outcomes = await worker.drain()
        assert not first_ended.is_set()
        assert worker.left == 1
        going_on.set()
        assert await anyio.to_thread.run_sync(first_ended.wait, 30)
        await until(lambda: not worker.left)
    assert [each.outcome for each in outcomes] == ["retried", "succeeded"]
    assert "continues in its thread, which cannot be ended; its lock is not renewed any more" in caplog.text


async def test_a_cancellation_within_a_job_is_a_failure(
    broker: RunningBroker, queue: str, anyio_backend: str
) -> None:
    """A job may wait for a task of asyncio that somebody cancels."""
    if anyio_backend != "asyncio":
        return
    import asyncio

    app = App()

    @app.task(queue=queue, retries=0)
    async def task(payload: object) -> None:
        inner = asyncio.ensure_future(asyncio.sleep(3600))
        asyncio.get_running_loop().call_soon(inner.cancel)
        await inner

    async with app.testing(broker.bootstrap) as worker:
        await task.send(1)
        (outcome,) = await worker.drain()
    assert outcome.outcome == "rejected"
    assert outcome.reason is not None
    assert "cancelled from within" in outcome.reason.message


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_concurrency(broker: RunningBroker, queue: str, concurrency: int) -> None:
    app, running, most = App(), 0, 0

    @app.task(queue=queue, concurrency=concurrency)
    async def task(payload: object) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await anyio.sleep(0.02)
        running -= 1

    async with app.testing(broker.bootstrap) as worker:
        async with anyio.create_task_group() as sending:
            for number in range(30):
                sending.start_soon(task.send, number)
        await worker.drain()
    assert most == concurrency
