"""Produce requests, read by hand without copying their batches (v9-13, KIP-482's encoding;
KIP-516's topic ids from v13).

kio's decoder copies every byte string, and a request's counts are checked in a walk before that
(array_check.py). Here one walk does both, and batches are slices of the frame. That saves one copy
of each produced megabyte, and two if the frame has a buffer of its own (frames.py). Only the plain
form that clients send is read here. The general decoder reads everything else, including damaged
requests, so that one place decides what is refused and how.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

PRODUCE = 0
_FIRST, _TOPIC_IDS, _LAST = 9, 13, 13
_HEAD = struct.Struct(">xxhi")
"""An empty tag section of the header, no transactional id, acks, timeout."""
_INDEX = struct.Struct(">i")
_LEAST_PARTITION = 6
_LEAST_TOPIC = 3


@dataclass(slots=True)
class PartitionData:
    """`records` is a slice of the frame, writable where the frame is."""

    index: int
    records: memoryview | None


@dataclass(slots=True)
class TopicData:
    """Either `name` (up to v12) or `topic_id` is set."""

    name: str | None
    topic_id: UUID | None
    partition_data: Sequence[PartitionData]


@dataclass(slots=True)
class ProduceRequest:
    """The fields of kio's entity that a handler reads, under the same names."""

    acks: int
    topic_data: Sequence[TopicData]
    transactional_id: str | None = None


class _Unusual(Exception):
    """A request for the general decoder."""


def read_plain_produce(version: int, frame: memoryview, at: int, most_rows: int) -> ProduceRequest | None:
    """The request whose header's client id ends at `at`; None: read it with the general decoder, as
    one with more than `most_rows` topics and partitions."""
    if not _FIRST <= version <= _LAST:
        return None
    try:
        if frame[at] or frame[at + 1]:
            return None
        acks, _ = _HEAD.unpack_from(frame, at)
        count, at = _count(frame, at + _HEAD.size, _LEAST_TOPIC)
        topics: list[TopicData] = []
        rows_left = most_rows - count
        for _ in range(count):
            topic, at, rows_left = _read_topic(version, frame, at, rows_left)
            topics.append(topic)
        return None if frame[at] else ProduceRequest(acks, topics)
    except (_Unusual, IndexError, ValueError, struct.error):  # ValueError: a name that is not UTF-8
        return None


def _read_topic(version: int, frame: memoryview, at: int, rows_left: int) -> tuple[TopicData, int, int]:
    """A topic, where it ends, and how many rows may follow."""
    name: str | None = None
    topic_id: UUID | None = None
    if version >= _TOPIC_IDS:
        topic_id = UUID(bytes=bytes(frame[at : at + 16]))
        at += 16
    else:
        length, at = _count(frame, at, 1)
        name = str(frame[at : at + length], "utf-8")
        at += length
    count, at = _count(frame, at, _LEAST_PARTITION)
    rows_left -= count
    if rows_left < 0:
        raise _Unusual("many rows")
    partitions: list[PartitionData] = []
    for _ in range(count):
        (index,) = _INDEX.unpack_from(frame, at)
        at += 4
        records = None
        if frame[at]:
            length, at = _count(frame, at, 1)
            records = frame[at : at + length]
            at += length
        else:
            at += 1
        if frame[at]:
            raise _Unusual("tags")
        at += 1
        partitions.append(PartitionData(index, records))
    if frame[at]:
        raise _Unusual("tags")
    return TopicData(name, topic_id, partitions), at + 1, rows_left


def _count(frame: memoryview, at: int, least_bytes: int) -> tuple[int, int]:
    """A compact length or count, and the position after it. Raises _Unusual for null, or if so many
    elements of at least `least_bytes` cannot follow."""
    value = frame[at]
    at += 1
    if value >= 0x80:
        value &= 0x7F
        shift = 7
        while (byte := frame[at]) >= 0x80:
            value |= (byte & 0x7F) << shift
            at += 1
            shift += 7
            if shift > 28:
                raise _Unusual("a varint of more than five bytes")
        value |= byte << shift
        at += 1
    count = value - 1
    if count < 0 or count * least_bytes > len(frame) - at:
        raise _Unusual("more than the frame holds")
    return count, at
