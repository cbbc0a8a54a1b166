"""Keys and values of parked records in the StateStore: jobs that wait outside of the window
(share/parked.py).

    parked/  topic id (16), partition (4), group str, generation (8), kind (1), and by kind:

    kind       rest of the key          value, after its flags (1)
    0          -                        how many are parked (8)
    1          offset (8)               lane (1), due (8), delivery count (2), leader epoch (4)
    2, 3, 4    due (8), offset (8)      delivery count (2), leader epoch (4)
    5          offset (8)               the record, alone in an uncompressed batch v2
    6          key hash (8), offset (8) -
    7          offset (8)               type, message, traceback: each a length (2) and UTF-8

A parked record has two keys, written together: kind 1, by its offset, and that of its lane, by due
time. Both have all fields, so a reader of one order does not need the other. Kind 0 counts the
parked records. A `kept` record also has kind 5, so it can be delivered after the log has lost it.

Kind 7 is the reason for which a client rejected a record. The record is ARCHIVING: it is parked in
lane 4, or in the window, and then it has no other entry here. It goes with its dead letter.

If a group keeps the order of keys, both values end with the 64-bit hash of the record's key (8).
While such a record waits for its redelivery (lane 2) it has a third key, kind 6, in the same write.

The generation is the one in the share-partition's snapshot (share_records.ShareSnapshot). Entries
of any other generation are garbage, and are removed. Flags: bit 0 is `rejected`, bit 1 says that
there is a hash, bit 2 is `expired`, bit 3 is `kept`. A later format sets another bit for each field
that it appends; a reader refuses a value with an unknown bit.

This module must not know what a lane means, nor where a store keeps the entries.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, Self, TypeAlias
from uuid import UUID

from kbroker.formats.state_keys import LaterKey, StateKey, decode_string, encode_string

NO_GENERATION: Final = 0
COUNTER: Final = 0
BY_OFFSET: Final = 1
LANES: Final = (2, 3, 4)
KEPT_RECORD: Final = 5
BY_KEY: Final = 6
REASON: Final = 7
BLOCKS_KEY: Final = 2
"""The lane of records that wait for redelivery."""

_LOG = struct.Struct(">16si")
_GENERATION = struct.Struct(">q")
_BY_OFFSET_KEY = struct.Struct(">Bq")
_PLACE_KEY = struct.Struct(">Bqq")
_COUNT = struct.Struct(">Bq")
_BY_OFFSET_VALUE = struct.Struct(">BBqhi")
_PLACE_VALUE = struct.Struct(">Bhi")
_HASH: Final = struct.Struct(">Q")
_BY_KEY_KEY = struct.Struct(">BQq")
_NOTHING_MORE: Final = b"\0"
_REJECTED: Final = 1
_HAS_HASH: Final = 2
_EXPIRED: Final = 4
_KEPT: Final = 8


class ParkedCount(NamedTuple):
    """How many records of a share-partition are parked."""

    number: int

    def encode(self) -> bytes:
        return _COUNT.pack(0, self.number)


class KeptRecord(NamedTuple):
    """A record that stays available after the log has lost it. `batch`: a record batch of format v2
    with only this record, uncompressed, at its offset."""

    batch: bytes

    def encode(self) -> bytes:
        return b"\0" + self.batch


class RejectionReason(NamedTuple):
    """Why a client rejected a record."""

    type: str
    message: str
    traceback: str

    def encode(self) -> bytes:
        """Raises ValueError for a text of more than 32 767 bytes."""
        return b"\0" + b"".join(map(encode_string, self))


class ParkedRecord(NamedTuple):
    """The fields that both keys of a parked record have.

    - `due_ms`: since 1970.
    - `key_hash`: None if the group does not keep the order of keys, or for a null key.
    - `kept`: whether there is a KeptRecord.
    """

    offset: int
    lane: int
    due_ms: int
    delivery_count: int
    leader_epoch: int
    rejected: bool
    expired: bool = False
    key_hash: int | None = None
    kept: bool = False

    def encode(self) -> bytes:
        """As the value of kind 1."""
        return (
            _BY_OFFSET_VALUE.pack(self._flags, self.lane, self.due_ms, self.delivery_count, self.leader_epoch)
            + self._hash
        )

    def encode_place(self) -> bytes:
        """As the value of its lane's kind."""
        return _PLACE_VALUE.pack(self._flags, self.delivery_count, self.leader_epoch) + self._hash

    @property
    def _flags(self) -> int:
        causes = self.rejected * _REJECTED | self.expired * _EXPIRED
        return causes | (self.key_hash is not None) * _HAS_HASH | self.kept * _KEPT

    @property
    def _hash(self) -> bytes:
        return b"" if self.key_hash is None else _HASH.pack(self.key_hash)


class BlockedKey(NamedTuple):
    """A record that waits for redelivery, and blocks the other records whose key has this hash."""

    key_hash: int
    offset: int

    def encode(self) -> bytes:
        return _NOTHING_MORE


ParkedValue: TypeAlias = ParkedCount | ParkedRecord | KeptRecord | BlockedKey | RejectionReason


_KEYS: Final = {
    COUNTER: (struct.Struct(">B"), ()),
    BY_KEY: (_BY_KEY_KEY, ("key_hash", "offset")),
    **dict.fromkeys((BY_OFFSET, KEPT_RECORD, REASON), (_BY_OFFSET_KEY, ("offset",))),
    **dict.fromkeys(LANES, (_PLACE_KEY, ("due_ms", "offset"))),
}
"""By kind: the rest of the key, and the fields in it."""


class ParkedKey(StateKey):
    """A parsed key. `offset`, `due_ms` and `key_hash` are set for the kinds that have them."""

    topic_id: UUID
    partition: int
    group_id: str
    generation: int
    kind: int
    offset: int = 0
    due_ms: int = 0
    key_hash: int = 0
    namespace = b"parked/"

    def encode(self) -> bytes:
        prefix = parked_prefix(self.group_id, self.topic_id, self.partition)
        form, fields = _KEYS[self.kind]
        rest = form.pack(self.kind, *[getattr(self, each) for each in fields])
        return generation_prefix(prefix, self.generation) + rest

    @classmethod
    def _parse(cls, body: bytes) -> Self:
        topic_id, partition = _LOG.unpack_from(body)
        group_id, end = decode_string(body, _LOG.size)
        (generation,) = _GENERATION.unpack_from(body, end)
        rest = body[end + _GENERATION.size :]
        if rest[0] not in _KEYS:
            raise LaterKey
        form, fields = _KEYS[rest[0]]
        found = dict(zip(fields, form.unpack(rest)[1:], strict=True))
        return cls(UUID(bytes=topic_id), partition, group_id, generation, rest[0], **found)

    def decode_value(self, value: bytes) -> ParkedValue:
        if self.kind == BY_KEY:
            if value != _NOTHING_MORE:
                raise ValueError(f"not the value of a key that waits, or of a later version: {value.hex()}")
            return BlockedKey(self.key_hash, self.offset)
        if self.kind == COUNTER:
            return ParkedCount(decode_count(value))
        if self.kind == KEPT_RECORD:
            return kept_record(value)
        if self.kind == REASON:
            return rejection_reason(value)
        if self.kind == BY_OFFSET:
            return record_by_offset(self.offset, value)
        return record_in_lane(self.kind, self.due_ms, self.offset, value)


# --- keys ---


class Shelf(NamedTuple):
    """The parked records of one generation of a share-partition. All their keys begin with
    `prefix`."""

    topic_id: UUID
    partition: int
    group_id: str
    generation: int
    prefix: bytes


def shelf_of(key: bytes) -> Shelf:
    """The shelf of a key of any kind. Raises ValueError for a broken key."""
    start = len(ParkedKey.namespace)
    try:
        topic_id, partition = _LOG.unpack_from(key, start)
        group_id, end = decode_string(key, start + _LOG.size)
        (generation,) = _GENERATION.unpack_from(key, end)
    except (struct.error, IndexError) as error:
        raise ValueError(f"not a key of parked records: {key.hex()}") from error
    return Shelf(UUID(bytes=topic_id), partition, group_id, generation, key[: end + _GENERATION.size])


def parked_prefix(group_id: str, topic_id: UUID, partition: int) -> bytes:
    """Prefix of all entries of a share-partition, in any generation."""
    return ParkedKey.namespace + _LOG.pack(topic_id.bytes, partition) + encode_string(group_id)


parked_topic_prefix: Final = ParkedKey.topic_prefix


def generation_prefix(prefix: bytes, generation: int) -> bytes:
    """`prefix` is a `parked_prefix`."""
    return prefix + _GENERATION.pack(generation)


def counter_key(prefix: bytes) -> bytes:
    """In this function and the next five, `prefix` is a `generation_prefix`."""
    return prefix + b"\0"


def by_offset_key(prefix: bytes, offset: int) -> bytes:
    return prefix + _BY_OFFSET_KEY.pack(BY_OFFSET, offset)


def kept_key(prefix: bytes, offset: int) -> bytes:
    return prefix + _BY_OFFSET_KEY.pack(KEPT_RECORD, offset)


def place_key(prefix: bytes, lane: int, due_ms: int, offset: int) -> bytes:
    return prefix + _PLACE_KEY.pack(lane, due_ms, offset)


def by_key_key(prefix: bytes, key_hash: int, offset: int) -> bytes:
    return prefix + _BY_KEY_KEY.pack(BY_KEY, key_hash, offset)


def reason_key(prefix: bytes, offset: int) -> bytes:
    return prefix + _BY_OFFSET_KEY.pack(REASON, offset)


def end_of(prefix: bytes) -> bytes:
    """The first key after all that begin with `prefix`."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes((stem[-1] + 1,))


def read_parked_entries(
    entries: Iterable[tuple[bytes, bytes]],
) -> Iterator[tuple[ParkedKey, ParkedValue]]:
    """Decode scanned entries, without those of kinds that only later formats know. Raises
    ValueError."""
    for key, value in entries:
        try:
            parsed = ParkedKey.parse(key[len(ParkedKey.namespace) :])
        except LaterKey:
            continue
        yield parsed, parsed.decode_value(value)


# --- values ---


def decode_count(value: bytes) -> int:
    """Raises ValueError, as the next three do."""
    flags, count = _unpack(_COUNT, value)
    if flags or count < 0:
        raise ValueError(f"not a number of parked records: {value.hex()}")
    return int(count)


def record_by_offset(offset: int, value: bytes) -> ParkedRecord:
    (flags, lane, due_ms, delivery_count, leader_epoch), key_hash = _parted(_BY_OFFSET_VALUE, value)
    if lane not in LANES:
        raise ValueError(f"a parked record in an unknown lane: {value.hex()}")
    return ParkedRecord(
        offset, lane, due_ms, delivery_count, leader_epoch, *_causes(flags), key_hash, is_kept(value)
    )


def record_in_lane(lane: int, due_ms: int, offset: int, value: bytes) -> ParkedRecord:
    (flags, delivery_count, leader_epoch), key_hash = _parted(_PLACE_VALUE, value)
    return ParkedRecord(
        offset, lane, due_ms, delivery_count, leader_epoch, *_causes(flags), key_hash, is_kept(value)
    )


def kept_record(value: bytes) -> KeptRecord:
    if len(value) < 2 or value[0]:
        raise ValueError(f"not what is kept of a parked record, or of a later version: {value[:16].hex()}")
    return KeptRecord(value[1:])


def rejection_reason(value: bytes) -> RejectionReason:
    """Raises ValueError."""
    try:
        if value[0]:
            raise ValueError("unknown flags")
        texts, at = [], 1
        for _ in range(3):
            text, at = decode_string(value, at)
            texts.append(text)
        if at != len(value):
            raise ValueError("bytes are left over")
    except (ValueError, IndexError, struct.error) as error:
        raise ValueError(
            f"not the reason of a rejection, or of a later version: {value[:16].hex()}"
        ) from error
    return RejectionReason(*texts)


def is_kept(value: bytes) -> bool:
    """Whether the record is kept, by its value of kind 1 or of a lane's kind."""
    return bool(value[0] & _KEPT)


def place_of_key(key: bytes) -> tuple[int, int]:
    """(due, offset) of a key of a lane's kind."""
    _, due_ms, offset = _PLACE_KEY.unpack(key[-_PLACE_KEY.size :])
    return due_ms, offset


def offset_of_key(key: bytes) -> int:
    """Of a key of kind 1, 5, 6 or 7."""
    return int.from_bytes(key[-8:], "big")


def _unpack(form: struct.Struct, value: bytes) -> tuple[int, ...]:
    try:
        return form.unpack(value)
    except struct.error as error:
        raise ValueError(f"not the value of a parked record, or of a later version: {value.hex()}") from error


def _causes(flags: int) -> tuple[bool, bool]:
    return bool(flags & _REJECTED), bool(flags & _EXPIRED)


def _parted(form: struct.Struct, value: bytes) -> tuple[tuple[int, ...], int | None]:
    """The fields of a value, flags first, and the hash after them."""
    if value[:1] and value[0] & ~(_REJECTED | _HAS_HASH | _EXPIRED | _KEPT):
        raise ValueError(f"a parked record of a later version: {value.hex()}")
    if not value[:1] or not value[0] & _HAS_HASH:
        return _unpack(form, value), None
    size = form.size
    return _unpack(form, value[:size]), _unpack(_HASH, value[size:])[0]
