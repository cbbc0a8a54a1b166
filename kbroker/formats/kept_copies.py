"""The copy of a record that stays beside the log, when the log has lost the record.

A copy is a record batch with this record alone, uncompressed. Leader epoch, timestamp, producer,
and the attributes TRANSACTIONAL and LOG_APPEND_TIME are those of its batch in the log. One more
attribute, which no batch of a log has, marks the copy of a record of an aborted transaction:

    bit 14 of the attributes    aborted: groups with read_committed do not get it

Members never see the mark. Copies that earlier versions have made have neither a producer nor
TRANSACTIONAL, nor the mark.
"""

from __future__ import annotations

import struct
from typing import Final

from kbroker.formats.batches import (
    HEADER_SIZE,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
    ProducerInfo,
    Record,
    build_batch,
    read_header,
    sliced_header,
)

_ABORTED: Final = 1 << 14
_ATTRIBUTES_AT: Final = 21
_ATTRIBUTES = struct.Struct(">h")


def copy_of(record: Record, header: BatchHeader, *, is_aborted: bool) -> bytes:
    """`header`: of the batch in the log. `is_aborted`: it belongs to an aborted transaction."""
    return build_batch(
        [record],
        base_offset=record.offset,
        leader_epoch=header.partition_leader_epoch,
        producer=ProducerInfo(header.producer_id, header.producer_epoch, header.base_sequence),
        attributes=header.attributes & (LOG_APPEND_TIME | TRANSACTIONAL) | (_ABORTED if is_aborted else 0),
    )


def is_aborted_copy(copy: bytes) -> bool:
    return bool(read_header(copy).attributes & _ABORTED)


def without_mark(copy: bytes) -> bytes:
    """As members get it."""
    attributes = read_header(copy).attributes
    if not attributes & _ABORTED:
        return copy
    head = bytearray(copy[:HEADER_SIZE])
    _ATTRIBUTES.pack_into(head, _ATTRIBUTES_AT, attributes & ~_ABORTED)
    records = copy[HEADER_SIZE:]
    return sliced_header(head, 0, records, last_offset_delta=0, record_count=1) + records
