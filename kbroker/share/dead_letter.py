"""The record that represents a dead letter (KIP-1191), how letters are packed into batches, and
which record a letter came from. Pure.

    headers     __dlq.errors.topic, .partition, .offset, .group     the source record
                __dlq.errors.delivery.count, .message               why it was given up
                __kbroker.error.type, .message, .traceback          the client's reason, if any
    key, value  null, or those of the record
    timestamp   when it is written

With kbroker's own settings, the record's headers follow those, and its timestamp replaces the
other. If the record was a dead letter itself, it then has them twice: the first ones describe the
last time.

This module must not know where dead letters are written, nor what becomes of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from kbroker.formats.batches import HEADER_SIZE, Record, build_batch, encoded_size
from kbroker.formats.compression import DEFAULT_MAX_BYTES, Codec
from kbroker.share.effects import DeadLetterCause
from kbroker.share.reasons import Reason

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

HEADER_PREFIX: Final = "__dlq.errors."
HEADER_NAMES: Final = tuple(
    HEADER_PREFIX + name for name in ("topic", "partition", "offset", "group", "delivery.count", "message")
)
REASON_PREFIX: Final = "__kbroker.error."
REASON_NAMES: Final = tuple(REASON_PREFIX + name for name in ("type", "message", "traceback"))
"""Of kbroker's own: the texts of a Reason, without the empty ones."""
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


def headers_of(origin: Origin) -> Headers:
    return tuple((name, str(value).encode()) for name, value in zip(HEADER_NAMES, origin, strict=True))


def origin_of(headers: Sequence[tuple[str, bytes | None]]) -> Origin | None:
    """The origin that these headers name; None if the record is no dead letter."""
    first: dict[str, bytes] = {}
    for name, value in headers:
        if name.startswith(HEADER_PREFIX) and value is not None:
            first.setdefault(name, value)
    try:
        texts = Origin._make(first[name].decode() for name in HEADER_NAMES)
        return texts._replace(
            partition=int(texts.partition),
            offset=int(texts.offset),
            delivery_count=int(texts.delivery_count),
        )
    except (KeyError, ValueError):
        return None


def reason_headers(reason: Reason) -> Headers:
    return tuple((name, text.encode()) for name, text in zip(REASON_NAMES, reason, strict=True) if text)


def own_headers(headers: Headers) -> Headers:
    """The headers that the broker has added to a dead letter, without those of its record: at the
    beginning, and each name once."""
    own: dict[str, bytes | None] = {}
    for name, value in headers:
        if name in own or not name.startswith((HEADER_PREFIX, REASON_PREFIX)):
            break
        own[name] = value
    return tuple(own.items())


def reason_of(headers: Headers) -> Reason | None:
    """The reason of a dead letter; None if its client gave none. `headers`: all of them."""
    own = dict(own_headers(headers))
    texts = [(own.get(name) or b"").decode(errors="replace") for name in REASON_NAMES]
    return Reason(*texts) if any(texts) else None


def letter_of(
    origin: Origin,
    record: Record | None,
    contents: Contents,
    timestamp_ms: int,
    reason: Reason | None = None,
) -> Record:
    """The dead letter; its offset is the source's.

    - `record`: the source record; None if it is not needed or cannot be read
    - `timestamp_ms`: the letter's
    - `reason`: of the client that rejected it
    """
    headers = headers_of(origin) if reason is None else headers_of(origin) + reason_headers(reason)
    letter = Record(origin.offset, timestamp_ms, None, None, headers)
    if record is None:
        return letter
    if contents.key_and_value:
        letter = letter._replace(key=record.key, value=record.value)
    if contents.headers:
        letter = letter._replace(headers=letter.headers + record.headers)
    return letter


def pack(letters: Iterable[Record], max_bytes: int) -> list[list[Record]]:
    """Batches, in the order of the letters, that take at most `max_bytes` each when uncompressed. A
    larger letter has a batch of its own."""
    batches: list[list[Record]] = []
    size = max_bytes
    for letter in letters:
        added = _behind(batches[-1], letter) if batches else 0
        if not batches or size + added > max_bytes:
            batches.append([])
            size, added = HEADER_SIZE, _behind([], letter)
        batches[-1].append(letter)
        size += added
    return batches


def encode(
    batch: Sequence[Record], max_bytes: int, codec: Codec | None = None, level: int | None = None
) -> bytearray:
    """The batch as it is stored. `codec` and `level`: of its topic (compression.type). Without a
    codec only a batch that would be larger than `max_bytes` is compressed. One that readers would
    refuse to decompress never is."""
    plain = build_batch(batch)
    if len(plain) > HEADER_SIZE + DEFAULT_MAX_BYTES or codec is Codec.NONE:
        return bytearray(plain)
    if codec is not None:
        return bytearray(build_batch(batch, codec=codec, level=level))
    if len(plain) > max_bytes:
        plain = min(plain, build_batch(batch, codec=Codec.ZSTD), key=len)
    return bytearray(plain)


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
