"""Keys in bytewise order, in memory.

They lie in a list of blocks, so that changes stay fast with a million keys, and when keys are
removed from the front again and again. Not thread-safe. This module must not know what keys mean.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

_BLOCK_KEYS = 1000


class SortedKeys:
    """A set of keys that can be iterated from any key on."""

    def __init__(self, keys: Iterable[bytes] = ()) -> None:
        """Without duplicates, in any order."""
        in_order = sorted(keys)
        self._blocks = [in_order[at : at + _BLOCK_KEYS] for at in range(0, len(in_order), _BLOCK_KEYS)]
        """None of them is empty."""
        self._lasts = [block[-1] for block in self._blocks]

    def copy(self) -> SortedKeys:
        copied = SortedKeys()
        copied._blocks, copied._lasts = [block[:] for block in self._blocks], self._lasts[:]
        return copied

    def add(self, key: bytes) -> None:
        """Add a key that is not in the set."""
        if not self._blocks:
            self._blocks, self._lasts = [[key]], [key]
            return
        place = bisect_left(self._lasts, key)
        if place == len(self._lasts):
            place -= 1
            self._lasts[place] = key
        block = self._blocks[place]
        insort(block, key)
        if len(block) > 2 * _BLOCK_KEYS:
            self._blocks[place : place + 1] = block[:_BLOCK_KEYS], block[_BLOCK_KEYS:]
            self._lasts.insert(place, block[_BLOCK_KEYS - 1])

    def remove(self, key: bytes) -> None:
        """Remove a key that is in the set."""
        place = bisect_left(self._lasts, key)
        block = self._blocks[place]
        del block[bisect_left(block, key)]
        if not block:
            del self._blocks[place], self._lasts[place]
        else:
            self._lasts[place] = block[-1]

    def since(self, first: bytes) -> Iterator[bytes]:
        """Keys from `first` on. The iterator is invalid after a change."""
        place = bisect_left(self._lasts, first)
        if place == len(self._blocks):
            return
        block = self._blocks[place]
        yield from block[bisect_left(block, first) :]
        for later in self._blocks[place + 1 :]:
            yield from later

    def between(self, first: bytes, end: bytes | None) -> list[bytes]:
        """Keys from `first` up to but without `end`; None: to the last one."""
        found: list[bytes] = []
        for block in self._blocks[bisect_left(self._lasts, first) :]:
            begin = bisect_left(block, first)
            if end is not None and block[-1] >= end:
                return found + block[begin : bisect_left(block, end)]
            found += block[begin:]
        return found
