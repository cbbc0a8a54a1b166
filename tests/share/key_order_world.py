"""A share-partition that keeps the order of keys (`kbroker.queue.ordering=key`), with the promises
of parked_world.py and its own:

- At most one record of a key is in flight.
- No record is delivered while another of its key, delivered before, is unfinished.
- Records that are not scheduled are delivered in offset order.

Records that members held, or that were parked, when the setting was altered are excepted until they
end.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from kbroker.share.effects import AcquiredRange, ShareSettings
from kbroker.share.ordering import Keys
from kbroker.share.parked import Lane
from kbroker.share.record_state import BEHIND
from tests.share.parked_world import MEMBERS, Job, World

_HELD = (*MEMBERS, "drain", "saving")


class OrderedWorld(World):
    def __init__(self, rnd: Random) -> None:
        self.keys: dict[int, int | None] = {}
        self.kinds = rnd.choice((1, 2, 5))
        self.switches = rnd.random() < 0.3
        self.look_ahead = rnd.choice((2, 5, 1000))
        self.excepted: set[int] = set()
        self.begun: set[int] = set()
        """Delivered in this life, or saved as delivered, and not done."""
        self.scanning: tuple[int, int, dict[int, int], dict[int, list[int]] | None] | None = None
        self.asking: tuple[dict[int, int], dict[int, list[int]] | None] | None = None
        self.was_there = 0
        self.behind_most = self.stops = self.lookups = 0
        super().__init__(rnd)

    def first_settings(self, rnd: Random) -> ShareSettings:
        return replace(super().first_settings(rnd), scans=True, ordered=True)

    def _load(self) -> None:
        super()._load()
        self.scanning = self.asking = None
        redeliveries = {
            offset for offset, place in self.store.offsets.items() if place.lane is Lane.REDELIVERY
        }
        returned = [batch for batch in self.store.batches if batch.state == 0 and batch.delivery_count]
        self.begun = redeliveries | {
            offset for batch in returned for offset in range(batch.first_offset, batch.last_offset + 1)
        }
        self._keep_order()

    def _keep_order(self) -> None:
        to_learn = self.sp.begin_order(self.look_ahead)
        if to_learn is not None:
            self.was_there = max(0, to_learn.stop + 20 - to_learn.start)

    def append(self) -> None:
        first = self.log_end
        super().append()
        for offset in range(first, self.log_end):
            is_null = self.rnd.random() < 0.1 or offset in self.markers
            self.keys[offset] = None if is_null else self.rnd.randrange(self.kinds)

    # ---- look-ups in the store -------------------------------------------------------------------

    def _look_up(self, hashes: set[int]) -> dict[int, list[int]]:
        self.lookups += 1
        found: dict[int, list[int]] = {}
        for offset, place in self.store.offsets.items():
            if place.lane is Lane.REDELIVERY and place.key_hash in hashes:
                found.setdefault(place.key_hash, []).append(offset)
        return found

    def scan(self) -> None:
        order = self.sp.key_order
        if order is None:
            super().scan()
            return
        if self.scanning is not None:
            self._end_scan()
            return
        self._move_log_start()
        self._began(self.sp.park_again(self.wall_ms), {}, None)
        self._began(self.sp.retry_unsaved(), {}, None)
        offset = self.sp.scan_from()
        if offset is None:
            return
        size = self.rnd.choice((1, 3, 20))
        end = min(self.log_end, offset + (size if not order.has_learnt else min(size, order.room())))
        hashes = {each: key for each in range(offset, end) if (key := self.keys[each]) is not None}
        order.begin_lookup()
        found = (
            self._look_up(set(hashes.values())) if self.rnd.random() < 0.5 and not self._knows_all() else None
        )
        self.scanning = offset, end, hashes, found
        if self.rnd.random() < 0.5:
            self._end_scan()

    def _knows_all(self) -> bool:
        return self.sp.knows_redeliveries and self.rnd.random() < 0.5

    def _end_scan(self) -> None:
        order = self.sp.key_order
        assert order is not None
        assert self.scanning is not None
        (offset, end, hashes, found), self.scanning = self.scanning, None
        if self.sp.scan_from() == offset:
            was_learnt = order.has_learnt
            if found is None:
                found = self._look_up(set(hashes.values()))
            due = {each: self.jobs[each].scheduled_ms for each in range(offset, end)}
            scheduled = [(each, due_ms) for each, due_ms in due.items() if due_ms > self.wall_ms]
            batches, control = self._read(offset, end)
            keys = Keys(hashes, found, order.learn_to if offset >= self.log_end else end - 1)
            self._began(
                self.sp.scanned(
                    offset, batches, control, scheduled, now_ms=self.now_ms, wall_ms=self.wall_ms, keys=keys
                ),
                {},
                None,
            )
            assert self.sp.scan_from() != offset or was_learnt
        order.end_lookup()

    def ask(self) -> None:
        """Look up the keys of parked records that are due."""
        order = self.sp.key_order
        if order is None:
            return
        if self.asking is None:
            if order.asked and order.has_learnt:
                order.begin_lookup()
                asked = dict(order.asked)
                self.asking = asked, self._look_up(set(asked.values())) if self.rnd.random() < 0.5 else None
            return
        (asked, found), self.asking = self.asking, None
        self.sp.keys_found(list(asked), self._look_up(set(asked.values())) if found is None else found)
        order.end_lookup()

    # ---- the promises ----------------------------------------------------------------------------

    def _is_over(self, offset: int, job: Job) -> bool:
        is_gone = job.gone or (offset < self.log_start and not self.store.keeps(offset))
        if is_gone or job.done or job.given_up or job.expired or offset in self.dead_letters:
            return True
        if job.member is None and self._is_saved_as_archiving(offset):
            return True  # by a write that a crash left unconfirmed
        return job.member is None and job.count >= self.lowest_limit

    def _delivered(self, member: str, ranges: list[AcquiredRange]) -> None:
        delivered = [offset for first, last, _ in ranges for offset in range(first, last + 1)]
        if self.sp.key_order is not None:
            assert not ranges or self.sp.key_order.has_learnt
            parked = [self.sp.rows[offset] for offset in delivered if offset in self.sp.rows]
            # parked before the alteration
            self.excepted.update(entry.offset for entry in parked if entry.key_hash is None)
            for offset in delivered:
                self._check_turn(offset)
            named = [
                self.keys[offset]
                for offset in delivered
                if self.keys[offset] is not None and offset not in self.excepted
            ]
            assert len(named) == len(set(named)), "two of a key in one answer"
        super()._delivered(member, ranges)
        self.begun.update(delivered)

    def _check_turn(self, offset: int) -> None:
        key, is_scheduled = self.keys[offset], self.jobs[offset].scheduled_ms > 0
        excepted = self.excepted | self.revived | {each for each, job in self.jobs.items() if job.came_back}
        if key is None or offset in excepted:
            return
        for other, job in self.jobs.items():
            if other == offset or self.keys[other] != key or self._is_over(other, job) or other in excepted:
                continue
            assert job.member not in _HELD, f"{offset} although {job.member} has {other} of its key"
            assert other not in self.begun, f"{offset} although {other} of its key comes back"
            assert is_scheduled or other > offset or job.scheduled_ms > 0, f"{offset} before {other}"

    def configure(self) -> None:
        super().configure()
        if self.switches and self.rnd.random() < 0.5:
            self.settings = replace(self.settings, ordered=not self.settings.ordered)
            self.sp.use(self.settings)
            self.scanning = self.asking = None
            self.excepted = set(self.begun)
        self._keep_order()

    def check(self) -> None:
        super().check()
        order = self.sp.key_order
        if order is None:
            return
        self.behind_most = max(self.behind_most, order.waiting)
        self.stops = max(self.stops, self.sp.statistics().look_ahead_stops)
        scheduled = sum(job.scheduled_ms > 0 for job in self.jobs.values())
        returned = self.expired_ever + len(self.excepted)
        assert order.waiting <= self.look_ahead + scheduled + self.was_there + returned
        codes = self.sp.window.states[self.sp.start_offset - self.sp.window.base :]
        parked = sum(
            self.sp.code_of(row) == BEHIND and row.offset not in order.asked for row in self.sp.rows.values()
        )
        in_window = sum(
            code == BEHIND
            for offset, code in enumerate(codes, self.sp.start_offset)
            if offset not in order.asked
        )
        assert order.waiting == in_window + parked
        assert not order.freed
        columns = zip(codes, self.sp.window.counts[-len(codes) :] if codes else (), strict=True)
        assert self.sp.window.undelivered == sum(code == 0 and not count for code, count in columns)
        for key in order._keys.values():
            assert key.active
        assert set(order._keys) <= {key for key in self.keys.values() if key is not None}

    def most_in_memory(self) -> int:
        """Records that wait for others, up to the bound, are in memory as well as those due
        next."""
        return super().most_in_memory() + sum(self.sp.code_of(row) == BEHIND for row in self.sp.rows.values())

    def drain(self) -> None:
        super().drain()
        order = self.sp.key_order
        assert order is None or not (order.waiting or order._keys or order._parked)

    def bury(self) -> None:
        for _ in range(3):
            self.scan()
            self.ask()
        super().bury()

    def is_empty(self) -> bool:
        order = self.sp.key_order
        return (
            super().is_empty()
            and self.scanning is None
            and self.asking is None
            and (order is None or not order.waiting)
        )
