"""Record batch codecs, by Kafka's attribute ids. Needed only for work on single records: produce
and fetch do not decompress.

Snappy in Kafka is either raw or in the xerial framing (magic, version, compatible version, then
length-prefixed raw blocks); librdkafka and Java write the latter. `max_bytes` bounds decompression,
so that a small batch cannot fill the memory.
"""

from __future__ import annotations

import mmap
import zlib
from enum import IntEnum
from functools import partial

import cramjam

from . import zstd

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_SIZE = 16
_LZ4_FRAME_HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"
"""Magic, version 1 with independent blocks and without checksums, blocks of at most 64 KiB,
checksum of these two bytes."""
_LZ4_BLOCK_SIZE = 1 << 16
_LZ4_PLAIN = 1 << 31
_LZ4_END = b"\x00\x00\x00\x00"
_LZ4_EXPECTED = 8
_LZ4_LEAST_ROOM = 128 << 10
"""A batch of like records compresses thirtyfold. A buffer of this size takes 2 us."""
_LZ4_NO_ROOM = "failed to write whole buffer"
_ZSTD_LEVEL = 3
DEFAULT_MAX_BYTES = 64 << 20
"""Far more than producers put into one batch, yet a few of these fit into memory."""


class Codec(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class CorruptPayload(ValueError):
    """The bytes do not fit their codec, or are larger than allowed when decompressed."""


class TooLarge(CorruptPayload):
    """The decompressed bytes are larger than allowed, but may be valid."""


def decompress(codec: Codec, data: bytes | memoryview, *, max_bytes: int = DEFAULT_MAX_BYTES) -> bytes:
    """The uncompressed bytes. Raises CorruptPayload if decompression fails, or gives more than
    `max_bytes`."""
    try:
        plain = _DECOMPRESS[codec](data, max_bytes)
    except CorruptPayload:
        raise
    except (
        zlib.error,
        zstd.Error,
        cramjam.DecompressionError,
        ValueError,
        OSError,
        IndexError,
    ) as error:
        raise CorruptPayload(f"{codec.name.lower()} payload cannot be decompressed: {error}") from error
    if len(plain) > max_bytes:
        raise TooLarge(f"{codec.name.lower()} payload is larger than {max_bytes} bytes when decompressed")
    return plain


def compress(codec: Codec, data: bytes, *, level: int | None = None) -> bytes:
    """Compress `data` as a Kafka client would for a batch. `level`: of gzip, lz4 (1 to 17) or zstd;
    None for a fast one."""
    if codec is Codec.GZIP:
        compressor = zlib.compressobj(-1 if level is None else level, wbits=31)
        return compressor.compress(data) + compressor.flush()
    if codec is Codec.SNAPPY:
        block = bytes(cramjam.snappy.compress_raw(data))
        return _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01" + len(block).to_bytes(4, "big") + block
    if codec is Codec.LZ4:
        return _lz4_frame(data, level)
    if codec is Codec.ZSTD:
        return zstd.compress(data, _ZSTD_LEVEL if level is None else level)
    return data


def _lz4_frame(data: bytes, level: int | None) -> bytes:
    """A frame of independent blocks, the only kind that Kafka reads. cramjam's own frames have
    linked blocks."""
    block_of = _lz4_block if level is None else partial(_lz4_block_of_level, level=level)
    pieces = (data[start : start + _LZ4_BLOCK_SIZE] for start in range(0, len(data), _LZ4_BLOCK_SIZE))
    return b"".join((_LZ4_FRAME_HEADER, *map(block_of, pieces), _LZ4_END))


def _lz4_block(plain: bytes) -> bytes:
    """A block and its length before it, whose highest bit says that it is not compressed."""
    block = bytes(cramjam.lz4.compress_block(plain, store_size=False))
    is_plain = len(block) >= len(plain)
    stored = plain if is_plain else block
    return (len(stored) | is_plain * _LZ4_PLAIN).to_bytes(4, "little") + stored


def _lz4_block_of_level(plain: bytes, *, level: int) -> bytes:
    """compress_block() ignores levels. A frame of one block has nothing to be linked with, so its
    block is taken out of it."""
    frame = bytes(cramjam.lz4.compress(plain, level=level))
    start = len(_LZ4_FRAME_HEADER)
    size = int.from_bytes(frame[start : start + 4], "little") & ~_LZ4_PLAIN
    return frame[start : start + 4 + size]


def _plain(data: bytes | memoryview, max_bytes: int) -> bytes:
    return bytes(data)


def _gunzip(data: bytes | memoryview, max_bytes: int) -> bytes:
    unzip = zlib.decompressobj(wbits=47)
    plain = unzip.decompress(data, max_bytes + 1)
    if not unzip.eof and len(plain) <= max_bytes:
        raise CorruptPayload("gzip payload is cut short")
    return plain


def _unsnappy(data: bytes | memoryview, max_bytes: int) -> bytes:
    raw = bytes(data)
    if not raw.startswith(_XERIAL_MAGIC):
        return _unsnappy_block(raw, max_bytes)
    blocks = []
    total = 0
    position = _XERIAL_HEADER_SIZE
    while position < len(raw):
        size = int.from_bytes(raw[position : position + 4], "big")
        position += 4
        if size == 0 or position + size > len(raw):
            raise CorruptPayload("snappy payload is cut short")
        block = _unsnappy_block(raw[position : position + size], max_bytes - total)
        blocks.append(block)
        total += len(block)
        position += size
    return b"".join(blocks)


def _unsnappy_block(block: bytes, max_bytes: int) -> bytes:
    if cramjam.snappy.decompress_raw_len(block) > max_bytes:
        raise TooLarge(f"snappy payload is larger than {max_bytes} bytes when decompressed")
    return bytes(cramjam.snappy.decompress_raw(block))


def _unlz4(data: bytes | memoryview, max_bytes: int) -> bytes:
    # lz4 expands at most 255 times, so a small input gets a buffer for the worst case. A larger one
    # first gets a buffer that is usually large enough, and then an anonymous mapping, whose pages
    # are only used as it fills. That is ten times as slow.
    frame = bytes(data)
    if len(frame) * 255 <= max_bytes:
        return bytes(cramjam.lz4.decompress(frame))
    expected = bytearray(min(max_bytes, max(_LZ4_EXPECTED * len(frame), _LZ4_LEAST_ROOM)))
    size = _unlz4_into(frame, expected)
    if size is not None:
        return bytes(memoryview(expected)[:size])
    with mmap.mmap(-1, max_bytes + 1) as room:
        size = _unlz4_into(frame, room)
        if size is None:
            raise TooLarge(f"lz4 payload is larger than {max_bytes} bytes when decompressed")
        return room[:size]


def _unlz4_into(frame: bytes, room: bytearray | mmap.mmap) -> int | None:
    """None if it does not fit."""
    try:
        return int(cramjam.lz4.decompress_into(frame, room))
    except cramjam.DecompressionError as error:
        if _LZ4_NO_ROOM in str(error):
            return None
        raise


def _unzstd(data: bytes | memoryview, max_bytes: int) -> bytes:
    plain = zstd.decompress(bytes(data), max_bytes)
    if plain is None:
        raise TooLarge(f"zstd payload is larger than {max_bytes} bytes when decompressed")
    return plain


_DECOMPRESS = {
    Codec.NONE: _plain,
    Codec.GZIP: _gunzip,
    Codec.SNAPPY: _unsnappy,
    Codec.LZ4: _unlz4,
    Codec.ZSTD: _unzstd,
}
