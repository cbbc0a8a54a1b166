"""`kbroker` with accelerated clocks, so that a test with real clients covers hours.

    python -m tests.clients.swift_broker RATE start ...

Both clocks run faster: the monotonic one of its timers and the wall clock. Clients and disks keep
their speed: one of their seconds is RATE seconds of the broker's.

The environment variable BEGAN sets the moment of acceleration (ns since 1970); the default is the
process's start. With it a test can compute the broker's time (now_ns), even after a restart.
"""

from __future__ import annotations

import os
import sys
import time
from functools import partial

import trio
import trio.testing

from kbroker.cli import main

BEGAN = "KBROKER_SWIFT_BEGAN"


def now_ns(rate: float, began_ns: int, at_ns: int) -> int:
    """The time that such a broker reads when the real clock reads `at_ns`."""
    return began_ns + round((at_ns - began_ns) * rate)


def install(rate: float) -> None:
    really = time.time_ns
    began_ns = int(os.environ.get(BEGAN, really()))
    time.time_ns = lambda: now_ns(rate, began_ns, really())
    trio.run = partial(trio.run, clock=trio.testing.MockClock(rate=rate))  # type: ignore[assignment]


if __name__ == "__main__":
    install(float(sys.argv.pop(1)))
    main()
