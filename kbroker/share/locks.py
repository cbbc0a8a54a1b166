"""Acquisition locks: who holds a run of records, and until when (KIP-932, "In-flight records").

A Lock is one grant: a run of offsets, one member, one deadline. The in-flight window keeps each
offset's lock number in a column, and that number is what ties a record to its Lock: one that was
acknowledged, renewed or acquired anew carries another number or state, and the old Lock finds
nothing when it is due. So nothing is cancelled, a renewal is a new Lock, and a Lock only leaves at
its deadline, when the start offset has passed it, or when too many have piled up.

It knows no record states and no clock; the durations are equal as a rule, so that the deadlines
come in order.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator
from operator import attrgetter

_SWEEP_FROM = 1024
ANSWERED = float("-inf")
"""In place of a time: the holder has answered for these records, or left, and that could not be
saved. It works on them no more, so the broker does not prolong the Lock."""


class Lock:
    """`member_id` holds the offsets of first..last that still carry `number`, until `deadline_ms`.
    `since_ms`: when the first of the Locks was granted that this one prolongs, None where it
    prolongs none; or ANSWERED."""

    __slots__ = ("deadline_ms", "first", "last", "member_id", "number", "since_ms")

    def __init__(self, number: int, member_id: str, first: int, last: int, deadline_ms: float) -> None:
        self.number = number
        self.member_id = member_id
        self.first = first
        self.last = last
        self.deadline_ms = deadline_ms
        self.since_ms: float | None = None


class Locks:
    """The Locks of one share-partition. A number that is not in `by_number` belongs to a lock that
    ran out; 0 is never given. `by_deadline` is in that order, the next one due first. With more
    than `sweep_at` of them it is time for a sweep(): many small grants behind a stuck head record
    pile up otherwise."""

    __slots__ = ("_last_number", "by_deadline", "by_number", "sweep_at")

    def __init__(self) -> None:
        self.by_number: dict[int, Lock] = {}
        self.by_deadline: deque[Lock] = deque()
        self._last_number = 0
        self.sweep_at = _SWEEP_FROM

    def __len__(self) -> int:
        return len(self.by_deadline)

    def grant(self, member_id: str, first: int, last: int, deadline_ms: float) -> int:
        """The number of a new Lock."""
        number = (self._last_number + 1) & 0xFFFFFFFF
        while number in self.by_number or not number:  # after four billion grants the numbers begin again
            number = (number + 1) & 0xFFFFFFFF
        self._last_number = number
        lock = self.by_number[number] = Lock(number, member_id, first, last, deadline_ms)
        by_deadline = self.by_deadline
        if by_deadline and by_deadline[-1].deadline_ms > deadline_ms:  # the lock duration was made shorter
            insort(by_deadline, lock, key=attrgetter("deadline_ms"))
        else:
            by_deadline.append(lock)
        return number

    def due(self, now_ms: float) -> Iterator[Lock]:
        """Take out the Locks whose deadline has come, in that order."""
        by_deadline = self.by_deadline
        while by_deadline and by_deadline[0].deadline_ms <= now_ms:
            lock = by_deadline.popleft()
            del self.by_number[lock.number]
            yield lock

    def of_member(self, member_id: str) -> list[Lock]:
        return [lock for lock in self.by_deadline if lock.member_id == member_id]

    def forget_below(self, offset: int) -> None:
        """The start offset has moved: drop Locks that are all below it, as far as they are the next
        ones due."""
        by_deadline = self.by_deadline
        while by_deadline and by_deadline[0].last < offset:
            del self.by_number[by_deadline.popleft().number]

    def sweep(self, in_use: Callable[[Lock], bool]) -> None:
        """Drop the Locks that hold nothing any more."""
        self.by_deadline = deque(filter(in_use, self.by_deadline))
        self.by_number = {lock.number: lock for lock in self.by_deadline}
        self.sweep_at = max(_SWEEP_FROM, 2 * len(self.by_deadline))

    def clear(self) -> None:
        self.by_number.clear()
        self.by_deadline.clear()
