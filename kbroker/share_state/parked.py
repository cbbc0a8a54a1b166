"""Changes to parked records as changes of the state store (formats/parked_records.py has the keys).
Pure.

    changes_of          one change per key, the last one wins: removals of stale places, both keys
                        of a parked record, and its bytes where they are kept
    changes_of_reasons  reasons of rejections, one key each
    not_final           the offsets that a state does not have as given up by the window

It must not know why a record is parked, nor how a change is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.parked_records import (
    BLOCKS_KEY,
    BY_OFFSET,
    NO_GENERATION,
    BlockedKey,
    KeptRecord,
    ParkedCount,
    ParkedRecord,
    RejectionReason,
    by_key_key,
    by_offset_key,
    counter_key,
    decode_count,
    end_of,
    generation_prefix,
    is_kept,
    kept_key,
    offset_of_key,
    parked_prefix,
    place_key,
    place_of_key,
    reason_key,
)
from kbroker.share.lag import NOTHING_PARKED, ParkedLeft
from kbroker.share.parked import Lane, Parked, ParkingChange, Place
from kbroker.share.persister import TopicPartition
from kbroker.share.reasons import MAX_REASON_BYTES, ReasonChange
from kbroker.share.record_state import MAX_DELIVERY_COUNT, RecordState
from kbroker.share_state.loading import ShareState
from kbroker.storage.spi import Change, StateReader

_MOST: Final = (1 << 63) - 1
_MOST_HASH: Final = (1 << 64) - 1
_MOST_EPOCH: Final = (1 << 31) - 1
_LANES: Final = frozenset(Lane)


class ParkingStore(NamedTuple):
    """Where a share coordinator finds parked records. `get` is the StateStore's. `generations`
    yields numbers that are used for nothing else, in this broker life or before it."""

    get: Callable[[bytes], bytes | None]
    generations: Iterator[int]


def prefix_of(group_id: str, partition: TopicPartition, generation: int) -> bytes:
    return generation_prefix(parked_prefix(group_id, *partition), generation)


def stored_count(get: Callable[[bytes], bytes | None], prefix: bytes) -> int:
    """How many records are parked. Raises ValueError for a value that cannot be read."""
    value = get(counter_key(prefix))
    return 0 if value is None else decode_count(value)


def check_parking(parking: Sequence[ParkingChange], waiting: int) -> None:
    """Raises INVALID_REQUEST for changes that could not be loaded again."""
    if not 0 <= waiting <= _MOST:
        raise KafkaError(
            ErrorCode.invalid_request, f"{waiting} is no number of parked records: it must not be negative."
        )
    for offset, stale, parked, record in parking:
        _check(0 <= offset <= _MOST, offset, "the offset must not be negative")
        for place in stale:
            _check_place(offset, place)
        if parked is not None:
            _check_place(offset, parked.place)
            _check(
                0 <= parked.delivery_count <= MAX_DELIVERY_COUNT,
                offset,
                f"delivery count {parked.delivery_count}",
            )
            _check(0 <= parked.leader_epoch <= _MOST_EPOCH, offset, f"leader epoch {parked.leader_epoch}")
        if record:
            _check(
                parked is not None and parked.kept,
                offset,
                "it has bytes to keep, but is not marked as kept",
            )


def check_reasons(reasons: Sequence[ReasonChange]) -> None:
    """Raises INVALID_REQUEST as check_parking() does."""
    for offset, reason in reasons:
        size = 0 if reason is None else sum(len(text.encode()) for text in reason)
        if not 0 <= offset <= _MOST or size > MAX_REASON_BYTES:
            raise KafkaError(
                ErrorCode.invalid_request, f"A reason of {size} bytes at offset {offset} cannot be kept."
            )


def changes_of_reasons(prefix: bytes, reasons: Sequence[ReasonChange]) -> list[Change]:
    """`prefix`: that of the generation."""
    return [
        (reason_key(prefix, offset), None if reason is None else RejectionReason(*reason).encode())
        for offset, reason in reasons
    ]


def keys_of(prefix: bytes, parked: Parked) -> list[bytes]:
    """All keys of a parked record."""
    return list(changes_of(prefix, [ParkingChange(parked.offset, (), parked)]))


def _check_place(offset: int, place: Place) -> None:
    _check(place.offset == offset, offset, f"its place is that of offset {place.offset}")
    _check(place.lane in _LANES, offset, f"there is no lane {place.lane}")
    _check(0 <= place.due_ms <= _MOST, offset, f"due time {place.due_ms}")
    _check(place.key_hash is None or 0 <= place.key_hash <= _MOST_HASH, offset, f"key hash {place.key_hash}")


def _check(is_right: bool, offset: int, wrong: str) -> None:
    if not is_right:
        raise KafkaError(
            ErrorCode.invalid_request, f"The record at offset {offset} cannot be parked: {wrong}."
        )


def changes_of(prefix: bytes, parking: Sequence[ParkingChange]) -> dict[bytes, bytes | None]:
    """One change for each key. `prefix`: that of the generation."""
    changes: dict[bytes, bytes | None] = {}
    for offset, stale, parked, batch in parking:
        if batch is not None:
            changes[kept_key(prefix, offset)] = KeptRecord(batch).encode() if batch else None
        for lane, due_ms, _, key_hash in stale:
            changes[place_key(prefix, lane, due_ms, offset)] = None
            if lane == BLOCKS_KEY and key_hash is not None:
                changes[by_key_key(prefix, key_hash, offset)] = None
        if parked is None:
            changes[by_offset_key(prefix, offset)] = None
        else:
            record = ParkedRecord(*parked)
            changes[place_key(prefix, record.lane, record.due_ms, offset)] = record.encode_place()
            changes[by_offset_key(prefix, offset)] = record.encode()
            if record.lane == BLOCKS_KEY and record.key_hash is not None:
                changes[by_key_key(prefix, record.key_hash, offset)] = BlockedKey(
                    record.key_hash, offset
                ).encode()
    return changes


def counter(prefix: bytes, waiting: int) -> Change:
    return counter_key(prefix), ParkedCount(waiting).encode()


def parked_of(record: ParkedRecord) -> Parked:
    return Parked(record.offset, Lane(record.lane), *record[2:])


def stored_left(
    reader: StateReader, group_id: str, partition: TopicPartition, generation: int, log_start_offset: int
) -> ParkedLeft:
    """The parked records of a store that are kept or that the log still has, for readers without a
    broker. Costs a look at each record below `log_start_offset`. Raises ValueError for a value that
    cannot be read."""
    if generation == NO_GENERATION or not reader.keeps_keys_on_disk:
        return NOTHING_PARKED
    prefix = prefix_of(group_id, partition, generation)
    number = stored_count(reader.get, prefix)
    start = by_offset_key(prefix, max(0, log_start_offset))
    first = None
    for entry in reader.scan_range(by_offset_key(prefix, 0), start):
        if not is_kept(entry[1]):
            number -= 1
        elif first is None:
            first = entry
    first = first or next(reader.scan_range(start, end_of(prefix + bytes((BY_OFFSET,)))), None)
    if first is None:
        return NOTHING_PARKED
    heads = [
        next(reader.scan_range(prefix + bytes((lane,)), end_of(prefix + bytes((lane,)))), None)
        for lane in Lane
    ]
    due = [place_of_key(head[0])[0] for head in heads if head is not None]
    return ParkedLeft(number, offset_of_key(first[0]), min(due, default=None))


def stored_within(
    reader: StateReader, group_id: str, partition: TopicPartition, generation: int, first: int, last: int
) -> int:
    """How many of these offsets are parked, for readers without a broker."""
    if generation == NO_GENERATION or not reader.keeps_keys_on_disk:
        return 0
    prefix = prefix_of(group_id, partition, generation)
    found = reader.scan_range(by_offset_key(prefix, max(0, first)), by_offset_key(prefix, last + 1))
    return sum(1 for _ in found)


def not_final(state: ShareState | None, offsets: Sequence[int]) -> list[int]:
    """Those of these rising offsets that the window still has: their records would be delivered
    twice."""
    if state is None or state.start_offset < 0:
        return list(offsets)
    archived = [batch for batch in state.merged_batches() if batch.state == RecordState.ARCHIVED]
    found, number = [], 0
    for offset in offsets:
        while number < len(archived) and archived[number].last_offset < offset:
            number += 1
        is_archived = number < len(archived) and archived[number].first_offset <= offset
        if offset >= state.start_offset and not is_archived:
            found.append(offset)
    return found


__all__ = (
    "NO_GENERATION",
    "ParkingStore",
    "changes_of",
    "changes_of_reasons",
    "check_parking",
    "check_reasons",
    "counter",
    "keys_of",
    "not_final",
    "parked_of",
    "prefix_of",
    "stored_count",
    "stored_left",
    "stored_within",
)
