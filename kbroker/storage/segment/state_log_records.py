"""The records of a state log (state_log.py): one per change, with Kafka's own keys where
Kafka has such state.

    change of          record key                                             header
    share/… number 0   Kafka's ShareSnapshot key:                             -
                       00 00, group str, topic id (16), partition (4)
    share/… number n   Kafka's ShareUpdate key:                               "n": n (8)
                       00 01, group str, topic id (16), partition (4)
    any other key      the key, after 00 ff if it begins with a zero byte     -

The record's value is the stored value; null removes the key. `str` is length (2) and UTF-8.

Batches have no timestamps, no producer and no compression. A start reads all of them. So batches in
exactly this form are decoded in one pass, without building record objects. All others, and damaged
ones, go through the general record reader, which raises the right errors.
"""

from __future__ import annotations

import struct

from kio._kio_native import read_unsigned_varint
from kio.serial.errors import BufferUnderflow

from kbroker.formats.batches import HEADER_SIZE, NO_HEADERS, BatchHeader, Record, iter_records
from kbroker.formats.compression import Codec
from kbroker.formats.state import ShareStateKey
from kbroker.storage.spi import Change

_SNAPSHOT = b"\0\0"
_UPDATE = b"\0\1"
_ESCAPE = b"\0\xff"
_NO_ATTRIBUTES_NO_TIME = b"\0\0"
_NULL = 1
"""A length of -1, zigzag."""
_NUMBER = "n"
_NUMBER_HEADER = b"\x02\x02n\x10"
"""One header named "n" whose value is the next eight bytes."""
_NUMBER_END = len(_NUMBER_HEADER) + 8
_FIRST_NUMBER = bytes(8)
_NAMESPACE = ShareStateKey.namespace
_PARTITION_BYTES = 20  # topic id and partition
_LENGTH = struct.Struct(">H")


def to_record(key: bytes, value: bytes | None) -> tuple[bytes, bytes | None, bytes]:
    """Key, value and headers in the form that build_timeless_batch() takes."""
    if not key.startswith(_NAMESPACE):
        return _ESCAPE + key if key.startswith(b"\0") else key, value, NO_HEADERS
    start = len(_NAMESPACE)
    partition, group, number = (
        key[start : start + _PARTITION_BYTES],
        key[start + _PARTITION_BYTES : -8],
        key[-8:],
    )
    size = len(group)
    if size < 2 or _LENGTH.unpack_from(group)[0] != size - 2:
        return key, value, NO_HEADERS  # not a share-partition's
    if number == _FIRST_NUMBER:
        return _SNAPSHOT + group + partition, value, NO_HEADERS
    return _UPDATE + group + partition, value, _NUMBER_HEADER + number


def from_record(record: Record) -> Change:
    """Raises KeyError or struct.error for a record that `to_record` cannot have made."""
    key = record.key or b""
    kind = key[:2]
    if kind == _ESCAPE:
        return key[2:], record.value
    if kind not in (_SNAPSHOT, _UPDATE):
        return key, record.value
    number = dict(record.headers)[_NUMBER] or b"" if kind == _UPDATE else _FIRST_NUMBER
    return _prefix(key) + number, record.value


def _prefix(key: bytes) -> bytes:
    """The prefix of the state keys of the share-partition that a record's key names."""
    (length,) = _LENGTH.unpack_from(key, 2)
    return _NAMESPACE + key[4 + length :] + key[2 : 4 + length]


def batch_changes(view: memoryview, position: int, header: BatchHeader) -> list[Change]:
    """The changes of a batch, by from_record(). Raises the same errors, and CorruptPayload."""
    changes = None
    if header.codec_id == Codec.NONE:
        try:
            changes = _own_changes(
                bytes(view[position + HEADER_SIZE : position + header.size_bytes]), header.record_count
            )
        except (ValueError, IndexError, BufferUnderflow, struct.error):
            changes = None  # The general reader below finds the error.
    return list(map(from_record, iter_records(view, position))) if changes is None else changes


def _own_changes(payload: bytes, count: int) -> list[Change] | None:
    """The changes of a batch that `to_record` and build_timeless_batch() have made. For any other
    returns None, or raises ValueError, IndexError, BufferUnderflow or struct.error.

    Varints of one and two bytes are read in place: a call for each would cost more than everything
    else."""
    changes: list[Change] = []
    partition: bytes | None = None
    prefix = b""
    at = 0
    for _ in range(count):
        length, at = payload[at], at + 1
        if length >= 0x80:
            length, at = length + (payload[at] << 7) - 0x80, at + 1
            if length >= 0x4000:
                length, at = _long_varint(payload, at - 2)
        end = at + (length >> 1)
        if length & 1 or payload[at : at + 2] != _NO_ATTRIBUTES_NO_TIME:
            return None
        delta, at = payload[at + 2], at + 3
        if delta >= 0x80:
            _, at = _long_varint(payload, at - 1)
        length, at = payload[at], at + 1
        if length >= 0x80:
            length, at = _long_varint(payload, at - 1)
        key, at = payload[at : at + (length >> 1)], at + (length >> 1)
        if length & 1:
            return None
        length, at = payload[at], at + 1
        value = None
        if length != _NULL:
            if length >= 0x80:
                length, at = length + (payload[at] << 7) - 0x80, at + 1
                if length >= 0x4000:
                    length, at = _long_varint(payload, at - 2)
            value, at = payload[at : at + (length >> 1)], at + (length >> 1)
            if length & 1:
                return None
        headers, at = payload[at:end], end
        if key[0]:
            if headers != NO_HEADERS:
                return None
        else:
            if key[2:] != partition:
                partition, prefix = key[2:], _prefix(key)
            if key[1] == 0 and headers == NO_HEADERS:
                key = prefix + _FIRST_NUMBER
            elif key[1] == 1 and len(headers) == _NUMBER_END and headers.startswith(_NUMBER_HEADER):
                key = prefix + headers[-8:]
            else:
                return None
        changes.append((key, value))
    return changes if at <= len(payload) else None


def _long_varint(payload: bytes, at: int) -> tuple[int, int]:
    """A varint of any size, not zigzag-decoded, and the position after it."""
    number, size = read_unsigned_varint(payload, at)
    return number, at + size
