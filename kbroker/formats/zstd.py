"""The codec zstd, with the package zstandard.

The client's distribution has a module of the same functions over cramjam, which is smaller.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import zstandard

Error: TypeAlias = zstandard.ZstdError
_EXPECTED_BYTES: Final = 128 << 10


def compress(data: bytes, level: int) -> bytes:
    return zstandard.ZstdCompressor(level=level).compress(data)


def decompress(data: bytes, max_bytes: int) -> bytes | None:
    """None if the result is larger than `max_bytes`. Raises Error."""
    # The frame header may lack the size (streaming producers omit it), so read up to the bound. The
    # first read requests only the expected size: read() allocates the whole requested size,
    # and allocating 64 MiB takes longer than decompressing a usual batch.
    size = zstandard.frame_content_size(data)
    if size > max_bytes:
        return None
    expected = min(size + 1 or _EXPECTED_BYTES, max_bytes)
    with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
        plain = reader.read(expected)
        if len(plain) < expected:
            return plain
        rest = reader.read(max_bytes + 1 - expected)
    if len(plain) + len(rest) > max_bytes:  # Checked before the concatenation.
        return None
    return plain + rest
