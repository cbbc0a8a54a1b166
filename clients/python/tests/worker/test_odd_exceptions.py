"""Exceptions of jobs that are made to be hard to handle: none may end the worker."""

from __future__ import annotations

import sys

import pytest

from clients.python.tests.worker.queues import NewQueue
from kbroker.testing.broker import RunningBroker
from kbroker_client.worker import App
from kbroker_client.worker.policies import failure_of

pytestmark = pytest.mark.anyio


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class Base(BaseException):
    pass


def fail(how: str) -> None:
    match how:
        case "mute":
            raise Mute
        case "base":
            raise Base("at the root")
        case "group":
            raise BaseExceptionGroup("both", [Base("one"), Base("two")])
        case "exit":
            sys.exit(3)


@pytest.mark.parametrize("is_plain", [False, True])
async def test_they_fail_the_job_only(broker: RunningBroker, new_queue: NewQueue, is_plain: bool) -> None:
    app, queue = App(), new_queue()

    if is_plain:

        @app.task(queue=queue, retries=0)
        def task(how: str) -> None:
            fail(how)

    else:

        @app.task(queue=queue, retries=0)
        async def task(how: str) -> None:
            fail(how)

    async with app.testing(broker.bootstrap) as worker:
        for how in ("mute", "base", "group", "exit", "none"):
            await task.send(how)
        outcomes = await worker.drain()
    assert [each.outcome for each in outcomes] == ["rejected"] * 4 + ["succeeded"]
    messages = [each.reason.message for each in outcomes if each.reason]
    assert messages == [
        "(its text cannot be had: ValueError)", "at the root", "both (2 sub-exceptions)",
        "the job called exit(3)",
    ]  # fmt: skip
    assert all(each.reason is None or "in fail\n" in each.reason.traceback for each in outcomes)


def test_a_traceback_that_cannot_be_formatted() -> None:
    try:
        raise SyntaxError("odd", ("file", 1, 1, 5))  # type: ignore[arg-type]
    except SyntaxError as error:
        reason = failure_of(error).reason
    assert reason.message.startswith("odd")
    assert "in test_a_traceback_that_cannot_be_formatted\n" in reason.traceback
