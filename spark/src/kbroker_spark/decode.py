"""Stored record batches to columns of Arrow: what a Spark worker does with the bytes of its range.

`batch_groups` makes groups of many batches, a decoder makes the columns of a group: the small C helper where one can be had, numpy where
not. Both give the same arrays and find the same damage.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from kbroker_spark import numpy_decoder
from kbroker_spark.arrow_columns import TYPES
from kbroker_spark.batch_groups import MAX_BYTES, MAX_ROWS, CorruptBatch, groups

__all__ = ["COLUMNS", "CorruptBatch", "Decoder", "Piece", "decode"]

Decoder = Literal["auto", "numpy", "c"]
COLUMNS = TYPES
"""The columns that can be had, with their Arrow types."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows: an Arrow array for each wanted column, all of length `rows`."""

    rows: int
    columns: dict[str, pa.Array]


def decode(
    chunks: Sequence[memoryview],
    *,
    first: int,
    end: int,
    columns: Collection[str],
    decoder: Decoder = "auto",
    check_crc: bool = True,
) -> Iterator[Piece]:
    """The records with first <= offset < end of the batches in `chunks`, in pieces of at most about 50 000 rows and 4 MiB.

    Each chunk holds whole batches back to back, of any codec, control batches among them (they are left out). Only `columns` (of
    COLUMNS) are built. Nothing that is given out refers to the memory of `chunks`. A single batch is decoded as a whole, so
    larger batches than the above take as much memory as they have records. CorruptBatch names a batch that cannot be read, after
    the pieces before it; with check_crc=False bytes with a wrong CRC may become rows.
    """
    for group in groups(chunks, first=first, end=end, check_crc=check_crc):
        rows, arrays = numpy_decoder.decode_group(group, first, end, columns)
        if rows <= MAX_ROWS and len(group.data) <= MAX_BYTES:
            if rows:
                yield Piece(rows, arrays)
            continue
        step = max(1, min(MAX_ROWS, rows * MAX_BYTES // len(group.data)))
        for begin in range(0, rows, step):
            size = min(step, rows - begin)
            yield Piece(size, {name: array.slice(begin, size) for name, array in arrays.items()})
