"""The fields of a batch's records, one field of thousands of records at once. A module of its own,
as loading numpy takes 0.1 s.

Only the lengths are read one after the other in Python: each tells where the next record begins.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from kio._kio_native import read_signed_varint
from numpy.typing import NDArray

from kbroker.formats.batches import INT_BYTES, INT_TOP, LONG_BYTES, LONG_TOP

Integers: TypeAlias = NDArray[np.int64]


class Fields(NamedTuple):
    """Of each record: `starts` and `ends`, its deltas, where its key begins, and the sizes of its
    key and its value (negative for null)."""

    starts: Integers
    ends: Integers
    timestamp_deltas: Integers
    offset_deltas: Integers
    key_starts: Integers
    key_sizes: Integers
    value_sizes: Integers


def read_fields(payload: bytes, at: int, count: int) -> Fields:
    """The `count` records (at least one) that begin at `at`. Raises ValueError or IndexError unless
    each has a length above 0, lies in the payload, and is not shorter than its key and value."""
    bounds = np.array(bounds_of(payload, at, count), np.int64)
    data, starts, ends = np.frombuffer(payload, np.uint8), bounds[:-1], bounds[1:]
    if ends[-1] > len(payload):
        raise ValueError("a record is longer than the batch")
    lengths, after = varints(data, starts, INT_BYTES, INT_TOP)
    if lengths.min() <= 0:
        raise ValueError("a record without length")
    timestamp_deltas, after = varints(data, after + 1, LONG_BYTES, LONG_TOP)
    offset_deltas, after = varints(data, after, INT_BYTES, INT_TOP)
    key_sizes, key_starts = varints(data, after, INT_BYTES, INT_TOP)
    value_sizes, after = varints(data, key_starts + np.maximum(key_sizes, 0), INT_BYTES, INT_TOP)
    if (after + np.maximum(value_sizes, 0) > ends).any():
        raise ValueError("key or value beyond the record")
    return Fields(starts, ends, timestamp_deltas, offset_deltas, key_starts, key_sizes, value_sizes)


def bounds_of(payload: bytes, at: int, count: int) -> list[int]:
    """Where each of `count` records begins and the last one ends, according to their lengths.
    Lengths of one or two bytes are read as unsigned, so the caller must refuse negative ones."""
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


def varints(data: NDArray[np.uint8], at: Integers, most_bytes: int, top: int) -> tuple[Integers, Integers]:
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
