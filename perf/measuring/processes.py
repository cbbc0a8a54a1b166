"""CPU time and memory of a broker's process, as the kernel reports them.

CPU time is read from the process's CPU clock (clock_getcpuclockid(3)), in nanoseconds and including
threads that have ended. The 10 ms steps of /proc/PID/stat would be too coarse: in a window of two
seconds, one step is a tenth of the CPU time of an efficient broker.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

_SCHEDULER_CLOCK = 2


class Memory(NamedTuple):
    """In 10**6 bytes. `anonymous_mb` leaves out mapped files and shared memory, since the page
    cache does not belong to the broker."""

    anonymous_mb: float
    resident_mb: float


class Cost(NamedTuple):
    """The CPU time during a window, and the memory at its end."""

    cpu_s: float
    rss_anon_mb: float
    rss_mb: float


def cpu_s(pid: int) -> float:
    """User and system time of all threads of a process since its start. Raises OSError if there is
    no such process."""
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
    """Measures a broker during a window. Implements perf.workloads.window.Watch."""

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
        """The cost of the last closed window."""
        assert self._cost is not None, "no window was opened and closed"
        return self._cost

    def cpu_s(self) -> float:
        return cpu_s(self.pid)

    def memory(self) -> Memory:
        return memory(self.pid)
