"""Members and returned records: what becomes of parked records in their window (returned.py). Pure.

    acquire()         records that are due, by offset
    split(), apply() an acknowledgement list: its parked records, and what they become
    answered()        what members gave back is PENDING until it is saved
    came_back()       what locks gave back is final at once

The window's own code does the work, as in the front window. This module finds the rows by offset,
and gives each its new place in the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from math import ceil
from operator import attrgetter
from typing import Final

from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.makers import maker
from kbroker.share import acknowledge, rules
from kbroker.share.effects import AckBatch, AcquiredRange, DeadLetterCause, ShareSettings
from kbroker.share.parked import Lane, Parked
from kbroker.share.parking import Answered, Parking
from kbroker.share.record_state import REJECTED, STATE, TERMINAL, UNSAVED_ARCHIVING, RecordState
from kbroker.share.returned import Row
from kbroker.share.rules import Event
from kbroker.share.runs import Runs

_GIVEN_UP_AT_ONCE: Final = 300
"""Records at a lowered limit that one fetch gives up."""
_offset = attrgetter("offset")
_ack_batch = maker(AckBatch, tuple[int, int, Sequence[int]])
"""One for each parked record of an acknowledgement list."""


def acquire(
    parking: Parking,
    member_id: str,
    offsets: Sequence[int],
    settings: ShareSettings,
    room: int,
    *,
    now_ms: float,
    follows: int,
) -> list[AcquiredRange]:
    """Lock those of these records that are still ready, in offset order, and `room` at most. The
    first is taken before all others; one near its delivery limit is taken alone (KAFKA-17541), and
    not where the response has others before it (`follows`). In a queue, records that have reached
    the limit, because it was lowered, end as if they had returned now."""
    window, ready = parking.window, parking.returned.ready
    rows = [ready[offset] for offset in offsets if offset in ready]
    gives_up_from, suspect_from = rules.gives_up_from(settings), rules.suspect_from(settings)
    if any(window.counts[row.slot] >= gives_up_from for row in rows):
        _give_up_exhausted(parking, settings)
        rows = [row for row in rows if row.offset in ready and window.counts[row.slot] < gives_up_from]
    if rows and window.counts[rows[0].slot] < suspect_from:
        rows = [row for row in rows if window.counts[row.slot] < suspect_from]
    else:
        del rows[0 if follows else 1 :]
    del rows[room:]
    if not rows:
        return []
    slots = [row.slot for row in rows]
    number = window.new_lock(member_id, min(slots), max(slots), now_ms + settings.lock_duration_ms)
    ranges: list[AcquiredRange] = []
    for row in sorted(rows, key=_offset):
        offset = row.offset
        parking.orders[row.lane].size -= 1
        del ready[offset]
        window.take(row.slot, row.slot + 1, number)
        count = window.counts[row.slot]
        if ranges and ranges[-1].last_offset + 1 == offset and ranges[-1].delivery_count == count:
            ranges[-1] = ranges[-1]._replace(last_offset=offset)
        else:
            ranges.append(AcquiredRange(offset, offset, count))
    return ranges


def _give_up_exhausted(parking: Parking, settings: ShareSettings) -> None:
    """Not only those that were about to be delivered, as each turn is a write."""
    gives_up_from, counts = rules.gives_up_from(settings), parking.window.counts
    exhausted = (row for row in parking.returned.ready.values() if counts[row.slot] >= gives_up_from)
    for row in list(islice(exhausted, _GIVEN_UP_AT_ONCE)):
        _give_up(parking, row, Event.LIMIT, settings)
        parking.window.exhausted += 1


def expire(parking: Parking, offsets: Iterable[int], settings: ShareSettings) -> int:
    """Those of these records that are due and not held are past their time to live. Returns their
    number."""
    ready = parking.returned.ready
    rows = [ready[offset] for offset in offsets if offset in ready]
    for row in rows:
        _give_up(parking, row, Event.EXPIRE, settings)
    return len(rows)


def _give_up(parking: Parking, row: Row, event: Event, settings: ShareSettings) -> None:
    fate = rules.decide(RecordState.AVAILABLE, parking.window.counts[row.slot], event, settings)
    if fate.state is not RecordState.ARCHIVING:
        parking.remove(row)
        parking.window.given_up += 1
        return
    parking.leave_line(row)
    parking.returned.vacate(row)
    row.expired = fate.cause is DeadLetterCause.EXPIRED
    row.lane, row.due_ms = Lane.ARCHIVING, 0
    parking.returned.place(row, UNSAVED_ARCHIVING)
    parking.line_up(row)
    parking.note(row)


def lost(parking: Parking, offsets: Iterable[int]) -> int:
    """The log has no records there: those that are due are no longer parked. Returns their
    number."""
    ready = parking.returned.ready
    rows = [ready[offset] for offset in offsets if offset in ready]
    for row in rows:
        parking.remove(row)
    return len(rows)


# ---- acknowledgements ----------------------------------------------------------------------------


def split(
    parking: Parking, member_id: str, batches: Sequence[AckBatch]
) -> tuple[list[AckBatch], list[AckBatch]]:
    """Splits an acknowledgement list into batches of the front window, and batches of slots.

    Raises KafkaError(invalid_record_state) for a parked record that the member does not hold;
    nothing has changed then.
    """
    rest: list[AckBatch] = []
    slots: dict[int, list[int]] = {}
    for batch in batches:
        rows = [
            row
            for row in parking.rows_in(batch.first_offset, batch.last_offset)
            if not parking.is_gone(row.offset, is_kept=row.kept)
        ]
        if not rows:
            rest.append(batch)
            continue
        for row in rows:
            slot, before = row.slot, slots.setdefault(row.slot, [])
            is_held = slot >= 0 and parking.window.holds(member_id, _ack_batch((slot, slot, batch.types)), 0)
            if not is_held or any(each != Event.RENEW for each in before):
                raise KafkaError(
                    ErrorCode.invalid_record_state, f"Offset {row.offset} is not acquired by this member."
                )
            types = batch.types
            before.append(types[0] if len(types) == 1 else types[row.offset - batch.first_offset])
        if len(rows) <= batch.last_offset - batch.first_offset:
            rest += _without(batch, [row.offset for row in rows])
    return rest, [_ack_batch((slot, slot, (each,))) for slot, types in slots.items() for each in types]


def _without(batch: AckBatch, offsets: Sequence[int]) -> Iterator[AckBatch]:
    """The batch in pieces, without these offsets, which lie in it in order."""
    first, last, types = batch
    at = first
    for offset in (*offsets, last + 1):
        if at < offset:
            yield AckBatch(at, offset - 1, types if len(types) == 1 else types[at - first : offset - first])
        at = offset + 1


def apply(
    parking: Parking,
    member_id: str,
    slots: Sequence[AckBatch],
    settings: ShareSettings,
    now_ms: float,
    drawn: Callable[[], float],
) -> Answered:
    """Carry out the result of split()."""
    pending = acknowledge.apply(parking.window, settings, member_id, slots, now_ms=now_ms)
    return answered(parking, pending, settings, now_ms, drawn)


def answered(
    parking: Parking, slots: Runs, settings: ShareSettings, now_ms: float | None, drawn: Callable[[], float]
) -> Answered:
    """These slots are PENDING. `now_ms`: None: those that return keep their due times, which have
    passed."""
    return [
        (row, _target(parking, row, settings, now_ms, drawn()))
        for first, last in slots
        for row in map(parking.returned.at, range(first, last + 1))
    ]


def came_back(
    parking: Parking, slots: Runs, settings: ShareSettings, now_ms: float, drawn: Callable[[], float]
) -> None:
    """The locks of these slots have run out. The next write saves that."""
    for row in [parking.returned.at(slot) for first, last in slots for slot in range(first, last + 1)]:
        target = _target(parking, row, settings, now_ms, drawn())
        if target is None:
            parking.remove(row)
            continue
        row.lane, row.due_ms = target.lane, target.due_ms
        parking.line_up(row)
        parking.note(row)


def save_failed(
    parking: Parking, row: Row, settings: ShareSettings, now_ms: float, drawn: Callable[[], float]
) -> bool:
    """A client's change could not be saved. True if its holder has the record again."""
    by_count = rules.returned(Event.RUN_OUT, settings)
    ran_out = parking.window.roll_back(row.slot, row.slot, by_count, now_ms)
    came_back(parking, ran_out, settings, now_ms, drawn)
    return not ran_out


def _target(
    parking: Parking, row: Row, settings: ShareSettings, now_ms: float | None, drawn: float
) -> Parked | None:
    """What the record becomes in the store, by its state in the window. None: it is finished."""
    code, count = parking.window.states[row.slot], parking.window.counts[row.slot]
    lane, due_ms = Lane.REDELIVERY, row.due_ms
    if code & STATE in TERMINAL:
        return None
    if code & STATE == RecordState.ARCHIVING:
        lane, due_ms = Lane.ARCHIVING, 0
    elif now_ms is not None:
        due_ms = parking.due_at(now_ms + rules.redelivery_wait_ms(count, settings, drawn))
    what = row.offset, lane, ceil(due_ms), count, parking.leader_epoch, code & REJECTED != 0
    return Parked(*what, key_hash=row.key_hash, kept=row.is_kept)
