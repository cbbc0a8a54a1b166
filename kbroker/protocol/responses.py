"""The four answers that are packed by hand: Produce, Fetch, ShareFetch, ShareAcknowledge.

kio's encoder is pure Python and would cost more than the rest of such a request (16 us against 1).
Each function returns the body of the response as buffers. Record data is not copied after it was
read from storage. Tests compare every version with kio's encoder.

Tagged fields are left out on purpose: a single node has no other leader or endpoint to name. So tag
sections are empty, except for the diverging epoch of Fetch. ShareFetch and ShareAcknowledge have
current_leader as a plain field: -1/-1, "no hint".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

from kbroker.formats.batches import Buffer
from kbroker.formats.makers import maker
from kbroker.share.effects import AcquiredRange
from kbroker.turns import ROWS_A_TURN

PRODUCE_FLEXIBLE = 9
PRODUCE_TOPIC_IDS = 13
FETCH_FLEXIBLE = 12
FETCH_TOPIC_IDS = 13

_PRODUCE_KEY = 0
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_PRODUCE_ROW = struct.Struct(">ihqqq")
_PRODUCE_ROW_V3 = struct.Struct(">ihqq")
_FETCH_ROW = struct.Struct(">ihqqq")
_FETCH_ROW_V4 = struct.Struct(">ihqq")
_FETCH_ROW_V12 = struct.Struct(">ihqqq5s")
"""With the null or empty list of aborted transactions and no preferred replica."""
_ABORTED = struct.Struct(">qq")
_DIVERGING = struct.Struct(">3siqx")
"""A tag section with one field: tag 0 of 13 bytes."""
_SHARE_ROW = struct.Struct(">ih")
_ACQUIRED = struct.Struct(">qqhx")
_NO_LEADER = struct.pack(">iix", -1, -1)
_FETCH_HEAD = struct.Struct(">ihi")
_SHARE_HEAD = struct.Struct(">ih")
_SHARE_FETCH_HEAD = struct.Struct(">ihxi")
"""Without a message, like the next one."""
_SHARE_FETCH_ROW = struct.Struct(">ihxhxiix")
_ONE_BYTE = tuple(bytes((number,)) for number in range(0x80))


class ProduceRow(NamedTuple):
    """`record_errors`: (index in the batch, error) for each bad record; sent only with an
    `error_message`."""

    partition: int
    error_code: int
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    record_errors: Sequence[tuple[int, str]] = ()


class FetchRow(NamedTuple):
    """`records`: whole batches in offset order.

    - `aborted`: producer id and first offset of each aborted transaction in them; None: the client
      reads uncommitted records
    - `diverging`: the newest leader epoch up to the one that the client has fetched last, and where
      it ended (from v12)
    """

    partition: int
    error_code: int
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: Sequence[Buffer] = ()
    aborted: Sequence[tuple[int, int]] | None = None
    diverging: tuple[int, int] | None = None


fetch_row = maker(
    FetchRow,
    tuple[
        int, int, int, int, int, Sequence[Buffer], Sequence[tuple[int, int]] | None, tuple[int, int] | None
    ],
)
"""Called for every fetched partition, hence not the slower constructor."""


class ShareFetchRow(NamedTuple):
    partition: int
    error_code: int = 0
    error_message: str | None = None
    acknowledge_error_code: int = 0
    acknowledge_error_message: str | None = None
    records: Sequence[Buffer] = ()
    acquired: Sequence[AcquiredRange] = ()


share_fetch_row = maker(
    ShareFetchRow,
    tuple[int, int, str | None, int, str | None, Sequence[Buffer], Sequence[AcquiredRange]],
)


class ShareAcknowledgeRow(NamedTuple):
    partition: int
    error_code: int = 0
    error_message: str | None = None


def uvarint(value: int) -> bytes:
    """An unsigned varint, the encoding of compact lengths."""
    if value < 0x80:
        return _ONE_BYTE[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _compact_string(text: str | None) -> bytes:
    if text is None:
        return b"\x00"
    encoded = text.encode()
    return uvarint(len(encoded) + 1) + encoded


def _string(text: str) -> bytes:
    encoded = text.encode()
    return _I16.pack(len(encoded)) + encoded


def _nullable_string(text: str | None) -> bytes:
    return b"\xff\xff" if text is None else _string(text)


def _topic(topic: str | UUID, flexible: bool) -> bytes:
    if isinstance(topic, UUID):
        return topic.bytes
    return _compact_string(topic) if flexible else _string(topic)


def _count(count: int, flexible: bool) -> bytes:
    return uvarint(count + 1) if flexible else _I32.pack(count)


def produce_response(version: int, topics: Sequence[tuple[str | UUID, Sequence[ProduceRow]]]) -> bytes:
    """v3-13. Topics by name below v13, by id from there."""
    flexible = version >= PRODUCE_FLEXIBLE
    parts = [_count(len(topics), flexible)]
    for topic, rows in topics:
        parts += (_topic(topic, flexible), _count(len(rows), flexible))
        for row in rows:
            parts.append(_produce_row(version, row))
        if flexible:
            parts.append(b"\x00")
    parts.append(b"\x00\x00\x00\x00\x00" if flexible else b"\x00\x00\x00\x00")
    return b"".join(parts)


def _produce_row(version: int, row: ProduceRow) -> bytes:
    if version < 5:
        return _PRODUCE_ROW_V3.pack(row.partition, row.error_code, row.base_offset, row.log_append_time_ms)
    packed = _PRODUCE_ROW.pack(
        row.partition, row.error_code, row.base_offset, row.log_append_time_ms, row.log_start_offset
    )
    if version < 8:
        return packed
    if version < PRODUCE_FLEXIBLE:
        errors = b"".join(_I32.pack(index) + _string(message) for index, message in row.record_errors)
        return packed + _I32.pack(len(row.record_errors)) + errors + _nullable_string(row.error_message)
    if row.error_message is None:
        return packed + b"\x01\x00\x00"
    errors = b"".join(
        _I32.pack(index) + _compact_string(message) + b"\x00" for index, message in row.record_errors
    )
    return (
        packed + uvarint(len(row.record_errors) + 1) + errors + _compact_string(row.error_message) + b"\x00"
    )


def with_throttle_time(
    api_key: int, version: int, buffers: Sequence[Buffer], throttle_ms: int, at: int = 0
) -> Sequence[Buffer]:
    """A packed response, with its throttle time. They are packed without one, since nearly all have
    none. `at`: where it is. Produce ends with it."""
    packed = _I32.pack(throttle_ms)
    if api_key != _PRODUCE_KEY:
        first = memoryview(buffers[0])
        return (first[:at], packed, first[at + 4 :], *buffers[1:])
    *before, last = buffers
    end = len(last) - (1 if version >= PRODUCE_FLEXIBLE else 0)
    return (*before, memoryview(last)[: end - 4], packed, memoryview(last)[end:])


def fetch_response(
    version: int, error_code: int, session_id: int, topics: Sequence[tuple[str | int, Sequence[FetchRow]]]
) -> list[Buffer]:
    """`pack_fetch` for a response of few rows."""
    buffers: list[Buffer] = []
    for _ in pack_fetch(version, error_code, session_id, topics, buffers):
        pass
    return buffers


def pack_fetch(
    version: int,
    error_code: int,
    session_id: int,
    topics: Sequence[tuple[str | int, Sequence[FetchRow]]],
    buffers: list[Buffer],
) -> Iterator[None]:
    """v4-18. Topics by name below v13, by the number of their id (UUID.int) from there.
    `error_code` and `session_id` are sent from v7. Adds to `buffers`, and yields where others
    should get a turn."""
    flexible = version >= FETCH_FLEXIBLE
    count = 0
    head = [_FETCH_HEAD.pack(0, error_code, session_id) if version >= 7 else b"\x00\x00\x00\x00"]
    head.append(uvarint(len(topics) + 1) if flexible else _I32.pack(len(topics)))
    for topic, rows in topics:
        name = (
            topic.to_bytes(16, "big")
            if isinstance(topic, int)
            else _compact_string(topic)
            if flexible
            else _string(topic)
        )
        head += (name, uvarint(len(rows) + 1) if flexible else _I32.pack(len(rows)))
        for row in rows:
            count += 1
            if not count % ROWS_A_TURN:
                yield
            head.append(_fetch_row_head(version, row))
            if row.records:
                buffers.append(b"".join(head))
                buffers += row.records
                head = []
            if flexible:
                head.append(
                    b"\x00" if row.diverging is None else _DIVERGING.pack(b"\x01\x00\x0d", *row.diverging)
                )
        if flexible:
            head.append(b"\x00")
    if flexible:
        head.append(b"\x00")
    buffers.append(b"".join(head))


def _fetch_row_head(version: int, row: FetchRow) -> bytes:
    index, code, high_watermark, stable_offset, log_start_offset, records, aborted, _ = row
    size = sum(map(len, records)) if records else 0
    if version >= FETCH_FLEXIBLE:
        if aborted:
            return (
                _FETCH_ROW.pack(index, code, high_watermark, stable_offset, log_start_offset)
                + uvarint(len(aborted) + 1)
                + b"".join([_ABORTED.pack(*each) + b"\0" for each in aborted])
                + b"\xff\xff\xff\xff"
                + uvarint(size + 1)
            )
        none = b"\x00\xff\xff\xff\xff" if aborted is None else b"\x01\xff\xff\xff\xff"
        return _FETCH_ROW_V12.pack(
            index, code, high_watermark, stable_offset, log_start_offset, none
        ) + uvarint(size + 1)
    if version < 5:
        packed = _FETCH_ROW_V4.pack(index, code, high_watermark, stable_offset)
    else:
        packed = _FETCH_ROW.pack(index, code, high_watermark, stable_offset, log_start_offset)
    packed += _I32.pack(-1 if aborted is None else len(aborted))
    if aborted:
        packed += b"".join([_ABORTED.pack(*each) for each in aborted])
    return packed + (b"\xff\xff\xff\xff" if version >= 11 else b"") + _I32.pack(size)


def share_fetch_response(
    version: int,
    topics: Sequence[tuple[UUID, Sequence[ShareFetchRow]]],
    *,
    lock_timeout_ms: int,
    error_code: int = 0,
    error_message: str | None = None,
) -> list[Buffer]:
    """`pack_share_fetch` for a response of few rows, or with an error."""
    buffers: list[Buffer] = []
    for _ in pack_share_fetch(topics, buffers, lock_timeout_ms, error_code, error_message):
        pass
    return buffers


def pack_share_fetch(
    topics: Sequence[tuple[UUID, Sequence[ShareFetchRow]]],
    buffers: list[Buffer],
    lock_timeout_ms: int,
    error_code: int = 0,
    error_message: str | None = None,
) -> Iterator[None]:
    """v1-2 (KIP-932): the same layout. Adds to `buffers`, and yields where others should get a
    turn."""
    if error_message is None:
        head = [_SHARE_FETCH_HEAD.pack(0, error_code, lock_timeout_ms), uvarint(len(topics) + 1)]
    else:
        head = [
            _SHARE_HEAD.pack(0, error_code),
            _compact_string(error_message),
            _I32.pack(lock_timeout_ms),
            uvarint(len(topics) + 1),
        ]
    count = 0
    for topic_id, rows in topics:
        head += (topic_id.int.to_bytes(16, "big"), uvarint(len(rows) + 1))
        for index, code, message, acknowledge_code, acknowledge_message, records, acquired in rows:
            count += 1
            if not count % ROWS_A_TURN:
                yield
            if message is None and acknowledge_message is None:
                head.append(_SHARE_FETCH_ROW.pack(index, code, acknowledge_code, -1, -1))
            else:
                head += (_SHARE_ROW.pack(index, code), _compact_string(message))
                head += (_I16.pack(acknowledge_code), _compact_string(acknowledge_message), _NO_LEADER)
            if records:
                head.append(uvarint(sum(map(len, records)) + 1))
                buffers += (b"".join(head), *records)
                head = []
            else:
                head.append(b"\x01")
            head += (uvarint(len(acquired) + 1), *[_ACQUIRED.pack(*run) for run in acquired], b"\x00")
        head.append(b"\x00")
    head.append(b"\x01\x00")
    buffers.append(b"".join(head))


def share_acknowledge_response(
    version: int,
    topics: Sequence[tuple[UUID, Sequence[ShareAcknowledgeRow]]],
    *,
    lock_timeout_ms: int,
    error_code: int = 0,
    error_message: str | None = None,
) -> bytes:
    """v1-2 (KIP-932): v2 has the lock timeout (KIP-1222)."""
    lock_timeout = _I32.pack(lock_timeout_ms) if version >= 2 else b""
    parts = [
        _SHARE_HEAD.pack(0, error_code),
        _compact_string(error_message),
        lock_timeout,
        uvarint(len(topics) + 1),
    ]
    for topic_id, rows in topics:
        parts += (topic_id.int.to_bytes(16, "big"), uvarint(len(rows) + 1))
        for index, code, message in rows:
            parts += (_SHARE_ROW.pack(index, code), _compact_string(message), _NO_LEADER, b"\x00")
        parts.append(b"\x00")
    parts.append(b"\x01\x00")
    return b"".join(parts)
