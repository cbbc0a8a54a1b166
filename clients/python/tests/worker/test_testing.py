"""What tests of workers use: where an app connects, `with app.testing(...)`, `with app.eager()`.

Also how long an app waits for a broker.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from clients.python.tests.worker.queues import QUICK, NewQueue, until
from kbroker.client.broker_process import free_port
from kbroker.testing.broker import RunningBroker, open_test_broker
from kbroker_client.errors import BrokerUnreachable, IllegalState, NotAuthenticated
from kbroker_client.producer import Sent
from kbroker_client.security import Security
from kbroker_client.worker import App, Job, Reject, Unreadable, testing
from kbroker_client.worker.cli import main
from kbroker_client.worker.redirection import redirected


def nowhere() -> str:
    return f"127.0.0.1:{free_port()}"


# -- where an app connects
# --------------------------------------------------------------------------------------------------


def test_the_environment_is_read_when_an_app_connects(
    broker: RunningBroker, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when its module is imported: a test sets it later."""
    monkeypatch.setenv("KBROKER_BOOTSTRAP", nowhere())
    app = App(connect_timeout=0)

    @app.task(queue=queue)
    def task(payload: object) -> None: ...

    with pytest.raises(BrokerUnreachable):
        task.send_blocking(1)
    monkeypatch.setenv("KBROKER_BOOTSTRAP", broker.bootstrap)
    assert task.send_blocking(1).topic == queue


def test_an_environment_that_is_no_address(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    app = App()
    monkeypatch.setenv("KBROKER_BOOTSTRAP", "kafka://broker")
    with pytest.raises(ValueError, match="KBROKER_BOOTSTRAP: 'kafka://broker' is not an address"):
        _ = app.bootstrap
    assert main(["run", f"{__name__}:IDLE"]) == 2
    assert "KBROKER_BOOTSTRAP: 'kafka://broker' is not an address" in capsys.readouterr().err


IDLE = App()


@pytest.mark.anyio
async def test_every_app_is_redirected(broker: RunningBroker, queue: str) -> None:
    named, unnamed = App("127.0.0.1:1", connect_timeout=0), App(connect_timeout=0)
    tasks = [app.task(queue=queue)(lambda payload: None) for app in (named, unnamed)]
    with redirected(broker.bootstrap):
        for task in tasks:
            async with task.app:
                assert (await task.send(1)).topic == queue
            with pytest.raises(BrokerUnreachable):
                async with task.app.testing(nowhere()):
                    pass
    with pytest.raises(BrokerUnreachable):
        await named.__aenter__()


# -- a test without a loop
# --------------------------------------------------------------------------------------------------


def test_a_worker_in_a_test_without_a_loop(broker: RunningBroker, queue: str) -> None:
    app, seen = App(connect_timeout=0), []

    @app.task(queue=queue, retries=0)
    async def task(payload: int) -> None:
        seen.append(payload)
        if payload == 2:
            raise Reject("no")

    with app.testing(broker.bootstrap) as worker:
        task.send_blocking(1)
        assert [each.outcome for each in worker.drain()] == ["succeeded"]
        task.send_blocking(2)
        assert [each.outcome for each in worker.drain()] == ["rejected"]
        assert (worker.unfinished(), worker.left) == (0, 0)
        assert worker.statistics()[queue].succeeded == 1
    assert seen == [1, 2]
    with pytest.raises(BrokerUnreachable), app.testing(nowhere()):
        pass


# -- eager
# --------------------------------------------------------------------------------------------------


@dataclass
class Order:
    number: int


class Shop:
    """Tasks of each kind, and what they have done."""

    def __init__(self) -> None:
        self.app = app = App(nowhere())
        self.seen: list[object] = []

        @app.task(queue="orders")
        async def order(payload: Order, job: Job) -> None:
            self.seen.append((payload, job.attempt, job.key, job.header("shop"), job.header("added")))
            if payload.number == 0:
                raise LookupError("no such order")

        @app.task(queue="audit", topic="orders")
        def audit(payload: object, job: Job) -> None:
            self.seen.append(("audit", job.queue, payload, threading.get_ident()))

        @app.task(queue="batches", mode="thread")
        def batch(payload: list[int]) -> None:
            for number in payload:
                order.send_blocking(Order(number))

        @app.around
        @contextmanager
        def around(job: Job) -> Iterator[None]:
            self.seen.append(f"around {job.queue}")
            yield

        app.send_headers(lambda: [("added", b"yes")])
        app.on_success(lambda event: self.seen.append("never"))
        self.order, self.batch = order, batch


@pytest.mark.anyio
async def test_eager_jobs(anyio_backend: str) -> None:
    shop = Shop()
    with shop.app.eager():
        async with shop.app:  # As a web application does: there is no broker.
            sent = await shop.order.send(Order(7), key="k", delay=60, headers={"shop": "a"})
        assert (sent, await shop.order.send({"number": 8})) == (Sent("orders", 0, 0), Sent("orders", 0, 1))
        with pytest.raises(IllegalState, match="would block the event loop"):
            shop.order.send_blocking(Order(9))
    assert shop.seen[:2] == ["around orders", (Order(7), 1, b"k", b"a", b"yes")]
    assert shop.seen[2] == "around audit"
    with pytest.raises(IllegalState, match="async with app"):
        await shop.order.send(Order(7))
    shop.seen.clear()
    with shop.app.eager():
        await shop.batch.send([1, 2])
    assert [each[0] for each in shop.seen if isinstance(each, tuple)] == [
        Order(1),
        "audit",
        Order(2),
        "audit",
    ]


def test_eager_jobs_without_a_loop() -> None:
    shop = Shop()
    with shop.app.eager():
        shop.batch.send_blocking([5])
        assert shop.seen[0] == "around batches"
        assert ("audit", "audit", {"number": 5}, threading.get_ident()) in shop.seen
        with pytest.raises(LookupError, match="no such order"):
            shop.order.send_blocking(Order(0))
        with pytest.raises(Unreadable, match="number"):
            shop.order.send_blocking({"amount": 1})


# -- a broker that is away
# --------------------------------------------------------------------------------------------------


def test_send_blocking_waits_for_the_broker(caplog: pytest.LogCaptureFixture) -> None:
    with open_test_broker(storage="segment") as broker:
        broker.create_queue("jobs", QUICK)
        broker.stop()
        app, sent = App(broker.bootstrap), []

        @app.task(queue="jobs")
        def task(payload: object) -> None: ...

        sender = threading.Thread(target=lambda: sent.append(task.send_blocking(1)))
        sender.start()
        anyio.run(until, lambda: "waiting up to 30 s for a broker: cannot connect to" in caplog.text)
        broker.restart()
        sender.join(60)
        assert sent == [Sent("jobs", 0, 0)]


@pytest.mark.anyio
async def test_an_app_waits_for_the_broker(caplog: pytest.LogCaptureFixture) -> None:
    with open_test_broker(storage="memory") as broker:
        broker.stop()

        async def restart() -> None:
            await until(lambda: "waiting up to 30 s" in caplog.text)
            await anyio.to_thread.run_sync(broker.restart)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(restart)
            async with App(broker.bootstrap):
                assert broker.is_running


@pytest.mark.anyio
async def test_no_further_than_its_bound(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(BrokerUnreachable, match="is the broker running"):
        await App(nowhere(), connect_timeout=0).__aenter__()
    assert caplog.text == ""
    with pytest.raises(BrokerUnreachable, match="is the broker running"):
        await App(nowhere(), connect_timeout=0.2).__aenter__()
    assert caplog.text.count("waiting up to 0.2 s") == 1
    for wrong in (-1, float("nan")):
        with pytest.raises(ValueError, match="connect_timeout must be 0 seconds or more"):
            App(connect_timeout=wrong)


@pytest.mark.anyio
async def test_a_wrong_password_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    with open_test_broker(protocol="SASL_PLAINTEXT") as broker:
        security = Security(mechanism="PLAIN", username="admin", password="wrong")
        with pytest.raises(NotAuthenticated):
            await App(broker.bootstrap, security=security).__aenter__()
    assert "waiting up to" not in caplog.text


@pytest.mark.anyio
async def test_drain_waits_for_what_a_job_sent_meanwhile(
    broker: RunningBroker, new_queue: NewQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job ends after drain() has looked at the queue that it sends another to. The delay keeps
    that one in the queue."""
    app, done = App(broker.bootstrap), list[str]()
    may_send, has_sent = anyio.Event(), anyio.Event()

    @app.task(queue=new_queue())
    async def second(payload: object) -> None:
        done.append("second")

    @app.task(queue=new_queue())
    async def first(payload: object) -> None:
        await may_send.wait()
        await second.send(payload, delay=1)
        done.append("first")
        has_sent.set()

    async with app.testing(broker.bootstrap) as worker:
        read_rows = testing._rows

        async def rows(*place: Any) -> Any:
            found = await read_rows(*place)
            if not may_send.is_set():
                may_send.set()
                await has_sent.wait()
                await until(lambda: not worker._service.is_busy)
            return found

        await first.send(1)
        monkeypatch.setattr(testing, "_rows", rows)
        await worker.drain()
    assert done == ["first", "second"]
