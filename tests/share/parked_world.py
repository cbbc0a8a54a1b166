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

from dataclasses import replace
from random import Random

from kbroker.errors import ErrorCode, KafkaError
from kbroker.share import archiving, log_start, offers, scanning
from kbroker.share.effects import AckBatch, AcquiredRange, Persist, ShareSettings
from kbroker.share.held import HeldRecords
from kbroker.share.parked import Lane, Parked
from kbroker.share.parked_keeping import Look
from kbroker.share.parked_memory import NOWHERE
from kbroker.share.parking import Parking
from kbroker.share.redelivery import Redelivery
from kbroker.share.share_partition import AcquireMode, SharePartition
from tests.share.log_starts import LogStarts
from tests.share.parked_checks import MEMBERS, ParkedChecks
from tests.share.parked_store import READ_AT_ONCE, Job, Store, record_of
from tests.share.queue_driver import ACCEPT, GAP, REJECT, RELEASE, RENEW

LOCK_MS = 100
PARK_FROM_MS = 50
LIFE_AHEAD_MS = 1_000_000
"""How far the broker's time since 1970 is ahead of the engine's clock."""
_EXPIRED, _EXHAUSTED = -1, -2
"""Join the acknowledge types as the content of a write. The latter: released at the limit."""


class World(ParkedChecks, LogStarts):
    def __init__(self, rnd: Random) -> None:
        self.rnd = rnd
        self.two_stores = rnd.random() < 0.5
        self.failures = rnd.choice((0.0, 0.1, 0.4))
        self.settings = self.first_settings(rnd)
        self.alters_limit = rnd.random() < 0.4
        self.lowest_limit = self.settings.delivery_count_limit
        self.wall_ahead_ms = LIFE_AHEAD_MS
        self.latest_wall_ms: float = 0
        self.now_ms = 0.0
        self.log_start = self.log_end = self.life = 0
        self.jobs: dict[int, Job] = {}
        self.store = Store(0)
        self.writes: list[tuple[Persist, dict[int, int], str | None]] = []
        self.dead_letters: dict[int, int] = {}
        self.in_hand: dict[int, int] = {}
        self.reads: list[tuple[Lane, list[Parked] | None, tuple[int, int]]] = []
        self.sweeps: list[tuple[list[Parked], Look]] = []
        self.keeping: tuple[list[Parked], Look] | None = None
        self.revived: set[int] = set()
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
            redelivery=Redelivery(rnd.choice((30, 60, 300)), 2, 600, 0),
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
        self.sp = SharePartition.load(
            self.settings,
            start_offset=self.store.start,
            state_batches=self.store.batches,
            state_epoch=0,
            leader_epoch=self.life,
        )
        self.parking = Parking(
            self.store.waiting, leader_epoch=self.life, life_ahead_ms=LIFE_AHEAD_MS, now_ms=self.now_ms
        )
        for order in self.parking._orders.values():
            if order.lane is not Lane.ARCHIVING:
                order.few, order.many = 2, 5
        self.parking.kept_from = min(
            (offset for offset in self.store.offsets if self.store.keeps(offset)), default=NOWHERE
        )
        self.sp.parking = self.parking
        self.held = HeldRecords()
        self.sp.count_held(self.held)
        self._take_writes_anyway()

    # ---- commands --------------------------------------------------------------------------------

    def append(self) -> None:
        for _ in range(self.rnd.randint(1, 8)):
            job = self.jobs[self.log_end] = Job()
            self.log_end += 1
            if self.settings.scans and self.rnd.random() < 0.5:
                job.scheduled_ms = int(self.wall_ms) + self.rnd.choice((10, 40, 60, 300, 900))

    @property
    def wall_ms(self) -> float:
        return self.now_ms + self.wall_ahead_ms

    def step_clock(self) -> None:
        """The wall clock is set."""
        self.wall_ahead_ms += self.rnd.choice((-400, -50, 50, 400))
        self._look_at_the_clock()

    def _look_at_the_clock(self) -> None:
        self.latest_wall_ms = max(self.latest_wall_ms, self.wall_ms)

    def _was_due(self, job: Job) -> bool:
        """At some moment of this life."""
        return not self.settings.scans or job.scheduled_ms <= self.latest_wall_ms

    def scan(self) -> None:
        if not self.settings.scans:
            return
        self._move_log_start()
        self._began(scanning.park_again(self.sp, self.wall_ms), {}, None)
        offset = scanning.scan_from(self.sp)
        if offset is None or offset >= self.log_end:
            return
        end = min(self.log_end, offset + self.rnd.choice((1, 3, 20)))
        due = {each: self.jobs[each].scheduled_ms for each in range(offset, end)}
        scheduled = [(each, due_ms) for each, due_ms in due.items() if due_ms > self.wall_ms]
        batches = [(each, each) for each in range(offset, end)]
        times = {"now_ms": self.now_ms, "wall_ms": self.wall_ms}
        persist = scanning.scanned(self.sp, offset, batches, (), scheduled, **times)
        assert scanning.scan_from(self.sp) != offset
        self._began(persist, {}, None)

    def scan_ahead(self) -> None:
        """Find records further on to be unscheduled, or due."""
        offset = (
            scanning.scan_from(self.sp) if self.settings.scans and scanning.may_look_ahead(self.sp) else None
        )
        if offset is None or offset >= self.log_end:
            return
        first = self.rnd.randrange(offset, self.log_end)
        last = min(first + self.rnd.choice((0, 2)), self.log_end - 1)
        if all(self.jobs[each].scheduled_ms <= self.wall_ms for each in range(first, last + 1)):
            scanning.place_ahead(self.sp, first, last)

    def fetch(self, member: str | None = None) -> None:
        self._move_log_start()
        member = member or self.rnd.choice(MEMBERS)
        offset = offers.offset_to_acquire(self.sp)
        if offset is None or offset >= self.log_end:
            return
        ranges = self.sp.acquire(
            member,
            mode=AcquireMode.RECORD_LIMIT,
            batch_size=1,
            max_records=self.rnd.choice((1, 2, 5)),
            fetch_offset=offset,
            batches=[(each, each) for each in range(offset, self.log_end)],
            now_ms=self.now_ms,
        )
        self._save_given_up()
        self._delivered(member, ranges)

    def _save_given_up(self) -> bool:
        """Records that have reached a lowered delivery limit, instead of being delivered."""
        has_given_up = self.sp.saves.has_given_up
        assert not has_given_up or (self.alters_limit and self.settings.is_queue)
        persist = self.sp.save_passed()
        assert (persist is None) == (not has_given_up)
        self._began(persist, {}, None)
        return has_given_up

    def fetch_parked(self, member: str | None = None) -> None:
        self._move_log_start()
        member = member or self.rnd.choice(MEMBERS)
        self._drop_lost()
        turn = self.parking.in_turn(self.rnd.choice((1, 2, 5)))
        ready = offers.parked_ready(self.sp)
        exhausted = self.sp.statistics().exhausted
        ranges = self.sp.acquire_parked(member, turn, now_ms=self.now_ms)
        self.exhausted_ever += self.sp.statistics().exhausted - exhausted
        has_given_up = self._save_given_up()
        assert bool(ranges) == (bool(turn) and ready > 0) or has_given_up
        assert not ranges or ranges[0].first_offset <= turn[0] or len(turn) > 1
        is_full = self._locked() >= self.settings.max_record_locks
        assert ranges or has_given_up or not turn or is_full or not self.sp.has_learnt_keys, (
            "a due record is refused by the number of locks only"
        )
        self.parked_delivered += sum(last - first + 1 for first, last, _ in ranges)
        for first, last, _ in ranges:
            for offset in range(first, min(last + 1, self.log_start)):
                assert self.store.keeps(offset), f"{offset} is in the log no more"
                assert self.store.records[offset] == record_of(offset)
                self.kept_delivered += 1
        self._delivered(member, ranges)

    def _drop_lost(self) -> None:
        """A record whose accept was in a failed write may no longer be kept, although the member
        got an error."""
        lost = [
            each for each in self.parking._ready if each < self.log_start and each not in self.store.records
        ]
        for offset in lost:
            assert self.jobs[offset].may_be_over, f"{offset} is kept nowhere"
            self.jobs[offset].gone = True
        self._began(log_start.lost(self.sp, lost), {}, None)

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
                job.member, job.deadline_ms, job.answered = member, self.now_ms + LOCK_MS, False
        assert not ranges or self._locked() <= self.settings.max_record_locks

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
            if not (self.jobs[each].gone or self._is_hole(each))
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
            is_known = any(self.jobs[each].may_be_kept for each in others) or max(others) >= min(
                self.parking.kept_from, self.parking.floor
            )
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
                job.deadline_ms, job.answered = self.now_ms + LOCK_MS, False
            else:
                said[offset] = ack_type if ack_type != RELEASE else self._released(job)
                job.member = "saving"
                if ack_type == RELEASE:
                    self._waits(job)
        self._began(persist, said, member)

    def _released(self, job: Job) -> int:
        return RELEASE if job.count < self.settings.delivery_count_limit else _EXHAUSTED

    def give_up(self) -> None:
        """Records exceed their time to live: those that are neither held nor waiting are no longer
        delivered."""
        self._move_log_start()
        chosen = [offset for offset in range(self.log_start, self.log_end) if self.rnd.random() < 0.2]
        free = {*self.sp.window.available_in(self.log_start, self.log_end), *self.parking.in_turn(1 << 30)}
        free &= set(chosen)
        in_window = {offset for offset in free if not self.parking.is_ready(offset)}
        before = self.sp.statistics().expired
        persist = scanning.expire_records(self.sp, chosen)
        assert self.sp.statistics().expired - before == len(free)
        assert (persist is None) == (not free)
        for offset in free:
            assert self.jobs[offset].member is None
            self.jobs[offset].expired = True
            self.expired_ever += 1
        has_queue = self.settings.dead_letter_queue
        self._began(persist, dict.fromkeys(in_window, _EXPIRED) if has_queue else {}, None)

    def _waits(self, job: Job) -> None:
        redelivery = self.settings.redelivery
        job.due_ms = self.now_ms + (0 if redelivery is None else redelivery.wait_ms(job.count, 0))

    def configure(self) -> None:
        """Settings are altered: waiting records keep their due times."""
        rnd = self.rnd
        self.settings = replace(
            self.settings,
            redelivery=rnd.choice(
                (None, Redelivery(30, 2, 600, 0), Redelivery(60, 1, 60, 0), Redelivery(300, 2, 600, 0))
            ),
            park_from_ms=rnd.choice((None, PARK_FROM_MS, PARK_FROM_MS)),
            max_record_locks=rnd.choice((6, 30)),
            limits_undecided=rnd.random() < 0.5,
            lock_max_ms=rnd.choice((0, 250)),
        )
        if self.alters_limit:
            limit = rnd.choice((2, 3, 6))
            self.settings = replace(self.settings, delivery_count_limit=limit)
            self.lowest_limit = min(limit, self.lowest_limit)
        self.sp.use(self.settings)

    def release(self) -> None:
        member = self.rnd.choice(MEMBERS)
        in_order = self.rnd.random() < 0.5
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
                job.deadline_ms = self._deadline_of(offset)
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
                self.parking.fail_read(lane)
                return
            shown = self.store.read(lane, after) if found is None else found
            self.parking.end_read(lane, shown, self.settings, lambda _: False, READ_AT_ONCE)
            return
        wanted = self.parking.begin_read()
        if wanted is not None:
            lane, after = wanted
            self.reads.append(
                (lane, self.store.read(lane, after) if self.rnd.random() < 0.5 else None, after)
            )

    # ---- saving ----------------------------------------------------------------------------------

    def _began(self, persist: Persist | None, said: dict[int, int], holder: str | None) -> None:
        if persist is None:
            assert not said
            return
        self.parked_ever += sum(change.parked is not None for change in persist.parking)
        self.writes.append((persist, said, holder))

    def settle(self) -> None:
        if not self.writes:
            return
        if self.rnd.random() >= self.failures:
            persist, said, _ = self.writes.pop(0)
            self._keep(persist)
            self.sp.persisted(persist.token)
            self._succeeded(said)
            return
        failed, self.writes = self.writes, []  # and everything after it
        if self.two_stores and self.rnd.random() < 0.5:
            self.store.keep_parked(failed[0][0])
        for persist, said, holder in failed:
            self.sp.persist_failed(persist.token, now_ms=self.now_ms)
            for offset, ack_type in said.items():
                job = self.jobs[offset]
                job.may_be_over = job.may_be_over or ack_type not in (RELEASE, _EXHAUSTED)
                if job.gone:
                    job.member = None
                elif ack_type == _EXPIRED:
                    job.expired, job.came_back = False, True
                elif job.deadline_ms > self.now_ms:
                    job.member, job.due_ms, job.answered = holder, 0, self.settings.lock_max_ms > 0
                else:
                    job.member = None
                    drawn_ms = job.due_ms
                    self._waits(job)
                    if ack_type == RELEASE:  # It had its wait already, but its lock has expired as well.
                        job.due_ms = min(job.due_ms, drawn_ms)

    def _keep(self, persist: Persist) -> None:
        self.store.keep_parked(persist)
        self.store.keep_state(persist)

    def _keep_some(self, persist: Persist) -> bool:
        """Of a write under way in a crash; returns whether all of it was kept."""
        kept = self.rnd.random()
        if kept < 0.5:
            self._keep(persist)
        elif kept < 0.7 and self.two_stores:
            self.store.keep_parked(persist)
        return kept < 0.5

    def _succeeded(self, said: dict[int, int]) -> None:
        for offset, ack_type in said.items():
            job = self.jobs[offset]
            job.member = None
            if ack_type == _EXPIRED:
                job.given_up = True
            elif ack_type in (ACCEPT, GAP) or (ack_type == REJECT and not self.settings.dead_letter_queue):
                job.done = True
            elif ack_type == REJECT or (ack_type == _EXHAUSTED and self.settings.dead_letter_queue):
                job.given_up = True

    def crash(self) -> None:
        """kill -9: the first writes under way were kept, the others were not."""
        for persist, _, _ in self.writes:
            if not self._keep_some(persist):
                break
        self._forget_life()
        self._load()

    def unload(self) -> None:
        """Forget the share-partition and load it again."""
        if self.sp.is_settled and not self.writes:
            self._check_store()
            self._forget_life()
            self._load()

    def _forget_life(self) -> None:
        """Promises of an earlier life about times no longer hold, and its unsaved deliveries are
        lost."""
        self.life += 1
        self.in_hand = {}
        self.latest_wall_ms = self.wall_ms
        for job in self.jobs.values():
            job.member, job.due_ms, job.least_count, job.expired = None, 0, 0, False

    def _take_writes_anyway(self) -> None:
        """A failed write may be in the store: it may have finished the record."""
        for offset, job in self.jobs.items():
            if self.store.is_final(offset) and offset not in self.store.offsets:
                job.done = job.done or not job.given_up
            if job.done and offset in self.store.offsets:
                raise AssertionError(f"{offset} is parked although it is done with")

    # ---- dead letters ----------------------------------------------------------------------------

    def bury(self) -> None:
        """Take dead letters. Now or the next time, write some of those in hand, finish some, return
        some. The log's start may pass their records meanwhile."""
        for letter in archiving.take(self.sp):
            for offset in range(letter.first_offset, letter.last_offset + 1):
                job = self.jobs[offset]
                assert not job.done or offset in self.dead_letters
                assert job.member is None
                assert offset not in self.in_hand, "handed out twice"
                assert self._is_saved_as_archiving(offset), (
                    f"a crash now would forget that {offset} is to be a dead letter"
                )
                self.in_hand[offset] = letter.delivery_count
        if self.failures and self.rnd.random() < 0.3:
            return
        ended, returned = [], []
        for offset, delivery_count in sorted(self.in_hand.items()):
            if self.rnd.random() < 0.7:
                # a writer reads the queue after a crash
                self.dead_letters.setdefault(offset, delivery_count)
                self.jobs[offset].given_up = True
                ended.append((offset, offset))
            else:
                returned.append((offset, offset))
        self.in_hand = {}
        archiving.give_back(self.sp, returned)
        if ended:
            self._began(archiving.dead_lettered(self.sp, ended), {}, None)
        if self.rnd.random() < 0.5:
            self._began(self.sp.retry_unsaved(), {}, None)

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
            assert has_letter or job.done or not self.settings.dead_letter_queue or job.may_be_over, (
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
        assert self.parking.waiting == 0
