"""Exceptions of jobs that are made to be hard to handle: none may end the worker."""

from __future__ import annotations

import sys
import urllib.error
import urllib.request

import pytest

from clients.python.tests.worker.queues import NewQueue
from kbroker.testing.broker import RunningBroker
from kbroker_client.worker import App, Reject
from kbroker_client.worker.policies import failure_of, place_of

pytestmark = pytest.mark.anyio


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class Base(BaseException):
    pass


class Quitting(Exception):
    def __str__(self) -> str:
        raise SystemExit("no text")


class Text(str):
    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        raise ValueError("no bytes")


class WithText(Exception):
    def __str__(self) -> str:
        return Text("a text of its own kind")


class OutOfStock(Reject):
    def __init__(self, article: str) -> None:  # It does not call Reject's own.
        self.article = article


class Homeless(Exception):
    __module__ = None  # type: ignore[assignment]


def fail(how: str) -> None:
    match how:
        case "quitting":
            raise Quitting
        case "text":
            raise WithText
        case "derived":
            raise OutOfStock("spoons")
        case "class":
            raise Reject("not this", type=ValueError)  # type: ignore[arg-type]
        case "homeless":
            raise Homeless("from nowhere")
        case "mute":
            raise Mute
        case "base":
            raise Base("at the root")
        case "group":
            raise BaseExceptionGroup("both", [Base("one"), Base("two")])
        case "exit":
            sys.exit(3)


MESSAGES = {
    "mute": "(its text cannot be had: ValueError)",
    "base": "at the root",
    "group": "both (2 sub-exceptions)",
    "exit": "the job called exit(3)",
    "quitting": "(its text cannot be had: SystemExit)",
    "text": "a text of its own kind",
    "derived": "spoons",
    "class": "not this",
    "homeless": "from nowhere",
}


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
        for how in (*MESSAGES, "none"):
            await task.send(how)
        outcomes = await worker.drain()
    assert [each.outcome for each in outcomes] == ["rejected"] * len(MESSAGES) + ["succeeded"]
    assert [each.reason.message for each in outcomes if each.reason] == list(MESSAGES.values())
    assert all(each.reason is None or "in fail\n" in each.reason.traceback for each in outcomes)


def test_the_place_of_a_library_s_error() -> None:
    """It is where the program called the library, whatever the library has caught."""
    with pytest.raises(urllib.error.URLError) as raised:
        urllib.request.urlopen("http://127.0.0.1:1")
    failure, line = failure_of(raised.value), raised.tb.tb_lineno
    assert "another exception occurred" in failure.reason.traceback
    assert place_of(failure) == f" (test_odd_exceptions.py:{line})"


def test_a_traceback_that_cannot_be_formatted() -> None:
    try:
        raise SyntaxError("odd", ("file", 1, 1, 5))  # type: ignore[arg-type]
    except SyntaxError as error:
        reason = failure_of(error).reason
    assert reason.message.startswith("odd")
    assert "in test_a_traceback_that_cannot_be_formatted\n" in reason.traceback
