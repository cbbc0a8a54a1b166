"""An ordered map from bytes to bytes in memory: all of the memory engine's state, and the segment
engine's but for the keys of ON_DISK (segment_state/store.py). This module must not know what keys
mean."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile
from threading import Lock

from kbroker.storage.keyvalue.key_ranges import RECORD_BYTES, Entries, prefix_end
from kbroker.storage.keyvalue.sorted_keys import SortedKeys
from kbroker.storage.spi import Change


class MemoryMap:
    """Readers see the changes of one `apply` together. `live_bytes`: about how much the entries
    take in a log."""

    def __init__(self, values: dict[bytes, bytes] | None = None) -> None:
        """`values` belongs to the map from now on."""
        self._values = {} if values is None else values
        self._keys = SortedKeys(self._values)
        self._lock = Lock()
        self.live_bytes = sum(len(key) + len(value) + RECORD_BYTES for key, value in self._values.items())

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: bytes) -> bytes | None:
        return self._values.get(key)

    def apply(self, changes: Sequence[Change]) -> None:
        values, keys = self._values, self._keys
        many = len(changes) > 16 and len(changes) > 16 + len(values) // 64
        with self._lock:
            for key, value in changes:
                old = values.get(key)
                if old is not None:
                    self.live_bytes -= len(key) + len(old) + RECORD_BYTES
                if value is not None:
                    values[key] = bytes(value)
                    self.live_bytes += len(key) + len(value) + RECORD_BYTES
                    if old is None and not many:
                        keys.add(key)
                elif old is not None:
                    del values[key]
                    if not many:
                        keys.remove(key)
            if many:
                self._keys = SortedKeys(values)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        with self._lock:
            keys = self._keys.between(prefix, prefix_end(prefix))
            found = [(key, self._values[key]) for key in keys]
        yield from found

    def entries(self, first: bytes, end: bytes, count: int) -> Entries:
        """At most `count` entries from `first` up to but without `end`."""
        with self._lock:
            keys = takewhile(lambda key: key < end, islice(self._keys.since(first), count))
            return [(key, self._values[key]) for key in keys]

    def piece(self, first_key: bytes, size_bytes: int) -> Sequence[Change]:
        """Entries from `first_key` on, up to about `size_bytes`, but at least one if there is one.
        The map must not change meanwhile."""
        found: list[Change] = []
        for key in self._keys.since(first_key):
            value = self._values[key]
            found.append((key, value))
            size_bytes -= len(key) + len(value) + RECORD_BYTES
            if size_bytes <= 0:
                break
        return found

    def copy(self) -> MemoryMap:
        copied = MemoryMap()
        with self._lock:
            copied._values, copied._keys = dict(self._values), self._keys.copy()
            copied.live_bytes = self.live_bytes
        return copied


def loaded(changes: Iterable[Change]) -> MemoryMap:
    """The map that results from many changes."""
    found = dict(changes)
    return MemoryMap({key: value for key, value in found.items() if value is not None})
