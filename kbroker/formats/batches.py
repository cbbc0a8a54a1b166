"""Record batches, format v2 (magic 2): view, iterate, build, stamp, check.

    offset  size  field
         0     8  base offset                 stamped by the broker; not under the CRC
         8     4  batch length                bytes after this field
        12     4  partition leader epoch      stamped by the broker; not under the CRC
        16     1  magic                       2
        17     4  CRC-32C                     of everything from byte 21 to the end
        21     2  attributes                  bits: 0-2 codec, 3 LogAppendTime, 4 transactional,
                                              5 control, 6 delete horizon
        23     4  last offset delta
        27     8  base timestamp (ms)
        35     8  max timestamp (ms)          stamped by the broker in topics with LogAppendTime,
                                              with a new CRC
        43     8  producer id                 -1: none
        51     2  producer epoch
        53     4  base sequence
        57     4  record count
        61     …  records, compressed as one piece by the codec: 0 none, 1 gzip, 2 snappy
                  (xerial framing, or raw), 3 lz4 frame, 4 zstd (compression.py)

    record: length (varint), attributes (1, always 0), timestamp delta (varlong),
            offset delta (varint), key length (varint), key, value length (varint), value,
            header count (varint), headers
    header: key length (varint), key (UTF-8), value length (varint), value

Varints and varlongs are zigzag, seven bits to a byte, least first; length -1 is null.

The broker handles batches as opaque bytes, with one 61-byte unpack. It decodes records only for
work on single records (timestamps, dead letters, inspection).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from kio._kio_native import read_signed_varint, read_signed_varlong
from kio.serial.errors import BufferUnderflow

from .compression import DEFAULT_MAX_BYTES, Codec, CorruptPayload, Inflated, compress, inflate
from .crc import crc32c
from .makers import maker

Buffer: TypeAlias = bytes | bytearray | memoryview

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = HEADER.size
LENGTH_END = 12
CRC_START = 21
MAGIC = 2
NO_PRODUCER_ID = -1
NO_TIMESTAMP = -1
# Names of headers need not be UTF-8: other bytes are written back as they were read.
_HEADER_ERRORS = "surrogateescape"

CODEC_MASK = 0x07
CODEC_AT = CRC_START + 1
"""Position of the header byte whose lowest bits are the codec."""
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
"""The attribute of control batches, which clients never see."""

NO_HEADERS = b"\0"
"""The encoded headers of a record without headers."""

_ONE_BYTE = tuple(bytes((number,)) for number in range(0x80))
_MORE = tuple(bytes((number,)) for number in range(0x80, 0x100))
"""The bytes of a varint that are followed by another one."""
_NULL = _ONE_BYTE[1]  # -1
SIGNED = tuple((number >> 1) ^ -(number & 1) for number in range(0x80))
"""The values of the varints of one byte."""
INT_BYTES: Final = 5
LONG_BYTES: Final = 10
"""The longest varint of 32 and of 64 bits."""
INT_TOP: Final = 0x0F
LONG_TOP: Final = 0x01
"""The greatest last byte of a varint of INT_BYTES and LONG_BYTES: a greater one overflows."""
_MAX_TIMESTAMP_MS = (1 << 63) - 1
_STAMP_OFFSET = struct.Struct(">q")
_STAMP_EPOCH = struct.Struct(">i")
_STAMP_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_MAX_TIMESTAMP = struct.Struct(">q")
_LENGTH = struct.Struct(">i")
_LAST_DELTA = struct.Struct(">i")
_RECORD_COUNT = struct.Struct(">i")


class BatchHeader(NamedTuple):
    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def size_bytes(self) -> int:
        """Size of the whole batch, header included."""
        return self.batch_length + LENGTH_END

    @property
    def codec_id(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def has_producer(self) -> bool:
        """Whether an idempotent producer wrote it. Any negative producer id means none."""
        return self.producer_id > NO_PRODUCER_ID

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME)


class Record(NamedTuple):
    """One record. `offset` and `timestamp_ms` are absolute when read; when building, `offset` is
    ignored."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True)
class ProducerInfo:
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = -1
    base_sequence: int = -1


NO_PRODUCER = ProducerInfo()


_as_header = maker(BatchHeader, tuple[int, ...])
"""Called for every batch, hence not the slower constructor."""


def read_header(data: Buffer, position: int = 0) -> BatchHeader:
    """The header that begins at `position`, unchecked. Raises struct.error if there are fewer than
    61 bytes."""
    return _as_header(HEADER.unpack_from(data, position))


def iter_headers(data: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of every whole batch of `data`, in order. An incomplete last batch is
    ignored."""
    position = 0
    size = len(data)
    unpack = HEADER.unpack_from
    while position + HEADER_SIZE <= size:
        header = _as_header(unpack(data, position))
        end = position + header.batch_length + LENGTH_END
        if end > size or end <= position:
            return
        yield position, header
        position = end


def crc_is_valid(data: Buffer, position: int, header: BatchHeader) -> bool:
    """Whether the bytes of the batch at `position` match the CRC in its header."""
    end = position + header.size_bytes
    return end <= len(data) and crc32c(memoryview(data)[position + CRC_START : end]) == header.crc


def stamp(batch: bytearray | memoryview, *, base_offset: int, leader_epoch: int) -> None:
    """Write the base offset and leader epoch into the batch, in place. The CRC covers neither."""
    _STAMP_OFFSET.pack_into(batch, 0, base_offset)
    _STAMP_EPOCH.pack_into(batch, LENGTH_END, leader_epoch)


def stamp_log_append_time(batch: bytearray | memoryview, timestamp_ms: int) -> None:
    """Make the broker's time the timestamp of every record of the batch (KIP-32), and recompute the
    CRC."""
    (attributes,) = _ATTRIBUTES.unpack_from(batch, CRC_START)
    _ATTRIBUTES.pack_into(batch, CRC_START, attributes | LOG_APPEND_TIME)
    _MAX_TIMESTAMP.pack_into(batch, 35, timestamp_ms)
    _STAMP_CRC.pack_into(batch, 17, crc32c(memoryview(batch)[CRC_START:]))


def stamp_create_time(batch: bytearray | memoryview) -> None:
    """Mark the batch as CreateTime (the timestamps are the producer's), and recompute the CRC."""
    (attributes,) = _ATTRIBUTES.unpack_from(batch, CRC_START)
    _ATTRIBUTES.pack_into(batch, CRC_START, attributes & ~LOG_APPEND_TIME)
    _STAMP_CRC.pack_into(batch, 17, crc32c(memoryview(batch)[CRC_START:]))


def sliced_header(
    data: Buffer, position: int, records: Buffer, *, last_offset_delta: int, record_count: int
) -> bytes:
    """The header of a batch that contains only `records`: the uncompressed bytes of `record_count`
    consecutive records of the batch at `position`. As after compaction, the fields that records are
    relative to (base offset, timestamps, producer) stay unchanged; the codec becomes "none"."""
    header = bytearray(memoryview(data)[position : position + HEADER_SIZE])
    header[CODEC_AT] &= ~CODEC_MASK
    _LENGTH.pack_into(header, 8, HEADER_SIZE - LENGTH_END + len(records))
    _LAST_DELTA.pack_into(header, 23, last_offset_delta)
    _RECORD_COUNT.pack_into(header, 57, record_count)
    _STAMP_CRC.pack_into(header, 17, crc32c(records, crc32c(memoryview(header)[CRC_START:])))
    return bytes(header)


def records_payload(
    data: Buffer, header: BatchHeader, position: int = 0, *, max_bytes: int = DEFAULT_MAX_BYTES
) -> bytes | memoryview:
    """The uncompressed bytes of the batch's records. Raises CorruptPayload if they cannot be
    decompressed within `max_bytes`."""
    if header.codec_id != Codec.NONE:
        return inflated_records(data, header, position, max_bytes=max_bytes).plain
    return memoryview(data)[position + HEADER_SIZE : position + header.size_bytes].toreadonly()


def inflated_records(
    data: Buffer, header: BatchHeader, position: int = 0, *, max_bytes: int = DEFAULT_MAX_BYTES
) -> Inflated:
    """As records_payload(), a copy, with the kind of the payload."""
    payload = memoryview(data)[position + HEADER_SIZE : position + header.size_bytes].toreadonly()
    if header.codec_id == Codec.NONE:
        return Inflated(bytes(payload), True)
    if header.codec_id > Codec.ZSTD:
        raise CorruptPayload(f"unknown codec {header.codec_id}")
    return inflate(Codec(header.codec_id), payload, max_bytes=max_bytes)


def iter_records(
    data: Buffer, position: int = 0, *, max_bytes: int = DEFAULT_MAX_BYTES, payload: bytes | None = None
) -> Iterator[Record]:
    """The records of the batch at `position`; `payload`: the result of records_payload() for it, if
    at hand. Raises CorruptPayload if the bytes are not those of a batch."""
    header = read_header(data, position)
    base_offset, base_ms = header.base_offset, header.base_timestamp_ms
    one_ms = header.max_timestamp_ms if header.is_log_append_time else None
    if payload is None:
        # Slicing and indexing bytes is faster than a view.
        payload = bytes(records_payload(data, header, position, max_bytes=max_bytes))
    size, start = len(payload), 0
    try:
        for _ in range(header.record_count):
            length, at = (
                (SIGNED[number], start + 1)
                if (number := payload[start]) < 0x80
                else long_varint(payload, start)
            )
            end = at + length
            if length <= 0 or end > size:
                raise ValueError("record length beyond the batch")
            at += 1  # attributes
            timestamp_delta, at = (
                (SIGNED[number], at + 1) if (number := payload[at]) < 0x80 else varlong(payload, at)
            )
            offset_delta, at = (
                (SIGNED[number], at + 1) if (number := payload[at]) < 0x80 else long_varint(payload, at)
            )
            key = value = None
            length, at = (
                (SIGNED[number], at + 1) if (number := payload[at]) < 0x80 else long_varint(payload, at)
            )
            if length >= 0:
                key, at = payload[at : at + length], at + length
            length, at = (
                (SIGNED[number], at + 1) if (number := payload[at]) < 0x80 else long_varint(payload, at)
            )
            if length >= 0:
                value, at = payload[at : at + length], at + length
            headers = () if (encoded := payload[at:end]) == NO_HEADERS else _read_headers(encoded)
            timestamp_ms = base_ms + timestamp_delta if one_ms is None else one_ms
            yield Record(base_offset + offset_delta, timestamp_ms, key, value, headers)
            start = end
    except (ValueError, IndexError, BufferUnderflow) as error:
        raise CorruptPayload(f"record at byte {start} cannot be read: {error}") from error


def stored_records(
    data: Buffer, position: int = 0, *, max_bytes: int = DEFAULT_MAX_BYTES, payload: bytes | None = None
) -> Iterator[Record]:
    """Like iter_records, for a batch whose payload may contradict its header, since producers write
    both. No returned record has an offset outside of the batch, an offset that is repeated or out
    of order, or a timestamp beyond 64 bits: the first such record raises CorruptPayload."""
    header = read_header(data, position)
    least, last_offset = header.base_offset, header.last_offset
    for record in iter_records(data, position, max_bytes=max_bytes, payload=payload):
        if not least <= record.offset <= last_offset:
            raise CorruptPayload(
                f"a record of the batch at offset {header.base_offset} says that its offset is "
                f"{record.offset}"
            )
        if not -_MAX_TIMESTAMP_MS - 1 <= record.timestamp_ms <= _MAX_TIMESTAMP_MS:
            raise CorruptPayload(f"the record at offset {record.offset} has a time beyond 64 bits")
        least = record.offset + 1
        yield record


def _read_headers(encoded: bytes) -> tuple[tuple[str, bytes | None], ...]:
    """Decode the rest of a record after its value. The rest is empty if key or value are longer
    than the record's length allows."""
    count, at = long_varint(encoded, 0)
    headers = []
    for _ in range(count):
        name, at = _read_bytes(encoded, at)
        content, at = _read_bytes(encoded, at)
        headers.append(((name or b"").decode(errors=_HEADER_ERRORS), content))
    if at != len(encoded):
        raise ValueError("record length and content disagree")
    return tuple(headers)


def _read_bytes(encoded: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = long_varint(encoded, at)
    if length < 0:
        return None, at
    end = at + length
    if end > len(encoded):
        raise ValueError("length beyond the record")
    return encoded[at:end], end


def long_varint(payload: bytes, at: int) -> tuple[int, int]:
    """A zigzag varint of any size, and the position after it."""
    number, size = read_signed_varint(payload, at)
    return number, at + size


def varlong(payload: bytes, at: int) -> tuple[int, int]:
    number, size = read_signed_varlong(payload, at)
    return number, at + size


def build_batch(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    leader_epoch: int = 0,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    producer: ProducerInfo = NO_PRODUCER,
    attributes: int = 0,
) -> bytes:
    """A batch with the given records (at least one) at consecutive offsets from `base_offset`.
    `level`: of compress()."""
    body: list[Buffer] = []
    count = 0
    base_timestamp_ms = max_timestamp_ms = NO_TIMESTAMP
    for count, record in enumerate(records, start=1):
        if count == 1:
            base_timestamp_ms = max_timestamp_ms = record.timestamp_ms
        elif record.timestamp_ms > max_timestamp_ms:
            max_timestamp_ms = record.timestamp_ms
        add_record(
            body, record, timestamp_delta=record.timestamp_ms - base_timestamp_ms, offset_delta=count - 1
        )
    payload = compress(codec, b"".join(body), level=level)
    times = base_timestamp_ms, max_timestamp_ms
    return _with_header(payload, count, base_offset, leader_epoch, attributes | codec, times, producer)


def build_timeless_batch(
    records: Iterable[tuple[bytes, bytes | None, bytes]], *, base_offset: int = 0, attributes: int = 0
) -> bytes:
    """The same bytes as build_batch() for records without a timestamp, in half the time. Each
    record (at least one) is key, value and encoded headers."""
    body: list[Buffer] = []
    count = 0
    for key, value, headers in records:
        size = len(key)
        parts = [
            b"\0\0",
            _SHORT[count] if count < 0x100 else encoded_varint(count),
            _SHORT[size] if size < 0x100 else encoded_varint(size),
            key,
        ]
        if value is None:
            parts += (_NULL, headers)
        else:
            size = len(value)
            parts += (_SHORT[size] if size < 0x100 else encoded_varint(size), value, headers)
        record = b"".join(parts)
        size = len(record)
        body += (_SHORT[size] if size < 0x100 else encoded_varint(size), record)
        count += 1
    return _with_header(
        b"".join(body), count, base_offset, 0, attributes, (NO_TIMESTAMP, NO_TIMESTAMP), NO_PRODUCER
    )


def _with_header(
    payload: bytes,
    count: int,
    base_offset: int,
    leader_epoch: int,
    attributes: int,
    times: tuple[int, int],
    producer: ProducerInfo,
) -> bytes:
    assert count, "a batch has at least one record"
    batch = bytearray(HEADER_SIZE)
    HEADER.pack_into(
        batch, 0, base_offset, HEADER_SIZE - LENGTH_END + len(payload), leader_epoch, MAGIC, 0,
        attributes, count - 1, *times,
        producer.producer_id, producer.producer_epoch, producer.base_sequence, count,
    )  # fmt: skip
    batch += payload
    _STAMP_CRC.pack_into(batch, 17, crc32c(memoryview(batch)[CRC_START:]))
    return bytes(batch)


def encoded_size(record: Record, *, timestamp_delta: int, offset_delta: int) -> int:
    """How many bytes the record takes in an uncompressed batch. The deltas are those to the batch's
    base timestamp and base offset."""
    size = (
        1
        + _varint_size(timestamp_delta)
        + _varint_size(offset_delta)
        + _bytes_size(record.key)
        + _bytes_size(record.value)
    )
    size += _varint_size(len(record.headers))
    size += sum(
        _bytes_size(name.encode(errors=_HEADER_ERRORS)) + _bytes_size(value) for name, value in record.headers
    )
    return _varint_size(size) + size


def _bytes_size(value: bytes | None) -> int:
    return 1 if value is None else _varint_size(len(value)) + len(value)


def _varint_size(number: int) -> int:
    """The size of a zigzag varint or varlong."""
    zigzag = 2 * number if number >= 0 else -2 * number - 1
    return max(1, (zigzag.bit_length() + 6) // 7)


def add_record(body: list[Buffer], record: Record, *, timestamp_delta: int, offset_delta: int) -> None:
    """Append to `body` the pieces of the record, as in an uncompressed batch."""
    headers = _encode_headers(record.headers) if record.headers else NO_HEADERS
    body += _encode_record(timestamp_delta, offset_delta, record.key, record.value, headers)


def _encode_record(
    timestamp_delta: int, offset_delta: int, key: bytes | None, value: bytes | None, headers: bytes
) -> tuple[Buffer, ...]:
    head = b"\0" + encoded_varint(timestamp_delta) + encoded_varint(offset_delta)
    if key is None:
        head += _NULL
    else:
        head += encoded_varint(len(key)) + key
    if value is None:
        return encoded_varint(len(head) + 1 + len(headers)), head, _NULL, headers
    size = encoded_varint(len(value))
    return encoded_varint(len(head) + len(size) + len(value) + len(headers)), head, size, value, headers


def _encode_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    encoded = encoded_varint(len(headers))
    for name, value in headers:
        in_bytes = name.encode(errors=_HEADER_ERRORS)
        encoded += (
            encoded_varint(len(in_bytes))
            + in_bytes
            + (_NULL if value is None else encoded_varint(len(value)) + value)
        )
    return encoded


def encoded_varint(number: int) -> bytes:
    """A zigzag varint or varlong."""
    zigzag = number << 1 if number >= 0 else (-number << 1) - 1
    if zigzag < 0x80:
        return _ONE_BYTE[zigzag]
    if zigzag < 0x4000:
        return _MORE[zigzag & 0x7F] + _ONE_BYTE[zigzag >> 7]
    encoded = bytearray()
    while zigzag >= 0x80:
        encoded.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    encoded.append(zigzag)
    return bytes(encoded)


_SHORT = tuple(map(encoded_varint, range(0x100)))
"""The varints of small numbers; saves calls for records of share state, which contain several."""
