"""The table of an offset map as arrays: looks for hundreds of keys at once. A module of its own, as
loading numpy takes 0.1 s.

Each round looks at one slot for each key that is not found yet. Few keys need more than four.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_ENTRY = np.dtype([("low", "<u8"), ("high", "<u8"), ("stored", "<i8")])
_DIGEST = np.dtype([("low", "<u8"), ("high", "<u8")])


class OffsetArrays:
    """`table`: of an OffsetMap, which searches it in the same order."""

    def __init__(self, table: bytearray) -> None:
        self._table = np.frombuffer(table, _ENTRY)
        self._mask = np.uint64(len(self._table) - 1)

    def latest(self, digests: bytes) -> Sequence[int]:
        """The latest offset for each of these digests of 16 bytes, or -1."""
        wanted = np.frombuffer(digests, _DIGEST)
        slots, found = wanted["low"] & self._mask, np.zeros(len(wanted), np.int64)
        left = np.arange(len(wanted))
        while len(left):
            entries, mine = self._table[slots[left]], wanted[left]
            is_other = (entries["stored"] != 0) & _differ(entries, mine)
            here = ~is_other
            found[left[here]] = entries["stored"][here]
            left = self._next(slots, wanted, left[is_other])
        answer: list[int] = (found - 1).tolist()
        return answer

    def put(self, digests: bytes, offsets: Sequence[int], room: int) -> int:
        """Store the offset of each digest. Returns how many are new; stores none of those beyond
        `room`, of which there are then more than that."""
        wanted, stored = np.frombuffer(digests, _DIGEST), np.array(offsets, np.int64) + 1
        slots, left, new = wanted["low"] & self._mask, np.arange(len(wanted)), 0
        while len(left):
            entries, mine = self._table[slots[left]], wanted[left]
            is_free = entries["stored"] == 0
            is_other = ~is_free & _differ(entries, mine)
            known = left[~is_free & ~is_other]
            self._table["stored"][slots[known]] = stored[known]
            free = left[is_free]
            # Of several keys that want the same free slot, the first one gets it. The others look
            # at it again.
            claimed, first = np.unique(slots[free], return_index=True)
            new += len(claimed)
            if new > room:
                return new
            winners = free[first]
            self._table["low"][claimed] = wanted["low"][winners]
            self._table["high"][claimed] = wanted["high"][winners]
            self._table["stored"][claimed] = stored[winners]
            losers = np.delete(free, first)
            left = np.concatenate((losers, self._next(slots, wanted, left[is_other])))
        return new

    def _next(
        self, slots: NDArray[np.uint64], wanted: NDArray[np.void], left: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """`left`, after a step to the next slot of each."""
        steps = wanted["high"][left] | np.uint64(1)
        slots[left] = slots[left] + steps & self._mask
        return left


def _differ(entries: NDArray[np.void], wanted: NDArray[np.void]) -> NDArray[np.bool_]:
    differ: NDArray[np.bool_] = (entries["low"] != wanted["low"]) | (entries["high"] != wanted["high"])
    return differ
