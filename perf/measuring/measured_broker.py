"""A broker that is looked at from outside: how long it took to be ready, and what memory it has
(more in processes.py)."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from kbroker.client.broker_process import RunningBroker

LAUNCHER = Path(__file__).with_name("launch.py")


def measured_broker(
    home: Path, engine: str, durability: str, *, data_dir: Path | None = None
) -> RunningBroker:
    """Not started yet. Topic data and state both on `engine`."""
    home.mkdir(parents=True, exist_ok=True)
    return RunningBroker(
        home,
        storage=engine,
        durability=durability,
        data_dir=data_dir,
        command=[sys.executable, str(LAUNCHER)],
    )


def start_ms(broker: RunningBroker) -> float:
    """Start it: milliseconds from making the process to its ready line, Python's own start and all
    imports among them."""
    began = time.perf_counter()
    broker.start()
    return (time.perf_counter() - began) * 1000


def idle_memory_mb(broker: RunningBroker) -> float:
    """Anonymous memory in units of 10**6 bytes. Mapped segments and files are the page cache's and
    do not count."""
    return broker.anonymous_memory_bytes() / 1e6
