"""Decodes stored record batches into Arrow columns, in the Spark workers.

`batch_groups` makes groups of many batches, and a decoder makes the columns of a group: the small C
helper where it is available, numpy otherwise. Both return the same arrays and find the same damage.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from kbroker_spark import c_library, numpy_decoder
from kbroker_spark.aborted_batches import AbortedBatches
from kbroker_spark.arrow_columns import TYPES
from kbroker_spark.batch_groups import PIECE, CorruptBatch, Group, groups
from kbroker_spark.c_decoder import CDecoder
from kbroker_spark.errors import SourceError
from kbroker_spark.options import DECODERS, Decoder

__all__ = ["COLUMNS", "CorruptBatch", "Decoder", "Piece", "decode"]

COLUMNS = TYPES
"""The columns that can be decoded, with their Arrow types."""

DECODER_VARIABLE = "KBROKER_SPARK_DECODER"
"""The environment variable that sets the decoder for "auto"."""


class DecodeGroup(Protocol):
    """A decoder: returns (number of rows, arrays) of a group's records with first <= offset <
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
    aborted: AbortedBatches | None = None,
) -> Iterator[Piece]:
    """The records with first <= offset < end of the batches in `chunks`, in pieces of at most about
    50 000 rows and 3 MiB.

    Each chunk holds whole batches back to back, of any codec; control batches are left out, and
    those that are `aborted`, which needs check_crc. Only
    `columns` (of COLUMNS) are built. The pieces do not refer to the memory of `chunks`. A single
    batch is decoded as a whole, so a batch beyond these limits needs memory for all of its records.
    With check_crc=False, bytes with a wrong CRC may become rows. Raises CorruptBatch for a batch
    that cannot be read, after the pieces before it, and SourceError if decoder "c" is not
    available.
    """
    decode_group = choose(decoder)
    most = numpy_decoder.GROUP if decode_group is numpy_decoder.decode_group else PIECE
    for group in groups(chunks, first=first, end=end, check_crc=check_crc, most=most, aborted=aborted):
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
    """The decoder of that name. "auto" is the decoder that KBROKER_SPARK_DECODER names; without it,
    the C helper if it is available, or else numpy."""
    wanted = os.environ.get(DECODER_VARIABLE, "auto") if decoder == "auto" else decoder
    if wanted not in DECODERS:
        raise SourceError(f"unknown decoder '{wanted}': expected one of {', '.join(DECODERS)}")
    library = None if wanted == "numpy" else c_library.library()
    if isinstance(library, ctypes.CDLL):
        return CDecoder(library).decode_group
    if wanted == "c":
        raise SourceError(
            f"the C decoder is not available: {library}; use decoder 'numpy', which returns the same rows"
        )
    return numpy_decoder.decode_group
