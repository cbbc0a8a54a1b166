"""A broker measured from outside: its start time and its idle memory (processes.py has more)."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from kbroker.client.broker_process import RunningBroker

LAUNCHER = Path(__file__).with_name("launch.py")


def measured_broker(
    home: Path, engine: str, durability: str, *, data_dir: Path | None = None
) -> RunningBroker:
    """A broker that is not started yet, with topic data and state on `engine`."""
    home.mkdir(parents=True, exist_ok=True)
    return RunningBroker(
        home,
        storage=engine,
        durability=durability,
        data_dir=data_dir,
        command=[sys.executable, str(LAUNCHER)],
    )


def start_ms(broker: RunningBroker) -> float:
    """Starts it. Returns the milliseconds from the creation of the process to its ready line,
    including the start of Python and all imports."""
    began = time.perf_counter()
    broker.start()
    return (time.perf_counter() - began) * 1000


def idle_memory_mb(broker: RunningBroker) -> float:
    """Anonymous memory in units of 10**6 bytes. Mapped segments and files belong to the page cache
    and are not counted."""
    return broker.anonymous_memory_bytes() / 1e6
