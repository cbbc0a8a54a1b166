"""Which partition a record goes to: by its key as Kafka's Java client does, else in turns."""

from __future__ import annotations

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF


def partition_of(key: bytes, partitions: int) -> int:
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """The 32-bit hash of Kafka's Java client."""
    length = len(data)
    found = (_SEED ^ length) & _MASK
    whole = length & ~3
    for at in range(0, whole, 4):
        part = int.from_bytes(data[at : at + 4], "little") * _MULTIPLIER & _MASK
        part = (part ^ part >> 24) * _MULTIPLIER & _MASK
        found = (found * _MULTIPLIER & _MASK) ^ part
    if rest := data[whole:]:
        found = (found ^ int.from_bytes(rest, "little")) * _MULTIPLIER & _MASK
    found = (found ^ found >> 13) * _MULTIPLIER & _MASK
    return found ^ found >> 15
