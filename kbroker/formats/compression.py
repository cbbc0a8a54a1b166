"""Record batch codecs, by Kafka's attribute ids. Needed only for work on single records: produce
and fetch do not decompress.

Snappy in Kafka is either raw or in the xerial framing (magic, version, compatible version, then
length-prefixed raw blocks); librdkafka and Java write the latter. `max_bytes` bounds decompression,
so that a small batch cannot fill the memory.

A payload may be several frames. Kafka's broker and Java clients read these, and so does kbroker
(recorded: tests/differential/scripts/base_payloads.py):

    codec    frames that are read                      bytes behind them
    gzip     all members                               ignored if they are no head of a member, or
                                                       fewer than 19
    snappy   all consecutive xerial streams; or        fewer than 4 are ignored, others are an error
             one raw block
    lz4      the first frame                           ignored
    zstd     all frames                                an error, unless they begin a frame

Other readers do not: librdkafka reads the first gzip member only. `inflate` says whether a payload
is exactly one frame.
"""

from __future__ import annotations

import math
import mmap
import threading
import zlib
from enum import IntEnum
from functools import partial
from typing import NamedTuple

import cramjam

from . import zstd

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_SIZE = 16
_GZIP_HEAD = b"\x1f\x8b\x08"
_GZIP_REST_IGNORED = 18
"""Java looks for another member only if more bytes than these follow."""
_GZIP_PIECE = 64 << 10
"""zlib copies what follows a member, so a payload of many members is read in pieces."""
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_HAS_BLOCK_CHECKSUMS = 0x10
_LZ4_HAS_SIZE = 0x08
_LZ4_HAS_CHECKSUM = 0x04
_LZ4_HAS_DICTIONARY = 0x01
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE_MAGIC = b"\x2a\x4d\x18"
"""After a byte from 0x50 to 0x5f."""
_ZSTD_FIELD_SIZES = (0, 2, 4, 8)
_ZSTD_DICTIONARY_SIZES = (0, 1, 2, 4)
_ZSTD_SINGLE_SEGMENT = 0x20
_ZSTD_HAS_CHECKSUM = 0x04
_ZSTD_RLE = 1
_LZ4_FRAME_HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"
"""Magic, version 1 with independent blocks and without checksums, blocks of at most 64 KiB,
checksum of these two bytes."""
_LZ4_BLOCK_SIZE = 1 << 16
_LZ4_PLAIN = 1 << 31
_LZ4_END = b"\x00\x00\x00\x00"
_LZ4_EXPECTED = 8
_LZ4_LEAST_ROOM = 128 << 10
"""A batch of like records compresses thirtyfold."""
_LZ4_NO_ROOM = "failed to write whole buffer"
_ZSTD_LEVEL = 3
DEFAULT_MAX_BYTES = 64 << 20
"""Far more than producers put into one batch, yet a few of these fit into memory."""
_PART_BYTES = 512
_PARTS_BESIDE = 16
"""With a lower `max_bytes`, a payload may have one part (a frame, or a block of one) for so many
bytes of it, and some more. A part may be empty, and yet costs about 5 us: those of 1 MiB took a
second."""


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


class Inflated(NamedTuple):
    """`is_one_frame`: whether the payload was one frame, and nothing behind it. Every reader reads
    such a payload alike."""

    plain: bytes
    is_one_frame: bool


def decompress(codec: Codec, data: bytes | memoryview, *, max_bytes: int = DEFAULT_MAX_BYTES) -> bytes:
    """The uncompressed bytes. Raises CorruptPayload if decompression fails, or gives more than
    `max_bytes`."""
    return inflate(codec, data, max_bytes=max_bytes).plain


def inflate(codec: Codec, data: bytes | memoryview, *, max_bytes: int = DEFAULT_MAX_BYTES) -> Inflated:
    """As decompress(), with the kind of the payload."""
    name = codec.name.lower()
    try:
        inflated = _INFLATE[codec](data, max_bytes)
        if len(inflated.plain) > max_bytes:
            raise TooLarge
        return inflated
    except TooLarge:
        raise TooLarge(f"{name} payload is larger than {max_bytes} bytes when decompressed") from None
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
        raise CorruptPayload(f"{name} payload cannot be decompressed: {error}") from error


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


class _Parts:
    """Counts the parts of a payload."""

    def __init__(self, max_bytes: int) -> None:
        self._left = _PARTS_BESIDE + max_bytes // _PART_BYTES if max_bytes < DEFAULT_MAX_BYTES else math.inf

    def count(self) -> None:
        """Raises TooLarge."""
        self._left -= 1
        if self._left < 0:
            raise TooLarge


def _plain(data: bytes | memoryview, max_bytes: int) -> Inflated:
    return Inflated(bytes(data), True)


def _gunzip(data: bytes | memoryview, max_bytes: int) -> Inflated:
    plain, at = _gunzip_member(data, 0, max_bytes)
    if at == len(data):
        return Inflated(plain, True)
    members, left, parts = [plain], max_bytes - len(plain), _Parts(max_bytes)
    while len(data) - at > _GZIP_REST_IGNORED and bytes(data[at : at + len(_GZIP_HEAD)]) == _GZIP_HEAD:
        parts.count()
        plain, at = _gunzip_member(data, at, left)
        members.append(plain)
        left -= len(plain)
    return Inflated(b"".join(members), False)


def _gunzip_member(data: bytes | memoryview, at: int, max_bytes: int) -> tuple[bytes, int]:
    """The member that begins at `at`, and where it ends."""
    unzip = zlib.decompressobj(wbits=31)
    pieces, left = [], max_bytes
    while not unzip.eof:
        piece = data[at : at + _GZIP_PIECE]
        if not piece:
            raise CorruptPayload("gzip payload is cut short")
        plain = unzip.decompress(piece, left + 1)
        if len(plain) > left:
            raise TooLarge
        pieces.append(plain)
        left -= len(plain)
        at += len(piece) - len(unzip.unused_data)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces), at


def _unsnappy(data: bytes | memoryview, max_bytes: int) -> Inflated:
    raw = bytes(data)
    if len(raw) < _XERIAL_HEADER_SIZE or not raw.startswith(_XERIAL_MAGIC):
        return Inflated(_unsnappy_block(raw, max_bytes), True)
    blocks, total, streams = [], 0, 1
    position, size, parts = _XERIAL_HEADER_SIZE, len(raw), _Parts(max_bytes)
    while position + 4 <= size:
        parts.count()
        if raw.startswith(_XERIAL_MAGIC, position) and position + _XERIAL_HEADER_SIZE <= size:
            streams += 1
            position += _XERIAL_HEADER_SIZE
            continue
        end = position + 4 + int.from_bytes(raw[position : position + 4], "big")
        if end == position + 4 or end > size:
            raise CorruptPayload("snappy payload is cut short")
        block = _unsnappy_block(raw[position + 4 : end], max_bytes - total)
        blocks.append(block)
        total += len(block)
        position = end
    return Inflated(b"".join(blocks), streams == 1 and position == size)


def _unsnappy_block(block: bytes, max_bytes: int) -> bytes:
    if cramjam.snappy.decompress_raw_len(block) > max_bytes:
        raise TooLarge
    return bytes(cramjam.snappy.decompress_raw(block))


def _unlz4(data: bytes | memoryview, max_bytes: int) -> Inflated:
    end = _lz4_frame_end(data, _Parts(max_bytes))
    return Inflated(_unlz4_frame(bytes(data[:end]), max_bytes), end == len(data))


def _lz4_frame_end(data: bytes | memoryview, parts: _Parts) -> int:
    """Where the first frame ends."""
    if bytes(data[:4]) != _LZ4_MAGIC or len(data) < len(_LZ4_FRAME_HEADER):
        raise CorruptPayload("lz4 payload has no frame")
    flags, size = data[4], len(data)
    at = len(_LZ4_FRAME_HEADER) + 8 * bool(flags & _LZ4_HAS_SIZE) + 4 * bool(flags & _LZ4_HAS_DICTIONARY)
    more = 4 + 4 * bool(flags & _LZ4_HAS_BLOCK_CHECKSUMS)
    while at + 4 <= size:
        parts.count()
        block_size = int.from_bytes(data[at : at + 4], "little") & ~_LZ4_PLAIN
        if not block_size:
            end = at + 4 + 4 * bool(flags & _LZ4_HAS_CHECKSUM)
            if end <= size:
                return end
            break
        at += block_size + more
    raise CorruptPayload("lz4 payload is cut short")


def _unlz4_frame(frame: bytes, max_bytes: int) -> bytes:
    # lz4 expands at most 255 times, so a small input gets a buffer for the worst case. A larger one
    # first gets a buffer that is usually large enough, and then an anonymous mapping, whose pages
    # are only used as it fills. That is ten times as slow.
    if len(frame) * 255 <= max_bytes:
        return bytes(cramjam.lz4.decompress(frame))
    expected = min(max_bytes, max(_LZ4_EXPECTED * len(frame), _LZ4_LEAST_ROOM))
    with _rooms.take(expected) as usual:
        size = _unlz4_into(frame, usual)
        if size is not None:
            return bytes(usual[:size])
    with mmap.mmap(-1, max_bytes + 1) as room:
        size = _unlz4_into(frame, room)
        if size is None:
            raise TooLarge
        return room[:size]


class _Rooms(threading.local):
    """A buffer for each thread. A new one for each batch would break up the C library's heap:
    others take a part of the place that it leaves. After a million batches, 20 MB lay free in
    it."""

    def __init__(self) -> None:
        self._kept = memoryview(bytearray(_LZ4_LEAST_ROOM))

    def take(self, size_bytes: int) -> memoryview:
        """Its content is undefined, and holds until the next call."""
        return self._kept[:size_bytes] if size_bytes <= len(self._kept) else memoryview(bytearray(size_bytes))


_rooms = _Rooms()


def _unlz4_into(frame: bytes, room: memoryview | mmap.mmap) -> int | None:
    """None if it does not fit."""
    try:
        return int(cramjam.lz4.decompress_into(frame, room))
    except cramjam.DecompressionError as error:
        if _LZ4_NO_ROOM in str(error):
            return None
        raise


def _unzstd(data: bytes | memoryview, max_bytes: int) -> Inflated:
    frames = bytes(data)
    if not frames:
        return Inflated(b"", False)
    parts = _Parts(max_bytes)
    first = end = _zstd_frame_end(frames, 0, parts)
    while (after := _zstd_frame_end(frames, end, parts)) > end:
        end = after
    if not end and frames.startswith(_ZSTD_MAGIC):
        raise CorruptPayload("zstd payload is cut short")
    rest = frames[end : end + len(_ZSTD_MAGIC)]
    if not _ZSTD_MAGIC.startswith(rest) and rest[1:] != _ZSTD_SKIPPABLE_MAGIC:
        end = len(frames)  # No frame begins here, which zstd reports.
    plain = zstd.decompress(frames[:end], max_bytes)
    if plain is None:
        raise TooLarge
    return Inflated(plain, first == len(frames))


def _zstd_frame_end(data: bytes, at: int, parts: _Parts) -> int:
    """Where the frame that begins at `at` ends; `at` if there is no whole frame."""
    parts.count()
    magic, size = data[at : at + 4], len(data)
    if magic[1:] == _ZSTD_SKIPPABLE_MAGIC and 0x50 <= magic[0] < 0x60 and at + 8 <= size:
        end = at + 8 + int.from_bytes(data[at + 4 : at + 8], "little")
        return end if end <= size else at
    if magic != _ZSTD_MAGIC or at + 4 >= size:
        return at
    flags = data[at + 4]
    single = bool(flags & _ZSTD_SINGLE_SEGMENT)
    end = at + 5 + (not single) + _ZSTD_DICTIONARY_SIZES[flags & 3]
    end += _ZSTD_FIELD_SIZES[flags >> 6] or single
    is_last = 0
    while not is_last:
        parts.count()
        block = int.from_bytes(data[end : end + 3], "little")
        is_last, kind = block & 1, block >> 1 & 3
        end += 3 + (1 if kind == _ZSTD_RLE else block >> 3)
        if end > size:
            return at
    end += 4 * bool(flags & _ZSTD_HAS_CHECKSUM)
    return end if end <= size else at


_INFLATE = {
    Codec.NONE: _plain,
    Codec.GZIP: _gunzip,
    Codec.SNAPPY: _unsnappy,
    Codec.LZ4: _unlz4,
    Codec.ZSTD: _unzstd,
}
