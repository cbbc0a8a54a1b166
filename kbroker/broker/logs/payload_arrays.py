"""The check of payload_check.py for batches of many records, with arrays. A module of its own, as
loading numpy takes 0.1 s.

    lengths        one after the other in Python: each tells where the next record begins
    other fields   one field of thousands of records at once
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from kio._kio_native import read_signed_varint
from numpy.typing import NDArray

from kbroker.broker.logs.payload_fields import (
    INT_BYTES,
    INT_TOP,
    LONG_BYTES,
    LONG_TOP,
    check_base,
    check_headers,
)

Integers: TypeAlias = NDArray[np.int64]
_AT_ONCE = 8192
"""Records. More would take memory without being faster."""


def check_with_arrays(payload: bytes, count: int, base_ms: int) -> None:
    """Raises ValueError, IndexError or BufferUnderflow unless the payload is `count` records."""
    check_base(base_ms)
    data = np.frombuffer(payload, np.uint8)
    end = 0
    for first in range(0, count, _AT_ONCE):
        bounds = _bounds_of(payload, end, min(_AT_ONCE, count - first))
        end = bounds[-1]
        if end > len(payload):
            raise ValueError(f"a record from number {first} on is longer than the batch")
        _check_fields(payload, data, bounds, first, base_ms)
    if end != len(payload):
        raise ValueError(f"{len(payload) - end} bytes follow the {count} records")


def _bounds_of(payload: bytes, at: int, count: int) -> list[int]:
    """Where each of `count` records begins and the last one ends, according to their lengths.
    Lengths of one or two bytes are read as unsigned; _check_fields() refuses negative ones."""
    bounds = [at]
    add = bounds.append
    for _ in range(count):
        byte = payload[at]
        if byte < 0x80:
            at += 1 + (byte >> 1)
        elif (second := payload[at + 1]) < 0x80:
            at += 2 + ((byte & 0x7F | second << 7) >> 1)
        else:
            length, size = read_signed_varint(payload, at)
            if length < 0:
                raise ValueError(f"a record has length {length}")
            at += size + length
        add(at)
    return bounds


def _check_fields(
    payload: bytes, data: NDArray[np.uint8], bounds: list[int], first: int, base_ms: int
) -> None:
    limits = np.array(bounds, np.int64)
    lengths, at = _varints(data, limits[:-1], INT_BYTES, INT_TOP)
    if lengths.min() <= 0:
        raise ValueError(f"record {first + int(lengths.argmin())} has length {lengths.min()}")
    deltas_ms, at = _varints(data, at + 1, LONG_BYTES, LONG_TOP)
    if base_ms + int(deltas_ms.min()) < -(1 << 63) or base_ms + int(deltas_ms.max()) >= 1 << 63:
        raise ValueError("a record's timestamp exceeds 64 bits")
    deltas, at = _varints(data, at, INT_BYTES, INT_TOP)
    wrong = np.flatnonzero(deltas != np.arange(first, first + len(deltas)))
    if len(wrong):
        raise ValueError(f"record {first + wrong[0]} has offset delta {deltas[wrong[0]]}")
    for _ in ("key", "value"):
        sizes, at = _varints(data, at, INT_BYTES, INT_TOP)
        at = at + np.maximum(sizes, 0)
    ends = limits[1:]
    with_headers = np.flatnonzero((at != ends - 1) | (data[at] != 0))
    for number in with_headers.tolist():
        check_headers(payload, int(at[number]), int(ends[number]))


def _varints(data: NDArray[np.uint8], at: Integers, most_bytes: int, top: int) -> tuple[Integers, Integers]:
    """The zigzag varints at these places, and where they end."""
    byte = data[at].astype(np.int64)
    at = at + 1
    number, more, shift = byte & 0x7F, byte >= 0x80, 7
    while more.any():
        if shift == 7 * most_bytes:
            raise ValueError("a varint is too long")
        places = np.flatnonzero(more)
        byte = data[at[places]].astype(np.int64)
        if shift == 7 * (most_bytes - 1) and byte.max() > top:
            raise ValueError("a varint is too long")
        number[places] |= (byte & 0x7F) << shift
        at[places] += 1
        more[places] = byte >= 0x80
        shift += 7
    unsigned = number.view(np.uint64) >> np.uint64(1)
    return unsigned.view(np.int64) ^ -(number & 1), at
