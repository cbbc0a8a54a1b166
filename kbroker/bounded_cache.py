"""A cache that is bounded in bytes, for entries whose size clients determine.

A bound on the number of entries is none if one entry may have any size. The caller states the size
of each entry, since Python cannot tell what an object keeps in memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

ENTRY_BYTES = 300
"""What an entry costs beside its key and its value: the tables of the cache, about."""


class BoundedCache(Generic[K, V]):
    """Holds at most `max_bytes`. The least recently used entries leave first. An entry that is
    larger than all of it is not kept, except where the `least` entries used last always are."""

    __slots__ = ("_bytes", "_entries", "_least", "_max_bytes")

    def __init__(self, max_bytes: int, *, least: int = 0) -> None:
        self._max_bytes = max_bytes
        self._least = least
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def bytes(self) -> int:
        return self._bytes

    def get(self, key: K) -> V | None:
        found = self._entries.get(key)
        if found is None:
            return None
        self._entries.move_to_end(key)
        return found[0]

    def put(self, key: K, value: V, size_bytes: int) -> None:
        """`size_bytes`: of key and value."""
        self.drop(key)
        size_bytes += ENTRY_BYTES
        if size_bytes > self._max_bytes and not self._least:
            return
        self._entries[key] = value, size_bytes
        self._bytes += size_bytes
        self.shrink(self._max_bytes)

    def shrink(self, max_bytes: int) -> None:
        """To that size, this once."""
        while self._bytes > max_bytes and len(self._entries) > self._least:
            _, (_, left) = self._entries.popitem(last=False)
            self._bytes -= left

    def drop(self, key: K) -> None:
        found = self._entries.pop(key, None)
        if found is not None:
            self._bytes -= found[1]

    def clear(self) -> None:
        self._entries.clear()
        self._bytes = 0
