"""Decodes records into Arrow columns with decoder.c: allocates the memory that decoder.c fills, and
makes arrays of it without another copy.

Times that do not fit into 64 bits of microseconds are left to numpy_decoder, which returns the same
arrays.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kbroker_spark import c_library, numpy_decoder
from kbroker_spark.arrow_columns import TYPES, header_column
from kbroker_spark.batch_groups import Group, find_damage

_HEADERS_FOR_EACH_ROW = 2
"""Initial room for headers. A group with more headers than this per record is decoded twice."""


class CDecoder:
    """Like numpy_decoder.decode_group(), with a library from c_library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._decode = library.kbroker_decode

    def decode_group(
        self, group: Group, first: int, end: int, columns: Collection[str]
    ) -> tuple[int, dict[str, pa.Array]]:
        """(number of rows, Arrow arrays of `columns`) of the records with first <= offset < end.
        Raises CorruptBatch for damage."""
        counts = group.field("record_count")
        by_broker = group.is_log_append_time
        times = np.where(by_broker, group.field("max_timestamp"), group.field("base_timestamp"))
        limits = (
            group.starts,
            group.ends,
            counts,
            group.field("base_offset"),
            group.field("last_offset_delta"),
            times,
            by_broker,
        )
        batches = np.stack(limits, axis=1).astype(np.int64, copy=False)
        rows = int(counts.sum())
        output = _Output(rows, len(group.data), columns, first, end)
        data = np.frombuffer(group.data, np.uint8)
        while True:
            sound = self._decode(
                data.ctypes.data, batches.ctypes.data, len(batches), ctypes.byref(output.filled)
            )
            if not sound:
                raise find_damage(group)
            if output.filled.headers <= output.filled.room_headers:
                break
            output = _Output(rows, len(group.data), columns, first, end, headers=output.filled.headers)
        arrays = output.arrays(group.data)
        if output.filled.odd_times:
            arrays |= numpy_decoder.decode_group(group, first, end, ("timestamp",))[1]
        return output.filled.rows, arrays


class _Output:
    """Memory for the wanted columns of at most `rows` records."""

    def __init__(
        self, rows: int, size: int, columns: Collection[str], first: int, end: int, headers: int | None = None
    ) -> None:
        room = headers if headers is not None else rows * _HEADERS_FOR_EACH_ROW
        self.filled = c_library.Columns(first=first, end=end, room_rows=rows)
        self._columns = columns
        self._binaries = {
            name: _Binary(getattr(self.filled, name), rows, size)
            for name in ("key", "value")
            if name in columns
        }
        self._offset = np.empty(rows if "offset" in columns else 0, np.int64)
        self._timestamp = np.empty(rows if "timestamp" in columns else 0, np.int64)
        self._timestamp_type = np.empty(rows if "timestampType" in columns else 0, np.int32)
        self._header_ends = np.zeros(rows + 1 if "headers" in columns else 0, np.int32)
        self._headers: NDArray[np.int64] = np.empty((4, room if "headers" in columns else 0), np.int64)
        for name, array in (
            ("offset", self._offset),
            ("timestamp", self._timestamp),
            ("timestamp_type", self._timestamp_type),
            ("header_ends", self._header_ends),
            *zip(("name_at", "name_length", "value_at", "value_length"), self._headers, strict=True),
        ):
            setattr(self.filled, name, array.ctypes.data if len(array) else None)
        self.filled.room_headers = self._headers.shape[1]

    def arrays(self, data: memoryview) -> dict[str, pa.Array]:
        """The columns, once the library has filled them from `data`."""
        rows = self.filled.rows
        arrays = {name: binary.array(rows) for name, binary in self._binaries.items()}
        for name, array in (
            ("offset", self._offset),
            ("timestamp", self._timestamp),
            ("timestampType", self._timestamp_type),
        ):
            if name in self._columns:
                arrays[name] = pa.Array.from_buffers(TYPES[name], rows, [None, pa.py_buffer(array)])
        if "headers" in self._columns:
            name_at, name_length, value_at, value_length = self._headers[:, : self.filled.headers]
            memory = numpy_decoder.Memory(data)
            names, values = memory.binary(name_at, name_length), memory.binary(value_at, value_length)
            arrays["headers"] = header_column(self._header_ends[: rows + 1], names, values)
        return arrays


class _Binary:
    """A column of keys or values. Room that is not written costs address space, not memory."""

    def __init__(self, filled: c_library.Binary, rows: int, size: int) -> None:
        self._filled = filled
        self._bytes = pa.allocate_buffer(size, resizable=True)
        self._ends = pa.allocate_buffer(4 * (rows + 1))
        self._valid = np.zeros(rows // 8 + 1, np.uint8)
        np.frombuffer(self._ends, np.int32)[0] = 0
        filled.bytes, filled.ends, filled.valid = (
            self._bytes.address,
            self._ends.address,
            self._valid.ctypes.data,
        )

    def array(self, rows: int) -> pa.Array:
        size = int(np.frombuffer(self._ends, np.int32)[rows])
        self._bytes.resize(size)
        valid = pa.py_buffer(self._valid) if self._filled.nulls else None
        return pa.Array.from_buffers(
            pa.binary(), rows, [valid, self._ends, self._bytes], null_count=self._filled.nulls
        )
