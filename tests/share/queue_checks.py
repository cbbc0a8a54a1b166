"""The invariants of a share-partition beside its model (queue_model.py)."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter

from kbroker.share.effects import ShareSettings
from kbroker.share.held import HeldRecords
from tests.share.dead_letter_model import DeadLetterModel
from tests.share.engine import Engine
from tests.share.holdings import holdings
from tests.share.queue_records import (
    ACQUIRED,
    ARCHIVED,
    ARCHIVING,
    AVAILABLE,
    DONE,
    NOTHING,
    Rec,
    Write,
)  # fmt: skip


class QueueChecks:
    """The engine and the model agree on everything visible."""

    settings: ShareSettings
    sp: Engine
    held: HeldRecords | None
    log: list[tuple[int, int]]
    log_start: int
    log_end: int
    start: int
    saved_start: int
    has_gap: bool
    known: dict[int, Rec]
    writes: dict[int, Write]
    saved: dict[int, tuple[int, int]]
    known_saved: dict[int, tuple[int, int]]
    ghosts: dict[int, tuple[int, int]]
    dead_letters: DeadLetterModel
    confirmed: set[int]

    def _taken(self) -> int:
        undecided = sum(rec.count > 0 and not rec.counts_as_done for rec in self.known.values())
        assert self.sp.window.undecided == undecided
        return undecided if self.settings.limits_undecided else self._in_flight()

    def _in_flight(self) -> int:
        return max(self.known) - self.start + 1 if self.known else 0

    def check(self, *, settled: bool = False) -> None:
        sp = self.sp
        assert sp.start_offset >= self.start
        first_open = self.start
        top = max(self.known, default=self.start - 1)
        while first_open <= top and (first_open not in self.known or self.known[first_open].state in DONE):
            if first_open not in self.known and self.is_in_log(first_open):
                break
            first_open += 1
        assert sp.start_offset <= first_open, "the start offset passed something that is not done with"
        if settled and not self.has_gap:
            assert sp.start_offset == first_open
        self.start = sp.start_offset
        self.known = {offset: rec for offset, rec in self.known.items() if offset >= self.start}
        assert sp.end_offset == max(self.known, default=self.start)
        assert sp.delivery_complete_count == sum(rec.counts_as_done for rec in self.known.values())
        shown = {
            offset: run for run in holdings(sp) for offset in range(run.first_offset, run.last_offset + 1)
        }
        assert shown.keys() == self.known.keys()
        for offset, run in shown.items():
            rec = self.known[offset]
            state = rec.state if rec.target is None else rec.target
            assert (run.state, run.delivery_count, run.pending) == (state, rec.count, rec.target is not None)
            if rec.state == ACQUIRED and rec.target is None:
                assert (run.member_id, run.deadline_ms) == (rec.member, rec.deadline_ms)
        statistics = sp.statistics()
        assert statistics.in_flight == self._in_flight() >= self._taken()
        assert statistics.writes_under_way == len(self.writes)
        archiving = [rec for rec in self.known.values() if rec.state == ARCHIVING]
        assert statistics.archiving == len(archiving)
        self._check_archiving(archiving)
        self._check_settled()
        assert statistics.waiting == sum(
            rec.state == AVAILABLE and rec.due_ms > 0 for rec in self.known.values()
        )
        if self.held is not None:
            held = Counter(rec.member for rec in self.known.values() if rec.state == ACQUIRED)
            for write in self.writes.values():  # The log's start may have passed the offsets being saved.
                held[write.holder] += sum(offset not in self.known for offset in write.offsets)
            assert self.held.counts() == {member: count for member, count in held.items() if count}
        if self.log_start > self.start:
            self._check_what_is_left()

    def _check_what_is_left(self) -> None:
        """The log's start has moved and the engine has not noticed it."""
        first_open, gone = self.sp.stands_from(self.log_start)
        open_offsets = {o for o in self.exists() if o not in self.known or not self.known[o].counts_as_done}
        left = self.log_end - self.log_start - gone
        assert (
            len(open_offsets)
            <= left
            <= len(open_offsets) + (self.log_end - self.log_start - len(self.exists()))
        )
        assert first_open <= min(open_offsets, default=self.log_end)

    def _check_archiving(self, archiving: list[Rec]) -> None:
        sp = self.sp
        assert sp.has_dead_letters == any(rec.is_saved and not rec.is_taken for rec in archiving)
        if sp.has_unsaved_archiving:
            assert any(not rec.is_saved for rec in archiving)
        else:
            assert not self._unsaved_archiving()
        if archiving or any(rec.target == ARCHIVING for rec in self.known.values()):
            assert sp.has_archiving
            assert not sp.is_settled
        elif not sp.has_archiving:
            forgotten = {
                offset
                for offset, (_, state) in self.saved.items()
                if state == ARCHIVING and offset in self.dead_letters.queue
            }
            assert not forgotten, "a restart would have to look into the dead letter queue"

    def _check_settled(self) -> None:
        """Loading the saved state would restore the same one."""
        if not self.sp.is_settled:
            return
        assert not self.writes
        for offset, rec in self.known.items():
            entry = (rec.count, rec.state)
            assert self.saved.get(offset, (0, AVAILABLE)) == max(entry, self.ghosts.get(offset, NOTHING))
        for offset, entry in self.saved.items():
            assert offset >= self.start or entry[1] in DONE or entry == self.ghosts.get(offset)

    def _check_nothing_is_left_out(self) -> None:
        """Once the writes under way have succeeded, the saved state equals the known one, except
        for records that are held or were never delivered."""
        for offset, rec in self.known.items():
            if rec.state != ACQUIRED and rec.count:
                entry = (rec.count, rec.state)
                assert self.known_saved.get(offset, NOTHING) >= entry or any(
                    offset in write.said
                    and (write.said[offset].delivery_count, write.said[offset].state) == entry
                    for write in self.writes.values()
                )

    def _unsaved_archiving(self) -> set[int]:
        """Those that no write under way saves either."""
        on_its_way = {
            offset
            for write in self.writes.values()
            for offset, batch in write.said.items()
            if batch.state == ARCHIVING
        }
        return {
            offset for offset, rec in self.known.items() if rec.state == ARCHIVING and not rec.is_saved
        } - on_its_way

    def is_in_log(self, offset: int) -> bool:
        i = bisect_right(self.log, (offset, self.log_end)) - 1
        return i >= 0 and self.log_start <= offset <= self.log[i][1]

    def exists(self) -> set[int]:
        return {offset for first, last in self.log for offset in range(max(first, self.log_start), last + 1)}

    def _check_nothing_is_lost(self) -> None:
        def is_saved_as(offset: int, *states: int) -> bool:
            return (
                offset < self.saved_start
                or self.saved[offset][1] in states
                or self.saved[offset] == self.ghosts.get(offset)
            )

        assert all(is_saved_as(offset, *DONE) for offset in self.confirmed), (
            "a confirmed acknowledgement was undone"
        )
        assert all(is_saved_as(offset, ARCHIVING, ARCHIVED) for offset in self.dead_letters.owed), (
            "a dead letter was forgotten"
        )
