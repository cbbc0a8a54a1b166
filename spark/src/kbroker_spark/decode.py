"""Stored record batches to columns of Arrow: what a Spark worker does with the bytes of its range.

`batch_groups` makes groups of many batches, a decoder makes the columns of a group: the small C
helper where one can be had, numpy where not. Both give the same arrays and find the same damage.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from kbroker_spark import c_library, numpy_decoder
from kbroker_spark.arrow_columns import TYPES
from kbroker_spark.batch_groups import PIECE, CorruptBatch, Group, groups
from kbroker_spark.c_decoder import CDecoder
from kbroker_spark.errors import SourceError
from kbroker_spark.options import DECODERS, Decoder

__all__ = ["COLUMNS", "CorruptBatch", "Decoder", "Piece", "decode"]

COLUMNS = TYPES
"""The columns that can be had, with their Arrow types."""

DECODER_VARIABLE = "KBROKER_SPARK_DECODER"
"""Environment variable: what "auto" means."""


class DecodeGroup(Protocol):
    """What a decoder does: (number of rows, arrays) of a group's records with first <= offset <
    end."""

    def __call__(
        self, group: Group, first: int, end: int, columns: Collection[str]
    ) -> tuple[int, dict[str, pa.Array]]: ...


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
    """The records with first <= offset < end of the batches in `chunks`, in pieces of at most about
    50 000 rows and 3 MiB.

    Each chunk holds whole batches back to back, of any codec, control batches among them (they are
    left out). Only `columns` (of COLUMNS) are built. Nothing that is given out refers to the memory
    of `chunks`. A single batch is decoded as a whole, so larger batches than the above take as much
    memory as they have records. CorruptBatch names a batch that cannot be read, after the pieces
    before it; with check_crc=False bytes with a wrong CRC may become rows. SourceError when decoder
    "c" cannot be had.
    """
    decode_group = choose(decoder)
    most = numpy_decoder.GROUP if decode_group is numpy_decoder.decode_group else PIECE
    for group in groups(chunks, first=first, end=end, check_crc=check_crc, most=most):
        rows, arrays = decode_group(group, first, end, columns)
        if rows <= PIECE.rows and len(group.data) <= PIECE.bytes:
            if rows:
                yield Piece(rows, arrays)
            continue
        step = max(1, min(PIECE.rows, rows * PIECE.bytes // len(group.data)))
        for begin in range(0, rows, step):
            size = min(step, rows - begin)
            yield Piece(size, {name: array.slice(begin, size) for name, array in arrays.items()})


def choose(decoder: Decoder) -> DecodeGroup:
    """The decoder of that name; "auto" is the C helper if it can be had, unless
    KBROKER_SPARK_DECODER names one."""
    wanted = os.environ.get(DECODER_VARIABLE, "auto") if decoder == "auto" else decoder
    if wanted not in DECODERS:
        raise SourceError(f"decoder '{wanted}' is none of {', '.join(DECODERS)}")
    library = None if wanted == "numpy" else c_library.library()
    if isinstance(library, ctypes.CDLL):
        return CDecoder(library).decode_group
    if wanted == "c":
        raise SourceError(
            f"the C decoder cannot be had: {library}; use decoder 'numpy', which gives the same rows"
        )
    return numpy_decoder.decode_group
