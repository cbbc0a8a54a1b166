"""A server as a child process, with its own children: its CPU time, its memory, its end."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from perf.measuring.processes import BrokerWatch, Memory, cpu_s, memory

START_TIMEOUT_S = 60.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_LOOK_AGAIN_S = 0.05


class ServerFailed(Exception):
    """A server did not start, or does not have the configured settings. For a failed start, the
    text ends with the server's output."""


class ServerProcess:
    """A server, started by the constructor in the directory of `log_file`, which receives its
    output. `kill` must be called."""

    def __init__(self, command: Sequence[str], log_file: Path, env: Mapping[str, str] | None = None) -> None:
        self._log_file, self._name = log_file, Path(command[0]).name
        with log_file.open("ab") as log:
            # In a new session, so that Ctrl-C on the terminal reaches only this process, which then
            # kills the server.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env,
                cwd=log_file.parent,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait_until(self, answers: Callable[[], bool]) -> None:
        """Waits until `answers` returns true. Raises ServerFailed if the process ends before that,
        or after `START_TIMEOUT_S`."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not answers():
            code = self._process.poll()
            if code is not None or time.monotonic() > deadline:
                what = (
                    f"ended with exit code {code}"
                    if code is not None
                    else f"did not respond within {START_TIMEOUT_S:.0f} s"
                )
                raise ServerFailed(
                    f"{self._name} {what}; it printed:\n{self._log_file.read_text(errors='replace')[-3000:]}"
                )
            time.sleep(_LOOK_AGAIN_S)

    def kill(self) -> None:
        """Sends SIGKILL to the server and all its children, whose data is no longer needed. No
        error if it has ended."""
        for pid in reversed(process_tree(self.pid)) if self.is_running() else []:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # Ended with its parent.
        self._process.wait()


class TreeWatch(BrokerWatch):
    """Measures a server and all its children."""

    def cpu_s(self) -> float:
        return tree_cpu_s(self.pid)

    def memory(self) -> Memory:
        readings = [memory(pid) for pid in process_tree(self.pid)]
        return Memory(sum(each.anonymous_mb for each in readings), sum(each.resident_mb for each in readings))


def tree_cpu_s(pid: int) -> float:
    """User and system time of `pid` and its children, including those that have ended and were
    waited for (in steps of 10 ms)."""
    waited_for = 0
    living = 0.0
    for member in process_tree(pid):
        living += cpu_s(member)
        waited_for += sum(int(ticks) for ticks in _stat_fields(member)[13:15])
    return living + waited_for / _TICKS_PER_S


def process_tree(pid: int) -> list[int]:
    """`pid`, its children, their children …"""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int(_stat_fields(int(entry.name))[1])
            except (FileNotFoundError, ProcessLookupError):
                continue  # Ended since the directory was listed.
            children.setdefault(parent, []).append(int(entry.name))
    tree = [pid]
    for member in tree:  # the list grows during the loop
        tree += children.get(member, [])
    return tree


def _stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name in brackets: [1] is the parent, [13] and [14] are
    the times of children that were waited for."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
