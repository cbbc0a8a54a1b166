"""The commands of parked_world.py that end writes, dead letters and lives: what becomes of records.

The store applies writes in the order of submission. The engine is notified of their outcomes
in any order.
"""

from __future__ import annotations

from collections import Counter
from random import Random

from kbroker.share.effects import Persist, ShareSettings
from tests.share.engine import Engine
from tests.share.parked_store import Job, Store
from tests.share.queue_driver import ACCEPT, GAP, REJECT, RELEASE

EXPIRED, EXHAUSTED, ENDED = -1, -2, -3
"""Join the acknowledge types as the content of a write. The last two: released at the limit, with
and without a dead letter queue."""
_RELEASED = (RELEASE, EXHAUSTED, ENDED)


class ParkedWrites:
    """See World."""

    rnd: Random
    now_ms: float
    two_stores: bool
    failures: float
    saves_failed = 0.0
    """How many failed writes are saved as a whole. The promises are not known to hold then."""
    settings: ShareSettings
    wall_ms: float
    latest_wall_ms: float
    log_start: int
    log_end: int
    life: int
    batched: bool
    bases: list[int]
    markers: dict[int, bool]
    jobs: dict[int, Job]
    store: Store
    sp: Engine
    writes: list[tuple[Persist, dict[int, int], str | None]]
    in_hand: dict[int, int]
    dead_letters: dict[int, int]
    revived: set[int]
    planned: tuple[str, list[int], list[int]] | None
    parked_ever: int
    seen: Counter[str]

    def _load(self) -> None:
        raise NotImplementedError

    def _check_store(self) -> None:
        raise NotImplementedError

    def _is_saved_as_archiving(self, offset: int) -> bool:
        raise NotImplementedError

    def _waits(self, job: Job) -> None:
        raise NotImplementedError

    # ---- writes ----------------------------------------------------------------------------------

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
            self._keep(self.writes[0][0])
            self._is_saved(*self.writes.pop(0))
            return
        failed, self.writes = self.writes, []  # and everything after it
        self._keep_failed(failed[0][0])
        for write in failed:
            self._is_failed(*write)

    def settle_in_any_order(self) -> None:
        """Writes end at once: those before the first that fails are saved. The engine is notified
        of their outcomes in any order."""
        number = self.rnd.randint(2, 5)
        is_good = self.rnd.random() >= self.failures
        ended, self.writes = (self.writes[:number], self.writes[number:]) if is_good else (self.writes, [])
        saved = len(ended) if is_good else self.rnd.randrange(len(ended) + 1)
        for persist, _, _ in ended[:saved]:
            self._keep(persist)
        if saved < len(ended):
            self._keep_failed(ended[saved][0])
        outcomes = [(write, number < saved) for number, write in enumerate(ended)]
        self.rnd.shuffle(outcomes)
        for write, is_saved in outcomes:
            (self._is_saved if is_saved else self._is_failed)(*write)

    def _keep_failed(self, persist: Persist) -> None:
        if self.rnd.random() < self.saves_failed:
            self._keep(persist)
        elif self.two_stores and self.rnd.random() < 0.5:
            self.store.keep_parked(persist)

    def _is_saved(self, persist: Persist, said: dict[int, int], _: str | None) -> None:
        self.sp.persisted(persist.token)
        for offset, ack_type in said.items():
            job = self.jobs[offset]
            job.member = None
            if ack_type in (EXPIRED, EXHAUSTED, REJECT):
                job.given_up = True
            elif ack_type in (ACCEPT, GAP):
                job.done = True

    def _is_failed(self, persist: Persist, said: dict[int, int], holder: str | None) -> None:
        self.sp.persist_failed(persist.token, now_ms=self.now_ms)
        for offset, ack_type in said.items():
            job = self.jobs[offset]
            job.may_be_over = job.may_be_over or ack_type not in _RELEASED
            if job.gone:
                job.member = None
            elif ack_type == EXPIRED:
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

    # ---- dead letters ----------------------------------------------------------------------------

    def bury(self) -> None:
        """Take dead letters. Now or the next time, write some of those in hand, finish some, return
        some. The log's start may pass their records meanwhile."""
        for letter in self.sp.take_dead_letters():
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
        self.sp.give_back_dead_letters(returned)
        if ended:
            self._began(self.sp.dead_lettered(ended), {}, None)
        if self.rnd.random() < 0.5:
            self._began(self.sp.retry_unsaved(), {}, None)

    # ---- lives -----------------------------------------------------------------------------------

    def crash(self) -> None:
        """kill -9: the first writes under way were kept, the others were not."""
        for persist, _, _ in self.writes:
            if not self._keep_some(persist):
                break
        self._forget_life()
        self._load()

    def power_cut(self) -> None:
        """The log has lost its end, and the store has not lost what it says of these records."""
        for persist, _, _ in self.writes:
            if not self._keep_some(persist):
                break
        end_offset = self.rnd.randint(max(self.log_start, self.log_end - 12, 1), self.log_end)
        if self.batched:
            bases = [base for base in self.bases if max(self.log_start, 1) <= base]
            end_offset = max(bases, default=self.log_end)
        lost = range(end_offset, self.log_end)
        reach = max((batch.last_offset + 1 for batch in self.store.batches), default=self.store.start)
        self.seen["power cut below the saved state"] += max(reach, self.store.start) > end_offset
        self.seen["power cut below a parked record"] += any(offset in self.store.offsets for offset in lost)
        self._forget_life()
        for offset in self.store.offsets:
            if offset < self.log_start and not self.store.keeps(offset):
                self.jobs[offset].gone = True
        self.store.cut(end_offset, self.log_start)
        for offset in lost:
            del self.jobs[offset]
            self.dead_letters.pop(offset, None)
            self.markers.pop(offset, None)
        self.revived.difference_update(lost)
        self.log_end, self.bases = end_offset, [base for base in self.bases if base < end_offset]
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
        self.in_hand, self.planned = {}, None
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
