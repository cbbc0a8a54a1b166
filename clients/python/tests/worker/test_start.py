"""What a worker checks before it starts, and what a task's declaration refuses."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from clients.python.tests.worker.queues import NewQueue
from kbroker.client.broker_process import free_port
from kbroker.testing.broker import RunningBroker
from kbroker_client.errors import BrokerUnreachable, IllegalState, TimedOut
from kbroker_client.worker import App, Job, QueueMissing, SchedulingOff, StartRefused
from kbroker_client.worker.service import Service

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio


async def test_a_missing_queue(broker: RunningBroker) -> None:
    app = App(broker.bootstrap)

    @app.task(queue="not-there")
    async def task(payload: object) -> None:
        pass

    with pytest.raises(StartRefused, match=r"^the queue not-there does not exist: kbroker queues create"):
        await app.serve()
    async with app:
        for delay in (None, 1):
            with pytest.raises(QueueMissing, match="not-there does not exist: kbroker queues create"):
                await task.send(1, delay=delay)


async def test_retries_within_the_queues_limit(broker: RunningBroker, new_queue: NewQueue) -> None:
    queue = new_queue({"share.delivery.count.limit": "3"})
    app = App(broker.bootstrap)

    @app.task(queue=queue, retries=3)
    async def task(payload: object) -> None:
        pass

    with pytest.raises(StartRefused) as refused:
        await app.serve()
    assert str(refused.value) == (
        f"{task.name} has retries=3, but the queue {queue} delivers a job 3 times: "
        f"kbroker queues create {queue} --deliveries 4 --update, or retries=2"
    )


async def test_a_plain_share_group(
    broker: RunningBroker, new_queue: NewQueue, caplog: pytest.LogCaptureFixture
) -> None:
    queue, app = new_queue(), App()

    @app.task(queue="plain", topic=queue)
    async def plain(payload: object) -> None: ...

    @app.task(queue=queue)
    async def task(payload: object) -> None: ...

    async with app.testing(broker.bootstrap):
        pass
    (line,) = [record.getMessage() for record in caplog.records if "settings of a queue" in record.msg]
    assert line.startswith("the group plain lacks the settings of a queue")
    assert line.endswith("kbroker queues create plain --update")


async def test_the_limit_of_a_plain_share_group(broker: RunningBroker, new_queue: NewQueue) -> None:
    """Without a setting of its own it has the broker's, 5."""
    app = App(broker.bootstrap)

    @app.task(queue="plain-group", topic=new_queue(), retries=5)
    async def task(payload: object) -> None:
        pass

    with pytest.raises(StartRefused, match="delivers a job 5 times"):
        await app.serve()


async def test_without_retries_the_queue_counts(broker: RunningBroker, new_queue: NewQueue) -> None:
    app = App()

    @app.task(queue=new_queue({"share.delivery.count.limit": "2"}))
    async def task(payload: object) -> None:
        raise OSError("down")

    async with app.testing(broker.bootstrap) as worker:
        await task.send(1)
        outcomes = await worker.drain()
    assert [each.outcome for each in outcomes] == ["retried", "rejected"]


async def test_a_job_that_was_delivered_too_often_is_not_run(broker: RunningBroker, queue: str) -> None:
    app, other, runs = App(), App(), []

    @app.task(queue=queue)
    async def failing(payload: object) -> None:
        runs.append(1)
        if len(runs) < 3:
            raise OSError("down")
        await anyio.sleep_forever()

    @other.task(queue=queue, retries=1)
    async def strict(payload: object) -> None:
        runs.append(2)

    async with app.testing(broker.bootstrap) as worker:
        await failing.send(1)
        with pytest.raises(TimedOut):
            await worker.drain(1.0)
    assert runs == [1, 1, 1]
    async with other.testing(broker.bootstrap) as worker:
        (outcome,) = await worker.drain()
    assert runs == [1, 1, 1]
    assert outcome.outcome == "rejected"
    assert outcome.reason is not None
    assert outcome.reason[:2] == (
        "RetriesExhausted", "delivered 4 times, and retries=1 allows 2; this time it was not run",
    )  # fmt: skip


async def test_concurrency_beyond_the_prefetch(
    broker: RunningBroker, new_queue: NewQueue, caplog: pytest.LogCaptureFixture
) -> None:
    queue = new_queue({"kbroker.queue.prefetch": "2"})
    app, running, most = App(), 0, 0

    @app.task(queue=queue, concurrency=8)
    async def task(payload: object) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await anyio.sleep(0.02)
        running -= 1

    with caplog.at_level(logging.WARNING):
        async with app.testing(broker.bootstrap) as worker:
            for number in range(6):
                await task.send(number)
            await worker.drain()
    assert most == 2
    assert f"kbroker queues create {queue} --prefetch 8 --update" in caplog.text


async def test_delays(broker: RunningBroker, new_queue: NewQueue) -> None:
    app, seen = App(), []

    @app.task(queue=new_queue())
    async def task(payload: object) -> None:
        seen.append(payload)

    @app.task(queue=new_queue({"kbroker.queue.scheduling": "false"}))
    async def at_once(payload: object) -> None:
        pass

    async with app.testing(broker.bootstrap) as worker:
        started = anyio.current_time()
        await task.send("later", delay=timedelta(seconds=1))
        await task.send("at", at=datetime.now(UTC) + timedelta(seconds=0.5))
        await task.send("now", delay=0)
        await worker.drain()
        assert seen == ["now", "at", "later"]
        assert anyio.current_time() - started >= 1.0
        with pytest.raises(SchedulingOff, match="--scheduling true --update"):
            await at_once.send(1, delay=1)
        await at_once.send(1)
        await worker.drain()
        await task.send("much later", delay=3600)
        assert await worker.drain(leave=1) == []
        with pytest.raises(TimedOut, match=r"^1 jobs are unfinished after 0.2 s; so far: nothing happened$"):
            await worker.drain(0.2)
        with pytest.raises(ValueError, match="time zone"):
            await task.send(1, at=datetime(2030, 1, 1))
        with pytest.raises(ValueError, match="exclude"):
            await task.send(1, delay=1, at=datetime.now(UTC))
        for wrong in (-1, math.inf, math.nan):
            with pytest.raises(ValueError, match="delay must be"):
                await task.send(1, delay=wrong)


async def test_no_broker() -> None:
    app = App(f"127.0.0.1:{free_port()}", connect_timeout=0)

    @app.task(queue="jobs")
    async def task(payload: object) -> None:
        pass

    with pytest.raises(IllegalState, match="async with app"):
        await task.send(1)
    with pytest.raises(BrokerUnreachable, match="is the broker running there"):
        await app.serve()


@pytest.mark.parametrize("wrong", ["kafka://localhost:9092", "amqp://guest@localhost//", "localhost:x"])
def test_what_is_no_address(wrong: str) -> None:
    with pytest.raises(ValueError, match="is not an address of a broker, such as"):
        App(wrong)


@dataclass
class Bad:
    field: set[int]


def test_declarations() -> None:
    app = App()

    def refused(error: type[Exception], text: str, function: Any, **options: Any) -> None:
        with pytest.raises(error, match=text):
            app.task(**{"queue": "jobs", **options})(function)

    async def task(payload: object) -> None: ...
    def plain(payload: object) -> None: ...
    async def nothing() -> None: ...
    async def three(payload: object, job: object, more: object) -> None: ...
    async def unknown(payload: Path) -> None: ...
    async def badly_typed(payload: Bad) -> None: ...
    async def turned(job: Job, payload: dict[str, str]) -> None: ...
    async def two_texts(to: str, subject: str = "") -> None: ...
    async def two_classes(one: Bad, other: Bad) -> None: ...

    refused(ValueError, "name of a queue", task, queue="")
    refused(ValueError, "concurrency", task, concurrency=0)
    refused(ValueError, "concurrency must be a whole number, 1 or more, not inf", task, concurrency=math.inf)
    refused(ValueError, "retries must be a whole number, 0 or more, not 1.5", task, retries=1.5)
    refused(ValueError, "timeout must be", task, timeout=0)
    refused(TypeError, "timeout must be seconds, not None; math.inf is no limit", task, timeout=None)
    refused(ValueError, "retries", task, retries=-1)
    refused(TypeError, "reject_on has exception classes", task, reject_on=(ValueError("x"),))
    refused(ValueError, "no mode", task, mode="thread")
    refused(TypeError, "reject_on has exception classes", task, reject_on=int)
    refused(ValueError, 'not "thread" or "process"', plain, mode="fork")
    refused(ValueError, "define it in a module", plain, mode="process")
    refused(TypeError, "must take the payload", nothing)
    refused(TypeError, "must take the payload", three)
    refused(TypeError, "must take the payload first, and the job second", turned)
    refused(TypeError, "`subject` cannot be a str; put several values into one", two_texts)
    refused(TypeError, "`other` cannot be a Bad; put several values into one", two_classes)
    refused(TypeError, "outside of TYPE_CHECKING", unknown)
    refused(TypeError, r"Bad.field: set\[int\] is not a type", badly_typed)
    bare: Any = app.task
    for arguments in ({}, {"queue": "jobs"}):
        with pytest.raises(TypeError, match=r"queue"):
            bare(plain, **arguments)
    assert app.tasks == {}
    app.task(queue="jobs")(task)
    refused(ValueError, "has the task .*task already", plain)
    with pytest.raises(ValueError, match=r"queues is a list of names, not a name: \['jobs'\]"):
        Service(app, queues="jobs", drain=1)
    with pytest.raises(StartRefused, match="no task has the queue mails; the app's queues are jobs"):
        Service(app, queues=["mails"], drain=1)


def test_names_of_other_libraries_lead_to_send() -> None:
    @App("127.0.0.1:1").task(queue="any")
    async def task(payload: object) -> None:
        pass

    for name in ("delay", "apply_async"):
        with pytest.raises(AttributeError, match=r"`await task\.send\(payload\)` sends a job"):
            getattr(task, name)
    assert not hasattr(task, "sned")
