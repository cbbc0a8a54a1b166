"""Jobs that run at once in their caller, for tests without a broker: `with app.eager()`.

A payload is encoded and read back as on its way through a broker. What a job raises, the caller of
`send` gets. There is no queue: no delay, no further attempt, no dead letter, and no hook but
`around` and `send_headers`, because the others report what a broker has stored.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from ..producer import Sent
from .job import Job
from .task import RunIn

if TYPE_CHECKING:
    from .hooks import Hooks
    from .sending import Prepared
    from .task import Task


class EagerSender:
    """In place of the connection of an app, with these tasks and hooks."""

    def __init__(self, tasks: Mapping[str, Task[..., Any]], hooks: Hooks) -> None:
        self._tasks = tasks
        self._hooks = hooks
        self._numbers = itertools.count()

    async def send(self, prepared: Prepared) -> Sent:
        """Plain functions run in a thread, as in a worker. Raises what the job raises."""
        jobs, sent = self._jobs(prepared)
        for task, job in jobs:
            with self._around(job):
                arguments = task.arguments(task.read(job.value), job)
                if task.options.run_in is RunIn.LOOP:
                    await task.function(*arguments)
                else:
                    await anyio.to_thread.run_sync(task.run_plain, arguments)
        return sent

    def send_blocking(self, prepared: Prepared) -> Sent:
        """In the caller's thread. Raises what the job raises."""
        jobs, sent = self._jobs(prepared)
        for task, job in jobs:
            with self._around(job):
                arguments = task.arguments(task.read(job.value), job)
                if task.options.run_in is RunIn.LOOP:
                    asyncio.run(task.function(*arguments))
                else:
                    task.run_plain(arguments)
        return sent

    def _jobs(self, prepared: Prepared) -> tuple[list[tuple[Task[..., Any], Job]], Sent]:
        """For all tasks that read the topic: a second group gets each job too."""
        sent = Sent(prepared.topic, 0, next(self._numbers))
        headers = (*prepared.headers, *self._hooks.made_headers())
        sent_ms = time.time_ns() // 1_000_000
        jobs = [
            (task, Job(task.queue, *sent, 1, sent_ms, prepared.key, prepared.value, headers))
            for task in self._tasks.values()
            if task.options.topic == prepared.topic
        ]
        return jobs, sent

    @contextmanager
    def _around(self, job: Job) -> Iterator[None]:
        with ExitStack() as stack:
            for around in self._hooks.around:
                stack.enter_context(around(job))
            yield
