"""What a share-partition answers about itself. Nothing here changes it. Pure."""

from __future__ import annotations

from typing import NamedTuple

from kbroker.share.in_flight_view import InFlightView, in_flight_view
from kbroker.share.lag import Standing
from kbroker.share.record_state import ARCHIVING_CODES, WAITING, RecordState
from kbroker.share.share_writes import SharePartitionWrites
from kbroker.share.statistics import SharePartitionStatistics, statistics_of

_READ_BETWEEN = 1000


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


class SharePartitionQueries(SharePartitionWrites):
    @property
    def start_offset(self) -> int:
        """SPSO: the first offset that is not finished."""
        return self._window.start_offset

    @property
    def end_offset(self) -> int:
        """SPEO: the last offset in flight; equal to the SPSO if none is."""
        return self._window.end_offset

    @property
    def delivery_complete_count(self) -> int:
        """KIP-1226: offsets from the SPSO on that are acknowledged or archived, those being saved
        included."""
        return self._window.complete

    def unfinished(self, first: int, end: int) -> int:
        """How many offsets from `first` to `end` - 1 are unfinished. Records that are being saved
        as finished and control batches do not count."""
        return self._window.unfinished(first, end)

    @property
    def unread_from(self) -> int:
        """The first offset that has not been read for a member yet."""
        return self._window.unread_from

    def acquirable_in(self, first: int, last: int) -> int:
        """How many offsets of first..last a member could acquire now, limits aside. Without scans,
        unread offsets and holes of the gap window count as well."""
        if self._settings.scans:
            return self._window.count_available(first, last)
        return self._window.acquirable_in(first, last)

    def stands_from(self, offset: int) -> Standing:
        """The finished records from `offset` > SPSO on. Asked when the log begins there, and no
        fetch has noticed it yet; nothing changes before log_start_moved()."""
        return self._window.stands_from(offset)

    def next_fetch_offset(self) -> int:
        """Where to read for the next acquire()."""
        return self._window.next_fetch_offset()

    def offset_to_acquire(self) -> int | None:
        """next_fetch_offset(), or None where a read would be useless: there is nothing to
        redeliver, and the lock limit leaves no room."""
        window, settings = self._window, self._settings
        if self.key_order is not None and not self._has_learnt_keys:
            return None
        if self.parking is not None and not self._locks_left:
            return None
        if settings.limits_undecided and window.undecided >= settings.max_record_locks:
            return window.next_given_back()
        if settings.scans:
            return window.next_available()
        offset = window.next_fetch_offset()
        if (
            offset != window.end_offset + 1
            or settings.limits_undecided
            or window.in_flight < settings.max_record_locks
        ):
            return offset
        return None

    def offsets_to_read(self, fetch_offset: int, most: int) -> int:
        """How many offsets to read from there for a member that wants at most `most` records, where
        all records were scanned before. Thousands of records that are not free may lie between free
        ones, and thousands behind them."""
        last = self._window.available_within(fetch_offset, most)
        return 1 if last is None else max(1, min(last - fetch_offset + 1, most + _READ_BETWEEN))

    def acquirable(self, end_offset: int) -> int:
        """How many records could be acquired now, of a log that ends there."""
        window = self._window
        if self.key_order is not None and not self._has_learnt_keys:
            return 0
        limit, undecided = self._settings.max_record_locks, self._settings.limits_undecided
        has_room = (window.undecided if undecided else window.in_flight) < limit and not self._settings.scans
        new = max(0, end_offset - self.unread_from) if has_room else 0
        if window.states:
            new += window.count_of((RecordState.AVAILABLE,), window.start_offset, window.end_offset)
        return new if self.parking is None else min(new + self.parked_ready, self._locks_left)

    @property
    def parked_ready(self) -> int:
        if self.parking is None or (self.key_order is not None and not self._has_learnt_keys):
            return 0
        return min(self.parking.ready, self._locks_left) if self.parking.ready else 0

    def first_lock_ms(self, member_id: str) -> float | None:
        """When the first lock ends under which the member holds a record; None: it holds none."""
        window = self._window
        lock_ms = next(
            (
                lock.deadline_ms
                for lock in window.locks.by_deadline
                if lock.member_id == member_id and any(window.held_runs(lock))
            ),
            None,
        )
        if self.parking is None or (parked_ms := self.parking.first_lock_ms(member_id)) is None:
            return lock_ms
        return parked_ms if lock_ms is None else min(lock_ms, parked_ms)

    def next_deadline_ms(self) -> float | None:
        """When to call expire() and end_waits() next; they may then find nothing to do. None: no
        lock is held and nothing waits."""
        by_deadline = self._window.locks.by_deadline
        lock_ms = by_deadline[0].deadline_ms if by_deadline else None
        if self.parking is not None and (parked_ms := self.parking.next_deadline_ms()) is not None:
            lock_ms = parked_ms if lock_ms is None else min(lock_ms, parked_ms)
        if not self._waits or (due_ms := self._waits.next_ms()) is None:
            return lock_ms
        return due_ms if lock_ms is None else min(lock_ms, due_ms)

    @property
    def ran_out(self) -> RanOut:
        return RanOut(self._counters.lock_timeouts, self._exhausted, self._at_lock_max)

    @property
    def is_settled(self) -> bool:
        """True if reloading from the Persister would give the same state: no record is held, no
        dead letter is pending, and no change is unsaved."""
        if self.parking is not None and not self.parking.is_settled:
            return False
        return not (
            self._writes or self._unsaved or self._has(RecordState.ACQUIRED, WAITING, *ARCHIVING_CODES)
        )

    def in_flight_view(self, now_ms: float, log_start_offset: int = 0) -> InFlightView:
        """The records in flight and their holders, for people. `log_start_offset`: where the log
        begins."""
        return in_flight_view(self._window, self._settings.max_record_locks, now_ms, log_start_offset)

    def statistics(self) -> SharePartitionStatistics:
        return statistics_of(self._window, self.parking, self.key_order, self._counters, len(self._writes))

    @property
    def _exhausted(self) -> int:
        return self._window.exhausted + (0 if self.parking is None else self.parking.exhausted)
