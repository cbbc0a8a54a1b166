"""Metrics of a worker for Prometheus; needs the package prometheus-client.

from kbroker_client.worker import prometheus

prometheus.install(app, port=9100)

kbroker_worker_jobs_total{queue,outcome}   succeeded, retried, rejected, lock_lost
kbroker_worker_job_seconds{queue}          how long jobs ran, those that failed too
kbroker_worker_running_jobs{queue}         jobs that run now
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from ..errors import ClientError
from .job import Job, JobEvent

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from .app import App

_OUTCOMES: Final = {
    "on_success": "succeeded",
    "on_retry": "retried",
    "on_reject": "rejected",
    "on_lock_lost": "lock_lost",
}
_BUCKETS: Final = (0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 3600.0)


def install(
    app: App,
    *,
    port: int | None = None,
    registry: CollectorRegistry | None = None,
    buckets: Sequence[float] = _BUCKETS,
) -> None:
    """Count the jobs of this process. `port`: also serve them there, at /metrics, on all addresses,
    while a worker runs; a sender or a job's process that imports the app serves nothing. Raises
    ImportError without prometheus-client."""
    try:
        import prometheus_client
    except ImportError as error:
        raise ImportError("metrics need a package: pip install prometheus-client") from error
    registry = prometheus_client.REGISTRY if registry is None else registry
    jobs = prometheus_client.Counter(
        "kbroker_worker_jobs", "Jobs by their outcome, as the broker has stored it.",
        ("queue", "outcome"), registry=registry,
    )  # fmt: skip
    seconds = prometheus_client.Histogram(
        "kbroker_worker_job_seconds", "How long jobs ran, whatever their outcome.",
        ("queue",), registry=registry, buckets=buckets,
    )  # fmt: skip
    running = prometheus_client.Gauge(
        "kbroker_worker_running_jobs", "Jobs that run now.", ("queue",), registry=registry
    )

    def counting(outcome: str) -> Callable[[JobEvent], None]:
        def count(event: JobEvent) -> None:
            jobs.labels(event.job.queue, outcome).inc()

        return count

    for name, outcome in _OUTCOMES.items():
        app.hooks.add(name, counting(outcome))

    def around(job: Job) -> AbstractContextManager[object]:
        stack = ExitStack()
        stack.enter_context(running.labels(job.queue).track_inprogress())
        stack.enter_context(seconds.labels(job.queue).time())
        return stack

    @contextmanager
    def from_zero() -> Iterator[None]:
        """A series that begins with 1 shows no increase."""
        for queue in app.tasks:
            for outcome in _OUTCOMES.values():
                jobs.labels(queue, outcome)
        yield

    app.around(around)
    app.hooks.while_running.append(from_zero)
    if port is not None:
        app.hooks.while_running.append(lambda: _served(port, registry))


@contextmanager
def _served(port: int, registry: CollectorRegistry) -> Iterator[None]:
    """Raises ClientError if the port cannot be had."""
    import prometheus_client

    try:
        server, thread = prometheus_client.start_http_server(port, registry=registry)
    except OSError as error:
        raise ClientError(
            f"metrics cannot be served on port {port}: {error.strerror}; "
            "each worker of a host needs a port of its own"
        ) from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
