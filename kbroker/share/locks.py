"""Acquisition locks: which member holds a run of records, and until when (KIP-932, "In-flight
records").

    lock_numbers  7 7 7 7 7      Lock 7: offsets 10..14, member a, deadline 30 000
    renew 12      7 7 8 7 7      Lock 8: offset 12, member a, deadline 45 000

A Lock is one grant: a run of offsets, one member, one deadline. The window has the lock number of
each offset in a column, and only that number ties a record to its Lock. A record that is
acknowledged, renewed or acquired again carries another number or state, so the old Lock finds
nothing when it is due. Nothing is cancelled, and a renewal is a new Lock. A Lock is removed at its
deadline, when the start offset has passed it, or in a sweep.

This module knows no record states and no clock. Lock durations are mostly equal, so deadlines
arrive in order.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator
from operator import attrgetter

_SWEEP_FROM = 1024
ANSWERED = float("-inf")
"""Instead of a time: the holder has answered for these records, or has left, and that could not be
saved. It no longer works on them, so the broker does not prolong the Lock."""


class Lock:
    """`member_id` holds the offsets of first..last that still carry `number`, until `deadline_ms`.

    `since_ms`: when the first Lock was granted that this one prolongs. None if it prolongs none; or
    ANSWERED.
    """

    __slots__ = ("deadline_ms", "first", "last", "member_id", "number", "since_ms")

    def __init__(self, number: int, member_id: str, first: int, last: int, deadline_ms: float) -> None:
        self.number = number
        self.member_id = member_id
        self.first = first
        self.last = last
        self.deadline_ms = deadline_ms
        self.since_ms: float | None = None


class Locks:
    """The Locks of one share-partition; `by_deadline` begins with the next one due. A number that
    is not in `by_number` belongs to a Lock that has ended; 0 is never used. With more than
    `sweep_at` Locks it is time for a sweep(), because many small grants pile up behind a stuck head
    record."""

    __slots__ = ("_last_number", "by_deadline", "by_number", "sweep_at")

    def __init__(self) -> None:
        self.by_number: dict[int, Lock] = {}
        self.by_deadline: deque[Lock] = deque()
        self._last_number = 0
        self.sweep_at = _SWEEP_FROM

    def __len__(self) -> int:
        return len(self.by_deadline)

    def grant(self, member_id: str, first: int, last: int, deadline_ms: float) -> int:
        """Returns the number of a new Lock."""
        number = (self._last_number + 1) & 0xFFFFFFFF
        while number in self.by_number or not number:  # Numbers repeat after four billion grants.
            number = (number + 1) & 0xFFFFFFFF
        self._last_number = number
        lock = self.by_number[number] = Lock(number, member_id, first, last, deadline_ms)
        by_deadline = self.by_deadline
        if by_deadline and by_deadline[-1].deadline_ms > deadline_ms:  # The lock duration was shortened.
            insort(by_deadline, lock, key=attrgetter("deadline_ms"))
        else:
            by_deadline.append(lock)
        return number

    def due(self, now_ms: float) -> Iterator[Lock]:
        """Remove and yield the Locks whose deadline has come, in that order."""
        by_deadline = self.by_deadline
        while by_deadline and by_deadline[0].deadline_ms <= now_ms:
            lock = by_deadline.popleft()
            del self.by_number[lock.number]
            yield lock

    def note_since(self, duration_ms: int) -> None:
        """All Locks without a time were granted for this duration, which is about to be altered:
        note since when they are held."""
        for lock in self.by_deadline:
            if lock.since_ms is None:
                lock.since_ms = lock.deadline_ms - duration_ms

    def of_member(self, member_id: str) -> list[Lock]:
        return [lock for lock in self.by_deadline if lock.member_id == member_id]

    def forget_below(self, offset: int) -> None:
        """The start offset has moved: remove Locks that lie below it, as far as they are next in
        the order of deadlines."""
        by_deadline = self.by_deadline
        while by_deadline and by_deadline[0].last < offset:
            del self.by_number[by_deadline.popleft().number]

    def sweep(self, in_use: Callable[[Lock], bool]) -> None:
        """Remove the Locks that hold no record any more."""
        self.by_deadline = deque(filter(in_use, self.by_deadline))
        self.by_number = {lock.number: lock for lock in self.by_deadline}
        self.sweep_at = max(_SWEEP_FROM, 2 * len(self.by_deadline))

    def clear(self) -> None:
        self.by_number.clear()
        self.by_deadline.clear()
