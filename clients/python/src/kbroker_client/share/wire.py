"""ShareFetch and ShareAcknowledge as bytes: a consumer that takes one record at a time sends two
requests a record, and kio's encoder would be most of its work.

Tests compare both with kio's encoder. Answers are read by kio.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from .._shared.share.reasons import Reason

SHARE_FETCH: Final = "share_fetch"
SHARE_ACKNOWLEDGE: Final = "share_acknowledge"
_FETCH_LIMITS: Final = struct.Struct(">iiiiii")
_EPOCH: Final = struct.Struct(">i")
_INDEX: Final = struct.Struct(">i")
_OFFSETS: Final = struct.Struct(">qq")
_REASON_PLACE: Final = struct.Struct(">iq")
_NO_TAGS: Final = b"\0"
REASON_TAG: Final = 10_000
"""Of ShareAcknowledge, kbroker's own: why records are rejected."""

Partition: TypeAlias = tuple[UUID, int]


class AckBatch(NamedTuple):
    """`types`: one for all offsets, or one for each."""

    first: int
    last: int
    types: bytes


class Limits(NamedTuple):
    """Of a ShareFetch. `acquire_mode`: 0 batch_optimized, 1 record_limit (from version 2)."""

    wait_ms: int
    max_records: int
    batch_size: int
    acquire_mode: int
    min_bytes: int = 1
    max_bytes: int = 50 << 20


Acknowledged: TypeAlias = Mapping[Partition, Sequence[AckBatch]]


def share_fetch(
    version: int,
    group: str,
    member: str,
    epoch: int,
    limits: Limits,
    partitions: Acknowledged,
    forgotten: Iterable[Partition] = (),
) -> bytes:
    """`partitions`: those that are new in the session or acknowledged."""
    parts = [_text(group), _text(member)]
    parts.append(
        _FETCH_LIMITS.pack(
            epoch, limits.wait_ms, limits.min_bytes, limits.max_bytes, limits.max_records, limits.batch_size
        )
    )
    if version >= 2:
        parts.append(bytes((limits.acquire_mode, 0)))
    parts += _topics(partitions)
    by_topic = _by_topic(dict.fromkeys(forgotten))
    parts.append(varint(len(by_topic) + 1))
    for topic_id, indexes in by_topic.items():
        parts += (topic_id.bytes, varint(len(indexes) + 1), *map(_INDEX.pack, indexes), _NO_TAGS)
    parts.append(_NO_TAGS)
    return b"".join(parts)


def share_acknowledge(
    version: int,
    group: str,
    member: str,
    epoch: int,
    partitions: Acknowledged,
    *,
    renews: bool = False,
    reasons: Mapping[tuple[UUID, int, int], Reason] | None = None,
) -> bytes:
    """`reasons`: of rejected records, by topic id, partition and offset; only for a broker with
    FEATURE."""
    parts = [_text(group), _text(member), _EPOCH.pack(epoch)]
    if version >= 2:
        parts.append(bytes((renews,)))
    parts += _topics(partitions)
    if reasons:
        value = _reasons(reasons)
        parts += (b"\x01", varint(REASON_TAG), varint(len(value)), value)
    else:
        parts.append(_NO_TAGS)
    return b"".join(parts)


def _reasons(reasons: Mapping[tuple[UUID, int, int], Reason]) -> bytes:
    parts = [varint(len(reasons) + 1)]
    for (topic_id, index, offset), reason in reasons.items():
        parts += (topic_id.bytes, _REASON_PLACE.pack(index, offset), *map(_text, reason), _NO_TAGS)
    return b"".join(parts)


def _topics(partitions: Acknowledged) -> list[bytes]:
    by_topic = _by_topic(partitions)
    parts = [varint(len(by_topic) + 1)]
    for topic_id, indexes in by_topic.items():
        parts += (topic_id.bytes, varint(len(indexes) + 1))
        for index in indexes:
            batches = partitions[topic_id, index]
            parts += (_INDEX.pack(index), varint(len(batches) + 1))
            for first, last, types in batches:
                parts += (_OFFSETS.pack(first, last), varint(len(types) + 1), types, _NO_TAGS)
            parts.append(_NO_TAGS)
        parts.append(_NO_TAGS)
    return parts


def _by_topic(partitions: Iterable[Partition]) -> dict[UUID, list[int]]:
    found: dict[UUID, list[int]] = {}
    for topic_id, index in partitions:
        found.setdefault(topic_id, []).append(index)
    return found


def ack_batches(types: Mapping[int, int]) -> list[AckBatch]:
    """Acknowledgement types by offset, as batches of consecutive offsets."""
    batches: list[AckBatch] = []
    offsets = sorted(types)
    start = 0
    for end in range(1, len(offsets) + 1):
        if end < len(offsets) and offsets[end] == offsets[end - 1] + 1:
            continue
        run = bytes(types[offset] for offset in offsets[start:end])
        if run.count(run[0]) == len(run):
            run = run[:1]
        batches.append(AckBatch(offsets[start], offsets[end - 1], run))
        start = end
    return batches


def _text(text: str) -> bytes:
    encoded = text.encode()
    return varint(len(encoded) + 1) + encoded


def varint(number: int) -> bytes:
    """Unsigned."""
    if number < 0x80:
        return bytes((number,))
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
