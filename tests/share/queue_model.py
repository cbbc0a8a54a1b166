"""A share-partition beside a dictionary of its records: every command goes to both, and everything visible must agree.

The model knows one record at a time and no ranges: a dictionary from offset to state, delivery count, holder and deadline. What
was saved is a second dictionary, in which the higher (count, state) wins. Which records a fetch gives is not predicted, but each
must have been deliverable, and there must be some if there can be.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from random import Random

import pytest

from kbroker.errors import ErrorCode, KafkaError
from kbroker.share.effects import AckBatch, Persist, ShareSettings, StateBatch
from kbroker.share.share_partition import AcquireMode, SharePartition
from kbroker.share.state_batches import combine
from tests.share.holdings import holdings
from tests.share.queue_driver import ACCEPT, GAP, REJECT, RELEASE, RENEW

AVAILABLE, ACQUIRED, ACKNOWLEDGED, _, ARCHIVED = range(5)
DONE = (ACKNOWLEDGED, ARCHIVED)
MEMBERS = ("a", "b", "c")
LOCK_MS = 100


@dataclass
class Rec:
    """`target` is the state that is being persisted, for a record that is still held."""

    state: int
    count: int
    member: str | None = None
    deadline_ms: float = 0
    target: int | None = None

    @property
    def counts_as_done(self) -> bool:
        return self.state in DONE or self.target in DONE


@dataclass
class Write:
    persist: Persist
    offsets: list[int]
    is_final: bool


class CheckedQueue:
    """The engine, the model, a log, and what was saved. Each command is one step that a `Random` fills in."""

    def __init__(self, rnd: Random) -> None:
        self.rnd = rnd
        self.settings = ShareSettings(
            delivery_count_limit=rnd.randint(2, 6), lock_duration_ms=LOCK_MS, max_record_locks=rnd.choice((5, 20, 60))
        )
        self.log: list[tuple[int, int]] = []
        self.log_start = self.log_end = self.start = rnd.choice((0, 7))
        self.now_ms = 0.0
        self.known: dict[int, Rec] = {}
        self.writes: dict[int, Write] = {}
        self.saved: dict[int, tuple[int, int]] = {}  # offset -> (count, state)
        self.saved_batches: tuple[StateBatch, ...] = ()
        self.saved_start = self.start
        self.confirmed: set[int] = set()  # saved as done, and the engine was told so
        self.append()
        self._load()

    def _load(self) -> None:
        self.sp = SharePartition.load(
            self.settings, start_offset=self.saved_start, state_batches=self.saved_batches, state_epoch=0, leader_epoch=0
        )
        self.start = self.saved_start
        self.known = {offset: Rec(state, count) for offset, (count, state) in self.saved.items()}
        self.has_gap = bool(self.known) and len(self.known) != max(self.known) + 1 - self.saved_start
        self.writes = {}
        self.check(settled=True)

    # ---- the log ---------------------------------------------------------------------------------------------------

    def append(self) -> None:
        for _ in range(self.rnd.randint(1, 4)):
            first = self.log_end + (self.rnd.randint(1, 3) if self.rnd.random() < 0.1 else 0)
            self.log_end = first + self.rnd.choice((1, 1, 2, 5, 12))
            self.log.append((first, self.log_end - 1))

    def compact(self) -> None:
        if len(self.log) > 2:
            del self.log[self.rnd.randrange(len(self.log) - 1)]

    def trim(self) -> None:
        """DeleteRecords, in the middle of a batch as well; noticed now or at the next fetch."""
        self.log_start = self.rnd.randint(self.log_start, min(self.log_start + 15, self.log_end))
        self.log = [batch for batch in self.log if batch[1] >= self.log_start]
        if self.rnd.random() < 0.5:
            self._move_log_start()

    def _move_log_start(self) -> None:
        persist = self.sp.log_start_moved(self.log_start)
        assert (persist is None) == (self.log_start <= self.start)
        if persist is not None:
            for offset in [offset for offset in self.known if offset < self.log_start]:
                del self.known[offset]
            self.start = self.log_start
            self._began(persist, [], is_final=True)
            assert persist.start_offset == self.log_start

    def exists(self) -> set[int]:
        return {offset for first, last in self.log for offset in range(max(first, self.log_start), last + 1)}

    # ---- commands --------------------------------------------------------------------------------------------------

    def fetch(self, member: str | None = None) -> int:
        """How many records the member got."""
        rnd = self.rnd
        mode = AcquireMode(rnd.randrange(2))
        max_records = rnd.choice((1, 2, 5, 30))
        if not self.sp.can_acquire():
            assert self._in_flight() >= self.settings.max_record_locks
            assert not any(rec.state == AVAILABLE for rec in self.known.values())
            return 0
        offset = self.sp.next_fetch_offset()
        self._check_fetch_offset(offset)
        if offset < self.log_start:
            self._move_log_start()
            return 0
        batches = [batch for batch in self.log if batch[1] >= offset][: rnd.choice((1, 2, 50))]
        member = member or rnd.choice(MEMBERS)
        entries = self.sp.acquire(
            member,
            mode=mode,
            batch_size=rnd.choice((1, 3, 30)),
            max_records=max_records,
            fetch_offset=offset,
            batches=batches,
            now_ms=self.now_ms,
        )
        if not batches:
            assert entries == []
            return 0
        for lost, rec in self.known.items():
            if rec.state == AVAILABLE and offset <= lost < batches[0][0]:
                rec.state = ARCHIVED
        taken = self._check_entries(entries, batches, member)
        if mode is AcquireMode.RECORD_LIMIT:
            assert taken <= max_records
        if batches[0][0] <= offset:
            assert taken > 0
        self._learn_the_rest(mode, batches)
        return taken

    def _check_fetch_offset(self, offset: int) -> None:
        rec = self.known.get(offset)
        assert rec is None or rec.state == AVAILABLE
        assert all(offset <= other for other, rec in self.known.items() if rec.state == AVAILABLE)
        assert all(offset <= other for other in self.exists() - self.known.keys() if other >= self.start)

    def _check_entries(self, entries: Iterable[tuple[int, int, int]], batches: list[tuple[int, int]], member: str) -> int:
        taken, previous = 0, self.start - 1
        last_attempt = False
        for first, last, count in entries:
            assert previous < first <= last
            assert batches[0][0] <= first
            assert last <= batches[-1][1]
            previous = last
            for offset in range(first, last + 1):
                rec = self.known.get(offset) or Rec(AVAILABLE, 0)
                assert rec.state == AVAILABLE, "no second holder, and nothing that is done with"
                assert rec.count + 1 == count, "counts rise by one"
                assert offset not in self.confirmed, "never again"
                self.known[offset] = Rec(ACQUIRED, count, member, self.now_ms + LOCK_MS)
                taken += 1
            last_attempt |= count == self.settings.delivery_count_limit > 2
        assert not last_attempt or taken == 1, "the last attempt goes alone"
        return taken

    def _learn_the_rest(self, mode: AcquireMode, batches: list[tuple[int, int]]) -> None:
        """record_limit puts the rest of the last record batch into the window."""
        for run in holdings(self.sp):
            for offset in range(run.first_offset, run.last_offset + 1):
                if offset not in self.known:
                    assert mode is AcquireMode.RECORD_LIMIT
                    assert offset <= batches[-1][1]
                    assert (run.state, run.delivery_count) == (AVAILABLE, 0)
                    self.known[offset] = Rec(AVAILABLE, 0)

    def acknowledge(self) -> None:
        member, batches = self.rnd.choice(MEMBERS), self._some_ack_batches()
        expected = self._expected_ack(member, batches)
        if not isinstance(expected, dict):
            with pytest.raises(KafkaError) as caught:
                self.sp.acknowledge(member, batches, now_ms=self.now_ms)
            assert caught.value.code is expected
            return
        persist = self.sp.acknowledge(member, batches, now_ms=self.now_ms)
        for offset, types in expected.items():
            if RENEW in types:
                self.known[offset].deadline_ms = self.now_ms + LOCK_MS
        taken = {offset: types[-1] for offset, types in expected.items() if types[-1] != RENEW}
        for offset, ack_type in taken.items():
            rec = self.known[offset]
            rec.target = {GAP: ARCHIVED, ACCEPT: ACKNOWLEDGED, RELEASE: self._given_back(rec), REJECT: ARCHIVED}[ack_type]
        assert (persist is None) == (not taken)
        if persist is not None:
            self._began(persist, list(taken))

    def _some_ack_batches(self) -> list[AckBatch]:
        """Mostly what somebody holds, at times something else; in order, as the validation wants it."""
        rnd = self.rnd
        batches: list[AckBatch] = []
        offset = self.start - rnd.choice((0, 0, 0, 2))
        for _ in range(rnd.randint(1, 3)):
            held = sorted(o for o, rec in self.known.items() if rec.state == ACQUIRED and rec.target is None and o >= offset)
            if held and rnd.random() < 0.9:
                offset = rnd.choice(held[:6])
            last = offset + rnd.choice((0, 0, 1, 3, 8))
            if held and rnd.random() < 0.8:
                while last > offset and (last not in self.known or self.known[last].member != self.known[held[0]].member):
                    last -= 1
            size = 1 if rnd.random() < 0.6 else last - offset + 1
            batches.append(AckBatch(offset, last, tuple(rnd.choice((GAP, ACCEPT, ACCEPT, RELEASE, REJECT, RENEW)) for _ in range(size))))
            offset = last if rnd.random() < 0.05 else last + 1
        return batches

    def _expected_ack(self, member: str, batches: list[AckBatch]) -> ErrorCode | dict[int, list[int]]:
        """The error code, or the acknowledge types per offset (a renewed record may be acknowledged in the same list)."""
        acked: dict[int, list[int]] = {}
        for first, last, types in batches:
            if last < self.start:
                continue
            lowest = max(first, self.start)
            if not any(offset <= lowest for offset in self.known):
                return ErrorCode.invalid_record_state
            if last not in self.known:
                return ErrorCode.invalid_request
            for offset in range(lowest, last + 1):
                rec = self.known.get(offset)
                if rec is None:
                    continue
                before = acked.setdefault(offset, [])
                if rec.state != ACQUIRED or rec.target is not None or rec.member != member or set(before) - {RENEW}:
                    return ErrorCode.invalid_record_state
                before.append(types[0] if len(types) == 1 else types[offset - first])
        return acked

    def release(self) -> None:
        member = self.rnd.choice(MEMBERS)
        held = [offset for offset, rec in self.known.items() if rec.state == ACQUIRED and rec.member == member and rec.target is None]
        persist = self.sp.release_member(member, now_ms=self.now_ms)
        assert (persist is None) == (not held)
        for offset in held:
            self.known[offset].target = self._given_back(self.known[offset])
        if persist is not None:
            self._began(persist, held)

    def expire(self) -> None:
        due = [rec for rec in self.known.values() if rec.state == ACQUIRED and rec.deadline_ms <= self.now_ms and rec.target is None]
        deadline_ms = self.sp.next_deadline_ms()
        assert deadline_ms is not None or not due
        assert deadline_ms is None or not due or deadline_ms <= self.now_ms
        persist = self.sp.expire(self.now_ms)
        assert (persist is None) == (not due)
        for rec in due:
            rec.state, rec.member = self._given_back(rec), None
        if persist is not None:
            self._began(persist, [], is_final=True)

    def wait(self) -> None:
        self.now_ms += self.rnd.choice((1, 10, LOCK_MS // 2, LOCK_MS))

    def configure(self) -> None:
        self.settings = replace(self.settings, delivery_count_limit=self.rnd.randint(2, 6), max_record_locks=self.rnd.choice((5, 20, 60)))
        self.sp.settings = self.settings

    def settle(self) -> None:
        """One write ends, well or badly. A failed one may have been saved all the same."""
        if not self.writes:
            return
        write = self.writes.pop(self.rnd.choice(list(self.writes)))
        token = write.persist.token
        succeeds = self.rnd.random() < 0.8
        if succeeds or self.rnd.random() < 0.3:
            self._save(write)
        if succeeds:
            self.sp.persisted(token)
        else:
            self.sp.persist_failed(token, now_ms=self.now_ms)
        for offset in write.offsets:
            rec = self.known.get(offset)
            if rec is None:
                continue
            assert rec.target is not None
            if succeeds:
                rec.state, rec.member = rec.target, None
                if rec.state in DONE:
                    self.confirmed.add(offset)
            elif rec.deadline_ms <= self.now_ms:
                rec.state, rec.member = self._given_back(rec), None
            rec.target = None
        self.check(settled=True)

    def reload(self) -> None:
        """The broker is killed: writes under way were saved or not."""
        for write in self.writes.values():
            if self.rnd.random() < 0.5:
                self._save(write)
        missing = {offset for offset in self.confirmed if offset >= self.saved_start and self.saved.get(offset, (0, 0))[1] not in DONE}
        assert not missing, "a confirmed acknowledgement was undone"
        self._load()

    # ---- saving ----------------------------------------------------------------------------------------------------

    def _given_back(self, rec: Rec) -> int:
        return AVAILABLE if rec.count < self.settings.delivery_count_limit else ARCHIVED

    def _began(self, persist: Persist, offsets: list[int], *, is_final: bool = False) -> None:
        assert persist.token not in self.writes
        assert persist.start_offset == self.sp.start_offset
        said = {offset: batch for batch in persist.batches for offset in range(batch.first_offset, batch.last_offset + 1)}
        assert set(offsets) <= said.keys()
        for offset, batch in said.items():
            rec = self.known[offset]
            assert (batch.state, batch.delivery_count) == (rec.state if rec.target is None else rec.target, rec.count)
            assert batch.state != ACQUIRED
            assert (rec.target is not None) == (offset in offsets)
        assert persist.delivery_complete_count == sum(rec.counts_as_done for rec in self.known.values())
        self.writes[persist.token] = Write(persist, offsets, is_final)

    def _save(self, write: Write) -> None:
        self.saved_start = max(self.saved_start, write.persist.start_offset)
        self.saved_batches = combine(self.saved_batches, write.persist.batches, self.saved_start)
        for first, last, state, count in write.persist.batches:
            for offset in range(first, last + 1):
                self.saved[offset] = max(self.saved.get(offset, (-1, -1)), (count, state))
        self.saved = {offset: entry for offset, entry in self.saved.items() if offset >= self.saved_start}
        combined = {offset: (count, state) for first, last, state, count in self.saved_batches for offset in range(first, last + 1)}
        assert combined == self.saved

    # ---- invariants ------------------------------------------------------------------------------------------------

    def _in_flight(self) -> int:
        return max(self.known) - self.start + 1 if self.known else 0

    def check(self, *, settled: bool = False) -> None:
        sp, exists = self.sp, self.exists()
        assert sp.start_offset >= self.start
        first_open = self.start
        top = max(self.known, default=self.start - 1)
        while first_open <= top and (first_open not in self.known or self.known[first_open].state in DONE):
            if first_open not in self.known and first_open in exists:
                break
            first_open += 1
        assert sp.start_offset <= first_open, "the start offset passed something that is not done with"
        if settled and not self.has_gap:
            assert sp.start_offset == first_open
        self.start = sp.start_offset
        self.known = {offset: rec for offset, rec in self.known.items() if offset >= self.start}
        assert sp.end_offset == max(self.known, default=self.start)
        assert sp.delivery_complete_count == sum(rec.counts_as_done for rec in self.known.values())
        shown = {offset: run for run in holdings(sp) for offset in range(run.first_offset, run.last_offset + 1)}
        assert shown.keys() == self.known.keys()
        for offset, run in shown.items():
            rec = self.known[offset]
            state = rec.state if rec.target is None else rec.target
            assert (run.state, run.delivery_count, run.pending) == (state, rec.count, rec.target is not None)
            if rec.state == ACQUIRED and rec.target is None:
                assert (run.member_id, run.deadline_ms) == (rec.member, rec.deadline_ms)
        statistics = sp.statistics()
        assert statistics.in_flight == self._in_flight()
        assert statistics.writes_under_way == len(self.writes)

    def drain(self) -> None:
        """Nothing is lost: after all that, whoever goes on fetching and accepting gets through the whole log."""
        while self.writes:
            self.settle()
        for _ in range(20 + 8 * (self.log_end + 1 - self.start)):
            self.now_ms += LOCK_MS
            self.expire()
            taken = self.fetch("drain")
            self.check()
            held = sorted(offset for offset, rec in self.known.items() if rec.member == "drain" and rec.target is None)
            for offset in held:
                persist = self.sp.acknowledge("drain", [AckBatch(offset, offset, (ACCEPT,))], now_ms=self.now_ms)
                assert persist is not None
                self.known[offset].target = ACKNOWLEDGED
                self._began(persist, [offset])
            while self.writes:
                self.settle()
            self.check()
            if not taken and not any(rec.state in (AVAILABLE, ACQUIRED) for rec in self.known.values()):
                unread = {offset for offset in self.exists() if offset >= self.start and offset not in self.known}
                if not unread:
                    break
        assert all(rec.state in DONE for rec in self.known.values())
        assert {offset for offset in self.exists() if offset >= self.start} <= self.known.keys()
