"""Programs of tests that run in a terminal of their own, and are in its session."""

from __future__ import annotations

import os
import pty
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple


class InTerminal(NamedTuple):
    """`terminal`: closing it closes the program's terminal."""

    pid: int
    terminal: int

    def wait(self) -> int:
        """The exit code, or a negative signal."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@contextmanager
def in_terminal(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[InTerminal]:
    """Run it with its standard error in the file `log`. The caller closes the terminal and waits;
    a program that is left is killed."""
    pid, terminal = pty.fork()
    if pid == 0:
        try:
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
            os.execve(command[0], command, environment or dict(os.environ))
        finally:
            os._exit(127)
    try:
        yield InTerminal(pid, terminal)
    finally:
        with suppress(ProcessLookupError, ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                os.kill(pid, 9)
                os.waitpid(pid, 0)
