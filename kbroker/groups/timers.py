"""Deadlines by name: a heap that is looked at late instead of being kept in order.

Sessions move their deadline with every heartbeat. Setting one costs a dictionary entry; the heap
holds one entry per name, at the deadline it had when that was made, and is corrected when its time
has come. Names that come and go leave entries behind, which are thrown out when they are most of
the heap. Pure: whoever uses it says what time it is.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final, Generic, TypeVar

Name = TypeVar("Name", bound=Hashable)

_FEW: Final = 1000
"""Entries of a heap that is not worth tidying up."""


class Timers(Generic[Name]):
    def __init__(self) -> None:
        self._deadlines: dict[Name, int] = {}
        self._looked_at: dict[Name, int] = {}  # when the heap gives the name next
        self._heap: list[tuple[int, int, Name]] = []
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._deadlines)

    def set(self, name: Name, deadline_ms: int) -> None:
        """Whatever deadline the name had is replaced."""
        self._deadlines[name] = deadline_ms
        looked_at = self._looked_at.get(name)
        if looked_at is None or deadline_ms < looked_at:
            self._push(name, deadline_ms)

    def cancel(self, name: Name) -> None:
        self._deadlines.pop(name, None)

    def deadline_ms(self, name: Name) -> int | None:
        return self._deadlines.get(name)

    def take_due(self, now_ms: int) -> list[Name]:
        """The names whose deadline has come, the earliest first; they have none any more."""
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

    def next_ms(self) -> int | None:
        """When to call `take_due` next; it may turn out that nothing is due then."""
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
