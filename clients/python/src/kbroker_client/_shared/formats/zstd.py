"""The codec zstd with cramjam. kbroker has a module of the same functions over zstandard, which
takes 24 MB installed."""

from __future__ import annotations

import mmap
from typing import Final, TypeAlias

import cramjam

Error: TypeAlias = cramjam.DecompressionError
_EXPECTED: Final = 8
_LEAST_ROOM_BYTES: Final = 128 << 10
_NO_ROOM: Final = ("failed to write whole buffer", "Destination buffer is too small")


def compress(data: bytes, level: int) -> bytes:
    return bytes(cramjam.zstd.compress(data, level=level))


def decompress(data: bytes, max_bytes: int) -> bytes | None:
    """None if the result is larger than `max_bytes`. Raises Error."""
    room = bytearray(min(max_bytes, max(_EXPECTED * len(data), _LEAST_ROOM_BYTES)))
    size = _into(data, room)
    if size is not None:
        return bytes(memoryview(room)[:size])
    # Its pages are only used as it fills.
    with mmap.mmap(-1, max_bytes + 1) as large:
        size = _into(data, large)
        return None if size is None or size > max_bytes else large[:size]


def _into(data: bytes, room: bytearray | mmap.mmap) -> int | None:
    """None if it does not fit."""
    try:
        return int(cramjam.zstd.decompress_into(data, room))
    except cramjam.DecompressionError as error:
        if any(text in str(error) for text in _NO_ROOM):
            return None
        raise
