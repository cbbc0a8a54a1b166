"""How a client waits that has exceeded a quota, and how the time is measured that the broker works
for a request."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from time import perf_counter
from types import coroutine
from typing import Any, Final, TypeVar

import trio

from kbroker.broker.commits.waiting import Waiter
from kbroker.broker.connection import Connection, PeerGone
from kbroker.metrics import QuotaMetrics
from kbroker.security.metering import Metering

T = TypeVar("T")

PRODUCE_KEY: Final = 0
UNMETERED: Final = frozenset({17, 36})
"""Log-ins do not count as work for a client."""
LEAST_MS: Final = 100
"""A client that always holds a lock which nearly ends must not ask as often as it likes. It could
have acknowledged at the end of each wait before."""


class Mute:
    """One wait of one connection: a timer, and nothing that polls."""

    def __init__(self, connection: Connection, metrics: QuotaMetrics) -> None:
        self._connection = connection
        self._metrics = metrics
        self._waiter = Waiter()

    async def wait(self, wait_ms: int) -> None:
        """Returns earlier at the `end`, and if the client hangs up."""
        self._metrics.muted += 1
        try:
            await self._connection.park(self._waiter, trio.current_time() + wait_ms / 1000)
        except PeerGone:
            pass  # What the client has sent before is answered; the server then reads the end.
        finally:
            self._metrics.muted -= 1

    def end(self) -> None:
        self._waiter.wake()


def before_locks_end(wait_ms: int, first_lock_ms: float, now_ms: float) -> int:
    """The time that the client waits: at most half of the time that is left of its first lock, so
    that it can still acknowledge the record, and not less than LEAST_MS because of it."""
    left_ms = (first_lock_ms - now_ms) / 2
    return wait_ms if left_ms >= wait_ms else min(wait_ms, max(LEAST_MS, int(left_ms)))


@coroutine
def timed(work: Coroutine[Any, Any, T], metering: Metering) -> Generator[Any, Any, T]:
    """Do the work, and add the time that it runs to `metering`: not that in which it waits."""
    resume: Callable[[Any], Any] = work.send
    value: Any = None
    while True:
        began = perf_counter()
        try:
            trap = resume(value)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        finally:
            metering.busy_s += perf_counter() - began
        try:
            value, resume = (yield trap), work.send
        except BaseException as error:
            value, resume = error, work.throw
