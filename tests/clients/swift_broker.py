"""`kbroker` whose clocks go faster, so that clients of today live through hours.

    python -m tests.clients.swift_broker RATE start ...

BEGAN in the environment says since when (ns since 1970); otherwise since its start. Then a test
knows what the broker takes the time for (now_ns), also after a restart.

Both of its clocks do, the monotonic one of its timers and the wall clock. Its clients and disks
are as slow as ever: a second of theirs is RATE seconds of the broker's.
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
    """What such a broker takes `at_ns` of the real clock for."""
    return began_ns + round((at_ns - began_ns) * rate)


def install(rate: float) -> None:
    really = time.time_ns
    began_ns = int(os.environ.get(BEGAN, really()))
    time.time_ns = lambda: now_ns(rate, began_ns, really())
    trio.run = partial(trio.run, clock=trio.testing.MockClock(rate=rate))  # type: ignore[assignment]


if __name__ == "__main__":
    install(float(sys.argv.pop(1)))
    main()
