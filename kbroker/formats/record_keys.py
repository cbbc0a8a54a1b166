"""64-bit hashes of record keys, for groups that keep the order of keys
(`kbroker.queue.ordering=key`).

The hash of a key is stored with parked records, so the function must never change: BLAKE2b with a
digest of 8 bytes and the personalization `kbroker.order`, big-endian. Records of two keys with the
same hash are ordered as if the keys were equal: slower, but correct.
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
    """Hashes of the keys in one batch, in offset order; 12 bytes for each."""

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
        """Hashes by offset, of the records first..last that have keys."""
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
    """The keys of a stored batch; `payload`: its uncompressed records, if at hand. If the batch is
    damaged, only the keys before the damage: the rest is delivered as if it had no keys."""
    keys = BatchKeys(read_header(stored).base_offset)
    try:
        for record in stored_records(stored, payload=payload):
            if record.key is not None:
                keys.add(record.offset, record.key)
    except CorruptPayload:
        pass
    return keys
