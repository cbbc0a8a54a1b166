"""A span for each job; needs the package opentelemetry-api.

    from kbroker_client.worker import opentelemetry

    opentelemetry.install(app)

A job that is sent carries the trace of its sender in its headers (traceparent), and its span
continues that trace. Within the job its span is the current one, in threads too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from .job import Job

if TYPE_CHECKING:
    from .app import App

_SYSTEM: Final = "kafka"


def install(app: App, *, tracer_provider: Any = None) -> None:
    """`tracer_provider`: the global one if not given. Raises ImportError without
    opentelemetry-api."""
    try:
        from opentelemetry import propagate, trace
    except ImportError as error:
        raise ImportError("spans need a package: pip install opentelemetry-api") from error
    tracer = trace.get_tracer("kbroker_client.worker", tracer_provider=tracer_provider)

    @contextmanager
    def around(job: Job) -> Iterator[None]:
        context = propagate.extract(_texts(job))
        with tracer.start_as_current_span(
            f"process {job.queue}", context, trace.SpanKind.CONSUMER, attributes=_attributes(job)
        ):  # It records the exception of the job.
            yield

    def headers() -> Iterator[tuple[str, bytes]]:
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        return ((name, value.encode()) for name, value in carrier.items())

    app.around(around)
    app.send_headers(headers)


def _texts(job: Job) -> Mapping[str, str]:
    return {name: value.decode("utf-8", "replace") for name, value in job.headers if value is not None}


def _attributes(job: Job) -> Mapping[str, str | int]:
    return {
        "messaging.system": _SYSTEM,
        "messaging.operation.type": "process",
        "messaging.destination.name": job.topic,
        "messaging.destination.partition.id": str(job.partition),
        "messaging.kafka.offset": job.offset,
        "messaging.consumer.group.name": job.queue,
        "kbroker.job.attempt": job.attempt,
    }
