"""A share-partition: the queue that one share group has over one topic partition (KIP-932). Decides, and gives back effects.

    log       ... | terminal | in flight: available, acquired, acknowledged, archived ... | not read yet ...
                             SPSO                                                       SPEO

    acquire ----------> ACQUIRED until its lock's deadline
    acknowledge ------> pending --persisted--> final, SPSO moves     (persist_failed: back to its holder, or to everybody
    release_member ---> pending --persisted--> AVAILABLE              if the lock has run out meanwhile)
    expire -----------> AVAILABLE at once; saving that is best effort

Everything is synchronous and pure: no bytes, no clock (`now_ms` is any monotonic milliseconds), no I/O. A method that must be
saved returns a Persist; the broker saves it and then calls persisted() or persist_failed() with its token, exactly once. Any
number may be under way at a time and they may end in any order. The caller keeps one reader per share-partition between
next_fetch_offset() and acquire(), or at least hands to acquire() what it really read at the offset it names.

Better than Kafka where no client can tell: what a failed best-effort write left unsaved, and records found missing from the log,
go along with the next Persist; a refused acknowledgement list leaves no lock renewed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kbroker.share import acknowledge
from kbroker.share.acquire import AcquireMode, Acquisition
from kbroker.share.effects import AckBatch, AcquiredRange, Persist, ShareSettings, StateBatch
from kbroker.share.in_flight import MAX_SPAN, InFlightWindow
from kbroker.share.record_state import HOLE, PENDING, RecordState, given_back, given_back_pending

__all__ = ["AcquireMode", "SharePartition", "SharePartitionStatistics"]

Runs = list[tuple[int, int]]
_PENDING_CODES = tuple(range(PENDING, PENDING + HOLE))
_MAX_DELIVERY_COUNT = 255


@dataclass(frozen=True, slots=True)
class SharePartitionStatistics:
    """`in_flight` counts offsets from SPSO to SPEO; the five after it count records by state (`pending`: being persisted, not
    counted elsewhere). The last four count since the share-partition was loaded."""

    start_offset: int
    end_offset: int
    in_flight: int
    available: int
    acquired: int
    pending: int
    acknowledged: int
    archived: int
    delivery_complete_count: int
    locks: int
    writes_under_way: int
    acquired_records: int
    redeliveries: int
    lock_timeouts: int
    failed_writes: int


class _Write(NamedTuple):
    """A Persist under way. `runs` are its own; `late` came along because an earlier write of them had failed or was never made."""

    runs: Runs
    late: Runs
    is_final: bool


class SharePartition:
    """`settings` may be replaced at any time: the lock duration counts for later locks, the limits at once.

    `state_epoch` and `leader_epoch` go with every Persist.
    """

    def __init__(self, settings: ShareSettings, *, start_offset: int, state_epoch: int, leader_epoch: int) -> None:
        self.state_epoch = state_epoch
        self.leader_epoch = leader_epoch
        self._settings = settings
        self._window = InFlightWindow(start_offset)
        self._writes: dict[int, _Write] = {}
        self._last_token = 0
        self._unsaved: Runs = []
        self._acquired_records = self._redeliveries = self._lock_timeouts = self._failed_writes = 0

    @classmethod
    def load(
        cls, settings: ShareSettings, *, start_offset: int, state_batches: Sequence[StateBatch], state_epoch: int, leader_epoch: int
    ) -> SharePartition:
        """From what the Persister gave; `start_offset` is resolved already (not -1). Raises ValueError for state that makes no
        sense: the share-partition cannot be served then."""
        share_partition = cls(settings, start_offset=start_offset, state_epoch=state_epoch, leader_epoch=leader_epoch)
        batches = sorted(state_batches)
        _check_state(start_offset, batches)
        share_partition._window.load(batches)
        share_partition._advance()
        return share_partition

    @property
    def settings(self) -> ShareSettings:
        return self._settings

    @settings.setter
    def settings(self, settings: ShareSettings) -> None:
        self._settings = settings
        self._advance()

    @property
    def start_offset(self) -> int:
        """SPSO: the first offset that is not known to be done with."""
        return self._window.start_offset

    @property
    def end_offset(self) -> int:
        """SPEO: the last offset in flight; equal to the SPSO if nothing is."""
        return self._window.end_offset

    @property
    def delivery_complete_count(self) -> int:
        """KIP-1226: offsets from the SPSO on that are acknowledged or archived, those being persisted included."""
        return self._window.complete

    def next_fetch_offset(self) -> int:
        """Where to read for the next acquire()."""
        return self._window.next_fetch_offset()

    def can_acquire(self) -> bool:
        """False if there is nothing to deliver again and no room under the lock limit: reading would be for nothing."""
        window = self._window
        return window.in_flight < self._settings.max_record_locks or window.next_fetch_offset() != window.end_offset + 1

    def next_deadline_ms(self) -> float | None:
        """When expire() should be called next; there may turn out to be nothing to do. None: no lock is held."""
        return self._window.locks.next_deadline_ms

    @property
    def is_settled(self) -> bool:
        """Nobody holds a record, nothing is being saved or waits to be: loaded again from the Persister it would be the same."""
        window = self._window
        if self._writes or self._unsaved:
            return False
        return not (window.states and window.count_of((RecordState.ACQUIRED,), window.start_offset, window.end_offset))

    # ---- the life of a record --------------------------------------------------------------------------------------

    def acquire(
        self,
        member_id: str,
        *,
        mode: AcquireMode,
        batch_size: int,
        max_records: int,
        fetch_offset: int,
        batches: Sequence[tuple[int, int]],
        now_ms: float,
    ) -> list[AcquiredRange]:
        """Lock records for the member. `batches` are base and last offset of the record batches that a read at `fetch_offset`
        gave, all of them up to the last; BATCH_OPTIMIZED may give more than `max_records`. Empty: nothing for this member now."""
        if max_records <= 0 or not batches:
            return []
        deadline_ms = now_ms + self._settings.lock_duration_ms
        turn = Acquisition(self._window, self._settings, member_id, mode, batch_size, max_records, deadline_ms, batches)
        turn.run(fetch_offset)
        if turn.discarded:
            self._unsaved = _joined(self._unsaved + turn.discarded)
        if not turn.ranges:  # if only discarded records hold the SPSO, no acknowledgement will move it
            self._advance()
        self._redeliveries += turn.redelivered
        self._acquired_records += turn.taken
        return turn.ranges

    def acknowledge(self, member_id: str, batches: Sequence[AckBatch], *, now_ms: float) -> Persist | None:
        """Acknowledge records that the member holds: all batches or none. None: nothing to save, it is done.

        Raises KafkaError(invalid_record_state or invalid_request) with a message, and then nothing has changed.
        """
        checked = acknowledge.check(self._window, self._settings, member_id, batches)
        pending = acknowledge.apply(self._window, self._settings, member_id, checked, now_ms=now_ms)
        return self._persist(pending) if pending else None

    def release_member(self, member_id: str, *, now_ms: float) -> Persist | None:
        """The member's session is over (or it forgot the partition): what it holds comes back, with its delivery count."""
        window = self._window
        runs = _joined([run for lock in window.locks.of_member(member_id) for run in window.held_runs(lock)])
        for first, last in runs:
            window.give_back(first, last, given_back_pending(self._settings.delivery_count_limit))
        return self._persist(runs) if runs else None

    def expire(self, now_ms: float) -> Persist | None:
        """Take back what has been locked for too long. It is available at once, whatever becomes of the Persist."""
        window, runs = self._window, []
        for lock in window.locks.due(now_ms):
            for first, last in window.held_runs(lock):
                window.give_back(first, last, given_back(self._settings.delivery_count_limit))
                self._lock_timeouts += last - first + 1
                runs.append((first, last))
        return self._persist(_joined(runs), is_final=True) if runs else None

    def log_start_moved(self, new_start_offset: int) -> Persist | None:
        """The log begins later now (retention, DeleteRecords): what is below is done with, without a dead letter.

        None if the SPSO is there already. The Persist carries the new start offset; whether it succeeds matters to nobody.
        """
        if new_start_offset <= self._window.start_offset:
            return None
        self._window.drop_below(new_start_offset)
        return self._persist([], is_final=True)

    # ---- what became of a Persist ----------------------------------------------------------------------------------

    def persisted(self, token: int) -> None:
        """The Persist with this token is saved: what it said is final, and the SPSO may move."""
        write = self._writes.pop(token)
        if not write.is_final:
            for first, last in write.runs:
                self._window.settle(first, last)
        self._advance()

    def persist_failed(self, token: int, *, now_ms: float) -> None:
        """The Persist with this token is not saved. Records go back to their holder, or to everybody where the lock has run out."""
        write = self._writes.pop(token)
        self._failed_writes += 1
        unsaved = list(write.late)
        for first, last in write.runs:
            if write.is_final:
                unsaved.append((first, last))
            else:
                unsaved += self._window.roll_back(first, last, self._settings.delivery_count_limit, now_ms)
        self._unsaved = _joined(self._unsaved + unsaved)
        self._advance()

    def _persist(self, runs: Runs, *, is_final: bool = False) -> Persist:
        window = self._window
        batches = [batch for first, last in runs for batch in window.runs(first, last, ~PENDING)]
        late: Runs = []
        if self._unsaved:
            saved_later = [batch for run in self._unsaved if run[1] >= window.start_offset for batch in self._settled_runs(*run)]
            late = [(batch.first_offset, batch.last_offset) for batch in saved_later]
            batches = sorted(batches + saved_later)
            self._unsaved = []
        token = self._last_token = self._last_token + 1
        self._writes[token] = _Write(runs, late, is_final)
        return Persist(token, window.start_offset, window.complete, tuple(batches), self.state_epoch, self.leader_epoch)

    def _settled_runs(self, first: int, last: int) -> Iterator[StateBatch]:
        """The present state of a run that was never saved, without what is on its way by other means (held, or pending)."""
        for batch in self._window.runs(max(first, self._window.start_offset), last):
            if batch.state != RecordState.ACQUIRED and batch.state < HOLE:
                yield batch

    def _advance(self) -> None:
        window = self._window
        window.advance()
        if window.gap_open and window.in_flight >= self._settings.max_record_locks and not window.has_gap:
            # Kafka would wait for data beyond the gap window, which the full window does not let in.
            window.gap_end = -1
            window.advance()

    def statistics(self) -> SharePartitionStatistics:
        window = self._window
        first, last = window.start_offset, window.end_offset

        def count(*codes: int) -> int:
            return window.count_of(codes, first, last) if window.states else 0

        return SharePartitionStatistics(
            start_offset=first,
            end_offset=last,
            in_flight=window.in_flight,
            available=count(RecordState.AVAILABLE),
            acquired=count(RecordState.ACQUIRED),
            pending=count(*_PENDING_CODES),
            acknowledged=count(RecordState.ACKNOWLEDGED),
            archived=count(RecordState.ARCHIVED, RecordState.ARCHIVING),
            delivery_complete_count=window.complete,
            locks=len(window.locks),
            writes_under_way=len(self._writes),
            acquired_records=self._acquired_records,
            redeliveries=self._redeliveries,
            lock_timeouts=self._lock_timeouts,
            failed_writes=self._failed_writes,
        )


def _joined(runs: Runs) -> Runs:
    """Runs in offset order, neighbours joined."""
    if len(runs) < 2:
        return runs
    joined: Runs = []
    for first, last in sorted(runs):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return joined


def _check_state(start_offset: int, batches: Sequence[StateBatch]) -> None:
    if start_offset < 0:
        raise ValueError(f"start offset {start_offset}")
    next_offset = start_offset
    for batch in batches:
        if batch.first_offset < next_offset or batch.last_offset < batch.first_offset:
            raise ValueError(f"{batch}: below the start offset, upside down, or overlapping the one before")
        if batch.state not in RecordState.__members__.values():
            raise ValueError(f"{batch}: unknown record state")
        if not 0 <= batch.delivery_count <= _MAX_DELIVERY_COUNT:
            raise ValueError(f"{batch}: delivery count out of range")
        next_offset = batch.last_offset + 1
    if next_offset - start_offset > MAX_SPAN:
        raise ValueError(f"state for {next_offset - start_offset} offsets from {start_offset} on, more than {MAX_SPAN}")
