"""The engine as the random worlds see it: a share-partition, loaded from stored rows, with its
parked records. The worlds reach no other part of it, so that only this file changes with the
engine.

- Public methods and properties of SharePartition keep their names here.
- Functions of other modules that take a share-partition are methods, by the tables below.
- `LOOKS` names what shows how the engine works, and not what a member, the store or the broker
  sees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from kbroker.share import archiving, log_start, offers, scanning
from kbroker.share.parked import Lane
from kbroker.share.parking import NOWHERE, Parking
from kbroker.share.record_state import AVAILABLE, HOLE, TERMINAL_OR_PENDING
from kbroker.share.returned import NO_SLOT, Row
from kbroker.share.share_partition import SharePartition
from tests.share.parked_store import READ_AT_ONCE, Store

LOOKS = frozenset(
    {
        "check_slots", "code_of", "deadline_of", "ghosts", "has_learnt_keys", "holder_of", "is_hole", "rows",
        "window",
    }
)  # fmt: skip
FEW, MANY = 2, 5
"""So few records are due next in memory that the horizon of a lane moves often."""
_METHODS: Mapping[str, Callable[..., Any]] = {
    "acquirable": offers.acquirable,
    "dead_lettered": archiving.dead_lettered,
    "expire_records": scanning.expire_records,
    "give_back_dead_letters": archiving.give_back,
    "begin_look": log_start.begin_look,
    "has_to_scan": scanning.has_to_scan,
    "keep_parked": log_start.keep,
    "keys_found": scanning.keys_found,
    "leave_log": log_start.leave,
    "leavers": log_start.leavers,
    "log_start_moved": log_start.log_start_moved,
    "may_look_ahead": scanning.may_look_ahead,
    "offset_to_acquire": offers.offset_to_acquire,
    "park_again": scanning.park_again,
    "parked_below": log_start.parked_below,
    "parked_lost": log_start.lost,
    "place_ahead": scanning.place_ahead,
    "purge_parked": log_start.purge,
    "scan_from": scanning.scan_from,
    "scanned": scanning.scanned,
    "sweep_parked": log_start.sweep,
    "take_dead_letters": archiving.take,
    "waits_for_letters": archiving.waits_for_letters,
}
_PROPERTIES: Mapping[str, Callable[[Any], Any]] = {
    "delivery_complete_count": lambda sp: sp.window.complete,
    "has_archiving": archiving.has_archiving,
    "has_dead_letters": archiving.has_dead_letters,
    "has_given_up": lambda sp: sp.saves.has_given_up,
    "has_unsaved_archiving": archiving.has_unsaved_archiving,
    "letters_wait": lambda sp: sp.window.letters_wait,
    "parked_ready": offers.parked_ready,
    "unread_from": lambda sp: sp.window.unread_from,
}
_OF_WINDOW = frozenset({"available_in", "next_available", "next_fetch_offset", "stands_from", "unfinished"})


class Engine:
    """`parks`: records with long waits are parked."""

    def __init__(
        self,
        settings: Any,
        store: Store,
        *,
        leader_epoch: int = 0,
        now_ms: float = 0.0,
        life_ahead_ms: float = 0.0,
        parks: bool = True,
    ) -> None:
        self.share_partition: Any = SharePartition.load(
            settings,
            start_offset=store.start,
            state_batches=store.batches,
            state_epoch=0,
            leader_epoch=leader_epoch,
        )
        self.parking: Any = None
        if parks:
            self.parking = Parking(
                store.waiting, leader_epoch=leader_epoch, life_ahead_ms=life_ahead_ms, now_ms=now_ms
            )
            self.parking.kept_from = min(filter(store.keeps, store.offsets), default=NOWHERE)
            for lane, order in self.parking.orders.items():
                if lane is not Lane.ARCHIVING:
                    order.few, order.many = FEW, MANY
            self.share_partition.parking = self.parking

    def __getattr__(self, name: str) -> Any:
        if name in _METHODS:
            return partial(_METHODS[name], self.share_partition)
        if name in _PROPERTIES:
            return _PROPERTIES[name](self.share_partition)
        return getattr(self.window if name in _OF_WINDOW else self.share_partition, name)

    def let_letters_wait(self, value: bool) -> None:
        self.window.letters_wait = value

    def keep_order(self) -> None:
        scanning.keep_order(self.share_partition)

    def begin_order(self, look_ahead: int) -> range | None:
        """Keep the order of keys, or end it, as the settings say. Returns the offsets whose keys
        are to be learnt; None: no order has begun."""
        before = self.share_partition.key_order
        self.keep_order()
        order = self.share_partition.key_order
        if order is None or order is before:
            return None
        order._look_ahead = look_ahead
        return range(order.learn_from, order.learn_to + 1)

    # ---- parked records --------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """How many records are parked, by all decisions so far."""
        return int(self.parking.waiting)

    @property
    def floor(self) -> int:
        return int(self.parking.floor)

    @property
    def kept_from(self) -> int:
        return int(self.parking.kept_from)

    @property
    def needs_sweep(self) -> bool:
        return bool(self.parking.needs_sweep)

    @property
    def knows_redeliveries(self) -> bool:
        return bool(self.parking.knows_redeliveries)

    @property
    def knows_archiving(self) -> bool:
        return bool(self.parking.knows_archiving)

    def begin_sweep(self) -> None:
        self.parking.needs_sweep = False

    def in_turn(self, most: int) -> list[int]:
        return list(self.parking.in_turn(most))

    def is_ready(self, offset: int) -> bool:
        return bool(self.parking.is_ready(offset))

    def may_be_kept(self, offset: int) -> bool:
        return bool(self.parking.may_be_kept(offset))

    def begin_read(self) -> Any:
        return self.parking.begin_read()

    def end_read(
        self, lane: Any, found: Sequence[Any], settings: Any, is_lost: Callable[[Any], bool]
    ) -> None:
        self.parking.end_read(lane, found, settings, is_lost, READ_AT_ONCE)

    def fail_read(self, lane: Any) -> None:
        self.parking.fail_read(lane)

    def end_look(self, look: Any) -> None:
        self.parking.end_look(look)

    # ---- looks -----------------------------------------------------------------------------------

    @property
    def rows(self) -> Mapping[int, Row]:
        """Parked records in memory."""
        return self.parking.rows

    @property
    def ghosts(self) -> Mapping[int, Any]:
        """Ended records that the store may still have."""
        return self.parking.ghosts

    @property
    def window(self) -> Any:
        return self.share_partition.window

    def code_of(self, row: Row) -> int | None:
        """In the window of returned records; None: it waits for its time."""
        return self.parking.returned.code(row)

    def holder_of(self, row: Row) -> str:
        """Of a record that a member holds."""
        return self.parking.window.holder_of(row.slot)

    def check_slots(self) -> None:
        """The slots and the counts of the window of returned records are right."""
        returned, window = self.parking.returned, self.parking.window
        placed = {row.offset: slot for slot, row in enumerate(returned.rows) if row is not None}
        assert placed == {row.offset: row.slot for row in self.rows.values() if row.slot != NO_SLOT}
        vacant = [slot for slot, row in enumerate(returned.rows) if row is None]
        assert all(window.states[slot] == HOLE for slot in vacant)
        ready = {row.offset for row in self.rows.values() if self.code_of(row) == AVAILABLE}
        assert returned.ready.keys() == ready
        assert window.complete == sum(code in TERMINAL_OR_PENDING for code in window.states)
        columns = list(zip(window.states, window.counts, window.lock_numbers, strict=True))
        assert len(columns) == len(returned.rows)
        assert window.undelivered == sum(code == AVAILABLE and not count for code, count, _ in columns)

    def deadline_of(self, offset: int) -> float:
        """Of the lock of a record that a member holds."""
        window = self.window
        if offset in self.rows:
            window, offset = self.parking.window, self.rows[offset].slot
        return float(window.locks.by_number[window.lock_numbers[offset - window.base]].deadline_ms)

    def is_hole(self, offset: int) -> bool:
        """It has not been read yet, while offsets after it have: acknowledgements of it are
        skipped, as those of holes in the log."""
        window = self.window
        return (
            bool(window.states)
            and window.start_offset <= offset <= window.end_offset
            and window.states[offset - window.base] == HOLE
        )
