"""`kbroker` whose clocks go faster, so that clients of today live through hours.

    python -m tests.clients.swift_broker RATE start ...

Both of its clocks do, the monotonic one of its timers and the wall clock. Its clients and disks
are as slow as ever: a second of theirs is RATE seconds of the broker's.
"""

from __future__ import annotations

import sys
import time
from functools import partial

import trio
import trio.testing

from kbroker.cli import main


def install(rate: float) -> None:
    began_ns, really = time.time_ns(), time.time_ns
    time.time_ns = lambda: began_ns + round((really() - began_ns) * rate)
    trio.run = partial(trio.run, clock=trio.testing.MockClock(rate=rate))  # type: ignore[assignment]


if __name__ == "__main__":
    install(float(sys.argv.pop(1)))
    main()
