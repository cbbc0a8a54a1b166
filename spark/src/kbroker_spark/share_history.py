"""The history of share state: its stored snapshots and updates in order, back to the oldest
snapshot that is still stored.

    engine of the state     where the records are                       how far back
    segment                 the state's own log                         to its last compaction
    lmdb                    the redo log, then the database             some MiB, then the current
    others                  the entries                                 the current ones only
    (control-records)       the topics' logs                            retention

The state's log also holds copies, because live entries are copied to its end from time to time. A
copy is not a change, so a record equal to the current value of its key is skipped. Old segments are
removed from the start of the log, so updates may precede the copy of their snapshot. This module
corrects both, and treats the current entries as one more copy at the end. Must not know Spark.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias
from uuid import UUID

from kbroker.formats.batches import crc_is_valid, iter_headers, iter_records
from kbroker.formats.compression import CorruptPayload
from kbroker.formats.control_records import ControlType, ShareControl
from kbroker.formats.share_records import ShareSnapshot, ShareUpdate
from kbroker.formats.state import ShareStateKey, parse_key
from kbroker.storage.segment.state_log import LOG
from kbroker.storage.segment.state_log_records import from_record
from kbroker.storage.spi import LogReader, StateReader
from kbroker_spark.errors import SourceError
from kbroker_spark.share_states import Wanted

_LOAD_BYTES = 1 << 20
_ATTEMPTS = 10


class SharePartitionId(NamedTuple):
    topic_id: UUID
    partition: int
    group: str


class Stored(NamedTuple):
    """One stored record.

    - `number`: 0 for a snapshot, otherwise an update.
    - `value`: None if the record removes the entry.
    - `log_offset`: None for an entry of the state store, which is not a record of a log.
    """

    number: int
    value: bytes | None
    log_offset: int | None


class Step(NamedTuple):
    """One step of a share-partition's history.

    - `message`: None if the state was deleted, or cannot be read for the reason in `problem`.
    - `is_current`: the step is part of the current state.
    """

    number: int
    log_offset: int | None
    message: ShareSnapshot | ShareUpdate | None
    is_current: bool
    problem: str | None = None


@dataclass(slots=True)
class _Generation:
    """A snapshot and the updates to it."""

    snapshot: Stored
    updates: dict[int, Stored] = field(default_factory=dict)
    deleted: Stored | None = None


Histories: TypeAlias = dict[SharePartitionId, list[Stored]]


def history(records: Iterable[Stored]) -> Iterator[Step]:
    """The steps of one share-partition, from its records in the order in which they were found."""
    generations: list[_Generation] = []
    early: dict[int, Stored] = {}
    for each in records:
        if each.number == 0:
            _take_snapshot(generations, each, early)
        elif each.value is None:
            early.pop(each.number, None)  # The next snapshot or the deletion is a record too.
        elif generations:
            generations[-1].updates.setdefault(each.number, each)
        else:
            early[each.number] = each
    for generation in generations:
        yield from _steps(generation, is_current=generation is generations[-1] and generation.deleted is None)


def _take_snapshot(generations: list[_Generation], record: Stored, early: dict[int, Stored]) -> None:
    last = generations[-1] if generations else None
    if record.value is None:
        early.clear()
        if last is not None and last.deleted is None:
            last.deleted = record
    elif last is None:
        generations.append(_Generation(record, _updates_to(record.value, early)))
    elif last.deleted is not None or last.snapshot.value != record.value:
        generations.append(_Generation(record))


def _updates_to(snapshot: bytes, early: dict[int, Stored]) -> dict[int, Stored]:
    """Those updates in `early` (found before any snapshot) that belong to this snapshot, which is
    then a copy."""
    try:
        epoch = ShareSnapshot.decode(snapshot).snapshot_epoch
        return {
            number: each
            for number, each in early.items()
            if ShareUpdate.decode(each.value or b"").snapshot_epoch == epoch
        }
    except ValueError:
        return {}


def _steps(generation: _Generation, *, is_current: bool) -> Iterator[Step]:
    for each in (generation.snapshot, *(generation.updates[number] for number in sorted(generation.updates))):
        decode: Callable[[bytes], ShareSnapshot | ShareUpdate] = (
            ShareUpdate.decode if each.number else ShareSnapshot.decode
        )
        try:
            yield Step(each.number, each.log_offset, decode(each.value or b""), is_current)
        except ValueError as error:
            yield Step(each.number, each.log_offset, None, is_current, f"it cannot be read: {error}")
    if generation.deleted is not None:
        yield Step(0, generation.deleted.log_offset, None, False)


# --- sources of records ---


def from_state_log(log: LogReader, wanted: Wanted) -> Histories:
    """The records of a state log or redo log, from its beginning. Raises SourceError for damage."""
    for _ in range(_ATTEMPTS):
        found: Histories = {}
        try:
            start, end = log.bounds(LOG)
        except KeyError:
            return found  # Nothing was ever written.
        for key, record in _changes(log, start, end):
            if wanted.has(key.group, key.topic_id):
                found.setdefault(key, []).append(record)
        if log.bounds(LOG).start_offset == start:
            return found
    raise SourceError(
        "the start of the state's log is removed faster than it can be read: try again when there is less "
        "traffic"
    )


def _changes(log: LogReader, offset: int, end: int) -> Iterator[tuple[SharePartitionId, Stored]]:
    while offset < end and (views := log.read(LOG, offset, max_bytes=_LOAD_BYTES, end_offset=end)):
        before = offset
        for view in views:
            for position, header in iter_headers(view):
                if not crc_is_valid(view, position, header):
                    raise SourceError(
                        f"the state's log is damaged at offset {header.base_offset}: start the broker, or "
                        "restore a backup"
                    )
                try:
                    for record in iter_records(view, position):
                        key, value = from_record(record)
                        if key.startswith(ShareStateKey.namespace):
                            yield _parsed(key, value, record.offset)
                except (CorruptPayload, KeyError, struct.error) as error:
                    raise SourceError(
                        f"the state's log cannot be read at offset {header.base_offset}: {error}"
                    ) from error
                offset = header.last_offset + 1
        if offset == before:
            return


def _parsed(key: bytes, value: bytes | None, log_offset: int | None) -> tuple[SharePartitionId, Stored]:
    parsed = parse_key(key)
    assert isinstance(parsed, ShareStateKey), "that is its namespace"
    return SharePartitionId(parsed.topic_id, parsed.partition, parsed.group_id), Stored(
        parsed.number, value, log_offset
    )


def add_entries(histories: Histories, state: StateReader, wanted: Wanted) -> None:
    """Appends the current entries. `state` must not be older than the records read so far."""
    for encoded, value in state.scan(ShareStateKey.namespace):
        key, record = _parsed(encoded, value, None)
        if wanted.has(key.group, key.topic_id):
            histories.setdefault(key, []).append(record)


def from_controls(controls: Iterable[tuple[int, ShareControl]]) -> dict[str, list[Stored]]:
    """The records by group, from the control records of one log in offset order. Each delta is
    numbered one higher than the record before it."""
    found: dict[str, list[Stored]] = {}
    for offset, control in controls:
        records = found.setdefault(control.group_id, [])
        if control.type is ControlType.SHARE_CHECKPOINT:
            records.append(Stored(0, control.state or None, offset))
        elif records and records[-1].value is not None:
            records.append(Stored(records[-1].number + 1, control.state, offset))
    return found
