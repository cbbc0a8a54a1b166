"""The check of payload_check.py for batches of many records, with arrays. A module of its own, as
loading numpy takes 0.1 s.

    lengths        one after the other in Python: each tells where the next record begins
    other fields   one field of thousands of records at once
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kbroker.broker.logs.payload_fields import RecordTooLarge, check_base, check_headers
from kbroker.formats.batches import INT_BYTES, INT_TOP, LONG_BYTES, LONG_TOP
from kbroker.formats.record_arrays import bounds_of, varints
from kbroker.settings.definition import ARRAY_MAX

_AT_ONCE = 8192
"""Records. More would take memory without being faster."""


def check_with_arrays(payload: bytes, count: int, base_ms: int, max_bytes: int = ARRAY_MAX) -> None:
    """Raises ValueError, IndexError or BufferUnderflow unless the payload is `count` records, and
    RecordTooLarge for one of more than `max_bytes`."""
    check_base(base_ms)
    data = np.frombuffer(payload, np.uint8)
    end = 0
    for first in range(0, count, _AT_ONCE):
        bounds = bounds_of(payload, end, min(_AT_ONCE, count - first))
        end = bounds[-1]
        if end > len(payload):
            raise ValueError(f"a record from number {first} on is longer than the batch")
        _check_fields(payload, data, bounds, first, base_ms, max_bytes)
    if end != len(payload):
        raise ValueError(f"{len(payload) - end} bytes follow the {count} records")


def _check_fields(
    payload: bytes, data: NDArray[np.uint8], bounds: list[int], first: int, base_ms: int, max_bytes: int
) -> None:
    limits = np.array(bounds, np.int64)
    lengths, at = varints(data, limits[:-1], INT_BYTES, INT_TOP)
    if lengths.min() <= 0:
        raise ValueError(f"record {first + int(lengths.argmin())} has length {lengths.min()}")
    if lengths.max() > max_bytes:
        raise RecordTooLarge(first + int(lengths.argmax()), int(lengths.max()), max_bytes)
    deltas_ms, at = varints(data, at + 1, LONG_BYTES, LONG_TOP)
    if base_ms + int(deltas_ms.min()) < -(1 << 63) or base_ms + int(deltas_ms.max()) >= 1 << 63:
        raise ValueError("a record's timestamp exceeds 64 bits")
    deltas, at = varints(data, at, INT_BYTES, INT_TOP)
    wrong = np.flatnonzero(deltas != np.arange(first, first + len(deltas)))
    if len(wrong):
        raise ValueError(f"record {first + wrong[0]} has offset delta {deltas[wrong[0]]}")
    for _ in ("key", "value"):
        sizes, at = varints(data, at, INT_BYTES, INT_TOP)
        at = at + np.maximum(sizes, 0)
    ends = limits[1:]
    with_headers = np.flatnonzero((at != ends - 1) | (data[at] != 0))
    for number in with_headers.tolist():
        check_headers(payload, int(at[number]), int(ends[number]))
