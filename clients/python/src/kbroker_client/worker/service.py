"""A worker: one runner for each queue, signals, and the start that checks what the queues allow."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio.abc import TaskStatus

from .._shared.errors import KafkaError
from .._shared.server.terminal import HangUp, meaning_of_hang_up
from ..errors import ClientError, IllegalState, QueueMissing
from . import forks
from .processes import refusal_of
from .queue_facts import Facts, look
from .runner import Runner, Statistics
from .task import RunIn

if TYPE_CHECKING:
    from .task import Program, Task

logger = logging.getLogger(__name__)

_LOOK_S: Final = 1.0
_BLOCKED_S: Final = 5.0
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class StartRefused(ClientError):
    """The worker does not start: one line for a person."""


class Service:
    """- `queues`: those to work on; all of the app if empty
    - `concurrency`: for each, instead of the task's own
    - `drain`: seconds that running jobs may continue after `stop`
    - `is_quick`: see Runner

    The app is to be connected."""

    def __init__(
        self,
        app: Program,
        *,
        queues: Iterable[str] = (),
        concurrency: int | None = None,
        drain: float,
        is_quick: bool = False,
    ) -> None:
        if isinstance(queues, str):
            raise ValueError(f"queues is a list of names, not a name: [{queues!r}]")
        if drain < 0:
            raise ValueError(f"drain must be 0 seconds or more, not {drain:g}")
        self._app = app
        self._concurrency = concurrency
        self._drain_s = drain
        self._is_quick = is_quick
        self._tasks = _chosen(app, tuple(queues))
        self._runners: list[Runner] = []
        self._is_stopping = False
        self.is_ready = False
        self._errors: list[Exception] = []

    @property
    def tasks(self) -> Sequence[Task[..., Any]]:
        return self._tasks

    def statistics(self) -> Mapping[str, Statistics]:
        """By queue."""
        return {runner.queue: runner.statistics() for runner in self._runners}

    @property
    def left(self) -> int:
        """Threads that continue although their jobs were ended."""
        return sum(runner.left for runner in self._runners)

    @property
    def is_busy(self) -> bool:
        """Whether a job runs, or the broker's answer to its outcome has not come yet."""
        return any(runner.is_busy for runner in self._runners)

    async def run(self, *, handle_signals: bool = False) -> None:
        """Until `stop`. Raises StartRefused, what an app's `while_running` raises, and what ended a
        queue's worker; the others are drained before."""
        await self.start()
        with ExitStack() as opened:
            for make in self._app.hooks.while_running:
                opened.enter_context(make())
            await self.run_started(handle_signals=handle_signals)

    async def run_started(self, *, handle_signals: bool = False) -> None:
        """The same after `start`."""
        for runner in self._runners:
            runner.handles_signals = handle_signals
        async with anyio.create_task_group() as tasks:
            if handle_signals:
                await tasks.start(self._follow_signals)
                tasks.start_soon(self._end_without_jobs)
            self.is_ready = True
            logger.info("worker ready, queues: %s", ", ".join(runner.queue for runner in self._runners))
            tasks.start_soon(_watch_loop)
            async with anyio.create_task_group() as running:
                for runner in self._runners:
                    running.start_soon(self._run, runner)
            tasks.cancel_scope.cancel()
        if self._errors:
            raise self._errors[0]

    async def start(self) -> None:
        """Raises StartRefused."""
        for task in self._tasks:
            try:
                facts = await look(self._app.sender.cluster, task.queue, task.options.topic)
            except QueueMissing as error:
                raise StartRefused(f"{error}{self._prefetch_option(task)}") from error
            except (ClientError, KafkaError) as error:
                raise StartRefused(str(error)) from error
            if facts.unread is not None:
                logger.warning(
                    "`retries` and `concurrency` of %s are not compared with its queue: %s",
                    task.name, facts.unread.message,
                )  # fmt: skip
            if refusal := _refusal(task, facts):
                raise StartRefused(refusal)
            if facts.is_plain_group:
                logger.warning(
                    "the group %s lacks the settings of a queue: it begins at the newest job, and rejected "
                    "jobs are dropped: kbroker queues create %s --update", task.queue, task.queue,
                )  # fmt: skip
            concurrency = self._concurrency_of(task, facts)
            self._runners.append(
                Runner(self._app, task, facts, concurrency, self._drain_s, is_quick=self._is_quick)
            )

    def _prefetch_option(self, task: Task[..., Any]) -> str:
        """For the command that makes the queue: the default suits a concurrency of 1."""
        wanted = self._concurrency or task.options.concurrency
        return f" --prefetch {wanted}" if wanted > 1 else ""

    def _concurrency_of(self, task: Task[..., Any], facts: Facts) -> int:
        """At most the queue's prefetch: a fetch beyond it would only delay acknowledgements."""
        wanted = self._concurrency or task.options.concurrency
        if not 0 < facts.prefetch < wanted:
            return wanted
        logger.warning(
            "%s runs %d at a time in place of concurrency=%d, the prefetch of the queue: "
            "kbroker queues create %s --prefetch %d --update, then start the worker again",
            task.name, facts.prefetch, wanted, task.queue, wanted,
        )  # fmt: skip
        return facts.prefetch

    async def _run(self, runner: Runner) -> None:
        try:
            await runner.run()
        except (ClientError, KafkaError) as error:
            logger.error("queue %s: the worker ends: %s", runner.queue, error)
            self._errors.append(error)
            self.stop()

    def stop(self) -> None:
        """Take no more jobs, let running ones end, then end."""
        self._is_stopping = True
        for runner in self._runners:
            runner.stop()

    async def _end_without_jobs(self) -> None:
        """For jobs that swallow their cancellation: the loop would wait for them."""
        for runner in self._runners:
            await runner.closed.wait()
        if count := sum(runner.going_on for runner in self._runners):
            logger.warning("%d jobs go on although they were cancelled; the worker ends without them", count)
            end_at_once(bool(self._errors))

    async def _follow_signals(self, *, task_status: TaskStatus[None]) -> None:
        hang_up = meaning_of_hang_up()
        handled = _SIGNALS if hang_up is HangUp.IGNORED else (*_SIGNALS, signal.SIGHUP)
        with anyio.open_signal_receiver(*handled) as signals, forks.without(handled):
            task_status.started()
            async for number in signals:
                name = signal.Signals(number).name
                if number == signal.SIGHUP and hang_up is HangUp.RELOAD:
                    logger.info(
                        "SIGHUP: a worker has nothing to read again; to use a new program, restart it"
                    )
                    continue
                if number == signal.SIGHUP and self._is_stopping:  # A closed terminal may send it twice.
                    continue
                if self._is_stopping:
                    logger.warning("%s again: the worker ends at once", name)
                    end_at_once(128 + number)
                logger.info("%s: taking no more jobs; once more ends the worker at once", name)
                self.stop()


def _chosen(app: Program, queues: tuple[str, ...]) -> list[Task[..., Any]]:
    """Raises StartRefused."""
    if not app.tasks:
        raise StartRefused("the app has no tasks")
    if unknown := [queue for queue in queues if queue not in app.tasks]:
        raise StartRefused(
            f"no task has the queue {unknown[0]}; the app's queues are {', '.join(sorted(app.tasks))}"
        )
    return [task for queue, task in app.tasks.items() if not queues or queue in queues]


def _refusal(task: Task[..., Any], facts: Facts) -> str | None:
    if task.options.run_in is RunIn.PROCESS and (text := refusal_of(task)):
        return text
    retries, limit = task.options.retries, facts.delivery_limit
    if retries is None or limit is None or retries < limit:
        return None
    return (
        f"{task.name} has retries={retries}, but the queue {task.queue} delivers a job {limit} times: "
        f"kbroker queues create {task.queue} --deliveries {retries + 1} --update, or retries={limit - 1}"
    )


async def _watch_loop() -> None:
    """Until it is cancelled."""
    while True:
        before_s = anyio.current_time()
        await anyio.sleep(_LOOK_S)
        late_s = anyio.current_time() - before_s - _LOOK_S
        if late_s > _BLOCKED_S:
            logger.warning(
                "the event loop stood still for %.0f s, and no lock was renewed: unless the process was "
                "stopped, an async function has blocked it (time.sleep, requests); make it a plain function",
                late_s,
            )  # fmt: skip


def end_at_once(code: int) -> None:
    """Without waiting for threads, which cannot be ended."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    logging.shutdown()
    os._exit(code)


async def _serve(app: Program, service: Service) -> int:
    async with app:
        await service.run(handle_signals=True)
    return service.left


def run(
    app: Program,
    *,
    loop: str,
    queues: Iterable[str] = (),
    concurrency: int | None = None,
    drain: float,
) -> None:
    """Raises SystemExit with one line for an error, and with a code for Ctrl-C before the worker is
    ready. Raises IllegalState outside of the main thread."""
    if threading.current_thread() is not threading.main_thread():
        raise IllegalState(
            "a worker that handles signals needs the main thread: elsewhere use `await app.serve()`"
        )
    service = None
    try:
        service = Service(app, queues=queues, concurrency=concurrency, drain=drain)
        left = anyio.run(_serve, app, service, backend=loop)
    except (ClientError, KafkaError) as error:
        raise SystemExit(f"worker: {error}") from None
    except KeyboardInterrupt:
        is_ready = service is not None and service.is_ready
        logger.warning(
            "interrupted by a task that a job has started" if is_ready
            else "interrupted before the worker was ready"
        )  # fmt: skip
        raise SystemExit(128 + signal.SIGINT) from None
    if left:
        logger.warning("the worker ends without the threads that continue (%d)", left)
        end_at_once(0)
    logger.info("worker ended")
