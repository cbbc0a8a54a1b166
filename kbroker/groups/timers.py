"""Deadlines by name, in a heap that is corrected lazily.

Sessions move their deadline with every heartbeat. Setting a deadline costs a dictionary entry. The
heap has one entry per name, with the deadline that applied when the entry was made; it is corrected
when it reaches the top. Cancelled names leave entries behind, which are dropped when they are most
of the heap. Pure: the caller passes the time.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final, Generic, TypeVar

Name = TypeVar("Name", bound=Hashable)

_FEW: Final = 1000
"""A heap with fewer stale entries than this is not worth tidying up."""


class Timers(Generic[Name]):
    def __init__(self) -> None:
        self._deadlines: dict[Name, int] = {}
        self._looked_at: dict[Name, int] = {}  # when the name comes up in the heap
        self._heap: list[tuple[int, int, Name]] = []
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._deadlines)

    def set(self, name: Name, deadline_ms: int) -> None:
        """Set or replace the deadline of a name."""
        self._deadlines[name] = deadline_ms
        looked_at = self._looked_at.get(name)
        if looked_at is None or deadline_ms < looked_at:
            self._push(name, deadline_ms)

    def cancel(self, name: Name) -> None:
        self._deadlines.pop(name, None)

    def deadline_ms(self, name: Name) -> int | None:
        return self._deadlines.get(name)

    def take_due(self, now_ms: int) -> list[Name]:
        """Remove and return the names whose deadlines have passed, the earliest first."""
        due: list[tuple[int, Name]] = []
        while self._heap and self._heap[0][0] <= now_ms:
            looked_at, _, name = heappop(self._heap)
            if self._looked_at.get(name) != looked_at:
                continue
            del self._looked_at[name]
            deadline_ms = self._deadlines.get(name)
            if deadline_ms is None:
                continue
            if deadline_ms <= now_ms:
                due.append((deadline_ms, name))
                del self._deadlines[name]
            else:
                self._push(name, deadline_ms)
        return [name for _, name in sorted(due, key=lambda each: each[0])]

    def may_be_due(self, now_ms: int) -> Iterator[Name]:
        """The names that `take_due` would look at, in any order; a name may come twice."""
        places = [0]
        while places:
            at = places.pop()
            if at < len(self._heap) and self._heap[at][0] <= now_ms:
                yield self._heap[at][2]
                places += (2 * at + 1, 2 * at + 2)

    def next_ms(self) -> int | None:
        """When to call `take_due` next; there may be nothing due then."""
        return self._heap[0][0] if self._heap else None

    def _push(self, name: Name, deadline_ms: int) -> None:
        self._looked_at[name] = deadline_ms
        heappush(self._heap, (deadline_ms, next(self._numbers), name))
        if len(self._heap) > _FEW + 2 * len(self._deadlines):
            self._tidy_up()

    def _tidy_up(self) -> None:
        self._looked_at = dict(self._deadlines)
        self._heap = [
            (deadline_ms, next(self._numbers), name) for name, deadline_ms in self._deadlines.items()
        ]
        heapify(self._heap)
