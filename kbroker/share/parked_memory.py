"""The parked records of a share-partition that are in memory: the next ones to be due, those that
members hold, and those whose state is being saved. parking.py decides what becomes of them. Pure.

    QUEUED, READY, BEHIND       wait for their time, a member, or another record of their key
    HELD                        a member holds it
    PENDING                     its new state is being saved
    ARCHIVING, HANDED_OUT       a dead letter is to be written
    UNSAVED_ARCHIVING           the same, but not saved yet

A `kept` record is stored itself, and outlives the log's start. Until a write that keeps it has
succeeded, `record` holds its bytes, and each write that concerns the record carries them. A record
that came from the window for this is in `_moving` until its place there is saved as final; each
write that concerns it saves that too. So it never returns to the window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from heapq import heappop, heappush
from itertools import islice
from math import ceil

from kbroker.share.effects import ShareSettings
from kbroker.share.key_order import KeyOrder
from kbroker.share.parked import Lane, Parked, Place
from kbroker.share.parked_order import READ_AT_ONCE, LaneOrder
from kbroker.share.rules import longest_wait_ms


class Code(IntEnum):
    """Where a parked record in memory stands."""

    QUEUED = 0
    READY = 1
    HELD = 2
    PENDING = 3
    ARCHIVING = 4
    HANDED_OUT = 5
    UNSAVED_ARCHIVING = 6
    BEHIND = 7
    """It is due, but another record of its key comes first, or the store is searched for one."""


IN_ORDER = frozenset((Code.QUEUED, Code.READY))
SETTLED = IN_ORDER | {Code.BEHIND}
DEAD = frozenset((Code.ARCHIVING, Code.HANDED_OUT, Code.UNSAVED_ARCHIVING))
NOWHERE = 1 << 63
_ASKED_AT_ONCE = 1000
"""No more scheduled records are read while so many keys wait to be searched for."""


class Entry:
    """A parked record in memory. `count`: deliveries, including that of its holder. `places`: where
    it may stand in the store (parking.py)."""

    __slots__ = (
        "code",
        "count",
        "deadline_ms",
        "due_ms",
        "expired",
        "kept",
        "key_hash",
        "lane",
        "member_id",
        "offset",
        "places",
        "record",
        "rejected",
        "since_ms",
    )

    def __init__(self, parked: Parked) -> None:
        self.offset = parked.offset
        self.code = Code.QUEUED
        self.count = parked.delivery_count
        self.lane = parked.lane
        self.due_ms: float = parked.due_ms
        self.rejected = parked.rejected
        self.expired = parked.expired
        self.key_hash = parked.key_hash
        self.places = [parked.place]
        self.member_id: str | None = None
        self.deadline_ms = 0.0
        self.since_ms = 0.0
        self.kept = parked.kept
        self.record: bytes | None = None
        """The bytes to keep, while they are not known to be saved."""

    @property
    def is_kept(self) -> bool:
        """By all decisions so far; `kept` goes by what is saved."""
        return self.kept or self.record is not None

    def as_parked(self, leader_epoch: int) -> Parked:
        """As it is stored. A delivery under way does not count."""
        count, causes = self.count - (self.code == Code.HELD), (self.rejected, self.expired)
        return Parked(
            self.offset,
            self.lane,
            ceil(self.due_ms),
            count,
            leader_epoch,
            *causes,
            self.key_hash,
            self.is_kept,
        )


class ParkedMemory:
    """See Parking, the only one that is instantiated."""

    def __init__(self, waiting: int, *, leader_epoch: int, life_ahead_ms: float, now_ms: float) -> None:
        self.waiting = waiting
        self.entries: dict[int, Entry] = {}
        self.held = self.rejected = self.exhausted = 0
        self.key_order: KeyOrder | None = None
        self._over: set[int] = set()
        """Of `_ghosts` and removals under way: records that really were parked and have ended."""
        self.floor = 0
        """The log's start: below it only kept records remain."""
        self.needs_sweep = False
        """The store may have records below `floor` that are not in memory."""
        self.purged = 0
        """Below it no record remains: an operator has removed them."""
        self.kept_from = NOWHERE
        """No record below it is kept."""
        self._leader_epoch = leader_epoch
        self._began_ms = now_ms + life_ahead_ms
        self._ahead_ms = {Lane.REDELIVERY: life_ahead_ms, Lane.SCHEDULE: life_ahead_ms}
        self._orders = {lane: LaneOrder(lane, is_empty=not waiting) for lane in Lane}
        # All dead letters that an earlier life has left must be known before the first one is
        # written, because some of them may have been written.
        self._orders[Lane.ARCHIVING].few = self._orders[Lane.ARCHIVING].many = 1 << 62
        self._queues: dict[Lane, list[tuple[float, int]]] = {Lane.REDELIVERY: [], Lane.SCHEDULE: []}
        self._ready: dict[int, Entry] = {}
        self._expiring = 0
        self._unsaved: dict[int, None] = {}
        """Records whose present state the next write saves."""
        self._ghosts: dict[int, tuple[Place, ...]] = {}
        self._leaving: dict[int, int] = {}
        """Ghosts, and records that leave the window: how many writes under way concern them."""
        self._moving: set[int] = set()
        """See the head of this file."""
        self._may_be_kept: set[int] = set()
        """Of entries and ghosts: those whose bytes the store may have."""

    @property
    def ready(self) -> int:
        """How many are due and not held."""
        return len(self._ready)

    def in_turn(self, most: int) -> list[int]:
        """Their offsets, the longest due first."""
        return list(islice(self._ready, most))

    def is_ready(self, offset: int) -> bool:
        return offset in self._ready

    def may_be_kept(self, offset: int) -> bool:
        return offset in self._may_be_kept

    def _is_gone(self, offset: int, *, is_kept: bool) -> bool:
        """The log's start has passed the record, and it is not kept."""
        return offset < self.floor and (not is_kept or offset < self.purged)

    # ---- what comes next, from the store ---------------------------------------------------------

    @property
    def wants_read(self) -> bool:
        """True if begin_read() would name a lane."""
        return any(order.wants_read and not self._has_enough(lane) for lane, order in self._orders.items())

    def _has_enough(self, lane: Lane) -> bool:
        """True for the lane of scheduled records while many that are due are behind others of their
        keys."""
        order = self.key_order
        return (
            lane is Lane.SCHEDULE
            and order is not None
            and (order.is_full or len(order.asked) >= _ASKED_AT_ONCE)
        )

    @property
    def knows_archiving(self) -> bool:
        """True if all records on their way to the dead letter queue are in memory."""
        return self._orders[Lane.ARCHIVING].is_complete

    def begin_read(self) -> tuple[Lane, tuple[int, int]] | None:
        """Which lane to read now, and from behind which place. The caller then calls end_read() or
        fail_read()."""
        for lane, order in self._orders.items():
            if not self._has_enough(lane) and (after := order.begin_read()) is not None:
                return lane, after
        return None

    def fail_read(self, lane: Lane) -> None:
        self._orders[lane].fail_read()

    def end_read(
        self,
        lane: Lane,
        found: Sequence[Parked],
        settings: ShareSettings,
        is_lost: Callable[[Parked], bool],
        read_at_once: int = READ_AT_ONCE,
    ) -> None:
        """`is_lost`: whether the log has lost that record. After a restart, no redelivery waits
        longer than the settings allow, whatever the wall clock was."""
        longest_ms = longest_wait_ms(settings)
        for parked in self._orders[lane].end_read(found, is_last=len(found) < read_at_once):
            offset = parked.offset
            if offset in self.entries or offset in self._ghosts or offset in self._leaving:
                continue
            if self._is_gone(offset, is_kept=parked.kept):
                continue
            if parked.kept:
                self._may_be_kept.add(offset)
            if is_lost(parked):
                self._give_up(parked)
                continue
            entry = self.entries[offset] = Entry(parked)
            if lane is Lane.REDELIVERY and longest_ms and parked.leader_epoch != self._leader_epoch:
                entry.due_ms = min(entry.due_ms, self._began_ms + longest_ms)
            self._line_up(entry)
            if lane is Lane.REDELIVERY:
                self._hold_key(entry)

    def _give_up(self, parked: Parked) -> None:
        """Remove a record that is in the store alone."""
        self._ghosts[parked.offset] = (parked.place,)
        self._over.add(parked.offset)
        self.waiting -= 1

    def _line_up(self, entry: Entry) -> None:
        """The record waits for its due time, or for its dead letter to be written."""
        self._orders[entry.lane].size += 1
        if entry.lane is Lane.ARCHIVING:
            entry.code = Code.ARCHIVING
            return
        entry.code = Code.QUEUED
        heappush(self._queues[entry.lane], (entry.due_ms, entry.offset))

    def _leave_line(self, entry: Entry) -> None:
        if entry.code in IN_ORDER or entry.code in DEAD:
            self._orders[entry.lane].size -= 1
            self._ready.pop(entry.offset, None)

    def _forget(self, entry: Entry) -> None:
        """The record leaves memory: its places are being removed, or it stays in the store
        (_let_go)."""
        self._leave_line(entry)
        if entry.code == Code.HELD:
            self.held -= 1
        del self.entries[entry.offset]
        self._unsaved.pop(entry.offset, None)

    def _let_go(self, entry: Entry) -> None:
        self._forget(entry)
        self._may_be_kept.discard(entry.offset)

    def _shrink(self) -> None:
        """Forget the last ones where too many are in memory."""
        for lane, order in self._orders.items():
            if order.size > order.many:
                queued = [
                    entry
                    for entry in self.entries.values()
                    if entry.lane == lane and self._can_be_forgotten(entry)
                ]
                last = order.shrink(entry.places[0] for entry in queued)
                for entry in queued:
                    if last is not None and entry.places[0] > last:
                        self._let_go(entry)

    def _can_be_forgotten(self, entry: Entry) -> bool:
        is_idle = entry.code == Code.QUEUED or entry.code == Code.ARCHIVING
        return (
            is_idle and len(entry.places) == 1 and entry.record is None and entry.offset not in self._unsaved
        )

    def _remove(self, entry: Entry) -> None:
        """The record is no longer parked; the next write removes its places."""
        if self.key_order is not None and entry.code == Code.BEHIND:
            self.key_order.end(entry.offset)
        self._forget(entry)
        self.waiting -= 1
        self._ghosts[entry.offset] = tuple(entry.places)
        self._over.add(entry.offset)

    # ---- the order of keys (key_order.py) --------------------------------------------------------

    def order_keys(self, order: KeyOrder | None) -> None:
        """Keep this order from now on, or (None) none. Members keep what they hold."""
        self.key_order = order
        if order is None:
            for entry in [entry for entry in self.entries.values() if entry.code == Code.BEHIND]:
                self.go(entry)
            return
        entries = [entry for _, entry in sorted(self.entries.items()) if entry.key_hash is not None]
        for entry in entries:
            if entry.lane is Lane.REDELIVERY or entry.code in (
                Code.HELD,
                Code.PENDING,
                Code.UNSAVED_ARCHIVING,
            ):
                self._hold_key(entry)
        for entry in entries:
            if entry.code == Code.READY and not self._may_go(order, entry):
                self._leave_line(entry)
                entry.code = Code.BEHIND

    def _hold_key(self, entry: Entry) -> None:
        if self.key_order is not None and entry.key_hash is not None:
            self.key_order.hold(entry.offset, entry.key_hash, parked=True)

    @property
    def knows_redeliveries(self) -> bool:
        """True if all records that block their keys are in memory, so that the store need not be
        searched."""
        return self._orders[Lane.REDELIVERY].is_complete

    def _may_go(self, order: KeyOrder, entry: Entry) -> bool:
        """True if the record, which is due and has a key, may be delivered."""
        assert entry.key_hash is not None
        may_be_blocked = not (self.knows_redeliveries and order.has_learnt)
        if entry.lane is Lane.SCHEDULE and may_be_blocked and order.hash_of(entry.offset) is None:
            order.asked[entry.offset] = entry.key_hash
            return False
        return self._admit(order, entry.offset, entry.key_hash)

    def _admit(self, order: KeyOrder, offset: int, key_hash: int) -> bool:
        order.know(offset, key_hash)
        may_go = order.admit(offset)
        order.park(offset)
        return may_go

    def end_asking(self, offsets: Iterable[int]) -> None:
        """The store has been searched for the keys of these due records."""
        order = self.key_order
        for offset in offsets:
            key_hash = None if order is None else order.asked.pop(offset, None)
            entry = self.entries.get(offset)
            if order is None or key_hash is None or entry is None or entry.code != Code.BEHIND:
                continue
            if self._admit(order, offset, key_hash):
                self.go(entry)

    def go(self, entry: Entry) -> None:
        """The record is no longer behind another one of its key."""
        entry.code = Code.READY
        self._orders[entry.lane].size += 1
        self._ready[entry.offset] = entry

    # ---- time ------------------------------------------------------------------------------------

    def make_ready(self, now_ms: float, wall_ms: float) -> int:
        """Make due records available. Returns their number."""
        self._ahead_ms[Lane.SCHEDULE] = wall_ms - now_ms
        before = len(self._ready)
        for lane, queue in self._queues.items():
            due_ms = now_ms + self._ahead_ms[lane]
            while True:
                self._drop_stale(lane)
                if not queue or queue[0][0] > due_ms:
                    break
                entry = self.entries[heappop(queue)[1]]
                if (
                    self.key_order is not None
                    and entry.key_hash is not None
                    and not self._may_go(self.key_order, entry)
                ):
                    self._orders[lane].size -= 1
                    entry.code = Code.BEHIND
                    continue
                entry.code = Code.READY
                self._ready[entry.offset] = entry
        return len(self._ready) - before

    def _drop_stale(self, lane: Lane) -> None:
        queue = self._queues[lane]
        while queue:
            due_ms, offset = queue[0]
            entry = self.entries.get(offset)
            if (
                entry is not None
                and entry.code == Code.QUEUED
                and entry.lane == lane
                and entry.due_ms == due_ms
            ):
                return
            heappop(queue)

    def _next_due_ms(self) -> float | None:
        """When to call make_ready() next, unless the wall clock is set."""
        times = []
        for lane, queue in self._queues.items():
            self._drop_stale(lane)
            if queue:
                due_ms = queue[0][0] - self._ahead_ms[lane]
                times.append(due_ms)
        return min(times, default=None)
