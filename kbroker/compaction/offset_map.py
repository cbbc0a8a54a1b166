"""The latest offset of each key in the part of a log that no pass has cleaned yet.

The map holds a digest of each key (128 bits), not the key. Two keys with the same digest would be
taken for one; Kafka has the same rule with another digest. An entry has 24 bytes in one table with
open addressing. A dict would take about 170.
"""

from __future__ import annotations

import struct
from hashlib import blake2b

_ENTRY = struct.Struct("<16sq")
_DIGEST_BYTES = 16
_LEAST_SLOTS = 1024
_LOAD = 0.75
"""The part of the slots that may be in use. A key that is not there then costs four looks."""


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
        at, digest = self._find(key)
        if self._table[at : at + _DIGEST_BYTES] != digest or not self._stored(at):
            if self._count >= self._most:
                raise OverflowError(f"the offset map is full: {self._count} keys")
            self._count += 1
        # An offset is stored plus one: 0 is a free slot.
        _ENTRY.pack_into(self._table, at, digest, offset + 1)

    def latest(self, key: bytes) -> int:
        """The latest offset of `key`, or -1."""
        return self._stored(self._find(key)[0]) - 1

    def _stored(self, at: int) -> int:
        return int.from_bytes(self._table[at + _DIGEST_BYTES : at + _ENTRY.size], "little")

    def _find(self, key: bytes) -> tuple[int, bytes]:
        """The place of the key's entry or of the free slot for it, and its digest."""
        digest = blake2b(key, digest_size=_DIGEST_BYTES).digest()
        table, mask, size = self._table, self._mask, _ENTRY.size
        number = int.from_bytes(digest, "little")
        slot, step = number & mask, number >> 64 | 1
        while True:
            at = slot * size
            if table[at : at + _DIGEST_BYTES] == digest or not self._stored(at):
                return at, digest
            slot = slot + step & mask
