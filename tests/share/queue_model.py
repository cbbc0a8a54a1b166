"""A share-partition beside a dictionary of its records: every command is applied to both, and
everything visible must agree.

The model has single records and no ranges: a dictionary from offset to state, delivery count,
holder and deadline. A second dictionary has the saved records, where the higher (count, state)
wins. The model does not predict which records a fetch returns. But each must be deliverable, and
there must be some if there can be. Dead letters are in dead_letter_model.py, the invariants in
queue_checks.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from random import Random

import pytest

from kbroker.errors import ErrorCode, KafkaError
from kbroker.share.effects import AckBatch, AcquiredRange, DeadLetterCause, Persist, ShareSettings, StateBatch
from kbroker.share.held import HeldRecords
from kbroker.share.share_partition import AcquireMode
from kbroker.share.state_batches import combine
from tests.share.dead_letter_model import DeadLetterModel, by_offset
from tests.share.engine import Engine
from tests.share.holdings import holdings
from tests.share.parked_store import Store
from tests.share.queue_checks import QueueChecks
from tests.share.queue_driver import ACCEPT, GAP, REJECT, RELEASE, RENEW
from tests.share.queue_records import (
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    ARCHIVING,
    AVAILABLE,
    DONE,
    LOCK_MS,
    MEMBERS,
    NOTHING,
    Rec,
    Write,
    some_ack_batches,
    some_redelivery,
)  # fmt: skip


class CheckedQueue(QueueChecks):
    """The engine, the model, a log, and the saved state. Each command is one step that a `Random`
    fills in."""

    def __init__(self, rnd: Random) -> None:
        self.rnd = rnd
        self.settings = ShareSettings(
            delivery_count_limit=rnd.choice((2, 2, 3, 6)),
            lock_duration_ms=LOCK_MS,
            max_record_locks=rnd.choice((5, 20, 60)),
            dead_letter_queue=rnd.random() < 0.8,
            redelivery=some_redelivery(rnd),
            lock_max_ms=rnd.choice((0, 250, 1000)),
            limits_undecided=rnd.random() < 0.4,
            is_queue=rnd.random() < 0.5,
        )
        self.failures = rnd.choice((0.1, 0.2, 0.6))  # how many writes fail
        self.log: list[tuple[int, int]] = []
        self.log_start = self.log_end = self.start = rnd.choice((0, 7))
        self.now_ms = 0.0
        self.known: dict[int, Rec] = {}
        self.writes: dict[int, Write] = {}
        self.uncounted = 0  # given up for good, and in no write
        self.saved: dict[int, tuple[int, int]] = {}  # offset -> (count, state)
        self.known_saved: dict[int, tuple[int, int]] = {}  # the same, as far as the engine knows
        # the same, of failed writes that are saved nevertheless
        self.ghosts: dict[int, tuple[int, int]] = {}
        self.dead_letters = DeadLetterModel()
        self.saved_batches: tuple[StateBatch, ...] = ()
        self.saved_start = self.start
        self.confirmed: set[int] = set()  # saved as done, to the engine's knowledge
        self.append()
        self._load()

    def _load(self) -> None:
        self.sp = self.engine()
        self.start = self.saved_start
        self.known = {offset: Rec(state, count) for offset, (count, state) in self.saved.items()}
        self.known_saved, self.ghosts = dict(self.saved), {}
        for offset, rec in self.known.items():
            if rec.state == ARCHIVING:
                rec.cause = (
                    DeadLetterCause.EXHAUSTED
                    if rec.count >= self.settings.delivery_count_limit
                    else DeadLetterCause.REJECTED
                )
                rec.is_saved = True
                self.dead_letters.owed.add(offset)
                # rejected first and then accepted, but the failed write was saved, and won
                self.confirmed.discard(offset)
        self.has_gap = bool(self.known) and len(self.known) != max(self.known) + 1 - self.saved_start
        self.writes, self.uncounted = {}, 0
        self.held = HeldRecords() if self.rnd.random() < 0.7 else None
        self.sp.count_held(self.held)
        self.check(settled=True)

    def engine(self) -> Engine:
        return Engine(self.settings, Store(self.saved_start, self.saved_batches), parks=False)

    # ---- the log ---------------------------------------------------------------------------------

    def append(self) -> None:
        for _ in range(self.rnd.randint(1, 4)):
            first = self.log_end + (self.rnd.randint(1, 3) if self.rnd.random() < 0.1 else 0)
            self.log_end = first + self.rnd.choice((1, 1, 2, 5, 12))
            self.log.append((first, self.log_end - 1))

    def compact(self) -> None:
        if len(self.log) > 2:
            del self.log[self.rnd.randrange(len(self.log) - 1)]

    def trim(self) -> None:
        """DeleteRecords, in the middle of a batch as well; noticed now or by the next fetch."""
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
            self.dead_letters.log_start_moved(self.log_start)
            self._began(persist, [])
            assert persist.start_offset == self.log_start

    # ---- commands --------------------------------------------------------------------------------

    def fetch(self, member: str | None = None) -> int:
        """How many records the member got."""
        rnd = self.rnd
        mode = AcquireMode(rnd.randrange(2))
        max_records = rnd.choice((1, 2, 5, 30))
        offset, is_full = self.sp.offset_to_acquire(), self._taken() >= self.settings.max_record_locks
        given_back_only = is_full and self.settings.limits_undecided
        if offset is None:
            assert is_full
            assert not any(rec.is_free and (rec.count or not given_back_only) for rec in self.known.values())
            return 0
        self._check_fetch_offset(offset, given_back_only=given_back_only)
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
            is_read = offset <= lost <= batches[-1][1]
            if rec.state == AVAILABLE and is_read and not any(b[0] <= lost <= b[1] for b in batches):
                rec.state, rec.due_ms = ARCHIVED, 0
        taken = self._check_entries(entries, batches, member)
        if mode is AcquireMode.RECORD_LIMIT:
            assert taken <= max_records
        self._learn_the_rest(mode, batches)
        given_up = self._give_up(entries, offset)
        assert taken or given_up or batches[0][0] > offset
        return taken

    def _give_up(self, entries: list[AcquiredRange], offset: int) -> int:
        """In a queue, records that have reached a lowered limit are given up: at least those before
        the last one that is delivered. Returns their number."""
        limit, up_to = self.settings.delivery_count_limit, entries[-1].last_offset if entries else -1
        reached = (
            {other: rec for other, rec in self.known.items() if rec.is_free and rec.count >= limit}
            if self.settings.is_queue
            else {}
        )
        for run in holdings(self.sp):
            for other in range(run.first_offset, run.last_offset + 1) if run.state == AVAILABLE else ():
                assert reached.pop(other, None) is None or not offset <= other <= up_to
        for rec in reached.values():
            rec.state = self._given_back(rec)
            self.uncounted += rec.state == ARCHIVED
        assert self.sp.has_given_up == bool(reached)
        if reached:
            self.check()
        persist = self.sp.save_passed()
        assert (persist is None) == (not reached)
        if persist is not None:
            self._began(persist, [])
        return len(reached)

    def _check_fetch_offset(self, offset: int, *, given_back_only: bool) -> None:
        rec = self.known.get(offset)
        assert rec is None or rec.is_free
        assert all(
            offset <= other
            for other, rec in self.known.items()
            if rec.is_free and (rec.count or not given_back_only)
        )
        if not given_back_only:
            assert all(offset <= other for other in self.exists() - self.known.keys() if other >= self.start)

    def _check_entries(
        self, entries: Iterable[tuple[int, int, int]], batches: list[tuple[int, int]], member: str
    ) -> int:
        taken, previous = 0, self.start - 1
        last_attempt = False
        for first, last, count in entries:
            assert previous < first <= last
            assert batches[0][0] <= first
            assert last <= batches[-1][1]
            previous = last
            for offset in range(first, last + 1):
                rec = self.known.get(offset) or Rec(AVAILABLE, 0)
                assert rec.is_free, "no second holder, nothing that is done with, and nothing that waits"
                assert rec.count + 1 == count, "counts rise by one"
                assert offset not in self.confirmed, "never again"
                assert offset not in self.dead_letters.owed, "nor a dead letter"
                self.known[offset] = Rec(ACQUIRED, count, member, self.now_ms + LOCK_MS)
                taken += 1
            limit, is_queue = self.settings.delivery_count_limit, self.settings.is_queue
            assert count <= limit or not is_queue
            last_attempt |= count == limit and (limit > 2 or is_queue)
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
        member, batches = self.rnd.choice(MEMBERS), some_ack_batches(self.rnd, self.known, self.start)
        expected = self._expected_ack(member, batches)
        if not isinstance(expected, dict):
            with pytest.raises(KafkaError) as caught:
                self.sp.acknowledge(member, batches, now_ms=self.now_ms)
            assert caught.value.code is expected
            self._note_refused(member, batches)
            return
        persist = self.sp.acknowledge(member, batches, now_ms=self.now_ms)
        for offset, types in expected.items():
            if RENEW in types:
                self.known[offset].deadline_ms, self.known[offset].since_ms = self.now_ms + LOCK_MS, None
        taken = {offset: types[-1] for offset, types in expected.items() if types[-1] != RENEW}
        for offset, ack_type in taken.items():
            rec = self.known[offset]
            rec.is_gap = ack_type == GAP
            if ack_type == RELEASE:
                rec.target = self._given_back(rec)
            elif ack_type == REJECT and self.settings.dead_letter_queue:
                rec.target, rec.cause = ARCHIVING, DeadLetterCause.REJECTED
            else:
                rec.target = ACKNOWLEDGED if ack_type == ACCEPT else ARCHIVED
        assert (persist is None) == (not taken)
        if persist is not None:
            self._began(persist, list(taken), member)

    def _note_refused(self, member: str, batches: list[AckBatch]) -> None:
        for first, last, types in batches if self.settings.lock_max_ms else ():
            for offset in range(first, last + 1):
                rec = self.known.get(offset)
                is_held = (
                    rec is not None and rec.state == ACQUIRED and rec.target is None and rec.member == member
                )
                if is_held and (types[0] if len(types) == 1 else types[offset - first]) != RENEW:
                    rec.since_ms = float("-inf")

    def _expected_ack(self, member: str, batches: list[AckBatch]) -> ErrorCode | dict[int, list[int]]:
        """The error code, or the acknowledge types per offset (a renewed record may be acknowledged
        in the same list)."""
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
                if (
                    rec.state != ACQUIRED
                    or rec.target is not None
                    or rec.member != member
                    or set(before) - {RENEW}
                ):
                    return ErrorCode.invalid_record_state
                before.append(types[0] if len(types) == 1 else types[offset - first])
        return acked

    def release(self) -> None:
        member = self.rnd.choice(MEMBERS)
        held = [
            offset
            for offset, rec in self.known.items()
            if rec.state == ACQUIRED and rec.member == member and rec.target is None
        ]
        in_order = self.rnd.random() < 0.5
        persist = self.sp.release_member(member, delayed_at_ms=None if in_order else self.now_ms)
        assert (persist is None) == (not held)
        for offset in held:
            self.known[offset].target = self._given_back(self.known[offset], waits=not in_order)
        if persist is not None:
            self._began(persist, held, member)

    def expire(self) -> None:
        due = [
            rec
            for rec in self.known.values()
            if rec.state == ACQUIRED and rec.deadline_ms <= self.now_ms and rec.target is None
        ]
        deadline_ms = self.sp.next_deadline_ms()
        assert not due or (deadline_ms is not None and deadline_ms <= self.now_ms)
        alive_ms = {member: self.rnd.choice((0, 30, 1000)) for member in (*MEMBERS, "drain")}
        persist = self.sp.expire(self.now_ms, alive_ms.__getitem__)
        due = [rec for rec in due if not self._is_prolonged(rec, alive_ms)]
        assert (persist is None) == (not due)
        for rec in due:
            rec.state, rec.member = self._given_back(rec), None
            self.uncounted += rec.state == ARCHIVED
        if persist is not None:
            self._began(persist, [])
        self._end_waits()

    def _is_prolonged(self, rec: Rec, alive_ms: dict[str, int]) -> bool:
        since_ms = rec.deadline_ms - LOCK_MS if rec.since_ms is None else rec.since_ms
        until_ms, alive = since_ms + self.settings.lock_max_ms, alive_ms[str(rec.member)]
        if not self.settings.lock_max_ms or not alive or until_ms <= self.now_ms:
            return False
        rec.since_ms, rec.deadline_ms = since_ms, min(self.now_ms + min(LOCK_MS, alive), until_ms)
        return True

    def _end_waits(self) -> None:
        due = [rec for rec in self.known.values() if 0 < rec.due_ms <= self.now_ms]
        deadline_ms = self.sp.next_deadline_ms()
        assert not due or (deadline_ms is not None and deadline_ms <= self.now_ms)
        assert self.sp.end_waits(self.now_ms) == sum(rec.state == AVAILABLE for rec in due)
        for rec in due:
            rec.due_ms = 0

    def wait(self) -> None:
        self.now_ms += self.rnd.choice((1, 10, LOCK_MS // 2, LOCK_MS))

    def configure(self) -> None:
        self.settings = replace(
            self.settings,
            delivery_count_limit=self.rnd.randint(2, 6),
            max_record_locks=self.rnd.choice((5, 20, 60)),
            dead_letter_queue=self.rnd.random() < 0.7,
            redelivery=some_redelivery(self.rnd),
            lock_max_ms=self.rnd.choice((0, 250, 1000)),
            limits_undecided=self.rnd.random() < 0.4,
            is_queue=self.rnd.random() < 0.5,
        )
        self.sp.use(self.settings)
        self.held = HeldRecords() if self.rnd.random() < 0.7 else None
        self.sp.count_held(self.held)

    def settle(self) -> None:
        """One write ends, with success or failure. A failed one may have been saved
        nevertheless."""
        if not self.writes:
            return
        write = self.writes.pop(self.rnd.choice(list(self.writes)))
        succeeds = self.rnd.random() >= self.failures
        if succeeds:
            self._save(write)
            self.sp.persisted(write.persist.token)
            self._succeeded(write)
        else:
            if self.rnd.random() < 0.3:
                self._save(write)
                self.ghosts |= {
                    o: max((b.delivery_count, b.state), self.ghosts.get(o, NOTHING))
                    for o, b in write.said.items()
                }
            self.sp.persist_failed(write.persist.token, now_ms=self.now_ms)
            self.uncounted += write.given_up
            for rec in [self.known[offset] for offset in write.offsets if offset in self.known]:
                assert rec.target is not None
                rec.target = rec.cause = None
                rec.due_ms, rec.is_gap = 0, False
                # its holder answered: not renewed
                rec.since_ms = float("-inf")
                if rec.deadline_ms <= self.now_ms:
                    rec.state, rec.member = self._given_back(rec), None
                    self.uncounted += rec.state == ARCHIVED
        self.check(settled=True)

    def _succeeded(self, write: Write) -> None:
        for offset, batch in write.said.items():
            entry = (batch.delivery_count, batch.state)
            self.known_saved[offset] = max(self.known_saved.get(offset, NOTHING), entry)
            rec = self.known.get(offset)
            if rec is None:
                continue
            if rec.target is not None and offset in write.offsets:
                rec.state, rec.member, rec.target = rec.target, None, None
                if rec.state in DONE:
                    self.confirmed.add(offset)
            if rec.state == ARCHIVING and (rec.count, rec.state) == entry:
                rec.is_saved = True
                self.dead_letters.owed.add(offset)
                # an unnoticed ARCHIVED, which wins at the same count
                if self.ghosts.get(offset, NOTHING) > entry:
                    self.dead_letters.waived.add(offset)

    def reload(self) -> None:
        """The broker is killed: writes under way were saved or not, dead letters that were being
        appended are there or not."""
        for write in self.writes.values():
            if self.rnd.random() < 0.5:
                self._save(write)
        self.dead_letters.crash(self.rnd)
        self._check_nothing_is_lost()
        self._load()

    def unload(self) -> None:
        """Without a crash the loaded state must be the same as before, because the dead letter
        queue is not read then."""
        if self.sp.is_settled:
            assert not self.uncounted
            self._check_nothing_is_lost()
            self._load()

    # ---- dead letters ----------------------------------------------------------------------------

    def take_dead_letters(self) -> None:
        ready = {
            o: rec
            for o, rec in self.known.items()
            if rec.state == ARCHIVING and rec.is_saved and not rec.is_taken
        }
        expected = {offset: (rec.count, rec.cause) for offset, rec in ready.items() if rec.cause is not None}
        assert len(expected) == len(ready)
        self.dead_letters.take(self.sp, expected, self.saved)
        for rec in ready.values():
            rec.is_taken = True

    def write_dead_letters(self) -> None:
        self.dead_letters.write(self.rnd)

    def end_dead_letters(self) -> None:
        persist, ended = self.dead_letters.end(self.sp, self.rnd)
        known = [offset for offset in ended if offset in self.known]
        assert (persist is None) == (not known)
        for offset in known:
            assert self.known[offset].state == ARCHIVING
            self.known[offset] = Rec(ARCHIVED, self.known[offset].count)
        self.uncounted += len(known)
        if persist is not None:
            self._began(persist, [])
            self.check(settled=True)

    def give_back_dead_letters(self) -> None:
        for offset in self.dead_letters.give_back(self.sp, self.rnd):
            if offset in self.known:
                self.known[offset].is_taken = False

    def retry(self) -> None:
        unsaved = self._unsaved_archiving()
        persist = self.sp.retry_unsaved()
        assert persist is not None or not unsaved
        if persist is not None:
            self._began(persist, [])
            assert persist.archiving or not unsaved
            assert not self.sp.has_unsaved_archiving

    # ---- saving ----------------------------------------------------------------------------------

    def _given_back(self, rec: Rec, *, waits: bool = True) -> int:
        if rec.count < self.settings.delivery_count_limit:
            if waits and self.settings.redelivery is not None:
                rec.due_ms = self.now_ms + self.settings.redelivery.wait_ms(rec.count, 0)
            return AVAILABLE
        if not self.settings.dead_letter_queue:
            return ARCHIVED
        rec.cause = DeadLetterCause.EXHAUSTED
        return ARCHIVING

    def _began(self, persist: Persist, offsets: list[int], holder: str | None = None) -> None:
        assert persist.token not in self.writes
        assert persist.start_offset == self.start
        said = by_offset(persist.batches)
        assert set(offsets) <= said.keys()
        for offset, batch in said.items():
            rec = self.known[offset]
            assert (batch.state, batch.delivery_count) == (
                rec.state if rec.target is None else rec.target,
                rec.count,
            )
            assert batch.state != ACQUIRED
            assert (rec.target is not None) == (offset in offsets)
        assert persist.archiving == any(batch.state == ARCHIVING for batch in said.values())
        assert persist.delivery_complete_count == sum(rec.counts_as_done for rec in self.known.values())
        ending = sum(self.known[o].target == ARCHIVED and not self.known[o].is_gap for o in offsets)
        assert persist.given_up == self.uncounted + ending
        self.writes[persist.token] = Write(persist, offsets, said, holder, self.uncounted)
        self.uncounted = 0
        self._check_nothing_is_left_out()

    def _save(self, write: Write) -> None:
        self.saved_start = max(self.saved_start, write.persist.start_offset)
        self.saved_batches = combine(self.saved_batches, write.persist.batches, self.saved_start)
        for offset, batch in write.said.items():
            self.saved[offset] = max(self.saved.get(offset, NOTHING), (batch.delivery_count, batch.state))
        self.saved = {offset: entry for offset, entry in self.saved.items() if offset >= self.saved_start}
        assert {
            o: (batch.delivery_count, batch.state) for o, batch in by_offset(self.saved_batches).items()
        } == self.saved

    def drain(self) -> None:
        """No record is lost: a member that keeps fetching and accepting finishes the whole log."""
        while self.writes:
            self.settle()
        for _ in range(20 + 8 * (self.log_end + 1 - self.start)):
            self.now_ms += LOCK_MS
            self.expire()
            taken = self.fetch("drain")
            self.check()
            held = sorted(
                offset for offset, rec in self.known.items() if rec.member == "drain" and rec.target is None
            )
            for offset in held:
                persist = self.sp.acknowledge(
                    "drain", [AckBatch(offset, offset, (ACCEPT,))], now_ms=self.now_ms
                )
                assert persist is not None
                self.known[offset].target = ACKNOWLEDGED
                self._began(persist, [offset], "drain")
            self._drain_dead_letters()
            while self.writes:
                self.settle()
            self.check()
            if not taken and not any(rec.state in (AVAILABLE, ACQUIRED) for rec in self.known.values()):
                unread = {
                    offset for offset in self.exists() if offset >= self.start and offset not in self.known
                }
                if not unread:
                    break
        left = {offset: rec for offset, rec in self.known.items() if rec.state not in DONE}
        assert not left, (left, self.failures, self.settings)
        assert {offset for offset in self.exists() if offset >= self.start} <= self.known.keys()
        self._drain_dead_letters()
        self.dead_letters.check_all_written()
        assert not self.sp.has_archiving
        assert self.sp.is_settled

    def _drain_dead_letters(self) -> None:
        """Also those in hand whose records the log's start has passed: the writer is not
        notified."""
        while self.writes or self.sp.has_archiving or self.dead_letters.in_hand:
            self.settle()
            self.retry()
            self.take_dead_letters()
            self.write_dead_letters()
            self.end_dead_letters()
