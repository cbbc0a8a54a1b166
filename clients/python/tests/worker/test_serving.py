"""A worker within a program of its own, several queues, several groups, and a secured broker."""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from clients.python.tests.worker.queues import QUICK, NewQueue, until
from kbroker.client.admin import delete_topic
from kbroker.client.group_admin import describe_share_groups
from kbroker.testing.broker import RunningBroker, open_test_broker
from kbroker_client import ErrorCode, KafkaError, NotAuthenticated
from kbroker_client.errors import IllegalState
from kbroker_client.worker import App, Job, Security, queue_facts, runner, service
from kbroker_client.worker.service import Service, StartRefused

pytestmark = pytest.mark.anyio


async def test_cancelling_releases_what_runs(broker: RunningBroker, queue: str) -> None:
    app, attempts, running = App(broker.bootstrap), [], anyio.Event()

    @app.task(queue=queue)
    async def task(payload: object, job: Job) -> None:
        attempts.append(job.attempt)
        running.set()
        if len(attempts) == 1:
            await anyio.sleep_forever()

    await anyio.to_thread.run_sync(task.send_blocking, 1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(app.serve)
        await running.wait()
        tasks.cancel_scope.cancel()
    async with app.testing(broker.bootstrap) as worker:
        await worker.drain()
    assert len(attempts) == 2


async def test_two_groups_over_one_topic(broker: RunningBroker, new_queue: NewQueue) -> None:
    orders, audit = new_queue(), new_queue()
    app, seen = App(), []

    @app.task(queue=orders)
    async def ship(payload: int) -> None:
        seen.append(("ship", payload))

    @app.task(queue=audit, topic=orders)
    async def check(payload: int) -> None:
        seen.append(("check", payload))

    async with app.testing(broker.bootstrap) as worker:
        await ship.send(1)
        await worker.drain()
        with pytest.raises(IllegalState, match="connected already"):
            await app.__aenter__()
    assert sorted(seen) == [("check", 1), ("ship", 1)]


async def test_a_test_may_work_on_one_queue_of_several(broker: RunningBroker, queue: str) -> None:
    """The others need not exist."""
    app, seen = App(), []

    @app.task(queue=queue)
    async def task(payload: int) -> None:
        seen.append(payload)

    @app.task(queue="not-there")
    async def other(payload: int) -> None: ...

    async with app.testing(broker.bootstrap, queues=[queue]) as worker:
        await task.send(1)
        assert [each.outcome for each in await worker.drain()] == ["succeeded"]
    with pytest.raises(StartRefused, match="no task has the queue mails"):
        await app.testing(broker.bootstrap, queues=["mails"]).__aenter__()


async def test_a_job_that_blocks_the_loop_is_reported(
    broker: RunningBroker, queue: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_BLOCKED_S", 0.3)
    app = App()

    @app.task(queue=queue)
    async def task(payload: object) -> None:
        time.sleep(1.5)  # noqa: ASYNC251

    async with app.testing(broker.bootstrap) as worker:
        await task.send(1)
        await worker.drain()
        await until(lambda: "an async function has blocked it" in caplog.text)


async def test_keys_are_kept_in_order(broker: RunningBroker, new_queue: NewQueue) -> None:
    """Retries too: a key waits for its failed job."""
    app, seen = App(), []

    @app.task(queue=new_queue({"kbroker.queue.ordering": "key"}), concurrency=8)
    async def task(payload: int, job: Job) -> None:
        if payload == 3 and job.attempt == 1:
            raise OSError("down")
        await anyio.lowlevel.checkpoint()
        seen.append((job.key, payload))

    async with app.testing(broker.bootstrap) as worker:
        for number in range(10):
            await task.send(number, key="a")
            await task.send(number, key=b"b")
        await worker.drain()
    for key in (b"a", b"b"):
        assert [payload for each, payload in seen if each == key] == list(range(10))


async def test_a_secured_broker() -> None:
    with open_test_broker(protocol="SASL_PLAINTEXT") as broker:
        broker.create_queue("jobs", QUICK)
        settings = broker.client_settings()
        mechanism, user = settings["sasl.mechanism"], settings["sasl.username"]
        app, seen = App(), []

        @app.task(queue="jobs")
        async def task(payload: int) -> None:
            seen.append(payload)

        security = Security(mechanism=mechanism, username=user, password=settings["sasl.password"])
        async with app.testing(broker.bootstrap, security=security) as worker:
            await task.send(1)
            await worker.drain()
        assert seen == [1]
        wrong = Security(mechanism=mechanism, username=user, password="wrong")
        with pytest.raises(NotAuthenticated):
            await App(broker.bootstrap, security=wrong).__aenter__()


async def test_a_queue_that_is_deleted(
    broker: RunningBroker, queue: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcome of a running job has no place any more; the worker says so once, idles, and ends
    in order."""
    monkeypatch.setattr(queue_facts, "LOOK_S", 0.1)
    app, running, may_end = App(), anyio.Event(), anyio.Event()

    @app.task(queue=queue)
    async def task(payload: object) -> None:
        running.set()
        await may_end.wait()

    def delete() -> None:
        with broker.connect() as connection:
            delete_topic(connection, queue)

    async with app.testing(broker.bootstrap) as worker:
        await task.send(1)
        await running.wait()
        await anyio.to_thread.run_sync(delete)
        may_end.set()
        await until(lambda: not worker.statistics()[queue].running)
        await until(lambda: "does not exist any more" in caplog.text)
        before_s, started = time.process_time(), anyio.current_time()
        await anyio.sleep(0.5)
        assert time.process_time() - before_s < 0.4 * (anyio.current_time() - started)
    assert worker.statistics()[queue].succeeded == 0
    assert caplog.text.count(f"any more; the worker waits until it does: kbroker queues create {queue} ") == 1


async def test_brokers_can_tell_workers_apart(broker: RunningBroker, queue: str) -> None:
    named, app = App(client_id="mailer"), App()
    assert named.client_id == "mailer"

    @app.task(queue=queue)
    async def task(payload: object) -> None: ...

    def members() -> list[str]:
        with broker.connect() as connection:
            (group,) = describe_share_groups(connection, [queue])
        return [] if isinstance(group, KafkaError) else [each.client_id for each in group.members]

    async with app.testing(broker.bootstrap):
        found: list[str] = []
        with anyio.fail_after(30):
            while not found:
                found = await anyio.to_thread.run_sync(members)
                await anyio.sleep(0.02)
    assert found == [f"kbroker-worker-{socket.gethostname()}-{os.getpid()}"]


async def test_importing_workers_loads_no_broker_and_nothing_optional() -> None:
    heavy = ("kbroker", "numpy", "trio", "click", "prometheus_client", "opentelemetry", "multiprocessing")
    code = (
        "import sys, kbroker_client.worker.cli, kbroker_client.worker.prometheus, "
        "kbroker_client.worker.opentelemetry; "
        f"print([each for each in {heavy} if each in sys.modules])"
    )
    source = str(Path(__file__).parents[2] / "src")
    done = await anyio.run_process([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": source})
    assert done.stdout == b"[]\n"


async def test_running_jobs_are_drained_after_a_refused_log_in(
    broker: RunningBroker, new_queue: NewQueue
) -> None:
    """The error is there in each poll from now on."""
    app, done, began, queue = App(broker.bootstrap), [], anyio.Event(), new_queue()
    refused = NotAuthenticated("log-in refused: the password has changed")

    @app.task(queue=queue)
    async def task(payload: object) -> None:
        began.set()
        await anyio.sleep(0.5)
        done.append(payload)

    async with app, anyio.create_task_group() as tasks:
        service = Service(app, drain=10.0)

        async def refuse() -> None:
            await task.send(1)
            await began.wait()
            service._runners[0]._consumer._fail_for_good(refused)

        tasks.start_soon(refuse)
        with pytest.raises(NotAuthenticated) as error:
            await service.run()
    assert error.value is refused
    assert done == [1]
    async with app.testing(broker.bootstrap) as worker:
        assert await worker.drain() == [], "its outcome was stored"


@pytest.mark.parametrize(("apart_s", "ends"), [(0.1, False), (60.0, True)])
async def test_errors_end_a_worker_if_they_are_in_a_row(
    broker: RunningBroker, queue: str, monkeypatch: pytest.MonkeyPatch, apart_s: float, ends: bool
) -> None:
    """Not if they are a week apart, in a queue that was empty meanwhile."""
    monkeypatch.setattr(runner, "_ERRORS_S", apart_s)
    app, error = App(broker.bootstrap), KafkaError(ErrorCode.unknown_server_error, "full disk")

    @app.task(queue=queue)
    async def task(payload: object) -> None: ...

    async with app, anyio.create_task_group() as tasks:
        service = Service(app, drain=10.0)

        async def fail() -> None:
            await until(lambda: bool(service._runners))
            consumer = service._runners[0]._consumer
            for _ in range(3):
                consumer._fail(error)
                await until(lambda: not consumer._errors)
            service.stop()

        tasks.start_soon(fail)
        if ends:
            with pytest.raises(KafkaError):
                await service.run()
        else:
            await service.run()


async def test_a_test_that_does_not_start_leaves_no_hooks(broker: RunningBroker) -> None:
    app = App()

    @app.task(queue="not-there")
    async def task(payload: object) -> None: ...

    with pytest.raises(StartRefused):
        async with app.testing(broker.bootstrap):
            raise AssertionError("it has started")
    assert not any(app.hooks._hooks.values())
