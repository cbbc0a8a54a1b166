"""Checks of single fields of a record, shared by payload_check.py and payload_arrays.py. Pure.

Each function raises ValueError, IndexError or BufferUnderflow for bytes that no client writes.
"""

from __future__ import annotations

from kio._kio_native import read_signed_varint, read_signed_varlong

from kbroker.formats.batches import INT_BYTES, INT_TOP, LONG_BYTES, LONG_TOP

_LATEST_MS = (1 << 63) - 1
_SAFE_MS = 1 << 62


class RecordTooLarge(Exception):
    """A record is larger than its topic allows."""

    def __init__(self, number: int, size_bytes: int, most_bytes: int) -> None:
        super().__init__(
            f"record {number} has {size_bytes} bytes; max.decompressed.message.bytes is {most_bytes}"
        )


def check_base(base_ms: int) -> None:
    """Refuse a base timestamp to which a time delta of one byte could add up beyond 64 bits."""
    if not -_SAFE_MS <= base_ms <= _SAFE_MS:
        raise ValueError(f"the base timestamp is {base_ms}")


def check_headers(payload: bytes, at: int, end: int) -> None:
    """Check the headers at `at` of a record that ends at `end`."""
    count, at = varint(payload, at)
    if count < 0:
        raise ValueError(f"a record has {count} headers")
    for _ in range(count):
        length, at = varint(payload, at)
        if length < 0:
            raise ValueError("a record's header has no name")
        at += length
        length, at = varint(payload, at)
        at += max(0, length)
        if at > end:
            break
    if at != end:
        raise ValueError("a record's length is not the length of its fields")


def varint(payload: bytes, at: int) -> tuple[int, int]:
    """The 32-bit varint at `at`, and where it ends."""
    number, size = read_signed_varint(payload, at)
    if size == INT_BYTES and payload[at + size - 1] > INT_TOP:
        raise ValueError("a varint is too long")
    return number, at + size


def after_time(payload: bytes, at: int, base_ms: int) -> int:
    """Where the time delta at `at` ends."""
    delta_ms, size = read_signed_varlong(payload, at)
    if size == LONG_BYTES and payload[at + size - 1] > LONG_TOP:
        raise ValueError("a varint is too long")
    if not -_LATEST_MS - 1 <= base_ms + delta_ms <= _LATEST_MS:
        raise ValueError("a record's timestamp exceeds 64 bits")
    return at + int(size)
