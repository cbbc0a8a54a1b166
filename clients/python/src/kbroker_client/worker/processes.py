"""Jobs in processes, which can be killed. A process does one job after another (child.py).

It leads a session of its own: Ctrl-C at the terminal reaches the worker only, and killing a job's
process takes along what the job has started.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import struct
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from .job import Begin, Job
from .policies import Failure

if TYPE_CHECKING:
    from .task import Task

_SIZE: Final = struct.Struct(">I")
START_S: Final = 60.0
"""For the imports of the task's module. They do not count towards a job's timeout."""
_CHILD: Final = "kbroker_client.worker.child"


class ProcessDied(Exception):
    """A job's process ended without an answer."""


class Hello(NamedTuple):
    """The first message to a process: where its task is. `module` or `file`: what defines it, maybe
    beside tasks of other apps; `bootstrap`: of its app, which the command line may have given."""

    path: list[str]
    module: str | None
    file: str | None
    queue: str
    name: str
    bootstrap: str | Sequence[str]
    log_level: int | None


def hello_of(task: Task[..., Any]) -> Hello:
    module: str | None = task.function.__module__
    file = None
    if module == "__main__":
        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        module = spec.name if spec is not None else None
        file = None if module else os.path.abspath(main.__file__ or "")
    root = logging.getLogger()
    level = root.level if root.handlers else None
    return Hello(list(sys.path), module, file, task.queue, task.name, task.app.bootstrap, level)


def refusal_of(task: Task[..., Any]) -> str | None:
    """Why no process could find the task."""
    module = sys.modules.get(task.function.__module__)
    text = f"{task.name} is to run in a process, which"
    if module is None or not any(each is task for each in vars(module).values()):
        return (
            f"{text} looks for it at the top level of {task.function.__module__}: define a function of "
            "your own with `def` and @app.task there"
        )
    if module.__name__ == "__main__" and not getattr(module, "__file__", None):
        return f"{text} must import it: define it in a file"
    return None


def is_of_jobs() -> bool:
    """Whether this is the process of a job, and not the worker's."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name == _CHILD


class _Running:
    def __init__(self, process: Process) -> None:
        assert process.stdout is not None
        self._process = process
        self._answers = BufferedByteReceiveStream(process.stdout)

    @classmethod
    async def start(cls, hello: Hello) -> Self:
        process = await anyio.open_process(
            [sys.executable, "-m", _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(each or os.getcwd() for each in sys.path)},
            start_new_session=True,
        )
        started = cls(process)
        try:
            await started.call(hello)
        except ProcessDied as error:
            await started.kill()
            raise ProcessDied(f"{error} before the job began; the worker's output has its error") from None
        except BaseException:
            await started.kill()
            raise
        return started

    @property
    def has_ended(self) -> bool:
        """Asks the system: the loop may not have heard of it yet."""
        if self._process.returncode is not None:
            return True
        try:
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # The loop has just heard of it.
            return True

    async def call(self, message: object) -> Failure | None:
        """Raises ProcessDied."""
        assert self._process.stdin is not None
        data = pickle.dumps(message)
        try:
            await self._process.stdin.send(_SIZE.pack(len(data)) + data)
            (size,) = _SIZE.unpack(await self._answers.receive_exactly(_SIZE.size))
            answer: Failure | None = pickle.loads(await self._answers.receive_exactly(size))
        except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError):
            code = await self._process.wait()
            how = f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"
            raise ProcessDied(f"the process of the job ended with {how}") from None
        return answer

    async def kill(self) -> None:
        with anyio.CancelScope(shield=True):
            with suppress(ProcessLookupError):  # It has ended, and so has all that it had started.
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.aclose()


class Processes:
    """The processes of one task."""

    def __init__(self, task: Task[..., Any]) -> None:
        self._hello = hello_of(task)
        self._idle: list[_Running] = []
        self.left = 0

    async def run(self, job: Job, begin: Begin) -> Failure | None:
        """A cancellation kills the process. Raises ProcessDied."""
        process = await self._take()
        begin()
        try:
            failure = await process.call(job)
        except BaseException:
            await process.kill()
            raise
        self._idle.append(process)
        return failure

    async def _take(self) -> _Running:
        """An idle process may have been killed, for its memory perhaps. No job fails for that."""
        while self._idle:
            process = self._idle.pop()
            if not process.has_ended:
                return process
            await process.kill()
        try:
            with anyio.fail_after(START_S):
                return await _Running.start(self._hello)
        except TimeoutError:
            raise ProcessDied(f"the process of the job has not started within {START_S:g} s") from None

    async def aclose(self) -> None:
        while self._idle:
            await self._idle.pop().kill()
