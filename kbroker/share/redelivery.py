"""Redelivery delays: how long a returned record waits, and which records of a share-partition are
waiting. Pure.

    delivery        1st      2nd      3rd
    then it waits   delay    x m      x m^2  ...  at most `max_ms`, plus up to `jitter` of itself

A wait is drawn once. The window marks the records (WAITING of record_state.py), and this module has
the due times. Only short waits are spent in the window, because a waiting record is in flight and
holds back the start offset. Records with longer waits are parked (parked.py).
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import ceil
from typing import Final, NamedTuple

LOOK_AT_THE_CLOCK_MS: Final = 1000
"""How often scheduled records are compared with the wall clock."""


class Redelivery(NamedTuple):
    """A group's redelivery settings: milliseconds and factors."""

    delay_ms: int
    multiplier: float
    max_ms: int
    jitter: float

    @property
    def longest_ms(self) -> float:
        """The upper bound of all waits."""
        return max(self.max_ms, self.delay_ms) * (1 + self.jitter)

    def wait_ms(self, delivery_count: int, drawn: float) -> float:
        """The wait after this many deliveries. `drawn`: a random number in [0, 1)."""
        try:
            grown_ms = self.delay_ms * self.multiplier ** max(0, delivery_count - 1)
        except OverflowError:
            grown_ms = self.max_ms
        return min(grown_ms, max(self.max_ms, self.delay_ms)) * (1 + self.jitter * drawn)


class Waits:
    """When the waiting records of one share-partition are due, by offset. It may still contain a
    record that is held again because its return could not be saved; the window's state decides."""

    __slots__ = ("_by_time", "_due", "_until")

    def __init__(self) -> None:
        self._due: dict[int, float] = {}
        self._by_time: list[tuple[float, int]] = []
        """A heap, including waits that a later one of the same record has replaced."""
        self._until: dict[int, float] = {}
        """Due times of scheduled records on the wall clock, which is read each second because it
        may be set."""

    def __len__(self) -> int:
        return len(self._due)

    def begin(self, offset: int, due_ms: float) -> None:
        self._due[offset] = due_ms
        heappush(self._by_time, (due_ms, offset))

    def begin_until(self, offset: int, until_ms: float, *, now_ms: float, wall_ms: float) -> None:
        """The record is due at that time of the wall clock, which shows `wall_ms` now."""
        self._until[offset] = until_ms
        self.begin(offset, now_ms + min(max(0, until_ms - wall_ms), LOOK_AT_THE_CLOCK_MS))

    def scheduled_from(self, from_ms: float) -> list[tuple[int, int]]:
        """(offset, due time) of the records that wait for the wall clock and are due at `from_ms`
        or later."""
        return [(offset, ceil(until_ms)) for offset, until_ms in self._until.items() if until_ms >= from_ms]

    def is_scheduled(self, offset: int) -> bool:
        """True if the record waits for the wall clock."""
        return offset in self._until

    def end(self, offset: int) -> None:
        """The record no longer waits, or waits elsewhere."""
        self._due.pop(offset, None)
        self._until.pop(offset, None)

    def due_ms(self, offset: int) -> float | None:
        return self._due.get(offset)

    def next_ms(self) -> float | None:
        """When take_due() returns the next one; None: no record waits."""
        while self._by_time and self._due.get(self._by_time[0][1]) != self._by_time[0][0]:
            heappop(self._by_time)
        return self._by_time[0][0] if self._by_time else None

    def take_due(self, now_ms: float, wall_ms: float = 0) -> list[int]:
        """Remove and return the offsets that are due, the earliest first."""
        taken = []
        while (due_ms := self.next_ms()) is not None and due_ms <= now_ms:
            _, offset = heappop(self._by_time)
            del self._due[offset]
            until_ms = self._until.pop(offset, None) if self._until else None
            if until_ms is not None and until_ms > wall_ms:
                self.begin_until(offset, until_ms, now_ms=now_ms, wall_ms=wall_ms)
            else:
                taken.append(offset)
        return taken

    def forget_below(self, offset: int) -> None:
        for each in [each for each in self._due if each < offset]:
            del self._due[each]
            self._until.pop(each, None)
