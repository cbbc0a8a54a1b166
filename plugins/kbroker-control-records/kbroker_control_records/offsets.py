"""The offsets at which a log has the broker's own control records. No client consumes these, so lag
must not count them.

    firsts, lasts    runs of control offsets, in offset order, complete from `known_from` on
    before           number of control offsets in the runs before

Records that are appended in this broker life are noted when they become visible. Earlier ones are
searched for when a group that is so far behind needs them. The number of runs is limited: the
oldest are dropped, and searched for again.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence

MOST_RUNS = 1 << 17


class ControlOffsets:
    def __init__(self, known_from: int) -> None:
        self.known_from = known_from
        self._firsts = array("q")
        self._lasts = array("q")
        self._before = array("q")

    def __len__(self) -> int:
        """The number of runs."""
        return len(self._firsts)

    def append(self, first: int, last: int) -> None:
        """Add control records after all known ones."""
        if self._lasts and self._lasts[-1] + 1 == first:
            self._lasts[-1] = last
            return
        if len(self) >= MOST_RUNS:
            self._forget(len(self) // 2)
        self._before.append(self._before[-1] + self._lasts[-1] + 1 - self._firsts[-1] if self._lasts else 0)
        self._firsts.append(first)
        self._lasts.append(last)

    def learn(self, start: int, found: Sequence[tuple[int, int]]) -> None:
        """Add `found`, the control batches of [start, known_from). If they are too many, the oldest
        are dropped."""
        newer = list(zip(self._firsts, self._lasts, strict=True))
        self.known_from = start
        del self._firsts[:], self._lasts[:], self._before[:]
        for first, last in (*found, *newer):
            self.append(first, last)

    def count(self, start: int) -> int:
        """The number of control offsets from `start` on, or from `known_from` if that is higher."""
        place = bisect_right(self._firsts, start) - 1
        if not self._firsts:
            return 0
        total = self._before[-1] + self._lasts[-1] + 1 - self._firsts[-1]
        if place < 0:
            return total
        return (
            total
            - self._before[place]
            - min(start - self._firsts[place], self._lasts[place] + 1 - self._firsts[place])
        )

    def _forget(self, runs: int) -> None:
        self.known_from = self._lasts[runs - 1] + 1
        gone = self._before[runs]
        del self._firsts[:runs], self._lasts[:runs], self._before[:runs]
        for place in range(len(self._before)):
            self._before[place] -= gone
