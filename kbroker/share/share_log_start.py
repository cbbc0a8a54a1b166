"""What a share-partition does when the log's start moves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kbroker.share import leaving
from kbroker.share.effects import Persist
from kbroker.share.leaving import Leavers
from kbroker.share.parked import Parked
from kbroker.share.parked_keeping import Look
from kbroker.share.runs import size_of
from kbroker.share.share_writes import SharePartitionWrites


class SharePartitionLogStart(SharePartitionWrites):
    """See SharePartition."""

    def log_start_moved(self, new_start_offset: int) -> Persist | None:
        """The log begins later now (retention, DeleteRecords): what is below is done with, without
        a dead letter.

        None if the SPSO is there already. The Persist carries the new start offset; if it fails the
        next one does.
        """
        self._log_start = max(self._log_start, new_start_offset)
        start_offset = self._window.start_offset
        if new_start_offset <= start_offset:
            return None
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
        return self._persist_best_effort([(start_offset, new_start_offset - 1)])

    def parked_below(self, log_start_offset: int) -> Persist | None:
        """The log begins there now: parked records below it are done with, without dead letters.
        Those that are not in memory are swept (`parking.needs_sweep`)."""
        parking = self.parking
        if parking is None or log_start_offset <= parking.floor:
            return None
        for member_id, records in parking.drop_below(log_start_offset).items():
            if self._held is not None:
                self._held.add(member_id, -records)
        return self._persist([]) if parking.has_unsaved else None

    def purge_parked(self, end_offset: int) -> Persist | None:
        """Somebody has deleted all records below: parked ones are done with as well, kept or not.
        As parked_below()."""
        parking = self.parking
        if parking is None:
            return None
        for member_id, records in parking.purge(end_offset).items():
            if self._held is not None:
                self._held.add(member_id, -records)
        return self._persist([]) if parking.has_unsaved else None

    def begin_look(self) -> Look:
        """Parked records are about to be read for sweep_parked() or keep_parked(); then
        `parking.end_look`."""
        assert self.parking is not None
        writes = (write for *_, write in self._writes.values() if write is not None)
        return self.parking.begin_look(offset for write in writes for offset in write.offsets())

    def sweep_parked(self, found: Iterable[Parked], look: Look) -> Persist | None:
        """Of the parked records that the look has found those below the log's start are done with,
        but for what is kept."""
        return self._persist([]) if self.parking is not None and self.parking.sweep(found, look) else None

    # ---- kept where the log goes (parked_keeping.py, leaving.py) ---------------------------------

    def leavers(self, end_offset: int, limit: int) -> Leavers:
        """What of the window below `end_offset` is not over, and could be parked and kept. Nothing
        while the order of keys is not known yet: a parked record has its key with it."""
        if not self._has_learnt_keys:
            return Leavers((), min(end_offset, self._window.start_offset))
        return leaving.leavers(self._window, self._waits, end_offset, limit)

    def leave_log(self, records: Mapping[int, bytes], *, now_ms: float) -> Persist | None:
        """Park these records of the window, as far as leavers() would still say so, and keep them.
        They count as parked at once, and go on as they are: held until their deadline, or due. If
        the Persist fails the next one says it again; the log has to stay until one is saved.
        `records`: each as a batch of its own."""
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
        """Keep parked records that the look has found, as leave_log() does."""
        return (
            self._persist([])
            if self.parking is not None and self.parking.keep(found, records, look)
            else None
        )
