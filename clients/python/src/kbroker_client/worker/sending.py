"""The connection over which an app sends jobs, and how a job's key, headers and time are sent."""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import datetime, timedelta
from types import TracebackType
from typing import Final, NamedTuple, Protocol, Self, TypeAlias

import anyio
import anyio.from_thread

from .._shared.errors import KafkaError
from ..background import Background
from ..cluster import Backoff, Cluster
from ..errors import BrokerUnreachable, ClientClosed, IllegalState, NotAuthenticated
from ..producer import Producer, Sent
from ..security import Security
from .hooks import Hooks
from .queue_facts import MISSING, check_scheduling, missing

logger = logging.getLogger(__name__)
_local = threading.local()

GivenHeaders: TypeAlias = Mapping[str, str | bytes | None] | Iterable[tuple[str, str | bytes | None]]
DELAY_HEADER: Final = "kbroker-delay-ms"
AT_HEADER: Final = "kbroker-deliver-at"


class Prepared(NamedTuple):
    """A job as it is sent. - `topic`: the queue's own, or that of another queue"""

    queue: str
    topic: str
    value: bytes
    key: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    is_delayed: bool


def in_job_thread() -> bool:
    """Not in a process that the job has forked: the worker's loop does not run there."""
    found: bool = getattr(_local, "process", None) == os.getpid()
    return found


@contextmanager
def as_job_thread() -> Iterator[None]:
    """This thread runs a job until the end of the block."""
    _local.process = os.getpid()
    try:
        yield
    finally:
        _local.process = None


class SendsNow(Protocol):
    """In place of a connection: the job runs at once, in its caller."""

    async def send(self, prepared: Prepared, /) -> Sent: ...

    def send_blocking(self, prepared: Prepared, /) -> Sent: ...


class Sends(Protocol):
    """What a task knows of its App."""

    @property
    def bootstrap(self) -> str | Sequence[str]: ...

    @bootstrap.setter
    def bootstrap(self, bootstrap: str | Sequence[str]) -> None: ...

    @property
    def eager_sender(self) -> SendsNow | None: ...

    @property
    def sender(self) -> Sender: ...

    def new_sender(self) -> Sender: ...


class Sender:
    """Use it with `async with`. Entering waits up to `wait_s` for a broker that cannot be reached,
    and then raises BrokerUnreachable; NotAuthenticated at once."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        client_id: str,
        security: Security,
        hooks: Hooks,
        wait_s: float,
    ) -> None:
        self._wait_s = wait_s
        self.cluster = Cluster(bootstrap, client_id, security)
        self._producer = Producer(bootstrap, client_id=client_id, security=security)
        self._hooks = hooks
        self._scheduling: set[str] = set()
        """Queues that delay jobs."""
        self._background = Background()
        """Of calls from threads."""
        self._thread: int | None = None

    async def __aenter__(self) -> Self:
        await self._connect()
        await self._background.open()
        self._thread = threading.get_ident()
        return self

    async def _connect(self) -> None:
        give_up_s = anyio.current_time() + self._wait_s
        backoff = Backoff()
        is_waiting = False
        while True:
            try:
                await self._producer.__aenter__()
                return
            except NotAuthenticated:
                raise
            except BrokerUnreachable as error:
                if anyio.current_time() >= give_up_s:
                    raise
                if not is_waiting:
                    logger.warning("waiting up to %g s for a broker: %s", self._wait_s, error)
                is_waiting = True
            await backoff.pause()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._background.cancel()
            await self._background.wait()
        finally:
            with anyio.CancelScope(shield=True):
                await self.cluster.close()
            await self._producer.__aexit__(kind, error, trace)

    def call_from_thread(self, call: Callable[[], Awaitable[Sent]]) -> Sent:
        """In a thread of anyio. Its job may have been given up: `anyio.from_thread.run` would run
        the call in the scope of that job, where it never ends, and keeps the loop busy."""
        answer: Future[Sent] = Future()

        async def call_and_answer() -> None:
            try:
                answer.set_result(await call())
            except anyio.get_cancelled_exc_class():
                answer.set_exception(ClientClosed("the app was closed; the job may have been sent"))
                raise
            except Exception as error:
                answer.set_exception(error)

        anyio.from_thread.run_sync(self._background.start, call_and_answer)
        return answer.result()

    async def send(self, job: Prepared) -> Sent:
        """Raises SchedulingOff, QueueMissing, IllegalState in another thread, and as
        Producer.send."""
        if threading.get_ident() != self._thread:
            raise IllegalState(
                "the app is connected in the event loop of another thread: here a plain function calls "
                "send_blocking"
            )
        if job.is_delayed and job.queue not in self._scheduling:
            await check_scheduling(self.cluster, job.queue, job.topic)
            self._scheduling.add(job.queue)
        headers = (*job.headers, *self._hooks.made_headers())
        try:
            return await self._producer.send(job.topic, job.value, key=job.key, headers=headers)
        except KafkaError as error:
            if error.code in MISSING:
                raise missing(job.topic) from error
            raise


def encoded(given: GivenHeaders) -> Iterator[tuple[str, bytes | None]]:
    """Raises TypeError."""
    for name, value in given.items() if isinstance(given, Mapping) else given:
        yield name, None if value is None else as_bytes(f"the header {name}", value)


def as_bytes(what: str, given: str | bytes) -> bytes:
    """Raises TypeError."""
    if isinstance(given, str):
        return given.encode()
    if not isinstance(given, bytes):
        raise TypeError(f"{what} is str or bytes, not {type(given).__name__}")
    return given


def schedule(delay: float | timedelta | None, at: datetime | None) -> tuple[tuple[str, bytes], ...]:
    """The headers. Raises ValueError."""
    if delay is not None and at is not None:
        raise ValueError("delay and at exclude each other")
    if at is not None:
        if at.tzinfo is None:
            raise ValueError("at needs a time zone, such as datetime.now(UTC)")
        return ((AT_HEADER, str(round(at.timestamp() * 1000)).encode()),)
    if delay is None:
        return ()
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
    if not 0 <= seconds < math.inf:
        raise ValueError(f"delay must be 0 seconds or more, not {seconds:g}")
    return ((DELAY_HEADER, str(round(seconds * 1000)).encode()),) if seconds else ()
