"""The log's start moves: records below it are finished, or are kept beside the log. Pure.

    log before    | . . . . . . . . . . . . . . . . . . . . |
    log after                         | . . . . . . . . . . |
                    finished, or kept     as before

Retention or DeleteRecords may take records that are still in flight or parked. Without record
keeping they are finished, without dead letters. With it (`kbroker.queue.retention`), records that
are not finished are parked with their bytes before the log's start moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kbroker.share import leaving
from kbroker.share.effects import Persist
from kbroker.share.leaving import Leavers
from kbroker.share.parked import Parked
from kbroker.share.parked_keeping import Look
from kbroker.share.runs import joined_runs, size_of
from kbroker.share.share_writes import SharePartitionWrites


class SharePartitionLogStart(SharePartitionWrites):
    def log_start_moved(self, new_start_offset: int) -> Persist | None:
        """The log now begins at this offset (retention or DeleteRecords): records below it are
        finished, without dead letters.

        None if the SPSO is already there. The Persist carries the new start offset; if it fails,
        the next one carries it.
        """
        return self._persist([]) if self._drop_below(new_start_offset) else None

    def _drop_below(self, new_start_offset: int) -> bool:
        """False: the SPSO is already there. Otherwise the next Persist carries the move."""
        self._log_start = max(self._log_start, new_start_offset)
        start_offset = self._window.start_offset
        if new_start_offset <= start_offset:
            return False
        if self._held is not None:
            for lock in self._window.locks.by_deadline:
                held = self._window.held_runs(lock)
                gone = [
                    (first, min(last, new_start_offset - 1))
                    for first, last in held
                    if first < new_start_offset
                ]
                self._held.add(lock.member_id, -size_of(gone))
        self._window.drop_below(new_start_offset)
        self._waits.forget_below(new_start_offset)
        self._lose_keys([(start_offset, new_start_offset - 1)])
        self._unsaved = joined_runs([*self._unsaved, (start_offset, new_start_offset - 1)])
        return True

    def parked_below(self, log_start_offset: int) -> Persist | None:
        """The log now begins there: parked records below it are finished, without dead letters.
        Those that are not in memory have to be swept (`parking.needs_sweep`)."""
        parking = self.parking
        if parking is None or log_start_offset <= parking.floor:
            return None
        for member_id, records in parking.drop_below(log_start_offset).items():
            if self._held is not None:
                self._held.add(member_id, -records)
        return self._persist([]) if parking.has_unsaved else None

    def purge_parked(self, end_offset: int) -> Persist | None:
        """All records below the offset were deleted on purpose: parked ones are finished as well,
        kept or not. Otherwise as parked_below(). The window moves with them, as a parked record may
        be above the SPSO, with its dead letter being written: what is reported of it later then has
        no effect."""
        parking = self.parking
        if parking is None:
            return None
        has_moved = self._drop_below(end_offset)
        for member_id, records in parking.purge(end_offset).items():
            if self._held is not None:
                self._held.add(member_id, -records)
        return self._persist([]) if has_moved or parking.has_unsaved else None

    def begin_look(self) -> Look:
        """The caller is about to read parked records for sweep_parked() or keep_parked(). It calls
        `parking.end_look` afterwards."""
        assert self.parking is not None
        writes = (write for *_, write in self._writes.values() if write is not None)
        return self.parking.begin_look(offset for write in writes for offset in write.offsets())

    def sweep_parked(self, found: Iterable[Parked], look: Look) -> Persist | None:
        """Finish the parked records of this look that lie below the log's start and are not
        kept."""
        return self._persist([]) if self.parking is not None and self.parking.sweep(found, look) else None

    # ---- kept where the log goes (parked_keeping.py, leaving.py) ---------------------------------

    def leavers(self, end_offset: int, limit: int) -> Leavers:
        """Which unfinished records of the window below `end_offset` could be parked and kept. None
        of them before the order of keys is known: a parked record carries its key."""
        if not self._has_learnt_keys:
            return Leavers((), min(end_offset, self._window.start_offset))
        return leaving.leavers(self._window, self._waits, end_offset, limit)

    def leave_log(self, records: Mapping[int, bytes], *, now_ms: float) -> Persist | None:
        """Park and keep these records of the window, as far as leavers() would still name them.
        `records`: each as a batch of its own. They are parked at once and keep their state: held
        until the same deadline, or due at the same time. If the Persist fails the next one carries
        them; the log must stay until one is saved."""
        assert self.parking is not None
        if not self._has_learnt_keys:
            return None
        number = leaving.leave(
            self._window,
            self.parking,
            self._waits,
            records,
            leader_epoch=self.leader_epoch,
            lock_duration_ms=self._settings.lock_duration_ms,
            now_ms=now_ms,
        )
        return self._persist([]) if number else None

    def keep_parked(
        self, found: Iterable[Parked], records: Mapping[int, bytes], look: Look
    ) -> Persist | None:
        """Keep these parked records of the look, as leave_log() does."""
        return (
            self._persist([])
            if self.parking is not None and self.parking.keep(found, records, look)
            else None
        )
