"""The record that represents a dead letter (KIP-1191), how letters are packed into batches, and
which record a letter came from. Pure.

    headers     __dlq.errors.topic, .partition, .offset, .group     the source record
                __dlq.errors.delivery.count, .message               why it was given up
    key, value  null, or those of the record
    timestamp   when it is written

With kbroker's own settings, the record's headers follow those six, and its timestamp replaces the
other. If the record was a dead letter itself, it then has the six twice: the first ones describe
the last time.

This module must not know where dead letters are written, nor what becomes of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from kbroker.formats.batches import HEADER_SIZE, Record, encoded_size
from kbroker.share.effects import DeadLetterCause

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

HEADER_PREFIX: Final = "__dlq.errors."
HEADER_NAMES: Final = tuple(
    HEADER_PREFIX + name for name in ("topic", "partition", "offset", "group", "delivery.count", "message")
)
MESSAGES: Final = {
    DeadLetterCause.REJECTED: "Offset rejected by client.",
    DeadLetterCause.EXHAUSTED: "Offset delivery count exceeded the threshold.",
    DeadLetterCause.EXPIRED: "Offset expired before it was delivered.",
}


class Origin(NamedTuple):
    """The source record of a dead letter, and why it was given up."""

    topic: str
    partition: int
    offset: int
    group_id: str
    delivery_count: int
    message: str


class Contents(NamedTuple):
    """What a group's dead letters copy from the record: errors.deadletterqueue.copy.record.enable,
    and kbroker's two additions."""

    key_and_value: bool = False
    headers: bool = False
    timestamp: bool = False


class DeadLetterQueue(NamedTuple):
    """Where a group's dead letters are written, by its configs; `topic` is empty where it has
    none."""

    topic: str = ""
    contents: Contents = Contents()


class Letter(NamedTuple):
    """A dead letter with all that it should hold, and `bare`, for where that is too large.
    `Record.offset` is the source's."""

    full: Record
    bare: Record


class Packed(NamedTuple):
    """Batches in the order of the letters; the offsets of letters that fit into no batch, even
    bare; and how many letters are bare because the full ones were too large."""

    batches: list[list[Record]]
    too_large: list[int]
    cut: int


def headers_of(origin: Origin) -> Headers:
    return tuple((name, str(value).encode()) for name, value in zip(HEADER_NAMES, origin, strict=True))


def origin_of(headers: Sequence[tuple[str, bytes | None]]) -> Origin | None:
    """The origin that these headers name; None if the record is no dead letter."""
    first: dict[str, bytes] = {}
    for name, value in headers:
        if name.startswith(HEADER_PREFIX) and value is not None:
            first.setdefault(name, value)
    try:
        topic, partition, offset, group_id, delivery_count, message = (
            first[name].decode() for name in HEADER_NAMES
        )
        return Origin(topic, int(partition), int(offset), group_id, int(delivery_count), message)
    except (KeyError, ValueError):
        return None


def letter_of(origin: Origin, record: Record | None, contents: Contents, timestamp_ms: int) -> Letter:
    """`record`: the source record, None where it is not needed or cannot be read. `timestamp_ms`:
    the letter's."""
    bare = Record(origin.offset, timestamp_ms, None, None, headers_of(origin))
    if record is None:
        return Letter(bare, bare)
    full = bare
    if contents.key_and_value:
        full = full._replace(key=record.key, value=record.value)
    if contents.headers:
        full = full._replace(headers=bare.headers + record.headers)
    return Letter(full, bare)


def pack(letters: Iterable[Letter], max_bytes: int) -> Packed:
    """Uncompressed batches of at most `max_bytes`. A letter that does not fit into one alone is
    bare."""
    packed = Packed([], [], 0)
    batch: list[Record] = []
    size = HEADER_SIZE
    for letter in letters:
        record = next((each for each in letter if _alone(each) <= max_bytes), None)
        if record is None:
            packed.too_large.append(letter.bare.offset)
            continue
        if record is not letter.full:
            packed = packed._replace(cut=packed.cut + 1)
        added = _behind(batch, record)
        if not batch or size + added > max_bytes:
            batch, size = [], HEADER_SIZE
            packed.batches.append(batch)
            added = _behind(batch, record)
        batch.append(record)
        size += added
    return packed


def _alone(record: Record) -> int:
    return HEADER_SIZE + _behind([], record)


def _behind(batch: Sequence[Record], record: Record) -> int:
    delta_ms = record.timestamp_ms - batch[0].timestamp_ms if batch else 0
    return encoded_size(record, timestamp_delta=delta_ms, offset_delta=len(batch))


def offsets_found(records: Iterable[Record], group_id: str, topic: str, partition: int) -> set[int]:
    """The offsets of that share-partition whose dead letters are among `records`."""
    wanted = (group_id, topic, partition)
    origins = (origin_of(record.headers) for record in records)
    return {
        each.offset
        for each in origins
        if each is not None and (each.group_id, each.topic, each.partition) == wanted
    }
