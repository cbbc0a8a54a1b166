"""What happens to a job, by what its function does: async functions."""

from __future__ import annotations

import logging

import pytest

from kbroker.testing.broker import RunningBroker
from kbroker_client import ShareConsumer
from kbroker_client.worker import App, Job, Reject, Retry
from kbroker_client.worker.policies import MAX_REASON_BYTES, Kind, failure_of
from kbroker_client.worker.queue_facts import look

pytestmark = pytest.mark.anyio


async def test_a_job_that_returns_is_done(broker: RunningBroker, queue: str) -> None:
    app, seen = App(), []

    @app.task(queue=queue)
    async def task(payload: object, job: Job) -> None:
        seen.append((payload, job.attempt, job.key))

    async with app.testing(broker.bootstrap) as worker:
        await task.send({"to": "ann"}, key="a")
        (done,) = await worker.drain()
        assert await worker.unfinished() == 0
    assert seen == [({"to": "ann"}, 1, b"a")]
    assert (done.outcome, done.reason, done.job.queue) == ("succeeded", None, queue)


async def test_a_failed_job_is_delivered_again(broker: RunningBroker, queue: str) -> None:
    app = App()

    @app.task(queue=queue)
    async def task(payload: object, job: Job) -> None:
        if job.attempt == 1:
            raise Retry("later")
        if job.attempt == 2:
            raise OSError("not there")

    async with app.testing(broker.bootstrap) as worker:
        await task.send(1)
        outcomes = await worker.drain()
    assert [each.outcome for each in outcomes] == ["retried", "retried", "succeeded"]
    assert [each.reason and each.reason[:2] for each in outcomes] == [
        ("Retry", "later"), ("OSError", "not there"), None,
    ]  # fmt: skip
    assert [each.job.attempt for each in outcomes] == [1, 2, 3]
    assert len({each.job.id for each in outcomes}) == 1


async def test_the_log_names_the_line_that_failed(
    broker: RunningBroker, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()

    @app.task(queue=queue, retries=2)
    async def task(payload: dict[str, str], job: Job) -> None:
        if job.attempt == 2:
            raise Retry("later")
        payload["to"].upper()

    line = task.function.__code__.co_firstlineno + 4
    with caplog.at_level(logging.DEBUG, logger="kbroker_client.worker.runner"):
        async with app.testing(broker.bootstrap) as worker:
            await task.send({})
            await worker.drain()
    lines = [record.getMessage().partition(" s: ")[2] for record in caplog.records if "attempt" in record.msg]
    assert lines == [
        f"KeyError: 'to' (test_outcomes.py:{line}); it is delivered again",
        "Retry: later; it is delivered again",
        f"KeyError: 'to' (test_outcomes.py:{line}); rejected",
    ]
    traces = [record.getMessage() for record in caplog.records if record.levelno == logging.DEBUG]
    assert f'{__file__}", line {line}, in task' in traces[0]


class Poison(Exception):
    pass


@pytest.mark.parametrize("error", [Reject("no such user"), Poison("no such user")])
async def test_a_rejected_job_ends(broker: RunningBroker, queue: str, error: Exception) -> None:
    app = App()

    @app.task(queue=queue, reject_on=Poison)
    async def task(payload: object) -> None:
        raise error

    async with app.testing(broker.bootstrap) as worker:
        await task.send(1)
        (outcome,) = await worker.drain()
    assert outcome.outcome == "rejected"
    assert outcome.reason is not None
    assert outcome.reason.message == "no such user"
    assert "in task" in outcome.reason.traceback


async def test_retries_are_counted(broker: RunningBroker, queue: str) -> None:
    app = App()

    @app.task(queue=queue, retries=2)
    async def task(payload: object) -> None:
        raise OSError("down")

    async with app.testing(broker.bootstrap) as worker:
        await task.send(1)
        outcomes = await worker.drain()
    assert [each.outcome for each in outcomes] == ["retried", "retried", "rejected"]


async def test_the_reason_of_a_dead_letter(
    broker: RunningBroker, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that stores reasons gets it, and of any other the log has it."""
    app = App()

    @app.task(queue=queue, retries=0)
    async def task(payload: object) -> None:
        raise Poison("\ud800" + "x" * 20_000)

    async with app.testing(broker.bootstrap) as worker:
        await task.send(1)
        await worker.drain()
        takes_reasons = (await look(app.sender.cluster, queue, queue)).takes_reasons
    broker.set_group_config(f"reader-{queue}", {"share.auto.offset.reset": "earliest"})
    async with ShareConsumer(broker.bootstrap, group=f"reader-{queue}", topics=[f"dlq.{queue}"]) as consumer:
        (letter,) = await consumer.poll(30)
    if takes_reasons:
        kind, message, trace = (
            letter.header(f"__kbroker.error.{name}") for name in ("type", "message", "traceback")
        )
        assert (kind or b"").endswith(b".Poison")
        assert (message or b"").startswith(b"?xxx")
        assert b"in task\n" in (trace or b"")
        assert len((kind or b"") + (message or b"") + (trace or b"")) <= MAX_REASON_BYTES
    else:
        (record,) = (each for each in caplog.records if each.levelno == logging.ERROR)
        assert "Poison: ?xxx" in record.getMessage()
        assert "Traceback" in record.getMessage()
        assert "in task\n" in record.getMessage()


def test_a_reason_is_bounded() -> None:
    try:
        raise ExceptionGroup("tasks", [ExceptionGroup("tasks", [Poison("ä" * 5000)])])
    except ExceptionGroup as error:
        failure = failure_of(error, (Poison,))
    assert failure.kind is Kind.REJECT
    assert failure.reason.type.endswith("Poison")
    assert failure.reason.message == "ä" * 512
    assert 8000 < len("".join(failure.reason).encode()) <= MAX_REASON_BYTES
    assert failure_of(Reject("no", type="Gone")).reason[:2] == ("Gone", "no")
    with pytest.raises(Reject) as rejected:
        raise Reject from Poison("the cause")
    assert failure_of(rejected.value).reason.message == "the cause"
