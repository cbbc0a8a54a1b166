"""A broker that is looked at from outside: how long it took to be ready, what memory and CPU time the kernel says it used."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from kbroker.client.broker_process import RunningBroker

LAUNCHER = Path(__file__).with_name("launch.py")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def measured_broker(home: Path, engine: str, durability: str, *, data_dir: Path | None = None) -> RunningBroker:
    """Not started yet. Topic data and state both on `engine`."""
    home.mkdir(parents=True, exist_ok=True)
    return RunningBroker(home, storage=engine, durability=durability, data_dir=data_dir, command=[sys.executable, str(LAUNCHER)])


def start_ms(broker: RunningBroker) -> float:
    """Start it: milliseconds from making the process to its ready line, Python's own start and all imports among them."""
    began = time.perf_counter()
    broker.start()
    return (time.perf_counter() - began) * 1000


def idle_memory_mb(broker: RunningBroker) -> float:
    """Anonymous memory in units of 10**6 bytes. Mapped segments and files are the page cache's and do not count."""
    return broker.anonymous_memory_bytes() / 1e6


def cpu_s(pid: int) -> float:
    """User and system time of a process since its start, all threads, in steps of 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
