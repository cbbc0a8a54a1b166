"""The in-memory map of a state log (segment_state/store.py), used by its store and its readers.
This module must not know what keys mean."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from threading import Lock

from kbroker.storage.keyvalue.key_ranges import RECORD_BYTES
from kbroker.storage.spi import Change


class MemoryMap:
    """An ordered map in memory. Readers see the changes of one `apply` together."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []
        self._lock = Lock()
        self.live_bytes = 0

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: bytes) -> bytes | None:
        return self._values.get(key)

    def apply(self, changes: Sequence[Change]) -> None:
        with self._lock:
            many = len(changes) > 16 and len(changes) > 16 + len(self._keys) // 64
            for key, value in changes:
                old = self._values.get(key)
                if old is not None:
                    self.live_bytes -= len(key) + len(old) + RECORD_BYTES
                if value is not None:
                    self._values[key] = bytes(value)
                    self.live_bytes += len(key) + len(value) + RECORD_BYTES
                    if old is None and not many:
                        insort(self._keys, key)
                elif old is not None:
                    del self._values[key]
                    if not many:
                        del self._keys[bisect_left(self._keys, key)]
            if many:
                self._keys = sorted(self._values)

    def load(self, changes: Iterable[Change]) -> None:
        """Like apply(), for an empty map that no other thread uses yet."""
        found = dict(changes)
        self._values = {key: value for key, value in found.items() if value is not None}
        self._keys = sorted(self._values)
        self.live_bytes = sum(len(key) + len(value) + RECORD_BYTES for key, value in self._values.items())

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        with self._lock:
            found: list[tuple[bytes, bytes]] = []
            for number in range(bisect_left(self._keys, prefix), len(self._keys)):
                key = self._keys[number]
                if not key.startswith(prefix):
                    break
                found.append((key, self._values[key]))
        yield from found

    def piece(self, first_key: bytes, size_bytes: int) -> list[Change]:
        """Entries from `first_key` on, up to about `size_bytes`, but at least one if there is
        one."""
        found: list[Change] = []
        for number in range(bisect_left(self._keys, first_key), len(self._keys)):
            key = self._keys[number]
            found.append((key, self._values[key]))
            size_bytes -= len(key) + len(self._values[key]) + RECORD_BYTES
            if size_bytes <= 0:
                break
        return found

    def copy(self) -> MemoryMap:
        copied = MemoryMap()
        with self._lock:
            copied._values, copied._keys = dict(self._values), list(self._keys)
        return copied
