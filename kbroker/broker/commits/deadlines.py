"""One heap of deadlines for the whole broker, one task that sleeps until the earliest.

A deadline is never cancelled: its callback checks whether there is still something to do. Times are
milliseconds of trio's clock, so that tests can use an autojump clock.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import trio


def now_ms() -> float:
    """The monotonic time of all deadlines."""
    return trio.current_time() * 1000


class DeadlinesStatistics(NamedTuple):
    """`next_ms`: on the clock of now_ms(), None if nothing is scheduled. Deadlines that are no
    longer needed are counted until they pass."""

    scheduled: int
    next_ms: float | None


class Deadlines:
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._sleeper: trio.CancelScope | None = None

    def __len__(self) -> int:
        return len(self._heap)

    def statistics(self) -> DeadlinesStatistics:
        return DeadlinesStatistics(len(self._heap), self._heap[0][0] if self._heap else None)

    def schedule(self, deadline_ms: float, callback: Callable[[], None]) -> None:
        """Call `callback` on the loop at `deadline_ms` or shortly after."""
        heapq.heappush(self._heap, (deadline_ms, next(self._numbers), callback))
        if self._sleeper is not None and self._heap[0][0] == deadline_ms:
            self._sleeper.deadline = deadline_ms / 1000

    async def run(self) -> None:
        while True:
            deadline = self._heap[0][0] / 1000 if self._heap else math.inf
            with trio.CancelScope(deadline=deadline) as self._sleeper:
                await trio.sleep(math.inf)
            self._sleeper = None
            current_ms = now_ms()
            while self._heap and self._heap[0][0] <= current_ms:
                heapq.heappop(self._heap)[2]()
