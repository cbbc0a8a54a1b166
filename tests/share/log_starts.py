"""The commands of parked_world.py that move the log's start, and keep records beside the log
first."""

from __future__ import annotations

from kbroker.share.parked import Parked
from kbroker.share.parking import Look
from kbroker.share.record_state import PENDING
from tests.share.parked_store import READ_AT_ONCE, record_of
from tests.share.parked_writes import ParkedWrites


class LogStarts(ParkedWrites):
    """See World."""

    moved_ever: int
    sweeps: list[tuple[list[Parked], Look]]
    keeping: tuple[list[Parked], Look] | None

    def trim(self) -> None:
        """Retention removes records that are not kept."""
        if self.rnd.random() < 0.3:
            self.log_start = self.rnd.randint(self.log_start, min(self.log_start + 6, self.log_end))

    def purge(self) -> None:
        """A client deletes records."""
        if self.rnd.random() < 0.5:
            self.trim()
            self._began(self.sp.purge_parked(self.log_start), {}, None)
            for offset in range(self.log_start):
                self.jobs[offset].gone, self.jobs[offset].member = True, None

    def retain(self) -> None:
        """The log's start moves past everything except records that are saved as unfinished and not
        kept."""
        while self.log_start < self.log_end and self.store.is_final(self.log_start):
            if self.log_start in self.store.offsets and not self.store.keeps(self.log_start):
                break
            self.log_start += 1
        if self.rnd.random() < 0.5:
            self._move_log_start()

    def leave(self) -> None:
        """Records of the window are parked and kept; some of them have changed since that
        decision."""
        end_offset = self.rnd.randint(self.log_start, self.log_end)
        found, stuck_at = self.sp.leavers(end_offset, self.rnd.choice((1, 4, 40)))
        assert stuck_at <= end_offset
        assert all(offset < stuck_at for offset in found)
        offsets = {
            offset for offset in (*found, self.rnd.randrange(self.log_end)) if offset >= self.log_start
        }
        before = self.sp.waiting
        persist = self.sp.leave_log(
            {offset: record_of(offset) for offset in sorted(offsets)}, now_ms=self.now_ms
        )
        assert (persist is None) == (self.sp.waiting == before)
        assert self.sp.waiting - before >= len(offsets.intersection(found))
        self.moved_ever += self.sp.waiting - before
        for offset in offsets.intersection(self.sp.rows):
            self.jobs[offset].was_moved = True
        self._began(persist, {}, None)

    def keep(self) -> None:
        """Begin to keep parked records, or finish it: the store was read in between."""
        if self.keeping is None:
            look = self.sp.begin_look()
            self.keeping = [self.store.places[place] for place in self.store.offsets.values()], look
        else:
            found, look = self.keeping
            found = [each for each in found if each.offset >= self.log_start and self.rnd.random() < 0.7]
            self._began(
                self.sp.keep_parked(found, {each.offset: record_of(each.offset) for each in found}, look),
                {},
                None,
            )
            self.sp.end_look(look)
            self.keeping = None

    def _move_log_start(self) -> None:
        """A fetch notices the move first."""
        if self.sp.start_offset < self.log_start:
            self._began(self.sp.log_start_moved(self.log_start), {}, None)
        for offset in range(self.log_start):
            row, job = self.sp.rows.get(offset), self.jobs[offset]
            if row is None:
                is_parked = offset in self.store.offsets
                stays = self.store.keeps(offset) if is_parked else self.store.is_final(offset)
                stays = stays and offset not in self.sp.ghosts
            else:
                stays = row.kept
            if not (stays or job.gone):
                job.gone, job.member = True, None
                job.may_be_kept = (
                    row is not None and (self.sp.code_of(row) or 0) & PENDING > 0 and row.record is not None
                )
        self._began(self.sp.parked_below(self.log_start), {}, None)

    def sweep(self) -> None:
        """Read parked records below the log's start, and drop them some time later."""
        if self.sweeps and self.rnd.random() < 0.7:
            found, look = self.sweeps.pop()
            self._began(self.sp.sweep_parked(found, look), {}, None)
            self.sp.end_look(look)
        if not self.sp.needs_sweep:
            return
        self.sp.begin_sweep()
        at = 0
        while found := [
            self.store.places[self.store.offsets[o]] for o in sorted(self.store.offsets) if o >= at
        ][:READ_AT_ONCE]:
            self.sweeps.append((found, self.sp.begin_look()))
            at = found[-1].offset + 1
            if at > self.sp.floor:
                break
