"""Functions that only look like jobs, and jobs that raise what is hardly an error."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from clients.python.tests.worker.queues import NewQueue
from kbroker.testing.broker import RunningBroker
from kbroker_client.worker import App

pytestmark = pytest.mark.anyio


def test_a_generator_is_no_task() -> None:
    """Calling it would do nothing, and count as done."""
    app = App()

    def plain(payload: object) -> Iterator[int]:
        yield 1

    async def on_the_loop(payload: object) -> AsyncIterator[int]:
        yield 1

    for function in (plain, on_the_loop):
        with pytest.raises(TypeError, match="has a yield"):
            app.task(queue="jobs")(function)


def _decorator(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(*arguments: Any) -> Any:
        return function(*arguments)

    return wrapped


@pytest.mark.parametrize("kind", ["coroutine", "generator"])
async def test_a_decorator_hides_that_a_function_is_not_plain(
    broker: RunningBroker, queue: str, kind: str
) -> None:
    async def coroutine(payload: object) -> None:
        pass

    def generator(payload: object) -> Iterator[int]:
        yield 1

    app = App()
    task = app.task(queue=queue, retries=0)(_decorator(coroutine if kind == "coroutine" else generator))
    async with app.testing(broker.bootstrap) as worker:
        await task.send(1)
        (outcome,) = await worker.drain()
    assert outcome.outcome == "rejected"
    assert outcome.reason is not None
    assert f"returned a {kind} instead of doing the job" in outcome.reason.message


async def test_a_decorated_function_has_the_names_of_its_own_module(
    broker: RunningBroker, queue: str
) -> None:
    """The annotation is a text, and `wraps` does not copy globals and enclosed variables."""

    @dataclass
    class Here:
        to: str

    def plain(payload: Here) -> None:
        assert payload == Here("ann")

    app = App()
    task = app.task(queue=queue)(_decorator(plain))
    async with app.testing(broker.bootstrap) as worker:
        await task.send(Here("ann"))
        (outcome,) = await worker.drain()
    assert outcome.outcome == "succeeded"


class Appender:
    def __init__(self, seen: list[object]) -> None:
        self._seen = seen

    def __call__(self, payload: object) -> None:
        self._seen.append(payload)


async def test_functions_without_a_name(broker: RunningBroker, new_queue: NewQueue) -> None:
    app, seen = App(), []

    async def append(payload: object, *, to: list[object]) -> None:
        to.append(payload)

    tasks = [
        app.task(queue=new_queue())(each) for each in (Appender(seen), functools.partial(append, to=seen))
    ]
    assert [each.name for each in tasks] == ["Appender", "partial"]
    async with app.testing(broker.bootstrap) as worker:
        for task in tasks:
            await task.send("once")
        await worker.drain()
    assert seen == ["once"] * 2
