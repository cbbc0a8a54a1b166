"""An App: the tasks of a program, and the connection over which their jobs are sent.

app = App("127.0.0.1:9092")

@app.task(queue="emails", concurrency=8, timeout=60, retries=5, reject_on=(ValueError,))
async def emails(payload, job):
    ...

async with app:
    await emails.send({"to": "ann@example.com"}, delay=30)

if __name__ == "__main__":
    app.run()
"""

from __future__ import annotations

import inspect
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Never, ParamSpec, Self, TypeVar

from ..addresses import addresses
from ..errors import IllegalState
from ..security import PLAINTEXT, Security
from .hooks import Around, Hook, Hooks, SendHeaders
from .redirection import Place, environment_bootstrap, redirection
from .sending import Sender
from .serializers import JSON, Serializer
from .task import TIMEOUT_S, Task, checked_options

if TYPE_CHECKING:
    from .eager import EagerSender
    from .testing import Testing

P = ParamSpec("P")
R = TypeVar("R")
DRAIN_S: Final = 30.0
CONNECT_TIMEOUT_S: Final = 30.0


class App:
    """- `bootstrap`: addresses of brokers; by default those that the environment variable
      KBROKER_BOOTSTRAP has when the app connects, or 127.0.0.1:9092
    - `connect_timeout`: seconds that `async with app`, a worker that starts and `send_blocking`
      wait for a broker that is away; 0: they fail at once
    - `client_id`: how brokers name this program in lists of workers, logs and quotas; by default it
      has the name of the host and the process id, so that workers can be told apart

    `async with app` connects, so that jobs can be sent. A worker does that itself. Raises
    ValueError for a text that is no address.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str] | None = None,
        *,
        security: Security = PLAINTEXT,
        client_id: str | None = None,
        connect_timeout: float = CONNECT_TIMEOUT_S,
    ) -> None:
        if not connect_timeout >= 0:
            raise ValueError(f"connect_timeout must be 0 seconds or more, not {connect_timeout:g}")
        self._bootstrap: str | Sequence[str] | None = None
        if bootstrap:
            self.bootstrap = bootstrap
        self._security = security
        self._place: Place | None = None
        """Of `at`."""
        self.connect_timeout = connect_timeout
        self._client_id = client_id
        self.hooks = Hooks()
        self.tasks: dict[str, Task[..., Any]] = {}
        """By their queues."""
        self._sender: Sender | None = None
        self.eager_sender: EagerSender | None = None
        """Of `eager`."""

    # -- where it connects
    # ----------------------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str | Sequence[str]:
        """Where it connects now. Setting it raises ValueError for a text that is no address."""
        return self._now.bootstrap

    @bootstrap.setter
    def bootstrap(self, bootstrap: str | Sequence[str]) -> None:
        addresses(bootstrap)
        self._bootstrap = bootstrap

    @property
    def security(self) -> Security:
        """How it logs in now."""
        return self._now.security

    @security.setter
    def security(self, security: Security) -> None:
        self._security = security

    @property
    def _now(self) -> Place:
        place = self._place or redirection()
        return place or Place(self._bootstrap or environment_bootstrap(), self._security)

    @contextmanager
    def at(self, place: Place) -> Iterator[None]:
        """Until the end of the block the app connects there, whatever it was given."""
        before, self._place = self._place, place
        try:
            yield
        finally:
            self._place = before

    # -- tasks and hooks
    # ----------------------------------------------------------------------------------------------

    def task(
        self,
        *function: Never,
        queue: str,
        topic: str | None = None,
        concurrency: int = 1,
        timeout: float | timedelta = TIMEOUT_S,
        retries: int | None = None,
        reject_on: type[BaseException] | Iterable[type[BaseException]] = (),
        serializer: Serializer = JSON,
        mode: str | None = None,
    ) -> Callable[[Callable[P, R]], Task[P, R]]:
        """Makes a function the task of a queue. It takes the payload, or the payload and the Job.

        - `queue`: one task has it; another app may have the same queue
        - `topic`: for a second group over the jobs of another queue, which is named here
        - `concurrency`: jobs at a time in one worker; at most the queue's `prefetch`, unless that
          is 0
        - `timeout`: seconds; then a job is cancelled, or its process killed, and counts as failed.
          A thread cannot be ended, so it continues while the job is delivered again
        - `retries`: a job is run at most this often + 1, and then rejected with its last error.
          By default as often as the queue delivers it
        - `reject_on`: the exception, or exceptions, after which no further delivery can help
        - `mode`: of plain functions, "thread" or "process"
        """
        if function:
            raise TypeError('a task is made with @app.task(queue="...")')

        def decorate(function: Callable[P, R]) -> Task[P, R]:
            if queue in self.tasks:
                raise ValueError(f"the queue {queue} has the task {self.tasks[queue].name} already")
            options = checked_options(
                function, queue=queue, topic=topic, concurrency=concurrency, timeout=timeout,
                retries=retries, reject_on=reject_on, serializer=serializer, mode=mode,
            )  # fmt: skip
            made = Task(self, function, options)
            self.tasks[queue] = made
            return made

        return decorate

    def on_start(self, hook: Hook) -> Hook:
        return self._hook("on_start", hook)

    def on_success(self, hook: Hook) -> Hook:
        return self._hook("on_success", hook)

    def on_retry(self, hook: Hook) -> Hook:
        return self._hook("on_retry", hook)

    def on_reject(self, hook: Hook) -> Hook:
        return self._hook("on_reject", hook)

    def on_lock_lost(self, hook: Hook) -> Hook:
        return self._hook("on_lock_lost", hook)

    def _hook(self, name: str, hook: Hook) -> Hook:
        if inspect.iscoroutinefunction(hook):
            raise TypeError(f"{name} calls {hook.__qualname__} without await: it must be a plain function")
        self.hooks.add(name, hook)
        return hook

    def around(self, around: Around) -> Around:
        """`around(job)` makes a context manager in which the job runs. Raises TypeError for a
        function that makes none."""
        written = inspect.unwrap(around)
        if (
            inspect.isgeneratorfunction(around)
            or inspect.isasyncgenfunction(written)
            or inspect.iscoroutinefunction(written)
        ):
            raise TypeError(
                f"{around.__qualname__} must make a context manager, without async: @contextmanager"
            )
        self.hooks.around.append(around)
        return around

    def send_headers(self, headers: SendHeaders) -> SendHeaders:
        """`headers()` is called for each job that is sent."""
        self.hooks.send_headers.append(headers)
        return headers

    # -- sending
    # ----------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._sender is not None:
            raise IllegalState("the app is connected already")
        if self.eager_sender is None:
            self._sender = await self.new_sender().__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sender, self._sender = self._sender, None
        if sender is not None:  # It was entered without `eager`.
            await sender.__aexit__(kind, error, trace)

    @property
    def client_id(self) -> str:
        """The process id is that of now: a program may fork after it has imported its app."""
        return self._client_id or f"kbroker-worker-{socket.gethostname()}-{os.getpid()}"

    def new_sender(self) -> Sender:
        place = self._now
        return Sender(place.bootstrap, self.client_id, place.security, self.hooks, self.connect_timeout)

    @property
    def sender(self) -> Sender:
        """Raises IllegalState outside of `async with app`."""
        if self._sender is None:
            raise IllegalState("the app is not connected: use `async with app`, or send_blocking")
        return self._sender

    # -- running
    # ----------------------------------------------------------------------------------------------

    def run(self, *, loop: str = "asyncio", queues: Iterable[str] = (), drain: float = DRAIN_S) -> None:
        """A worker for these queues, or for all: until SIGTERM or SIGINT. Raises SystemExit with
        one line if it cannot start. Does nothing in the process of a job, which imports the script
        that ends with this call."""
        from .processes import is_of_jobs
        from .service import run

        if not is_of_jobs():
            run(self, loop=loop, queues=queues, drain=drain)

    async def serve(self, *, queues: Iterable[str] = (), drain: float = DRAIN_S) -> None:
        """The same within a program that has a loop; it handles no signals and ends when it is
        cancelled: then running jobs are cancelled and released."""
        from .service import Service

        async with self:
            await Service(self, queues=queues, drain=drain).run()

    def testing(
        self,
        bootstrap: str | Sequence[str],
        *,
        security: Security = PLAINTEXT,
        queues: Iterable[str] = (),
    ) -> Testing:
        """A worker for tests, at another broker: see TestWorker for `async with`, and
        BlockingTestWorker for `with`. `queues`: those to work on; all of the app if empty."""
        from .testing import Testing

        return Testing(self, Place(bootstrap, security), queues)

    @contextmanager
    def eager(self) -> Iterator[None]:
        """Until the end of the block `send` and `send_blocking` run the job at once, in the caller,
        and raise what it raises. No broker is needed: see eager.py."""
        from .eager import EagerSender

        before, self.eager_sender = self.eager_sender, EagerSender(self.tasks, self.hooks)
        try:
            yield
        finally:
            self.eager_sender = before
