"""Workers at Apache Kafka, whose share groups have no settings of queues: the same outcomes, except
that a retry comes back at once, and that the reason of a reject goes to the log."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import anyio
import pytest

from clients.python.tests.targets import KAFKA, Target
from clients.python.tests.worker.queues import sleeper
from kbroker_client.worker import App, Job, Reject, Retry
from kbroker_client.worker.queue_facts import SchedulingOff
from tests.differential.apache_kafka import running_kafka

pytestmark = [pytest.mark.anyio, pytest.mark.full]
DRAIN_S = 60.0
"""A group of Kafka takes seconds to begin."""


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with running_kafka(tmp_path_factory.mktemp("kafka"), KAFKA) as port:
        yield Target(port, None)


@pytest.fixture
def kafka_queue(kafka: Target) -> str:
    """A topic, and the settings of the share group of the same name."""
    name = kafka.topic()
    kafka.configure(name, {"share.auto.offset.reset": "earliest", "share.record.lock.duration.ms": "1000"})
    return name


async def test_outcomes(kafka: Target, kafka_queue: str, caplog: pytest.LogCaptureFixture) -> None:
    app = App()

    @app.task(queue=kafka_queue, concurrency=4, retries=2, reject_on=(ValueError,))
    async def task(payload: str, job: Job) -> None:
        if payload == "retry" and job.attempt == 1:
            raise Retry("later")
        if payload == "fail":
            raise OSError("down")
        if payload == "poison":
            raise ValueError("no number")
        if payload == "reject":
            raise Reject("no use")

    async with app.testing(kafka.bootstrap) as worker:
        for payload in ("fine", "retry", "fail", "poison", "reject"):
            await task.send(payload)
        outcomes = await worker.drain(DRAIN_S)
    found: dict[object, list[str]] = {}
    for each in outcomes:
        found.setdefault(each.job.value, []).append(each.outcome)
    assert {key: found[key] for key in sorted(found, key=str)} == {
        b'"fail"': ["retried", "retried", "rejected"],
        b'"fine"': ["succeeded"],
        b'"poison"': ["rejected"],
        b'"reject"': ["rejected"],
        b'"retry"': ["retried", "succeeded"],
    }
    logged = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert len(logged) == 3
    assert any("ValueError: no number" in each and "Traceback" in each for each in logged)


@pytest.mark.parametrize("is_plain", [False, True])
async def test_a_job_outlasts_its_lock(kafka: Target, kafka_queue: str, is_plain: bool) -> None:
    app, attempts = App(), list[int]()
    task = app.task(queue=kafka_queue, concurrency=2)(sleeper(5, attempts, is_plain=is_plain))
    async with app.testing(kafka.bootstrap) as worker:
        await task.send(1)
        await task.send(2)
        outcomes = await worker.drain(DRAIN_S)
    assert [each.outcome for each in outcomes] == ["succeeded"] * 2
    assert attempts == [1, 1]


async def test_a_hung_job_ends_at_its_timeout(kafka: Target, kafka_queue: str) -> None:
    app = App()

    @app.task(queue=kafka_queue, timeout=1.5)
    async def task(payload: object, job: Job) -> None:
        if job.attempt == 1:
            await anyio.sleep_forever()

    async with app.testing(kafka.bootstrap) as worker:
        await task.send(1)
        outcomes = await worker.drain(DRAIN_S)
    assert [each.outcome for each in outcomes] == ["retried", "succeeded"]


async def test_a_delay_is_refused(kafka: Target, kafka_queue: str) -> None:
    app = App()

    @app.task(queue=kafka_queue)
    async def task(payload: object) -> None: ...

    async with app.testing(kafka.bootstrap):
        with pytest.raises(SchedulingOff, match="does not delay jobs"):
            await task.send(1, delay=1.0)


async def test_retries_above_the_limit_of_the_group(kafka: Target, kafka_queue: str) -> None:
    app = App()

    @app.task(queue=kafka_queue, retries=5)
    async def task(payload: object) -> None: ...

    with pytest.raises(Exception, match="retries"):
        async with app.testing(kafka.bootstrap):
            pass
