"""`kbroker` that records each long turn of its loop.

    python tests/clients/timed_broker.py FILE start ...

A turn is the time between two waits for the kernel: during it the broker answers no request. FILE
gets a line for each turn of FROM_MS or more: when it ended (monotonic, seconds), how long it took,
and how much processor time of that the loop's thread had (both ms). On a busy machine a turn takes
longer than its processor time.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import trio

FROM_MS = 5.0
RATE = "KBROKER_SWIFT_RATE"
"""Environment variable: its clocks run faster, as those of swift_broker.py."""


class Turn(NamedTuple):
    at_s: float
    took_ms: float
    cpu_ms: float


class Turns(trio.abc.Instrument):
    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.after_io_wait(0)

    def after_io_wait(self, timeout: float) -> None:
        self._began_ns, self._began_cpu_ns = time.monotonic_ns(), time.thread_time_ns()

    def before_io_wait(self, timeout: float) -> None:
        now_ns = time.monotonic_ns()
        took_ms = (now_ns - self._began_ns) / 1e6
        if took_ms >= FROM_MS:
            cpu_ms = (time.thread_time_ns() - self._began_cpu_ns) / 1e6
            self._file.write(f"{now_ns / 1e9} {took_ms} {cpu_ms}\n")


def turns_of(path: Path, since_s: float, until_s: float) -> list[Turn]:
    """The recorded turns that ended in this span."""
    lines = path.read_text().splitlines(keepends=True)
    found = [Turn(*map(float, line.split())) for line in lines if line.endswith("\n")]
    return [turn for turn in found if since_s <= turn.at_s <= until_s]


def main(path: Path) -> None:
    run = trio.run

    def run_timed(*arguments: Any, **options: Any) -> Any:
        with path.open("a", buffering=1) as file:
            return run(*arguments, instruments=[Turns(file)], **options)

    trio.run = run_timed
    if rate := os.environ.get(RATE):
        from tests.clients import swift_broker

        swift_broker.install(float(rate))
    from kbroker.cli import main as kbroker

    kbroker()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    main(Path(sys.argv.pop(1)))
