"""How the jobs of a task are run: on the loop, in threads or in processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from .job import Begin, Job
from .policies import Failure
from .processes import Processes
from .task import RunIn
from .threads import Threads

if TYPE_CHECKING:
    from .task import Task


class Executor(Protocol):
    left: int
    """Jobs that were ended and continue nevertheless."""

    async def run(self, job: Job, begin: Begin) -> Failure | None:
        """One job. A cancellation ends it as well as can be. Raises Unreadable, and what the job
        raises."""

    async def aclose(self) -> None: ...


class OnLoop:
    def __init__(self, task: Task[..., Any]) -> None:
        self._task = task
        self.left = 0

    async def run(self, job: Job, begin: Begin) -> Failure | None:
        begin()
        task = self._task
        await task.function(*task.arguments(task.read(job.value), job))
        return None

    async def aclose(self) -> None:
        pass


def executor(task: Task[..., Any]) -> Executor:
    match task.options.run_in:
        case RunIn.LOOP:
            return OnLoop(task)
        case RunIn.THREAD:
            return Threads(task)
        case RunIn.PROCESS:
            return Processes(task)
