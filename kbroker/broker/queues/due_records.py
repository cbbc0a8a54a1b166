"""Makes records available that were delayed or scheduled, when they are due.

Each share-partition has a timer for its next due time. Scheduled records are due by the wall clock,
which may be set, so one task looks at the clock each second, for all share-partitions: with a look
for each, thousands with a job for tomorrow would keep the loop busy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import trio

from kbroker.broker.commits.deadlines import now_ms
from kbroker.broker.queues.loaded import LoadedSharePartition
from kbroker.clock import wall_clock_ms
from kbroker.share.redelivery import LOOK_AT_THE_CLOCK_MS

_CLOCK_STEP_MS = 100
"""A smaller step of the wall clock makes scheduled records at most so late."""


def end_waits(loaded: LoadedSharePartition) -> None:
    """Wake what waits for records, if some are due."""
    engine = loaded.engine
    if engine is not None and engine.end_waits(now_ms(), wall_clock_ms()):
        loaded.waiters.wake_all()
        if engine.settings.ttl_ms and loaded.scanner is not None:
            loaded.scanner.wake()  # They may expire from now on.


async def watch_clock(
    loaded: Callable[[], Iterable[LoadedSharePartition]], schedule: Callable[[LoadedSharePartition], None]
) -> None:
    """Look at all that is `loaded` when the wall clock is set. `schedule` sets their timers."""
    known_ms = wall_clock_ms() - now_ms()
    while True:
        await trio.sleep(LOOK_AT_THE_CLOCK_MS / 1000)
        ahead_ms = wall_clock_ms() - now_ms()
        if abs(ahead_ms - known_ms) > _CLOCK_STEP_MS:
            known_ms = ahead_ms
            for each in loaded():
                if each.engine is not None and each.engine.parking is not None and not each.gone:
                    end_waits(each)
                    schedule(each)
