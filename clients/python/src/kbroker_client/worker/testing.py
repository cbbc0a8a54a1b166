"""Workers in tests: the tasks of an app, at a real broker, one `drain` at a time.

@pytest.mark.anyio
async def test_the_invoice_is_sent(kbroker):
    kbroker.create_queue("emails")
    async with app.testing(kbroker.bootstrap) as worker:
        await emails.send({"to": "ann@example.com"})
        (done,) = await worker.drain()
    assert done.outcome == "succeeded"

def test_the_same_without_a_loop(kbroker):
    kbroker.create_queue("emails")
    with app.testing(kbroker.bootstrap) as worker:
        emails.send_blocking({"to": "ann@example.com"})
        (done,) = worker.drain()
    assert done.outcome == "succeeded"
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from .._shared.client.answers import lacking
from .._shared.errors import ErrorCode, KafkaError
from .._shared.share.reasons import Reason
from ..background import Background
from ..connection import Connection
from ..errors import BrokerUnreachable, TimedOut
from .hooks import Hook
from .job import Job, JobEvent
from .redirection import Place
from .runner import Statistics
from .service import Service

if TYPE_CHECKING:
    from .task import Program

_OUTCOMES: Final = {
    "on_success": "succeeded",
    "on_retry": "retried",
    "on_reject": "rejected",
    "on_lock_lost": "lock lost",
}
_LOOK_S: Final = 0.02
_DRAIN_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened to a job: `outcome` is succeeded, retried, rejected or lock lost."""

    outcome: str
    job: Job
    seconds: float
    reason: Reason | None
    error: BaseException | None


class TestWorker:
    """Works on the queues, from the start of the `async with` block to its end."""

    __test__ = False  # For pytest, which would collect it.

    def __init__(self, app: Program, service: Service) -> None:
        self._app = app
        self._service = service
        self._outcomes: deque[Outcome] = deque()
        self._connections: dict[str, Connection] = {}

    def statistics(self) -> Mapping[str, Statistics]:
        """By queue."""
        return self._service.statistics()

    async def drain(self, timeout_s: float = 30.0, *, leave: int = 0) -> list[Outcome]:
        """Wait until all jobs in the queues are done or given up, except `leave` of them, such as
        jobs that were sent with a delay. Returns what happened to each since the last call, also
        each retry, in order. Raises TimedOut, with what is left."""
        left: int | None = None
        with anyio.move_on_after(timeout_s):
            while True:
                ended = len(self._outcomes)
                left = await self._left()
                # A job that has ended meanwhile may have sent another, to a queue looked at before.
                is_idle = not self._service.is_busy and len(self._outcomes) == ended
                if left is not None and left <= leave and is_idle:
                    break
                await anyio.sleep(_LOOK_S)
            found = list(self._outcomes)
            self._outcomes.clear()
            return found
        raise TimedOut(
            f"{'?' if left is None else left} jobs are unfinished after {timeout_s:g} s; so far: "
            + (", ".join(f"{each.job.id} {each.outcome}" for each in self._outcomes) or "nothing happened")
        )

    @property
    def left(self) -> int:
        """Threads that continue although their jobs were ended."""
        return self._service.left

    async def _left(self) -> int | None:
        """None while the broker cannot be reached: a test may restart it."""
        try:
            return await self.unfinished()
        except BrokerUnreachable:
            return None

    async def unfinished(self) -> int | None:
        """Jobs that are neither done nor given up, in these queues, also those that are delayed.
        None: a group has not begun with one of its partitions. Raises BrokerUnreachable."""
        found = 0
        for task in self._service.tasks:
            topic = self._app.sender.cluster.topic(task.options.topic)
            connection = self._connections.get(task.queue)
            if connection is None or connection.is_closed:
                connection = await self._app.sender.cluster.connect_to_coordinator(task.queue)
                self._connections[task.queue] = connection
            rows = await _rows(connection, task.queue, task.options.topic)
            if topic is None or len(rows) < len(topic.leaders) or min(each.lag for each in rows) < 0:
                return None
            found += sum(each.lag for each in rows)
        return found

    async def aclose(self) -> None:
        for connection in self._connections.values():
            await connection.close()

    def hooks(self) -> dict[str, Hook]:
        return {name: self._remember(outcome) for name, outcome in _OUTCOMES.items()}

    def _remember(self, outcome: str) -> Callable[[JobEvent], None]:
        def hook(event: JobEvent) -> None:
            self._outcomes.append(Outcome(outcome, event.job, event.seconds, event.reason, event.error))

        return hook


async def _rows(connection: Connection, group: str, topic: str) -> list[Any]:
    answer: Any = await connection.call(
        "describe_share_group_offsets", groups=[{"group_id": group, "topics": None}]
    )
    (row,) = answer.groups
    if row.error_code is not ErrorCode.none:
        why = lacking(row.error_code, "describe", group) or row.error_message
        raise KafkaError(row.error_code, why or f"share group {group}")
    return [each for row in row.topics if row.topic_name == topic for each in row.partitions]


class BlockingTestWorker:
    """The same for a test without a loop. The worker's loop runs in a thread of its own, while the
    test sends jobs with `send_blocking`."""

    __test__ = False

    def __init__(self, portal: BlockingPortal, worker: TestWorker) -> None:
        self._portal = portal
        self._worker = worker

    def statistics(self) -> Mapping[str, Statistics]:
        """By queue."""
        return self._worker.statistics()

    def drain(self, timeout_s: float = 30.0, *, leave: int = 0) -> list[Outcome]:
        """As TestWorker.drain."""
        return self._portal.call(partial(self._worker.drain, timeout_s, leave=leave))

    @property
    def left(self) -> int:
        """Threads that continue although their jobs were ended."""
        return self._worker.left

    def unfinished(self) -> int | None:
        """As TestWorker.unfinished."""
        return self._portal.call(self._worker.unfinished)


class Testing:
    """What `app.testing(...)` returns: for `async with`, or for `with`."""

    __test__ = False

    def __init__(self, app: Program, place: Place, queues: Iterable[str]) -> None:
        self._opened = _testing(app, place, queues)
        self._blocking = ExitStack()

    async def __aenter__(self) -> TestWorker:
        return await self._opened.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._opened.__aexit__(kind, error, trace)

    def __enter__(self) -> BlockingTestWorker:
        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal())
            worker = stack.enter_context(portal.wrap_async_context_manager(self._opened))
            self._blocking = stack.pop_all()
        return BlockingTestWorker(portal, worker)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._blocking.__exit__(kind, error, trace)


@asynccontextmanager
async def _testing(app: Program, place: Place, queues: Iterable[str]) -> AsyncIterator[TestWorker]:
    background = Background()
    with app.at(place):
        async with app:
            service = Service(app, queues=queues, drain=_DRAIN_S, is_quick=True)
            worker = TestWorker(app, service)
            hooks = worker.hooks()
            await service.start()
            for name, hook in hooks.items():
                app.hooks.add(name, hook)
            await background.open()
            try:
                background.start(service.run_started)
                yield worker
            finally:
                service.stop()
                await background.wait()
                await worker.aclose()
                for name, hook in hooks.items():
                    app.hooks.remove(name, hook)
