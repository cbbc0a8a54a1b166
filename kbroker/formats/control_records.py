"""Share state in control records of the topic partition itself: the format of
`kbroker.persister=control-records`.

The design is that of an early draft of KIP-932, with the fields that the five methods of a
persister need. The state is the same as in `__share_group_state` of released Kafka
(formats/share_records.py). A control batch is a record batch with bit 5 of its attributes set; it
has no timestamps (-1) and no producer, and clients skip it. One batch has the changes of one call.

    record key                        version (2) = 0, type (2): 5 SHARE_CHECKPOINT, 6 SHARE_DELTA
    record value, SHARE_CHECKPOINT    version (2) = 1, group str, ShareSnapshot (empty: the state
                                      is deleted)
    record value, SHARE_DELTA         version (2) = 1, group str, back offset (8), ShareUpdate

A group's state is its newest checkpoint and the deltas after it. They are found by walking
backwards: a delta's back offset is that of the group's previous delta or checkpoint. Both have the
same snapshot epoch (the draft's checkpoint epoch).

`str` is length (2) and UTF-8. Version 0 of the values is the draft's. This module must not know
where batches are stored, nor what the state means.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from kbroker.formats.batches import (
    CONTROL,
    NO_HEADERS,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    Record,
    build_timeless_batch,
    crc_is_valid,
    iter_records,
)
from kbroker.formats.compression import CorruptPayload
from kbroker.formats.state_keys import decode_string

VALUE_VERSION: Final = 1
NO_OFFSET: Final = -1
_KEY_VERSION: Final = 0
_KEY = struct.Struct(">hh")
_VERSION = struct.Struct(">h")
_OFFSET = struct.Struct(">q")
_VALUE_HEAD = struct.Struct(">hH")


class ControlType(IntEnum):
    """The record types of share state, with the draft's numbers."""

    SHARE_CHECKPOINT = 5
    SHARE_DELTA = 6


class ShareControl(NamedTuple):
    """One record. `state`: the encoded ShareSnapshot or ShareUpdate, empty for a deletion.
    `back_offset`: only of a delta."""

    type: ControlType
    group_id: str
    state: bytes
    back_offset: int = NO_OFFSET

    @property
    def is_deletion(self) -> bool:
        return self.type is ControlType.SHARE_CHECKPOINT and not self.state

    def value(self) -> bytes:
        """The value of its record."""
        group_id = self.group_id.encode()
        head = _VALUE_HEAD.pack(VALUE_VERSION, len(group_id)) + group_id
        return (
            head
            + (_OFFSET.pack(self.back_offset) if self.type is ControlType.SHARE_DELTA else b"")
            + self.state
        )

    def to_record(self) -> Record:
        return Record(0, NO_TIMESTAMP, _KEYS[self.type], self.value())

    @classmethod
    def from_record(cls, record: Record) -> ShareControl | None:
        """None for a control record of another kind (end of a transaction). Raises ValueError for a
        record of share state that cannot be read."""
        kind, value = _kind_of(record.key), record.value
        if kind is None or value is None:
            return None
        try:
            if _VERSION.unpack_from(value) != (VALUE_VERSION,):
                raise ValueError(
                    f"{kind.name} at {record.offset}: not version {VALUE_VERSION}: {value[:2].hex()}"
                )
            group_id, end = decode_string(value, _VERSION.size)
            if kind is ControlType.SHARE_CHECKPOINT:
                return cls(kind, group_id, value[end:])
            (back_offset,) = _OFFSET.unpack_from(value, end)
            return cls(kind, group_id, value[end + _OFFSET.size :], back_offset)
        except struct.error as error:
            raise ValueError(f"{kind.name} at {record.offset}: cut off") from error


_TYPES: Final = frozenset(ControlType)
_KEYS: Final = {kind: _KEY.pack(_KEY_VERSION, kind) for kind in ControlType}


def _kind_of(key: bytes | None) -> ControlType | None:
    """None for the key of a control record of another kind."""
    if key is None or len(key) < _KEY.size:
        return None
    version, number = _KEY.unpack_from(key)
    return ControlType(number) if version == _KEY_VERSION and number in _TYPES else None


def build_control_batch(controls: Sequence[ShareControl]) -> bytes:
    """A control batch with consecutive offsets; the caller that appends it stamps the base offset.
    Must be fast, because every acknowledgement waits for a batch."""
    return build_timeless_batch(
        [(_KEYS[control.type], control.value(), NO_HEADERS) for control in controls], attributes=CONTROL
    )


def read_controls(data: Buffer, position: int, header: BatchHeader) -> Iterator[tuple[int, ShareControl]]:
    """(offset, record) of the share state in the control batch at `position`. Raises ValueError or
    CorruptPayload if it cannot be read."""
    if not crc_is_valid(data, position, header):
        raise ValueError(f"the control batch at offset {header.base_offset} is damaged")
    for record in iter_records(data, position):
        found = ShareControl.from_record(record)
        if found is not None:
            yield record.offset, found


def has_share_state(data: Buffer, position: int, header: BatchHeader) -> bool:
    """Whether the batch at `position` is a control batch of share state. The key of its first
    record says so, because the marker of a transaction is a control batch as well.

    A control batch whose first record cannot be read is one of share state unless a producer wrote
    it."""
    if not header.is_control or not header.record_count:
        return False
    try:
        return _kind_of(next(iter_records(data, position)).key) is not None
    except CorruptPayload:
        return not header.has_producer
