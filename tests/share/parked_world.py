"""A share-partition whose long waits are parked, a store for them, and a checker of the deliveries
that members see.

The store applies writes as a persister does: in the order of submission, and a failed write fails
those after it. It may be one store, which saves a write as a whole or not at all. Or it may be two,
parked records first and then the state: the first part of a failed write may be saved.

The checker knows only the promises:
- A record has one holder at a time.
- It is not delivered before its due time, or after a confirmed accept.
- Its counts rise by one. In a queue, none exceeds the delivery limit, also where that is lowered.
- A queue's last attempt is alone in its answer.
- Each record that is given up has one dead letter.
- No record is lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import Any

from kbroker.errors import ErrorCode, KafkaError
from kbroker.share.effects import AckBatch, AcquiredRange, Persist, ShareSettings
from kbroker.share.held import HeldRecords
from kbroker.share.parked import Lane, Parked
from kbroker.share.parking import Look
from kbroker.share.redelivery import Redelivery
from kbroker.share.share_partition import AcquireMode
from tests.share.engine import Engine
from tests.share.parked_checks import MEMBERS, ParkedChecks
from tests.share.parked_log import ParkedLog
from tests.share.parked_store import Job, Store, record_of
from tests.share.parked_writes import ENDED, EXHAUSTED, EXPIRED
from tests.share.queue_driver import ACCEPT, GAP, REJECT, RELEASE, RENEW

LOCK_MS = 100
LIFE_AHEAD_MS = 1_000_000
"""How far the broker's time since 1970 is ahead of the engine's clock."""
PARK_FROM_MS = 50


class World(ParkedChecks, ParkedLog):
    jitter = 0.0

    def __init__(self, rnd: Random) -> None:
        self.rnd = rnd
        self.two_stores = rnd.random() < 0.5
        self.failures = rnd.choice((0.0, 0.1, 0.4))
        self.settings = self.first_settings(rnd)
        self.alters_limit, self.alters_queue = rnd.random() < 0.4, rnd.random() < 0.3
        self.batched = rnd.random() < 0.3
        self.markers: dict[int, bool] = {}
        self.bases: list[int] = []
        self.planned: tuple[str, list[int], list[int]] | None = None
        self.lowest_limit = self.settings.delivery_count_limit
        self.wall_ahead_ms = LIFE_AHEAD_MS
        self.latest_wall_ms: float = 0
        self.now_ms = 0.0
        self.log_start = self.log_end = self.life = 0
        self.jobs: dict[int, Job] = {}
        self.store = self.first_store()
        self.writes: list[tuple[Persist, dict[int, int], str | None]] = []
        self.dead_letters: dict[int, int] = {}
        self.in_hand: dict[int, int] = {}
        self.reads: list[tuple[Lane, list[Parked] | None, tuple[int, int]]] = []
        self.sweeps: list[tuple[list[Parked], Look]] = []
        self.keeping: tuple[list[Parked], Look] | None = None
        self.revived: set[int] = set()
        self.seen = Counter[str]()
        self.parked_ever = self.parked_delivered = self.expired_ever = self.moved_ever = (
            self.kept_delivered
        ) = self.exhausted_ever = 0
        self.append()
        self._load()

    def first_settings(self, rnd: Random) -> ShareSettings:
        return ShareSettings(
            delivery_count_limit=rnd.choice((2, 3, 6)),
            lock_duration_ms=LOCK_MS,
            max_record_locks=rnd.choice((6, 30)),
            dead_letter_queue=rnd.random() < 0.7,
            redelivery=Redelivery(rnd.choice((30, 60, 300)), 2, 600, self.jitter),
            lock_max_ms=rnd.choice((0, 250)),
            park_from_ms=PARK_FROM_MS,
            scans=rnd.random() < 0.5,
            limits_undecided=rnd.random() < 0.5,
            is_queue=rnd.random() < 0.8,
        )

    def _load(self) -> None:
        if self.two_stores:
            self.store.load()
        assert self.store.waiting == len(self.store.offsets) == len(self.store.places)
        self.writes, self.reads, self.sweeps, self.keeping = [], [], [], None
        for offset, job in self.jobs.items():
            if job.gone and self.store.keeps(offset):  # A failed write has kept it, or not removed it.
                job.gone = False
                self.revived.add(offset)
        self.sp = self.engine()
        self.held = HeldRecords()
        self.sp.count_held(self.held)
        self._take_writes_anyway()

    def first_store(self) -> Store:
        return Store(0)

    def engine(self) -> Engine:
        return Engine(self.settings, self.store, **self._times())

    def _times(self) -> dict[str, Any]:
        return {"leader_epoch": self.life, "now_ms": self.now_ms, "life_ahead_ms": self.wall_ahead_ms}

    # ---- commands --------------------------------------------------------------------------------

    def respond(self) -> None:
        """One response with records of the window and parked ones, in either order."""
        member, fetches = self.rnd.choice(MEMBERS), [self.fetch, self.fetch_parked]
        self.rnd.shuffle(fetches)
        fetches[1](member, follows=fetches[0](member))

    def fetch(self, member: str | None = None, follows: int = 0) -> int:
        """How many records the member got."""
        self._move_log_start()
        member = member or self.rnd.choice(MEMBERS)
        offset = self.sp.offset_to_acquire()
        if offset is None or offset >= self.log_end:
            return 0
        batches, control = self._read(offset)
        ranges = self.sp.acquire(
            member,
            mode=AcquireMode.BATCH_OPTIMIZED if self.batched else AcquireMode.RECORD_LIMIT,
            batch_size=1,
            max_records=self.rnd.choice((1, 2, 5)),
            fetch_offset=offset,
            batches=batches,
            control=control,
            now_ms=self.now_ms,
            follows=follows if self.settings.is_queue else 0,
        )
        self._save_given_up()
        self._delivered(member, ranges)
        return size_of(ranges)

    def _save_given_up(self) -> bool:
        """Records that have reached a lowered delivery limit, instead of being delivered."""
        has_given_up = self.sp.has_given_up
        assert not has_given_up or (self.alters_limit and self.settings.is_queue)
        persist = self.sp.save_passed()
        assert (persist is None) == (not has_given_up) or self.markers
        self._began(persist, {}, None)
        return has_given_up

    def plan(self) -> None:
        """A fetch chooses parked records, reads the log, and acquires what it can still have. Begin
        that, or end it: compaction may have removed a record meanwhile."""
        if self.planned is None:
            turn = self.sp.in_turn(self.rnd.choice((1, 1, 3)))
            if turn:
                self.planned = self.rnd.choice(MEMBERS), turn, [self.jobs[offset].count for offset in turn]
            return
        (member, turn, counts), self.planned = self.planned, None
        self._move_log_start()
        self._drop_lost()
        lost = [each for each in turn if self.rnd.random() < 0.1 and self.sp.is_ready(each)]
        for offset in lost:
            self.jobs[offset].gone = self.jobs[offset].may_be_kept = True
        self.seen["record lost in the log during a plan"] += len(lost)
        self._began(self.sp.parked_lost(lost), {}, None)
        left = [each for each in turn if each not in lost]
        chosen = zip(turn, counts, strict=True)
        again = [self.sp.is_ready(each) and self.jobs[each].count > count for each, count in chosen]
        self.seen["record released during a plan"] += sum(again)
        if left:
            self._acquire_parked(member, left, self.rnd.choice((0, 0, 1)))

    def fetch_parked(self, member: str | None = None, follows: int = 0) -> int:
        """How many records the member got."""
        self._move_log_start()
        member = member or self.rnd.choice(MEMBERS)
        self._drop_lost()
        turn = self.sp.in_turn(self.rnd.choice((1, 2, 5)))
        ready = self.sp.parked_ready
        ranges, has_given_up = self._acquire_parked(member, turn, follows)
        assert bool(ranges) == (bool(turn) and ready > 0) or has_given_up or follows
        assert not ranges or ranges[0].first_offset <= turn[0] or len(turn) > 1
        is_full = self._locked() >= self.settings.max_record_locks
        assert ranges or has_given_up or follows or not turn or is_full or not self.sp.has_learnt_keys, (
            "a due record is refused by the number of locks only"
        )
        return size_of(ranges)

    def _acquire_parked(self, member: str, turn: list[int], follows: int) -> tuple[list[AcquiredRange], bool]:
        exhausted = self.sp.statistics().exhausted
        ranges = self.sp.acquire_parked(
            member, turn, now_ms=self.now_ms, follows=follows if self.settings.is_queue else 0
        )
        self.exhausted_ever += self.sp.statistics().exhausted - exhausted
        has_given_up = self._save_given_up()
        self.parked_delivered += size_of(ranges)
        for first, last, _ in ranges:
            for offset in range(first, min(last + 1, self.log_start)):
                assert self.store.keeps(offset), f"{offset} is in the log no more"
                assert self.store.records[offset] == record_of(offset)
                self.kept_delivered += 1
        self._delivered(member, ranges)
        return ranges, has_given_up

    def _drop_lost(self) -> None:
        """A record whose accept was in a failed write may no longer be kept, although the member
        got an error."""
        ready = self.sp.in_turn(1 << 30)
        lost = [each for each in ready if each < self.log_start and each not in self.store.records]
        for offset in lost:
            assert self.jobs[offset].may_be_over, f"{offset} is kept nowhere"
            self.jobs[offset].gone = True
        self._began(self.sp.parked_lost(lost), {}, None)

    def _delivered(self, member: str, ranges: list[AcquiredRange]) -> None:
        limit, is_queue = self.settings.delivery_count_limit, self.settings.is_queue
        if is_queue and any(count == limit for _, _, count in ranges):
            assert len(ranges) == 1
            assert ranges[0].first_offset == ranges[0].last_offset, "the last attempt goes alone"
        for first, last, count in ranges:
            for offset in range(first, last + 1):
                job = self.jobs[offset]
                assert not job.done, f"{offset} again after a confirmed accept"
                assert not job.gone or job.may_be_kept, f"{offset} is below the log's start"
                job.gone = False
                assert not job.given_up, f"{offset} is a dead letter"
                assert not job.expired, f"{offset} is past its time"
                assert job.member is None, f"{offset} is held by {job.member}"
                assert job.due_ms <= self.now_ms, f"{offset} before its time"
                assert count <= limit or (self.alters_limit and not is_queue)
                assert count > 1 or job.was_moved or self._was_due(job), f"{offset} before it is due"
                assert job.least_count < count <= job.count + 1, (
                    f"{offset}: delivery {count} after {job.count}"
                )
                job.count = job.least_count = count
                job.member, job.answered = member, False
                job.deadline_ms = self.now_ms + self.settings.lock_duration_ms
        assert not ranges or self.batched or self._locked() <= self.settings.max_record_locks

    def acknowledge(self) -> None:
        member = self.rnd.choice(MEMBERS)
        held = sorted(offset for offset, job in self.jobs.items() if job.member == member)
        if not held:
            return
        chosen = [offset for offset in held if self.rnd.random() < 0.6] or held[:1]
        if self.rnd.random() < 0.1:
            chosen = sorted({*chosen, self.rnd.randrange(self.log_end)})
        types = {
            offset: self.rnd.choice((ACCEPT, ACCEPT, RELEASE, RELEASE, REJECT, RENEW, GAP))
            for offset in chosen
        }
        self._acknowledge(member, types)

    def _acknowledge(self, member: str, types: dict[int, int]) -> None:
        batches = []
        for offset, ack_type in types.items():
            before = batches[-1] if batches else None
            if before is not None and before.last_offset + 1 == offset and self.rnd.random() < 0.7:
                batches[-1] = AckBatch(before.first_offset, offset, (*before.types, ack_type))
            else:
                batches.append(AckBatch(offset, offset, (ack_type,)))
        others = [offset for offset in types if self.jobs[offset].member != member]
        strange = [
            each
            for each in others
            if not (self.jobs[each].gone or self.sp.is_hole(each))
            and (each >= self.log_start or self.store.keeps(each))
        ]
        try:
            persist = self.sp.acknowledge(member, batches, now_ms=self.now_ms)
        except KafkaError as error:
            refused = error.code
        else:
            refused = ErrorCode.none
        if refused is not ErrorCode.none:
            assert others, "a member may acknowledge what it holds"
            lowest = min(self.sp.kept_from, self.sp.floor)
            is_known = any(self.jobs[each].may_be_kept for each in others) or max(others) >= lowest
            assert strange or is_known, "what is below the log's start is skipped"
            for job in [self.jobs[each] for each, ack_type in types.items() if ack_type != RENEW]:
                job.answered |= job.member == member and self.settings.lock_max_ms > 0
            return
        assert not strange, "an accept of a record that another member has, or gets, is not confirmed"
        said = {}
        for offset, ack_type in types.items():
            job = self.jobs[offset]
            if job.member != member:
                continue  # below the log's start: skipped silently
            if ack_type == RENEW:
                job.deadline_ms, job.answered = self.now_ms + self.settings.lock_duration_ms, False
            else:
                if ack_type == REJECT and not self.settings.dead_letter_queue:
                    ack_type = GAP
                said[offset] = ack_type if ack_type != RELEASE else self._released(job)
                job.member = "saving"
                if ack_type == RELEASE:
                    self._waits(job)
        self._began(persist, said, member)

    def _released(self, job: Job) -> int:
        if job.count < self.settings.delivery_count_limit:
            return RELEASE
        return EXHAUSTED if self.settings.dead_letter_queue else ENDED

    def give_up(self) -> None:
        """Records exceed their time to live: those that are neither held nor waiting are no longer
        delivered."""
        self._move_log_start()
        chosen = [offset for offset in range(self.log_start, self.log_end) if self.rnd.random() < 0.2]
        free = {*self.sp.available_in(self.log_start, self.log_end), *self.sp.in_turn(1 << 30)} & set(chosen)
        in_window = {offset for offset in free if not self.sp.is_ready(offset)}
        before = self.sp.statistics().expired
        persist = self.sp.expire_records(chosen)
        assert self.sp.statistics().expired - before == len(free)
        assert (persist is None) == (not free)
        for offset in free:
            assert self.jobs[offset].member is None
            self.jobs[offset].expired = True
            self.expired_ever += 1
        has_queue = self.settings.dead_letter_queue
        self._began(persist, dict.fromkeys(in_window, EXPIRED) if has_queue else {}, None)

    def _waits(self, job: Job) -> None:
        redelivery = self.settings.redelivery
        job.due_ms = self.now_ms + (0 if redelivery is None else redelivery.wait_ms(job.count, 0))

    def configure(self) -> None:
        """Settings are altered: waiting records keep their due times."""
        rnd, waits = self.rnd, ((30, 2, 600), (60, 1, 60), (300, 2, 600))
        self.settings = replace(
            self.settings,
            redelivery=rnd.choice((None, *(Redelivery(*each, self.jitter) for each in waits))),
            park_from_ms=rnd.choice((None, PARK_FROM_MS, PARK_FROM_MS)),
            max_record_locks=rnd.choice((6, 30)),
            limits_undecided=rnd.random() < 0.5,
            lock_max_ms=rnd.choice((0, 250)),
            lock_duration_ms=rnd.choice((LOCK_MS, LOCK_MS, 40)),
        )
        if self.alters_queue:
            has_queue, is_queue = rnd.random() < 0.7, rnd.random() < 0.8
            self.settings = replace(self.settings, dead_letter_queue=has_queue, is_queue=is_queue)
        self.sp.let_letters_wait(rnd.random() < 0.2)
        if self.alters_limit:
            limit = rnd.choice((2, 3, 6))
            self.settings = replace(self.settings, delivery_count_limit=limit)
            self.lowest_limit = min(limit, self.lowest_limit)
        self.sp.use(self.settings)

    def release(self, member: str | None = None, *, in_order: bool | None = None) -> None:
        member = member or self.rnd.choice(MEMBERS)
        in_order = self.rnd.random() < 0.5 if in_order is None else in_order
        for offset in [each for each, holder in self._holdings() if holder == member]:
            job = self.jobs[offset]
            if job.gone:  # It was kept after all, and the save of its acknowledgement failed.
                assert job.may_be_kept
                job.gone, job.member = False, member
        persist = self.sp.release_member(member, delayed_at_ms=None if in_order else self.now_ms)
        held = {offset: self._released(job) for offset, job in self.jobs.items() if job.member == member}
        for offset in held:
            self.jobs[offset].member = "saving"
            if not in_order:
                self._waits(self.jobs[offset])
        assert (persist is None) == (not held)
        self._began(persist, held, member)

    def wait(self) -> None:
        self.now_ms += self.rnd.choice((1, 10, LOCK_MS // 2, LOCK_MS))
        self._look_at_the_clock()
        self.expire()

    def expire(self) -> None:
        alive = {member: self.rnd.choice((0, 1000)) for member in (*MEMBERS, "drain")}
        due = [
            (offset, job)
            for offset, job in self.jobs.items()
            if job.member in alive and job.deadline_ms <= self.now_ms
        ]
        deadline_ms = self.sp.next_deadline_ms()
        assert not due or (deadline_ms is not None and deadline_ms <= self.now_ms)
        prolonged = self.sp.statistics().prolonged_locks
        persist = self.sp.expire(self.now_ms, alive.__getitem__)
        prolonged = self.sp.statistics().prolonged_locks - prolonged
        held = {run[0] for run in self._holdings()}
        for offset, job in due:
            if offset in held:
                assert not job.answered, "its holder works on it no more"
                # renewed; the other model checks by how much
                job.deadline_ms = self.sp.deadline_of(offset)
                prolonged -= 1
                continue
            job.member = None
            self._waits(job)
        assert 0 <= prolonged <= sum(job.may_be_kept for job in self.jobs.values())
        self._began(persist, {}, None)
        self.sp.end_waits(self.now_ms, self.wall_ms)

    def read(self) -> None:
        """Begin a read of parked records, or end one; it shows the store at one of these
        moments."""
        if self.reads and self.rnd.random() < 0.7:
            lane, found, after = self.reads.pop()
            if self.rnd.random() < 0.05:
                self.sp.fail_read(lane)
                return
            shown = self.store.read(lane, after) if found is None else found
            lost = {each.offset for each in shown if self.rnd.random() < 0.02}
            self.sp.end_read(lane, shown, self.settings, lambda parked: parked.offset in lost)
            for offset in lost.intersection(self.sp.ghosts):
                self.jobs[offset].gone = self.jobs[offset].may_be_kept = True
            return
        wanted = self.sp.begin_read()
        if wanted is not None:
            lane, after = wanted
            self.reads.append(
                (lane, self.store.read(lane, after) if self.rnd.random() < 0.5 else None, after)
            )

    # ---- checks ----------------------------------------------------------------------------------

    def drain(self) -> None:
        """A member keeps fetching and accepting: everything is finished, and no record was lost."""
        self.failures = 0.0
        for _ in range(40 + 12 * len(self.jobs)):
            while self.writes:
                self.settle()
            self.now_ms += LOCK_MS
            self._look_at_the_clock()
            self.expire()
            for _ in range(4):
                self.read()
            self.scan()
            self.fetch("drain")
            self.fetch_parked("drain")
            self.check()
            held = sorted(offset for offset, job in self.jobs.items() if job.member == "drain")
            if held:
                self._acknowledge("drain", dict.fromkeys(held, ACCEPT))
            while self.writes:
                self.settle()
            self.bury()
            self.sweep()
            self.sweep()
            if self.is_empty():
                break
        while self.writes:
            self.settle()
        for offset, job in self.jobs.items():
            is_over = job.done or job.given_up or job.gone or job.expired or offset in self.dead_letters
            assert is_over or job.count >= self.lowest_limit, f"{offset} is lost"
            has_letter = job.gone or job.expired or offset in self.dead_letters
            had_queue = self.settings.dead_letter_queue and not self.alters_queue
            assert has_letter or job.done or not had_queue or job.may_be_over, (
                f"{offset} reached the limit and has no dead letter"
            )
            assert not job.given_up or job.gone or offset in self.dead_letters, (
                f"the dead letter of {offset} is lost"
            )
        assert self.sp.is_settled
        assert not self.settings.scans or self.sp.start_offset == self.log_end, (
            "something holds up the start offset"
        )
        self._check_store()
        assert not self.store.offsets
        assert not self.store.records
        assert self.sp.waiting == 0


def size_of(ranges: Iterable[AcquiredRange]) -> int:
    return sum(last - first + 1 for first, last, _ in ranges)
