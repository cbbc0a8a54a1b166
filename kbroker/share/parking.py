"""The parked records of one share-partition (parked.py): which are in memory, which are due, what a
write saves of them, and what becomes of it. Pure.

    store    | due 5 | due 7 | ... | ARCHIVING ...        the rows (persister.py)
                 |       ^               |
                 v       |               v
    memory     a queue of the next    ------ due: make_ready() ----> a slot of `window`
               rows of each lane      <----- released, ran out -----  (returned.py)
                                             accepted: gone

Only the rows that are due next are in memory (parked_order.py), and those in a slot. An acquisition
changes nothing in the store: after a crash the record is parked as it was. A client's answer is
PENDING until it is saved. Changes without a client (a lock runs out) are final at once, and the
next write saves them.

A failed write may still have reached the store, wholly or in part. So a row has a list of the
`places` where it may stand, and the places of a record that is not parked any more are `ghosts`.
The next write removes the ghosts, and all places of a row but its present one.

A row that came from the front window to be kept (log_start.py) is in `moving` until its place there
is saved as final; each write that concerns it saves that too. So it never returns to that window.

Times: `now_ms` is the engine's, monotonic. Due times are milliseconds since 1970, `ahead_ms` of the
lane ahead of that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from itertools import islice
from math import ceil
from typing import Final, TypeAlias

from kbroker.share import rules
from kbroker.share.effects import ShareSettings
from kbroker.share.key_order import KeyOrder
from kbroker.share.locks import Lock
from kbroker.share.parked import Lane, Parked, Place
from kbroker.share.parked_order import READ_AT_ONCE, LaneOrder
from kbroker.share.record_state import (
    ACQUIRED,
    ARCHIVING_CODES,
    AVAILABLE,
    BEHIND,
    DEAD_LETTER_CODES,
    HOLE,
    PENDING,
    PENDING_CODES,
    REJECTED,
    UNSAVED_ARCHIVING,
    RecordState,
)
from kbroker.share.returned import NO_SLOT, Returned, Row
from kbroker.share.runs import Runs

NOWHERE: Final = 1 << 63
_ASKED_AT_ONCE: Final = 1000
"""No more scheduled records are read while so many keys wait to be searched for."""
_IN_LINE: Final = frozenset((None, AVAILABLE, *ARCHIVING_CODES))
"""Codes of the rows that the orders of the lanes count."""
_AT_REST: Final = bytes((AVAILABLE, BEHIND, HOLE))

Answered: TypeAlias = Sequence[tuple[Row, Parked | None]]
"""Rows that are PENDING, with what they become; None: no longer parked."""


class Look:
    """A read of the store. `changed`: records whose state in the store may be outdated in it."""

    __slots__ = ("changed", "floor")

    def __init__(self, floor: int, changed: Iterable[int]) -> None:
        self.floor = floor
        self.changed = set(changed)


class Parking:
    """- `waiting`: how many records are parked, by all decisions so far.
    - `rows`: those in memory, by offset. `returned`: those with a slot, and `window` their window.
    - `floor`: the log's start: below it only kept records remain. `needs_sweep`: the store may have
      others there that are not in memory.
    - `purged`: below it no record remains, as an operator has removed them. `kept_from`: no record
      below it is kept.
    - `life_ahead_ms`: added to `now_ms`, it gives the time since 1970, for the whole life of the
      broker."""

    def __init__(self, waiting: int, *, leader_epoch: int, life_ahead_ms: float, now_ms: float) -> None:
        self.waiting = waiting
        self.rows: dict[int, Row] = {}
        self.returned = Returned()
        self.window = self.returned.window
        self.key_order: KeyOrder | None = None
        self.floor = self.purged = 0
        self.needs_sweep = False
        self.kept_from = NOWHERE
        self.leader_epoch = leader_epoch
        self._began_ms = now_ms + life_ahead_ms
        self.ahead_ms = {Lane.REDELIVERY: life_ahead_ms, Lane.SCHEDULE: life_ahead_ms}
        self.orders = {lane: LaneOrder(lane, is_empty=not waiting) for lane in Lane}
        # All dead letters that an earlier life has left must be known before the first one is
        # written, because some of them may have been written.
        self.orders[Lane.ARCHIVING].few = self.orders[Lane.ARCHIVING].many = 1 << 62
        self._queues: dict[Lane, list[tuple[float, int]]] = {Lane.REDELIVERY: [], Lane.SCHEDULE: []}
        self.expiring = 0
        self.unsaved: dict[int, None] = {}
        """Rows whose present state the next write saves."""
        self.ghosts: dict[int, tuple[Place, ...]] = {}
        self.over: set[int] = set()
        """Of ghosts and removals under way: records that really were parked and have ended."""
        self.leaving: dict[int, int] = {}
        """Ghosts, and records from the front window: how many writes under way concern them."""
        self.moving: set[int] = set()
        self.maybe_kept: set[int] = set()
        """Of rows and ghosts: those whose bytes the store may have."""
        self.looks: list[Look] = []

    # ---- questions -------------------------------------------------------------------------------

    @property
    def ready(self) -> int:
        """How many are due and not held."""
        return len(self.returned.ready)

    def in_turn(self, most: int) -> list[int]:
        """Their offsets, the longest due first."""
        return list(islice(self.returned.ready, most))

    def is_ready(self, offset: int) -> bool:
        return offset in self.returned.ready

    def may_be_kept(self, offset: int) -> bool:
        return offset in self.maybe_kept

    @property
    def is_settled(self) -> bool:
        """True if reloading would give the same state."""
        has_to_save = self.unsaved or self.ghosts or self.leaving or self.needs_sweep
        return not (has_to_save or self.window.states.translate(None, _AT_REST))

    @property
    def has_unsaved(self) -> bool:
        return bool(self.unsaved or self.ghosts)

    @property
    def has_unsaved_archiving(self) -> bool:
        rows = (self.rows[offset] for offset in self.unsaved if offset in self.rows)
        return any(self.returned.code(row) == UNSAVED_ARCHIVING for row in rows)

    @property
    def archiving(self) -> int:
        """How many dead letters are to be written, or will be once that is saved. All of them are
        in memory."""
        return self.orders[Lane.ARCHIVING].size + self.expiring

    @property
    def has_archiving(self) -> bool:
        """True if a record may be saved as ARCHIVING."""
        if self.ghosts or self.leaving or not self.knows_archiving:
            return True
        return self.window.has_any(*ARCHIVING_CODES, *PENDING_CODES)

    def is_gone(self, offset: int, *, is_kept: bool) -> bool:
        """The log's start has passed the record, and it is not kept."""
        return offset < self.floor and (not is_kept or offset < self.purged)

    def rows_in(self, first: int, last: int) -> list[Row]:
        """Rows of these offsets, in order."""
        if last - first < len(self.rows):
            return [self.rows[offset] for offset in range(first, last + 1) if offset in self.rows]
        return [self.rows[offset] for offset in sorted(self.rows) if first <= offset <= last]

    def next_deadline_ms(self) -> float | None:
        """When a lock runs out or a row is due; there may then be nothing to do."""
        times = [] if (lock_ms := self.window.next_lock_ms()) is None else [lock_ms]
        for lane, queue in self._queues.items():
            self._drop_stale(lane)
            if queue:
                times.append(queue[0][0] - self.ahead_ms[lane])
        return min(times, default=None)

    # ---- from the store --------------------------------------------------------------------------

    @property
    def wants_read(self) -> bool:
        """True if begin_read() would name a lane."""
        return any(order.wants_read and not self._has_enough(lane) for lane, order in self.orders.items())

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
        return self.orders[Lane.ARCHIVING].is_complete

    @property
    def knows_redeliveries(self) -> bool:
        """True if all records that block their keys are in memory, so that the store need not be
        searched."""
        return self.orders[Lane.REDELIVERY].is_complete

    def begin_read(self) -> tuple[Lane, tuple[int, int]] | None:
        """Which lane to read now, and from behind which place. The caller then calls end_read() or
        fail_read()."""
        for lane, order in self.orders.items():
            if not self._has_enough(lane) and (after := order.begin_read()) is not None:
                return lane, after
        return None

    def fail_read(self, lane: Lane) -> None:
        self.orders[lane].fail_read()

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
        longest_ms = rules.longest_wait_ms(settings)
        for parked in self.orders[lane].end_read(found, is_last=len(found) < read_at_once):
            offset = parked.offset
            if offset in self.rows or offset in self.ghosts or offset in self.leaving:
                continue
            if self.is_gone(offset, is_kept=parked.kept):
                continue
            if parked.kept:
                self.maybe_kept.add(offset)
            if is_lost(parked):
                self._give_up(parked)
                continue
            row = self.add(parked)
            if lane is Lane.REDELIVERY:
                if longest_ms and parked.leader_epoch != self.leader_epoch:
                    row.due_ms = min(row.due_ms, self._began_ms + longest_ms)
                self._hold_key(row)
            self.line_up(row, parked)

    def add(self, parked: Parked) -> Row:
        row = self.rows[parked.offset] = Row(parked)
        return row

    def _give_up(self, parked: Parked) -> None:
        """Remove a record that is in the store alone."""
        self.ghosts[parked.offset] = (parked.place,)
        self.over.add(parked.offset)
        self.waiting -= 1

    # ---- in line, and out of it ------------------------------------------------------------------

    def line_up(self, row: Row, parked: Parked | None = None) -> None:
        """The row waits for its time, or for its dead letter to be written."""
        self.orders[row.lane].size += 1
        if row.lane is not Lane.ARCHIVING:
            self.returned.vacate(row)
            heappush(self._queues[row.lane], (row.due_ms, row.offset))
        elif row.slot == NO_SLOT:
            is_rejected = parked is not None and parked.rejected
            self.returned.place(row, RecordState.ARCHIVING | (REJECTED if is_rejected else 0))

    def leave_line(self, row: Row) -> None:
        if self.returned.code(row) in _IN_LINE:
            self.orders[row.lane].size -= 1

    def let_go(self, row: Row) -> None:
        """The row leaves memory, and stays in the store."""
        self._forget(row)
        self.maybe_kept.discard(row.offset)

    def _forget(self, row: Row) -> None:
        self.leave_line(row)
        self.returned.vacate(row)
        del self.rows[row.offset]
        self.unsaved.pop(row.offset, None)

    def remove(self, row: Row) -> None:
        """The record is no longer parked; the next write removes its places."""
        if self.key_order is not None and self.returned.code(row) == BEHIND:
            self.key_order.end(row.offset)
        self._forget(row)
        self.waiting -= 1
        self.ghosts[row.offset] = tuple(row.places)
        self.over.add(row.offset)

    def shrink(self) -> None:
        """Forget the last ones where too many are in memory."""
        for lane, order in self.orders.items():
            if order.size > order.many:
                queued = [
                    row for row in self.rows.values() if row.lane == lane and self.can_be_forgotten(row)
                ]
                last = order.shrink(row.places[0] for row in queued)
                for row in queued:
                    if last is not None and row.places[0] > last:
                        self.let_go(row)

    def can_be_forgotten(self, row: Row) -> bool:
        code = self.returned.code(row)
        is_idle = code is None or code in DEAD_LETTER_CODES
        return is_idle and len(row.places) == 1 and row.record is None and row.offset not in self.unsaved

    # ---- the order of keys (key_order.py) --------------------------------------------------------

    def order_keys(self, order: KeyOrder | None) -> None:
        """Keep this order from now on, or (None) none. Members keep what they hold."""
        self.key_order = order
        if order is None:
            for row in self.rows.values():
                self.go(row)
            return
        with_key = [row for _, row in sorted(self.rows.items()) if row.key_hash is not None]
        for row in with_key:
            code = self.returned.code(row)
            is_taken = code is not None and (code in (ACQUIRED, UNSAVED_ARCHIVING) or code & PENDING)
            if row.lane is Lane.REDELIVERY or is_taken:
                self._hold_key(row)
        for row in with_key:
            if self.returned.code(row) == AVAILABLE and not self._may_go(order, row):
                self._put_behind(row)

    def _hold_key(self, row: Row) -> None:
        if self.key_order is not None and row.key_hash is not None:
            self.key_order.hold(row.offset, row.key_hash, parked=True)

    def _may_go(self, order: KeyOrder, row: Row) -> bool:
        """True if the record, which is due and has a key, may be delivered."""
        assert row.key_hash is not None
        may_be_blocked = not (self.knows_redeliveries and order.has_learnt)
        if row.lane is Lane.SCHEDULE and may_be_blocked and order.hash_of(row.offset) is None:
            order.asked[row.offset] = row.key_hash
            return False
        return self._admit(order, row.offset, row.key_hash)

    def _admit(self, order: KeyOrder, offset: int, key_hash: int) -> bool:
        order.know(offset, key_hash)
        may_go = order.admit(offset)
        order.park(offset)
        return may_go

    def _put_behind(self, row: Row) -> None:
        self.orders[row.lane].size -= 1
        self.returned.ready.pop(row.offset, None)
        self.window.put_behind(row.slot)

    def end_asking(self, offsets: Iterable[int]) -> None:
        """The store has been searched for the keys of these due records."""
        order = self.key_order
        for offset in offsets:
            key_hash = None if order is None else order.asked.pop(offset, None)
            row = self.rows.get(offset)
            if order is None or key_hash is None or row is None or self.returned.code(row) != BEHIND:
                continue
            if self._admit(order, offset, key_hash):
                self.go(row)

    def go(self, row: Row) -> bool:
        """The record is no longer behind another one of its key. False: it was not."""
        if row.slot == NO_SLOT or not self.window.go(row.slot):
            return False
        self.orders[row.lane].size += 1
        self.returned.ready[row.offset] = row
        return True

    # ---- time ------------------------------------------------------------------------------------

    def make_ready(self, now_ms: float, wall_ms: float) -> int:
        """Make due records available. Returns their number."""
        self.ahead_ms[Lane.SCHEDULE] = wall_ms - now_ms
        before, order = len(self.returned.ready), self.key_order
        for lane, queue in self._queues.items():
            due_ms = now_ms + self.ahead_ms[lane]
            while True:
                self._drop_stale(lane)
                if not queue or queue[0][0] > due_ms:
                    break
                row = self.rows[heappop(queue)[1]]
                self.returned.place(row, AVAILABLE)
                if order is not None and row.key_hash is not None and not self._may_go(order, row):
                    self._put_behind(row)
        return len(self.returned.ready) - before

    def _drop_stale(self, lane: Lane) -> None:
        queue = self._queues[lane]
        while queue:
            due_ms, offset = queue[0]
            row = self.rows.get(offset)
            if row is not None and row.slot == NO_SLOT and row.lane == lane and row.due_ms == due_ms:
                return
            heappop(queue)

    def due_at(self, due_ms: float) -> int:
        """A time of the engine's clock, as milliseconds since 1970."""
        return ceil(due_ms + self.ahead_ms[Lane.REDELIVERY])

    def engine_time(self, due_ms: int) -> float:
        """The reverse, but for the rounding."""
        return due_ms - self.ahead_ms[Lane.REDELIVERY]

    # ---- records of the front window -------------------------------------------------------------

    def new(
        self, offset: int, lane: Lane, due_ms: int, delivery_count: int, *, is_expired: bool = False
    ) -> Parked:
        """A record of the front window, to be parked once that is saved. `is_expired`: it is past
        its time to live, and a dead letter is to be written."""
        key_hash = None if self.key_order is None else self.key_order.hash_of(offset)
        what = offset, lane, due_ms, delivery_count, self.leader_epoch
        return Parked(*what, expired=is_expired, key_hash=key_hash)

    def move_in(self, parked: Parked, record: bytes) -> Row:
        """Park and keep a record of the front window. The next write saves it."""
        row = self.add(parked)
        row.places[:0] = self.ghosts.pop(parked.offset, ())
        self.moving.add(parked.offset)
        self.waiting += 1
        self.line_up(row, parked)
        self._keep(row, record)
        return row

    def hold(self, row: Row, lock: Lock, since_ms: float) -> None:
        """The member that held the record in the front window holds it here, until the same
        deadline."""
        self.leave_line(row)
        self.returned.place(row, AVAILABLE)
        del self.returned.ready[row.offset]
        self.window.take(row.slot, row.slot + 1, 0)  # renew() sets the Lock.
        self.window.renew(lock.member_id, row.slot, row.slot, lock.deadline_ms, since_ms)

    # ---- what is gone, or kept -------------------------------------------------------------------

    def note(self, row: Row) -> None:
        """The next write saves its present state."""
        self.unsaved[row.offset] = None

    def end_prolonging(self, member_id: str, runs: Runs) -> None:
        """The member has finished with these records although it holds them: their locks are no
        longer prolonged."""
        slots = [row.slot for first, last in runs for row in self.rows_in(first, last)]
        self.window.end_prolonging(member_id, [(slot, slot) for slot in slots if slot != NO_SLOT])

    def drop_below(self, new_start_offset: int) -> dict[str, int]:
        """The log now begins there. Returns how many records below it each member held."""
        self.floor = new_start_offset
        self.needs_sweep = self.needs_sweep or self.waiting > 0
        held: dict[str, int] = {}
        for row in [row for row in self.rows.values() if self.is_gone(row.offset, is_kept=row.kept)]:
            code = self.returned.code(row)
            if code == ACQUIRED:
                member_id = self.window.holder_of(row.slot)
                held[member_id] = held.get(member_id, 0) + 1
            if code is None or not code & PENDING:
                self.remove(row)  # Otherwise a sweep after its write finds what that has left.
        return held

    def purge(self, end_offset: int) -> dict[str, int]:
        """No record below it may be delivered, kept or not. Returns how many each member held."""
        self.purged = max(self.purged, end_offset)
        self.kept_from = max(self.kept_from, end_offset)
        return self.drop_below(max(self.floor, end_offset))

    def is_pending_below(self, end_offset: int) -> bool:
        """True if a write under way concerns a record there: a client's change, which may park it
        again, or a removal."""
        pending = (slot for slot, code in enumerate(self.window.states) if code & PENDING)
        return any(self.returned.at(slot).offset < end_offset for slot in pending) or any(
            offset < end_offset for offset in self.leaving
        )

    def begin_look(self, under_way: Iterable[int]) -> Look:
        """The caller is about to read the store for keep() or sweep(). `under_way`: offsets of
        records in writes that have not ended."""
        look = Look(self.floor, under_way)
        self.looks.append(look)
        return look

    def end_look(self, look: Look) -> None:
        if look in self.looks:
            self.looks.remove(look)

    def sweep(self, found: Iterable[Parked], look: Look) -> int:
        """Those of these records of the look that lie below the log's start and are not kept are no
        longer parked. Returns their number. A record that the log's start has passed since the look
        began may be kept by now."""
        gone = 0
        for parked in found:
            offset = parked.offset
            is_here = offset in self.rows or offset in self.ghosts or offset in self.leaving
            if is_here or offset in look.changed or offset >= look.floor:
                continue
            if self.is_gone(offset, is_kept=parked.kept):
                if parked.kept:
                    self.maybe_kept.add(offset)
                self._give_up(parked)
                gone += 1
        return gone

    def keep(self, found: Iterable[Parked], records: Mapping[int, bytes], look: Look) -> int:
        """Keep these records of the look with the next write, except those that have changed
        meanwhile. Returns how many there are to save."""
        number = 0
        for parked in found:
            offset, record = parked.offset, records.get(parked.offset)
            if record is None:
                continue
            row = self.rows.get(offset)
            if row is None:
                is_leaving = offset in self.ghosts or offset in self.leaving
                is_read = self.orders[parked.lane].reaches(parked.place)
                if is_leaving or offset in look.changed or parked.kept or is_read:
                    continue
                row = self.add(parked)
                self.line_up(row, parked)
                if parked.lane is Lane.REDELIVERY:
                    self._hold_key(row)
            if (self.returned.code(row) or 0) & PENDING or row.is_kept:
                continue
            self._keep(row, record)
            number += 1
        return number

    def _keep(self, row: Row, record: bytes) -> None:
        row.record = record
        self.note(row)
        self.kept_from = min(self.kept_from, row.offset)
