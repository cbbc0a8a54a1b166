"""A task: a function, the queue that its jobs come from, and how they are run."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, Protocol, Self, TypeVar, get_origin

from ..errors import IllegalState
from ..producer import Sent
from ..security import Security
from .hooks import Hooks
from .job import Job
from .policies import Unreadable
from .redirection import Place
from .sending import GivenHeaders, Prepared, Sends, as_bytes, encoded, in_job_thread, schedule
from .serializers import JSON, Serializer
from .typed import builder

P = ParamSpec("P")
R = TypeVar("R")
TIMEOUT_S: Final = 3600.0
_SENDERS_ELSEWHERE: Final = frozenset({"apply_async", "delay", "enqueue", "enqueue_job", "send_with_options"})
"""Names in Celery, RQ, arq and dramatiq."""
_PAYLOADS: Final = (str, bytes, int, float, bool, dict, list)


class RunIn(Enum):
    """Where a job runs."""

    LOOP = "loop"
    THREAD = "thread"
    PROCESS = "process"


@dataclass(frozen=True)
class Options:
    """Of a task. - `topic`: where its jobs are; the queue's own if not another one is named
    - `concurrency`: jobs at a time, in one worker
    - `timeout`: seconds after which a job is ended and counts as failed
    - `retries`: a job is run at most this often + 1; None: as often as the queue delivers it
    - `reject_on`: exceptions after which no further delivery can help
    """

    queue: str
    topic: str
    concurrency: int
    timeout: float
    retries: int | None
    reject_on: tuple[type[BaseException], ...]
    serializer: Serializer
    run_in: RunIn


def checked_options(
    function: Callable[..., Any],
    *,
    queue: str,
    topic: str | None,
    concurrency: int,
    timeout: float | timedelta,
    retries: int | None,
    reject_on: type[BaseException] | Iterable[type[BaseException]],
    serializer: Serializer,
    mode: str | None,
) -> Options:
    """Raises ValueError and TypeError."""
    try:
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    except TypeError:
        raise TypeError(f"timeout must be seconds, not {timeout!r}; math.inf is no limit") from None
    if not queue:
        raise ValueError("a task needs the name of a queue")
    if not isinstance(concurrency, int) or concurrency < 1:
        raise ValueError(f"concurrency must be a whole number, 1 or more, not {concurrency!r}")
    if not seconds > 0:
        raise ValueError(f"timeout must be more than 0 seconds, not {seconds:g}; math.inf is no limit")
    if retries is not None and (not isinstance(retries, int) or retries < 0):
        raise ValueError(f"retries must be a whole number, 0 or more, not {retries!r}")
    rejected = (reject_on,) if isinstance(reject_on, type) else tuple(reject_on)
    for each in rejected:
        if not (isinstance(each, type) and issubclass(each, BaseException)):
            raise TypeError(f"reject_on has exception classes, not {each!r}")
    return Options(
        queue, topic or queue, concurrency, seconds, retries, rejected, serializer, _run_in(function, mode)
    )


def _run_in(function: Callable[..., Any], mode: str | None) -> RunIn:
    name = getattr(function, "__qualname__", str(function))
    if inspect.iscoroutinefunction(function):
        if mode is not None:
            raise ValueError(f"{name} is an async function, which runs on the loop: it has no mode")
        return RunIn.LOOP
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{name} has a yield: calling it makes a generator, and does no job")
    if mode not in (None, "thread", "process"):
        raise ValueError(f'mode {mode!r} is not "thread" or "process"')
    run_in = RunIn(mode or "thread")
    if run_in is RunIn.PROCESS and "<locals>" in name:
        raise ValueError(f"{name} is to run in a process, which must import it: define it in a module")
    return run_in


class Task(Generic[P, R]):
    """Made by `App.task`. Calling it calls the function itself, without a queue."""

    def __init__(self, app: Sends, function: Callable[P, R], options: Options) -> None:
        self.app = app
        self.function = function
        self.options = options
        self.name: str = getattr(function, "__qualname__", type(function).__name__)
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        payload, *job = _positional(function, self.name)
        self._takes_job = bool(job)
        self._payload = _payload_annotation(function, payload, self.name)
        for parameter in job:
            _check_job(function, parameter, self.name)
        self._build = builder(self._payload)

    if not TYPE_CHECKING:  # mypy would take every name for an attribute.

        def __getattr__(self, name: str) -> Any:
            hint = ": `await task.send(payload)` sends a job" if name in _SENDERS_ELSEWHERE else ""
            raise AttributeError(f"a task has no attribute {name!r}{hint}", name=name, obj=self)

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> R:
        return self.function(*arguments, **named)

    def __repr__(self) -> str:
        return f"<task {self.name} of the queue {self.options.queue}>"

    @property
    def queue(self) -> str:
        return self.options.queue

    def read(self, value: bytes | None) -> Any:
        """The payload. Raises Unreadable."""
        payload = self.options.serializer.read(value)
        if self._build is None:
            return payload
        try:
            return self._build(payload, "payload")
        except Unreadable:
            raise
        except Exception as error:  # Of __post_init__.
            raise Unreadable(f"the payload is refused: {type(error).__name__}: {error}") from error

    def arguments(self, payload: Any, job: Job) -> tuple[Any, ...]:
        return (payload, job) if self._takes_job else (payload,)

    def run_plain(self, arguments: tuple[Any, ...]) -> None:
        """A job of a plain function. Raises TypeError for one that only looks plain, because of its
        decorator: nothing of the job has been done."""
        function: Callable[..., Any] = self.function
        made = function(*arguments)
        if inspect.isawaitable(made) or inspect.isgenerator(made) or inspect.isasyncgen(made):
            if inspect.iscoroutine(made):
                made.close()
            raise TypeError(
                f"{self.name} returned a {type(made).__name__} instead of doing the job: write `async "
                "def`, decorate the function with `task` first, or make its other decorators async too"
            )

    async def send(
        self,
        payload: Any,
        *,
        key: str | bytes | None = None,
        delay: float | timedelta | None = None,
        at: datetime | None = None,
        headers: GivenHeaders = (),
    ) -> Sent:
        """Returns when the broker has the job durably.

        - `key`: jobs of one key are done one after another, if the queue has `--ordering key`
        - `delay`: seconds before it is delivered; `at`: not before this time
        - `headers`: a mapping or pairs

        Raises QueueMissing, SchedulingOff, IllegalState outside of `async with app`, and what
        Producer.send raises.
        """
        sender = self.app.eager_sender or self.app.sender
        return await sender.send(self._prepared(payload, key, delay, at, headers))

    def send_blocking(
        self,
        payload: Any,
        *,
        key: str | bytes | None = None,
        delay: float | timedelta | None = None,
        at: datetime | None = None,
        headers: GivenHeaders = (),
    ) -> Sent:
        """The same for programs without a loop, and for plain functions that run as jobs. Outside
        of a job's thread it connects for each call, and waits for a broker that is away as long as
        the app's `connect_timeout`. Raises as `send`, BrokerUnreachable, and IllegalState in a
        function of a loop."""
        job = self._prepared(payload, key, delay, at, headers)
        if in_job_thread():
            connected = self.app.sender
            return connected.call_from_thread(partial(connected.send, job))
        if _is_in_a_loop():
            raise IllegalState(f"send_blocking would block the event loop: await {self.name}.send(...)")
        if self.app.eager_sender is not None:
            return self.app.eager_sender.send_blocking(job)

        async def connect_and_send() -> Sent:
            async with self.app.new_sender() as sender:
                return await sender.send(job)

        return asyncio.run(connect_and_send())

    def _check(self, payload: object) -> None:
        """Raises TypeError for what a worker would reject: a dataclass is read from an object of
        JSON. Another class than the task's is allowed: it may be that of a newer program."""
        is_object = isinstance(payload, dict) or is_dataclass(payload)
        if self._build is not None and self.options.serializer is JSON and not is_object:
            wanted, given = self._payload.__name__, type(payload).__name__
            raise TypeError(f"{self.name} takes {wanted}, or a dict of its fields, not {given}")

    def _prepared(
        self,
        payload: Any,
        key: str | bytes | None,
        delay: float | timedelta | None,
        at: datetime | None,
        headers: GivenHeaders,
    ) -> Prepared:
        """Raises TypeError and ValueError."""
        self._check(payload)
        scheduled = schedule(delay, at)
        return Prepared(
            self.options.queue,
            self.options.topic,
            self.options.serializer.encode(payload),
            None if key is None else as_bytes("the key of a job", key),
            (*encoded(headers), *scheduled),
            bool(scheduled),
        )


class Program(Sends, Protocol):
    """What the parts of a worker know of their App."""

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]: ...

    @property
    def hooks(self) -> Hooks: ...

    @property
    def client_id(self) -> str: ...

    @property
    def security(self) -> Security: ...

    def at(self, place: Place) -> AbstractContextManager[None]: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def _is_in_a_loop() -> bool:
    """This thread is. anyio's own answer may be that of the caller of `asyncio.to_thread`, which
    gives the thread a copy of its context."""
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        return True
    trio: Any = sys.modules.get("trio")
    return trio is not None and bool(trio.lowlevel.in_trio_run())


def _positional(function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    """Raises TypeError."""
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    every = inspect.signature(function).parameters.values()
    found = [each for each in every if each.kind in places]
    unfilled = [
        each
        for each in every
        if each.kind is inspect.Parameter.KEYWORD_ONLY and each.default is inspect.Parameter.empty
    ]
    if not 1 <= len(found) <= 2 or unfilled:
        raise TypeError(f"the task {name} must take the payload, or the payload and the job")
    return found


def _payload_annotation(function: Callable[..., Any], parameter: inspect.Parameter, name: str) -> Any:
    """Raises TypeError."""
    try:
        annotation = _evaluated(function, parameter.annotation)
    except (NameError, AttributeError) as error:
        raise TypeError(
            f"the annotation {parameter.annotation!r} of the payload of {name} has no value at run time "
            f"({error}): import or define it outside of TYPE_CHECKING and of functions"
        ) from None
    if annotation is Job:
        raise TypeError(f"the task {name} must take the payload first, and the job second")
    return annotation


def _check_job(function: Callable[..., Any], parameter: inspect.Parameter, name: str) -> None:
    """Raises TypeError if the annotation shows that this is no Job."""
    try:
        annotation = _evaluated(function, parameter.annotation)
    except (NameError, AttributeError, TypeError):
        return  # It has no value at run time, as with TYPE_CHECKING.
    kind = get_origin(annotation) or annotation
    if kind in _PAYLOADS or (is_dataclass(kind) and kind is not Job):
        raise TypeError(
            f"the task {name} takes one payload, and a Job after it: `{parameter.name}` cannot be "
            f"a {kind.__name__}; put several values into one dataclass or dict"
        )


def _evaluated(function: Callable[..., Any], annotation: Any) -> Any:
    """Raises NameError and AttributeError."""
    if not isinstance(annotation, str):
        return annotation
    written = inspect.unwrap(function)  # Decorators of other modules have other globals.
    return eval(annotation, getattr(written, "__globals__", {}) | _enclosed(written))


def _enclosed(function: Callable[..., Any]) -> dict[str, Any]:
    """The variables of enclosing functions that have a value by now."""
    code = getattr(function, "__code__", None)
    names = code.co_freevars if code is not None else ()
    found = {}
    for name, cell in zip(names, getattr(function, "__closure__", None) or (), strict=True):
        with suppress(ValueError):
            found[name] = cell.cell_contents
    return found
