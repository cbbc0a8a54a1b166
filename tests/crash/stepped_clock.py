"""`kbroker` with a wall clock that a test may step while it runs, and the class that steps it.

    clock = SteppedClock(path)
    broker = RunningBroker(home, command=clock.command(), env=clock.environment())
    clock.step(days=1)

Only the wall clock steps, as when an operator sets it. The monotonic clock is unchanged.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

ROOT = Path(__file__).parents[2]
VARIABLE = "KBROKER_STEPPED_CLOCK"
_OFFSET_NS = struct.Struct("<q")


class SteppedClock:
    """`path`: a file that is created here and holds the offset of the broker's wall clock."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(_OFFSET_NS.pack(0))
        self._path = path
        self._map = _mapped(path)
        self.offset = timedelta()

    def command(self) -> Sequence[str]:
        return [sys.executable, str(Path(__file__))]

    def environment(self) -> Mapping[str, str]:
        return {VARIABLE: str(self._path)}

    def step(self, by: timedelta) -> None:
        self.offset += by
        self._map[:] = _OFFSET_NS.pack(self.offset // timedelta(microseconds=1) * 1000)

    def now_ms(self) -> int:
        """The broker's wall clock."""
        return time.time_ns() // 1_000_000 + self.offset // timedelta(milliseconds=1)


def _mapped(path: Path) -> mmap.mmap:
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), _OFFSET_NS.size)


def install(path: Path) -> None:
    """From now on this process reads the stepped clock."""
    offset, really = _mapped(path), time.time_ns
    time.time_ns = lambda: really() + int(_OFFSET_NS.unpack(offset[:])[0])


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    from kbroker.cli import main

    install(Path(os.environ[VARIABLE]))
    main()
