"""Engines that are broken on purpose: the shadow must tell each of them from the old one.

Those of the first table change what an engine writes or answers, whatever it is made of. Those of
the second reach into the present engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import pytest

from kbroker.share import returning, row_writes, rules
from kbroker.share.effects import DeadLetter, Persist
from kbroker.share.parked import Lane, Parked, ParkingChange
from kbroker.share.parked_order import LaneOrder
from kbroker.share.parking import Parking
from kbroker.share.record_state import ACQUIRED
from kbroker.share.share_partition import SharePartition
from tests.share.engine import Engine
from tests.share.shadow.worlds import ShadowWorld

_Break: TypeAlias = Callable[[pytest.MonkeyPatch], None]
_Change: TypeAlias = Callable[[Any], Any]


def _results(change: _Change) -> _Break:
    """Every result of the new engine goes through `change`."""

    class Broken(Engine):
        def __getattr__(self, name: str) -> Any:
            found = super().__getattr__(name)
            return (lambda *args, **named: change(found(*args, **named))) if callable(found) else found

    return lambda patch: patch.setattr(ShadowWorld, "new_engine", Broken)


def _writes(change: Callable[[Persist], Persist]) -> _Break:
    return _results(lambda result: change(result) if isinstance(result, Persist) else result)


def _changes(change: Callable[[ParkingChange], ParkingChange | None]) -> _Break:
    def changed(persist: Persist) -> Persist:
        changes = [each for each in map(change, persist.parking) if each is not None]
        return persist._replace(parking=tuple(changes))

    return _writes(changed)


def _rows(change: Callable[[Parked], Parked]) -> _Break:
    return _changes(lambda each: each if each.parked is None else each._replace(parked=change(each.parked)))


def _swapped(parked: Parked) -> Parked:
    lanes = {Lane.SCHEDULE: Lane.REDELIVERY}
    return parked._replace(lane=lanes.get(parked.lane, parked.lane))


def _letters(result: Any) -> Any:
    if isinstance(result, list) and result and isinstance(result[0], DeadLetter):
        return [letter._replace(delivery_count=letter.delivery_count - 1) for letter in result]
    return result


OUTSIDE: Mapping[str, _Break] = {
    "a place of a failed write is lost": _changes(lambda each: each._replace(stale=each.stale[-1:])),
    "the removal of a row is lost": _changes(lambda each: each if each.parked else None),
    "a due time is off by one": _rows(lambda parked: parked._replace(due_ms=parked.due_ms + 1)),
    "a count is not raised": _rows(
        lambda parked: parked._replace(delivery_count=max(0, parked.delivery_count - 1))
    ),
    "the lane is swapped": _rows(_swapped),
    "the cause of a rejection is lost": _rows(lambda parked: parked._replace(rejected=False)),
    "the cause of an expiry is lost": _rows(lambda parked: parked._replace(expired=False)),
    "the key of a row is lost": _rows(lambda parked: parked._replace(key_hash=None)),
    "the leader epoch of a row is lost": _rows(lambda parked: parked._replace(leader_epoch=0)),
    "bytes are dropped": _changes(lambda each: each._replace(record=each.record or None)),
    "bytes are kept too long": _changes(lambda each: each if each.record else each._replace(record=None)),
    "the number of waiting rows is off by one": _writes(
        lambda persist: persist._replace(waiting=persist.waiting + 1)
    ),
    "a batch of the front is not written": _writes(
        lambda persist: persist._replace(batches=persist.batches[1:])
    ),
    "a dead letter has another count": _results(_letters),
}


def _after(owner: Any, name: str, then: Callable[[Any], None]) -> _Break:
    """`then(self)` follows each call of that method."""
    method = getattr(owner, name)

    def broken(self: Any, *args: Any, **named: Any) -> Any:
        result = method(self, *args, **named)
        then(self)
        return result

    return lambda patch: patch.setattr(owner, name, broken)


def _always(owner: Any, name: str, value: Any) -> _Break:
    """That method or property returns the value, and does nothing."""
    is_property = isinstance(vars(owner)[name], property)
    new = property(lambda _: value) if is_property else lambda *_, **__: value
    return lambda patch: patch.setattr(owner, name, new)


def _forget_unsaved(sp: Any) -> None:
    sp.saves.unsaved = []


def _locks_of_the_front(engine: SharePartition) -> int:
    return max(0, engine.settings.max_record_locks - engine.window.states.count(ACQUIRED))


INSIDE: Mapping[str, _Break] = {
    "locks are not carried": _always(Parking, "hold", None),
    "a front write goes with the first row write only": _after(
        row_writes, "begin", lambda parking: parking.moving.clear()
    ),
    "unsaved rows are forgotten after a failure": _after(
        row_writes, "failed", lambda parking: parking.unsaved.clear()
    ),
    "unsaved batches are forgotten after a failure": _after(
        SharePartition, "persist_failed", _forget_unsaved
    ),
    "ended rows are forgotten after a failure": _after(
        row_writes, "failed", lambda parking: parking.ghosts.clear()
    ),
    "waits are not capped after a restart": lambda patch: patch.setattr(
        rules, "longest_wait_ms", lambda _: 0
    ),
    "late rows are lost": _after(LaneOrder, "saved", lambda order: order._late.clear()),
    "rows removed during a read come back": _after(LaneOrder, "removed", lambda order: order._gone.clear()),
    "letters are written before the lane is whole": _always(Parking, "knows_archiving", True),
    "the horizon does not fall": _always(LaneOrder, "shrink", None),
    "a lost record stays": _always(returning, "lost", 0),
    "a due record may follow others at its last attempt": lambda patch: patch.setattr(
        rules, "suspect_from", lambda _: 300
    ),
    "each window has the whole number of locks": lambda patch: patch.setattr(
        SharePartition, "locks_left", property(_locks_of_the_front)
    ),
    "keys are not looked up": _always(Parking, "knows_redeliveries", True),
    "a purge spares kept rows": lambda patch: patch.setattr(
        Parking, "is_gone", lambda self, offset, *, is_kept: offset < self.floor and not is_kept
    ),
}
FAULTS: Mapping[str, _Break] = {**OUTSIDE, **INSIDE}
