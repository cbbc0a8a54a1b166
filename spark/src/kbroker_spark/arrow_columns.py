"""The Arrow types of a record's columns, and the parts of building them that both decoders share.

Spark looks at the first RecordBatch's schema and refuses anything that is not exactly its own, so
these types are Spark's.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
TYPES: Final[dict[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.field("element", _HEADER)),
}
"""Column types by Spark's column name."""

MAX_MILLISECONDS: Final = ((1 << 63) - 1) // 1000
"""Times further than this from 1970, in either direction, do not fit into 64 bits as microseconds.
No real clock shows them; they become null."""


def header_column(offsets: NDArray[np.int32], names: pa.Array, values: pa.Array) -> pa.Array:
    """Lists of headers. `offsets` (n + 1, int32) has the index of each record's first header. A
    record without headers gets null, as in Spark.

    `names` are raw bytes. Invalid UTF-8 in them becomes U+FFFD, as in a Java consumer.
    """
    try:
        text = names.cast(pa.string())
    except pa.ArrowInvalid:
        text = pa.array([name.decode(errors="replace") for name in names.to_pylist()], pa.string())
    entries = pa.StructArray.from_arrays([text, values], fields=list(_HEADER))
    has_any = np.diff(offsets) > 0
    return pa.Array.from_buffers(
        TYPES["headers"],
        len(has_any),
        [bitmap(has_any), pa.py_buffer(offsets)],
        null_count=-1,
        children=[entries],
    )


def bitmap(is_valid: NDArray[np.bool_]) -> pa.Buffer | None:
    """Arrow's validity bits; None when all are set."""
    return None if is_valid.all() else pa.py_buffer(np.packbits(is_valid, bitorder="little"))
