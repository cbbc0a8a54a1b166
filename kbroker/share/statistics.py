"""The numbers of one share-partition, for metrics and views. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from kbroker.share.in_flight import InFlightWindow
from kbroker.share.in_flight_view import batch_count
from kbroker.share.key_order import KeyOrder
from kbroker.share.parking import Parking
from kbroker.share.record_state import ACQUIRED, ARCHIVING_CODES, BEHIND, PENDING_CODES, WAITING, RecordState


@dataclass(frozen=True, slots=True)
class SharePartitionStatistics:
    """- `in_flight`: offsets from SPSO to SPEO, in `batches` cached batches.
    - `available` to `archived`: records by state. `waiting`: for redelivery, or for another record
      of the key. `pending`: being saved, and not counted elsewhere.
    - `parked`: records outside the window. `parked_held` of them are acquired.
    - `behind_keys`: records that wait for others of their keys, in the window or parked.
    - From `acquired_records` on: counts since the share-partition was loaded. `rejected` (by
      clients), `exhausted` (delivery limit reached) and `expired` are counted when they happen, and
      again if saving fails and they happen again. `dead_lettered`: ended by dead_lettered()."""

    start_offset: int
    end_offset: int
    in_flight: int
    batches: int
    available: int
    waiting: int
    acquired: int
    pending: int
    acknowledged: int
    archiving: int
    archived: int
    delivery_complete_count: int
    parked: int
    parked_held: int
    behind_keys: int
    locks: int
    writes_under_way: int
    acquired_records: int
    redeliveries: int
    lock_timeouts: int
    prolonged_locks: int
    delayed_deliveries: int
    failed_writes: int
    rejected: int
    exhausted: int
    expired: int
    dead_lettered: int
    look_ahead_stops: int


@dataclass(slots=True)
class Counters:
    """The counts that a share-partition keeps itself; see above."""

    acquired_records: int = 0
    redeliveries: int = 0
    lock_timeouts: int = 0
    prolonged_locks: int = 0
    delayed_deliveries: int = 0
    failed_writes: int = 0
    expired: int = 0
    dead_lettered: int = 0
    look_ahead_stops: int = 0
    at_lock_max: int = 0
    """As in RanOut."""


class RanOut(NamedTuple):
    """Counts since the share-partition was loaded.

    - `timeouts`: records whose locks ran out.
    - `exhausted`: records that reached the delivery limit.
    - `at_lock_max`: of the timeouts, those of a live holder that had held the record as long as the
      broker prolongs a lock.
    """

    timeouts: int
    exhausted: int
    at_lock_max: int


def statistics_of(
    window: InFlightWindow,
    parking: Parking | None,
    keys: KeyOrder | None,
    counters: Counters,
    writes_under_way: int,
) -> SharePartitionStatistics:
    first, last = window.start_offset, window.end_offset

    def count(*codes: int) -> int:
        return window.count_of(codes, first, last) if window.states else 0

    return SharePartitionStatistics(
        start_offset=first,
        end_offset=last,
        in_flight=window.in_flight,
        batches=batch_count(window),
        available=count(RecordState.AVAILABLE),
        waiting=count(WAITING, BEHIND),
        acquired=count(RecordState.ACQUIRED),
        pending=count(*PENDING_CODES),
        acknowledged=count(RecordState.ACKNOWLEDGED),
        archiving=count(*ARCHIVING_CODES),
        archived=count(RecordState.ARCHIVED),
        delivery_complete_count=window.complete,
        parked=0 if parking is None else parking.waiting,
        parked_held=0 if parking is None else parking.window.states.count(ACQUIRED),
        behind_keys=0 if keys is None else keys.waiting,
        locks=len(window.locks),
        writes_under_way=writes_under_way,
        acquired_records=counters.acquired_records,
        redeliveries=counters.redeliveries,
        lock_timeouts=counters.lock_timeouts,
        prolonged_locks=counters.prolonged_locks,
        delayed_deliveries=counters.delayed_deliveries,
        failed_writes=counters.failed_writes,
        rejected=window.rejected + (0 if parking is None else parking.window.rejected),
        exhausted=window.exhausted + (0 if parking is None else parking.window.exhausted),
        expired=counters.expired,
        dead_lettered=counters.dead_lettered,
        look_ahead_stops=counters.look_ahead_stops + (0 if keys is None else keys.stops),
    )
