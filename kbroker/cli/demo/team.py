"""The demo's consumers: processes that may be killed at any moment, each with its own pipe.

A queue or an event shared by several processes has a lock that a killed process may hold forever; a
pipe has none.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Self, cast

from kbroker.cli.demo.worker import Report, work
from kbroker.cli.exits import CommandFailed
from kbroker.cli.interrupts import Deferred

_LEAVE_S = 30.0


@dataclass(frozen=True, slots=True)
class _Member:
    process: SpawnProcess
    pipe: Connection


@contextmanager
def _ctrl_c_blocked() -> Iterator[None]:
    """Blocks SIGINT for processes that start meanwhile, since a starting interpreter cannot handle
    it. `work` ignores the signal and then unblocks it."""
    resource_tracker.ensure_running()  # its start would unblock SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Team:
    """A context manager: on exit the consumers leave the group and end."""

    def __init__(self, client_settings: Mapping[str, str], topic: str, group: str, signals: Deferred) -> None:
        """`client_settings`: where the broker is, and how to speak to it."""
        self._arguments = (client_settings, topic, group)
        self._members: dict[int, _Member] = {}
        self._hired = 0
        self._signals = signals

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for member in self._members.values():
            member.pipe.close()
        deadline_s = time.monotonic() + _LEAVE_S
        for member in self._members.values():
            member.process.join(max(0.0, deadline_s - time.monotonic()))
            member.process.kill()
            member.process.join()

    @property
    def numbers(self) -> list[int]:
        return list(self._members)

    def hire(self) -> int:
        """Start a consumer and return its number. It is spawned, since a forked child could not use
        the client library that the producer has loaded."""
        self._hired += 1
        ours, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=work, args=(self._hired, *self._arguments, theirs), daemon=True)
        with self._signals, _ctrl_c_blocked():
            process.start()
            theirs.close()  # so that the pipe ends with the process
            self._members[self._hired] = _Member(process, ours)
        return self._hired

    def reports(self, timeout_s: float) -> Iterator[tuple[int, Report]]:
        """Reports that arrive within that time, at most one from each consumer. Raises
        CommandFailed if a consumer has ended by itself."""
        readable = wait([member.pipe for member in self._members.values()], timeout_s)
        for number, member in list(self._members.items()):
            if member.pipe in readable:
                try:
                    yield number, cast("Report", member.pipe.recv())
                except (EOFError, ConnectionResetError) as error:
                    member.process.join(_LEAVE_S)
                    raise CommandFailed(
                        f"consumer {number} ended by itself, exit code {member.process.exitcode}"
                    ) from error

    def give_leave(self, number: int) -> None:
        """Let a consumer acknowledge. If it has ended, `reports` will notice."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self._members[number].pipe.send(None)

    def kill(self, number: int) -> None:
        """Send SIGKILL. The consumer waits for permission, so it has sent nothing since its last
        report."""
        member = self._members.pop(number)
        member.process.kill()
        member.process.join()
        member.pipe.close()
