"""Checks of a share-partition with parked records (parked_world.py): holders, counts, the store."""

from __future__ import annotations

from kbroker.share.effects import Persist, ShareSettings
from kbroker.share.held import HeldRecords
from kbroker.share.parked import Lane
from kbroker.share.record_state import ACQUIRED
from tests.share.engine import Engine
from tests.share.parked_store import Job, Store

MEMBERS = ("a", "b", "c")


class ParkedChecks:
    """Checks the state of the engine and of the store after each command."""

    settings: ShareSettings
    sp: Engine
    held: HeldRecords
    store: Store
    jobs: dict[int, Job]
    writes: list[tuple[Persist, dict[int, int], str | None]]
    now_ms: float
    log_start: int
    log_end: int
    expired_ever: int
    exhausted_ever: int
    """In fetches of parked records, by a lowered delivery limit."""

    def check(self) -> None:
        holders: dict[int, str] = dict(self._holdings())
        assert len(holders) == len(self._holdings()), "held twice"
        for offset, job in self.jobs.items():
            if job.member in (*MEMBERS, "drain") and not job.gone and self._is_seen(offset):
                assert holders.get(offset) == job.member, (offset, job)
        counted: dict[str, int] = {}
        for member in holders.values():
            counted[member] = counted.get(member, 0) + 1
        for _, said, holder in self.writes:
            if holder is not None:
                counted[holder] = counted.get(holder, 0) + len(said)
        assert self.held.counts() == counted
        self.sp.check_slots()
        assert len(self.sp.rows) <= self.most_in_memory()

    def most_in_memory(self) -> int:
        return (
            2 * 5
            + 30
            + sum(len(write[1]) for write in self.writes)
            + 8
            + self.expired_ever
            + self.exhausted_ever
        )

    def _is_seen(self, offset: int) -> bool:
        """The engine knows that the log's start has not passed it."""
        return offset >= self.log_start or offset in self.sp.rows

    def _check_store(self) -> None:
        """When no write is under way."""
        store = self.store
        assert store.waiting == len(store.offsets) == len(store.places) == self.sp.waiting
        assert sorted(store.offsets.values()) == sorted(store.places)
        kept = {offset for offset in store.offsets if store.keeps(offset)}
        assert kept.issuperset(store.records)
        assert all(self.jobs[offset].may_be_over for offset in kept.difference(store.records))

    def is_empty(self) -> bool:
        offset = self.sp.offset_to_acquire()
        is_read = offset is None or offset >= self.log_end
        if self.settings.scans:
            scan_from = self.sp.scan_from()
            is_read = is_read and (scan_from is None or scan_from >= self.log_end)
        return (
            is_read
            and not self.writes
            and not self.sp.waiting
            and self.sp.is_settled
            and not self.sp.has_archiving
        )

    def _holdings(self) -> list[tuple[int, str]]:
        window = self.sp.in_flight_view(self.now_ms).ranges
        held = [
            (offset, str(run.member_id))
            for run in window
            if run.state == "acquired" and not run.is_saving
            for offset in range(run.first_offset, run.last_offset + 1)
        ]
        return held + [
            (row.offset, self.sp.holder_of(row))
            for row in self.sp.rows.values()
            if self.sp.code_of(row) == ACQUIRED
        ]

    def _locked(self) -> int:
        """How many records members hold, or have given back in a write that has not ended."""
        saving = sum(len(said) for _, said, holder in self.writes if holder is not None)
        return len(self._holdings()) + saving

    def _is_saved_as_archiving(self, offset: int) -> bool:
        if offset in self.store.offsets:
            return self.store.offsets[offset].lane is Lane.ARCHIVING
        return any(
            b.first_offset <= offset <= b.last_offset and b.state in (3, 4) for b in self.store.batches
        )
