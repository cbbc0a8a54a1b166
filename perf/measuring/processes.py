"""What the kernel says of a broker's process: CPU time and memory, whatever it is written in.

CPU time is read from the process's own clock (clock_getcpuclockid(3)), in nanoseconds and with
threads that have ended: /proc/PID/stat counts in steps of 10 ms, which in a window of two seconds
is a tenth of what an efficient broker uses.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

_SCHEDULER_CLOCK = 2


class Memory(NamedTuple):
    """In 10**6 bytes. `anonymous` leaves out mapped files and shared memory: what the page cache
    holds is not the broker's."""

    anonymous_mb: float
    resident_mb: float


class Cost(NamedTuple):
    """Of a window: CPU time in it, and memory at its end."""

    cpu_s: float
    rss_anon_mb: float
    rss_mb: float


def cpu_s(pid: int) -> float:
    """User and system time of a process since its start, all threads. Raises OSError if there is no
    such process."""
    return time.clock_gettime((~pid << 3) | _SCHEDULER_CLOCK)


def memory(pid: int) -> Memory:
    """Raises OSError if there is no such process."""
    kib = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("RssAnon", "VmRSS"):
            kib[name] = int(value.split()[0])
    return Memory(kib["RssAnon"] * 1024 / 1e6, kib["VmRSS"] * 1024 / 1e6)


def cost_so_far(pid: int) -> Cost:
    """CPU time since the start of a process, and its memory now. Raises OSError if there is no such
    process."""
    now = memory(pid)
    return Cost(cpu_s(pid), now.anonymous_mb, now.resident_mb)


class BrokerWatch:
    """Reads a broker around a window; a kbroker.workloads.window.Watch."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._began_cpu_s = 0.0
        self._cost: Cost | None = None

    def opened(self) -> None:
        self._cost = None
        self._began_cpu_s = self.cpu_s()

    def closed(self) -> None:
        used_s = self.cpu_s() - self._began_cpu_s
        now = self.memory()
        self._cost = Cost(used_s, now.anonymous_mb, now.resident_mb)

    def cost(self) -> Cost:
        """Of the last window that was closed."""
        assert self._cost is not None, "no window was opened and closed"
        return self._cost

    def cpu_s(self) -> float:
        return cpu_s(self.pid)

    def memory(self) -> Memory:
        return memory(self.pid)
