"""Functions of the caller's own that are called at each step of a job's life.

- `on_start`: the job begins
- `on_success`: it returned, and the broker has stored that durably
- `on_retry`: it will be delivered again, and the broker has stored that
- `on_reject`: it is given up, and the broker has stored that
- `on_lock_lost`: the worker no longer held the job when it ended, so its outcome does not count; it
  is, or will be, delivered again

All of a job but the first may be called by another task than the one that runs the job. They must
not block. What a hook raises is logged, and changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Final, TypeAlias

from .job import Headers, Job, JobEvent

logger = logging.getLogger(__name__)

Hook: TypeAlias = Callable[[JobEvent], object]
Around: TypeAlias = Callable[[Job], AbstractContextManager[Any]]
"""Makes the context manager in which a job runs; it sees the job's exception."""
SendHeaders: TypeAlias = Callable[[], Iterable[tuple[str, bytes]]]
"""Headers for a job that is being sent."""
WhileRunning: TypeAlias = Callable[[], AbstractContextManager[Any]]
"""Makes a context manager that is open while a worker runs. Entering may raise ClientError: then
the worker does not start."""

NAMES: Final = ("on_start", "on_success", "on_retry", "on_reject", "on_lock_lost")


class Hooks:
    def __init__(self) -> None:
        self._hooks: dict[str, list[Hook]] = {name: [] for name in NAMES}
        self.around: list[Around] = []
        self.send_headers: list[SendHeaders] = []
        self.while_running: list[WhileRunning] = []

    def add(self, name: str, hook: Hook) -> None:
        self._hooks[name].append(hook)

    def remove(self, name: str, hook: Hook) -> None:
        self._hooks[name].remove(hook)

    def made_headers(self) -> Headers:
        """For a job that is being sent."""
        return tuple(header for make in self.send_headers for header in make())

    def call(self, name: str, event: JobEvent) -> None:
        for hook in self._hooks[name]:
            try:
                hook(event)
            except (Exception, SystemExit):
                logger.exception("the hook %s of job %s failed", name, event.job.id)
