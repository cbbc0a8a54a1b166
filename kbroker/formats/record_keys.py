"""Keys of records as 64-bit hashes, for groups that keep the order of keys
(`kbroker.queue.ordering=key`).

The hash of a key is stored with records that wait, so it never changes: BLAKE2b of 8 bytes,
big-endian. Two keys of one hash are delivered as if they were one, which costs time and breaks
nothing.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from hashlib import blake2b
from typing import Final

from kbroker.formats.batches import read_header, stored_records
from kbroker.formats.compression import CorruptPayload

_PERSON: Final = b"kbroker.order"


def hash_of_key(key: bytes) -> int:
    return int.from_bytes(blake2b(key, digest_size=8, person=_PERSON).digest(), "big")


class BatchKeys:
    """Hashes of the keys in one batch, in the order of offsets; 12 bytes for each."""

    __slots__ = ("_base_offset", "_deltas", "_hashes")

    def __init__(self, base_offset: int) -> None:
        self._base_offset = base_offset
        self._deltas = array("I")
        self._hashes = array("Q")

    def __len__(self) -> int:
        return len(self._deltas)

    def add(self, offset: int, key: bytes) -> None:
        self._deltas.append(offset - self._base_offset)
        self._hashes.append(hash_of_key(key))

    def between(self, first: int, last: int) -> dict[int, int]:
        """By offset, those of the offsets first..last that have keys."""
        base = self._base_offset
        i, j = (
            bisect_left(self._deltas, max(0, first - base)),
            bisect_left(self._deltas, max(0, last + 1 - base)),
        )
        return {
            base + delta: key_hash
            for delta, key_hash in zip(self._deltas[i:j], self._hashes[i:j], strict=True)
        }


def keys_of(stored: memoryview, payload: bytes | None = None) -> BatchKeys:
    """Of a stored batch, whose `payload` may be at hand. Of one that cannot be read, as far as it
    can: the rest is delivered as if it had no keys."""
    keys = BatchKeys(read_header(stored).base_offset)
    try:
        for record in stored_records(stored, payload=payload):
            if record.key is not None:
                keys.add(record.offset, record.key)
    except CorruptPayload:
        pass
    return keys
