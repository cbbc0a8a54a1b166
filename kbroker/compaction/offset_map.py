"""The latest offset of each key in the part of a log that no pass has cleaned yet.

The map holds a digest of each key (128 bits), not the key. Two keys with the same digest would be
taken for one; Kafka has the same rule with another digest. An entry has 24 bytes in one table with
open addressing. A dict would take about 170.

The keys of a large batch are looked up with arrays, all at once (offset_arrays.py).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # Loading numpy takes 0.1 s.
    from kbroker.compaction.offset_arrays import OffsetArrays

_ENTRY = struct.Struct("<16sq")
_HALVES = struct.Struct("<QQ")
_DIGEST_BYTES = 16
_LEAST_SLOTS = 1024
_LOAD = 0.75
"""The part of the slots that may be in use. A key that is not there then costs four looks."""
_ARRAYS_FROM = 128
"""Keys from which on arrays are faster."""


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=_DIGEST_BYTES).digest()


def _digests(keys: Iterable[bytes]) -> bytes:
    return b"".join([blake2b(key, digest_size=_DIGEST_BYTES).digest() for key in keys])


class OffsetMap:
    """`memory_bytes`: the most that the table takes. `records`: how many keys the caller expects at
    most; fewer give a smaller table."""

    def __init__(self, memory_bytes: int, records: int) -> None:
        slots = _LEAST_SLOTS
        while slots * _LOAD < records and 2 * slots * _ENTRY.size <= memory_bytes:
            slots *= 2
        self._mask = slots - 1
        self._most = int(slots * _LOAD)
        # The system provides the pages of so large a block when they are first written.
        self._table = bytearray(slots * _ENTRY.size)
        self._arrays: OffsetArrays | None = None
        self._count = 0
        self.end_offset = -1
        """The map knows all records before this offset."""

    def __len__(self) -> int:
        return self._count

    def has_room_for(self, records: int) -> bool:
        """Whether so many further keys fit."""
        return self._count + records <= self._most

    def put(self, key: bytes, offset: int) -> None:
        """Note that `key` has a record at `offset`. Offsets rise. OverflowError without room."""
        digest = _digest(key)
        at, stored = self._find(digest)
        if not stored:
            self._count_new(1)
        # An offset is stored plus one: 0 is a free slot.
        _ENTRY.pack_into(self._table, at, digest, offset + 1)

    def put_all(self, latest: Mapping[bytes, int]) -> None:
        """`put` for the latest offset of each key. OverflowError without room; some of the keys may
        then be there."""
        if len(latest) < _ARRAYS_FROM:
            for key, offset in latest.items():
                self.put(key, offset)
        else:
            room = self._most - self._count
            self._count_new(self._with_arrays().put(_digests(latest), list(latest.values()), room))

    def latest(self, key: bytes) -> int:
        """The latest offset of `key`, or -1."""
        return self._find(_digest(key))[1] - 1

    def latest_of(self, keys: Sequence[bytes]) -> Sequence[int]:
        """`latest` of each."""
        if len(keys) < _ARRAYS_FROM:
            return [self._find(_digest(key))[1] - 1 for key in keys]
        return self._with_arrays().latest(_digests(keys))

    def _with_arrays(self) -> OffsetArrays:
        if self._arrays is None:
            from kbroker.compaction.offset_arrays import OffsetArrays

            self._arrays = OffsetArrays(self._table)
        return self._arrays

    def _count_new(self, keys: int) -> None:
        if self._count + keys > self._most:
            raise OverflowError(f"the offset map is full: {self._count} keys")
        self._count += keys

    def _find(self, digest: bytes) -> tuple[int, int]:
        """The place of the entry with this digest, and what it stores; or the free slot for it, and
        0."""
        low, high = _HALVES.unpack(digest)
        table, mask, unpack = self._table, self._mask, _ENTRY.unpack_from
        slot, step = low & mask, high | 1
        while True:
            at = slot * _ENTRY.size
            known, stored = unpack(table, at)
            if not stored or known == digest:
                return at, stored
            slot = slot + step & mask
