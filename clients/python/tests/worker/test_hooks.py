"""Hooks, what runs around jobs, metrics and spans."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import anyio
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from clients.python.tests.worker.queues import until
from kbroker.testing.broker import RunningBroker
from kbroker_client.worker import App, Job, JobEvent, Reject, prometheus

pytestmark = pytest.mark.anyio


async def test_hooks_and_what_is_around(
    broker: RunningBroker, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    app, seen = App(), []

    def note(name: str) -> object:
        def hook(event: JobEvent) -> None:
            seen.append((name, event.job.attempt, type(event.error).__name__))

        return hook

    for name in ("on_start", "on_success", "on_retry", "on_reject", "on_lock_lost"):
        getattr(app, name)(note(name))

    @app.on_start
    def bad_hook(event: JobEvent) -> None:
        raise RuntimeError("a mistake in a hook")

    @app.on_start
    def hook_that_exits(event: JobEvent) -> None:
        sys.exit("a mistake in a hook")

    @app.around
    @contextmanager
    def around(job: Job) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            seen.append(("around", job.attempt, str(error)))
            raise

    @app.task(queue=queue)
    async def task(payload: object, job: Job) -> None:
        if job.attempt == 1:
            raise OSError("down")
        if payload == "bad":
            raise Reject("no use")

    async with app.testing(broker.bootstrap) as worker:
        await task.send("good")
        await worker.drain()
        assert seen == [
            ("on_start", 1, "NoneType"), ("around", 1, "down"), ("on_retry", 1, "OSError"),
            ("on_start", 2, "NoneType"), ("on_success", 2, "NoneType"),
        ]  # fmt: skip
        await task.send("bad")
        await worker.drain()
        assert seen[-2:] == [("on_start", 2, "NoneType"), ("on_reject", 2, "Reject")]
    assert "the hook on_start of job" in caplog.text
    assert "a mistake in a hook" in caplog.text


async def test_an_around_may_take_a_failure_upon_itself(broker: RunningBroker, queue: str) -> None:
    app = App()
    app.around(lambda job: suppress(OSError))

    @app.task(queue=queue, retries=0)
    async def task(payload: object) -> None:
        raise OSError("down")

    async with app.testing(broker.bootstrap) as worker:
        await task.send(1)
        (done,) = await worker.drain()
    assert (done.outcome, done.reason) == ("succeeded", None)


def test_what_is_no_hook() -> None:
    app = App()

    async def on_loop(event: object) -> None: ...

    def without_manager(job: Job) -> Iterator[None]:
        yield

    @asynccontextmanager
    async def entered_on_loop(job: Job) -> AsyncIterator[None]:
        yield

    with pytest.raises(TypeError, match=r"on_reject calls .*on_loop without await: it must be a plain"):
        app.on_reject(on_loop)
    for around in (on_loop, without_manager, entered_on_loop):
        with pytest.raises(TypeError, match=r"must make a context manager, without async: @contextmanager"):
            app.around(around)  # type: ignore[arg-type]


async def test_metrics(broker: RunningBroker, queue: str) -> None:
    app, registry = App(), CollectorRegistry()
    prometheus.install(app, registry=registry)
    may_end = anyio.Event()

    @app.task(queue=queue, concurrency=2)
    async def task(payload: object, job: Job) -> None:
        if payload == "wait":
            await may_end.wait()
        elif job.attempt == 1:
            raise OSError("down")

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"kbroker_worker_{name}", {"queue": queue, **labels})

    async with app.testing(broker.bootstrap) as worker:
        await task.send("wait")
        await until(lambda: value("running_jobs") == 1.0)
        may_end.set()
        await task.send("fail")
        await worker.drain()
    assert value("running_jobs") == 0.0
    assert value("jobs_total", outcome="succeeded") == 2.0
    assert value("jobs_total", outcome="retried") == 1.0
    assert value("job_seconds_count") == 3.0
    assert b"kbroker_worker_job_seconds_bucket" in generate_latest(registry)


async def test_spans(broker: RunningBroker, queue: str) -> None:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from kbroker_client.worker import opentelemetry

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    app, current = App(), []
    opentelemetry.install(app, tracer_provider=provider)

    @app.task(queue=queue)
    def task(payload: object, job: Job) -> None:
        current.append(trace.get_current_span().get_span_context().span_id)
        if job.attempt == 1:
            raise OSError("down")

    async with app.testing(broker.bootstrap) as worker:
        with provider.get_tracer("test").start_as_current_span("sender") as sender:
            await task.send(1)
        await worker.drain()
    _, failed, done = exporter.get_finished_spans()
    assert {each.context.trace_id for each in (failed, done)} == {sender.get_span_context().trace_id}
    assert [each.context.span_id for each in (failed, done)] == current
    assert [each.name for each in (failed, done)] == [f"process {queue}"] * 2
    assert (failed.status.is_ok, done.status.is_ok) == (False, True)
    assert failed.events[0].name == "exception"
    assert done.attributes["kbroker.job.attempt"] == 2
