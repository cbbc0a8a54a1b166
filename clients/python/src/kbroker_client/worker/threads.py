"""Jobs in threads. A thread cannot be ended: a job that runs too long loses its lock."""

from __future__ import annotations

import logging
import math
import threading
from typing import Any

import anyio
import anyio.to_thread

from .job import Begin, Job
from .policies import Failure
from .sending import as_job_thread
from .task import Task

logger = logging.getLogger(__name__)


class Threads:
    """The jobs of one task. `left` counts threads that continue although their job was ended."""

    def __init__(self, task: Task[..., Any]) -> None:
        self._task = task
        self._limiter = anyio.CapacityLimiter(math.inf)  # The runner has bounded them.
        self._counting = threading.Lock()
        self.left = 0

    async def run(self, job: Job, begin: Begin) -> Failure | None:
        """Raises what the job raises."""
        begin()
        call = _Call()
        payload = self._task.read(job.value)
        arguments = self._task.arguments(payload, job)
        try:
            await anyio.to_thread.run_sync(
                self._run, call, arguments, abandon_on_cancel=True, limiter=self._limiter
            )
        except anyio.get_cancelled_exc_class():
            self._leave(call, job)
            raise
        return None

    def _leave(self, call: _Call, job: Job) -> None:
        with self._counting:
            call.is_left = True
            if not call.is_running:
                return
            self.left += 1
            left = self.left
        logger.error(
            "job %s of %s continues in its thread, which cannot be ended; its lock is not renewed any more "
            "(threads left behind: %d)", job.id, job.queue, left,
        )  # fmt: skip

    def _run(self, call: _Call, arguments: tuple[Any, ...]) -> None:
        with self._counting:
            if call.is_left:
                return
            call.is_running = True
        try:
            with as_job_thread():
                self._task.run_plain(arguments)
        finally:
            with self._counting:
                call.is_running = False
                self.left -= call.is_left

    async def aclose(self) -> None:
        """Threads that were left behind continue."""


class _Call:
    __slots__ = ("is_left", "is_running")

    def __init__(self) -> None:
        self.is_running = False
        self.is_left = False
