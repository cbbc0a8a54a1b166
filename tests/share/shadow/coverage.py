"""Counts how often each hard case happened in the lives that the shadow has led.

The old engine is watched for that. It never changes, so its private methods are a stable place to
look. A life adds what only the world knows (`World.seen`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache, wraps
from importlib import import_module
from typing import Any, TypeAlias

from tests.share.shadow.old_tree import PACKAGE

_Seen: TypeAlias = Counter[str]
_Method: TypeAlias = Callable[..., Any]
_Watch: TypeAlias = Callable[[_Seen, _Method], _Method]

seen: _Seen = Counter()

WANTED = {
    "key looked up in the store and found": 200,
    "due record waited for a look-up": 30,
    "record behind another of its key": 2400,
    "lock carried from the front to a parked record": 600,
    "front write with a row write": 800,
    "front write with a row write failed": 170,
    "row removed while the store was read": 9,
    "row saved behind the horizon during a read": 400,
    "late row joined": 60,
    "horizon fell": 70,
    "lane read in pieces": 400,
    "pending row carried bytes": 110,
    "held row carried bytes": 700,
    "row with several places": 170,
    "places of a failed write removed": 500,
    "wait capped after a restart": 40,
    "archiving lane read in pieces": 50,
    "letters waited for the whole lane": 20,
    "row of a record that the log has lost": 20,
    "record lost in the log during a plan": 20,
    "record released during a plan": 60,
    "later write saved first": 700,
    "later write failed first": 300,
    "row write saved after a later one": 80,
    "saved although a later write had failed": 300,
    "power cut below the saved state": 30,
    "power cut below a parked record": 20,
    "parked record back to its holder after a failed write": 160,
    "parked record returned as its lock ran out meanwhile": 12,
    "parked lock prolonged": 130,
    "parked lock renewed": 40,
    "parked lock ran out": 400,
    "parked record released by a session": 500,
    "dead letter of a parked record": 300,
    "parked record given up at a lowered limit": 17,
    "parked record past its time to live": 50,
    "swept": 130,
    "purged while parked": 110,
    "batch without records passed over": 1500,
    "acknowledge refused": 1900,
    "order of keys begun or ended in a life": 500,
}
"""Each happens at least so often in 100 000 steps: half of what was measured."""


def note(name: str, times: Callable[..., int]) -> _Watch:
    """Count `times(result, self, *args)`."""

    def watch(counter: _Seen, method: _Method) -> _Method:
        @wraps(method)
        def watched(self: Any, *args: Any, **named: Any) -> Any:
            result = method(self, *args, **named)
            counter[name] += int(times(result, self, *args))
            return result

        return watched

    return watch


def before(name: str, times: Callable[..., int]) -> _Watch:
    """Count `times(self, *args)` of the state before the call."""

    def watch(counter: _Seen, method: _Method) -> _Method:
        @wraps(method)
        def watched(self: Any, *args: Any, **named: Any) -> Any:
            counter[name] += int(times(self, *args))
            return method(self, *args, **named)

        return watched

    return watch


def _capped(counter: _Seen, method: _Method) -> _Method:
    @wraps(method)
    def watched(self: Any, lane: Any, found: Any, settings: Any, is_lost: Any, *args: Any) -> None:
        known = set(self.entries)

        def lost(parked: Any) -> bool:
            answer = bool(is_lost(parked))
            counter["row of a record that the log has lost"] += answer
            return answer

        method(self, lane, found, settings, lost, *args)
        for parked in found:
            entry = None if parked.offset in known else self.entries.get(parked.offset)
            counter["wait capped after a restart"] += entry is not None and entry.due_ms < parked.due_ms

    return watched


def _saved(counter: _Seen, method: _Method) -> _Method:
    @wraps(method)
    def watched(self: Any, token: int) -> None:
        _order(counter, self, token, "saved")
        later_failed = getattr(self, "watched_failed", 0)
        counter["saved although a later write had failed"] += later_failed > token
        counter["row write saved after a later one"] += (
            self._writes[token][4] is not None and getattr(self, "watched_ended", 0) > token
        )
        method(self, token)
        self.watched_ended = max(token, getattr(self, "watched_ended", 0))

    return watched


def _failed(counter: _Seen, method: _Method) -> _Method:
    @wraps(method)
    def watched(self: Any, token: int, *, now_ms: float) -> None:
        _order(counter, self, token, "failed")
        self.watched_failed = max(token, getattr(self, "watched_failed", 0))
        method(self, token, now_ms=now_ms)

    return watched


def _order(counter: _Seen, engine: Any, token: int, outcome: str) -> None:
    counter[f"later write {outcome} first"] += min(engine._writes) < token


def _changes(counter: _Seen, method: _Method) -> _Method:
    @wraps(method)
    def watched(self: Any, pending: Any, new: Any) -> Any:
        failed_places = sum(offset not in self._over for offset in self._ghosts)
        changes, write = method(self, pending, new)
        counter["places of a failed write removed"] += failed_places
        counter["front write with a row write"] += len(write.moved) > 0
        counter["row with several places"] += any(len(change.stale) > 1 for change in changes)
        carries = [entry for entry, target in pending if target is not None and entry.record is not None]
        counter["pending row carried bytes"] += len(carries)
        held = [entry for entry, _ in write.decided if entry.code.name == "HELD"]
        counter["held row carried bytes"] += len(held)
        return changes, write

    return watched


def _returned(counter: _Seen, method: _Method) -> _Method:
    @wraps(method)
    def watched(self: Any, write: Any, now_ms: float, *args: Any) -> int:
        counter["front write with a row write failed"] += len(write.moved) > 0
        mine = [entry for entry, _ in write.pending if self.entries.get(entry.offset) is entry]
        counter["parked record returned as its lock ran out meanwhile"] += sum(
            entry.deadline_ms <= now_ms for entry in mine
        )
        still = method(self, write, now_ms, *args)
        counter["parked record back to its holder after a failed write"] += still
        return int(still)

    return watched


def _letters_wait(engine: Any) -> bool:
    parking = engine.parking
    if parking is None or parking.knows_archiving:
        return False
    return any(entry.code.name == "ARCHIVING" for entry in parking.entries.values())


def _read(counter: _Seen, method: _Method) -> _Method:
    @wraps(method)
    def watched(self: Any, found: Any, *, is_last: bool) -> Any:
        counter["row removed while the store was read"] += any(each.place in self._gone for each in found)
        counter["lane read in pieces"] += not is_last
        counter["archiving lane read in pieces"] += not is_last and self.lane.name == "ARCHIVING"
        late = set(self._late)
        result = method(self, found, is_last=is_last)
        counter["late row joined"] += any(each.offset in late for each in result)
        return result

    return watched


_WATCHES: dict[tuple[str, str, str], tuple[_Watch, ...]] = {
    ("key_order", "KeyOrder", "found"): (
        before("key looked up in the store and found", lambda _, parked: bool(parked)),
    ),
    ("key_order", "KeyOrder", "admit"): (
        note("record behind another of its key", lambda result, *_: not result),
    ),
    ("parked_memory", "ParkedMemory", "end_asking"): (
        before("due record waited for a look-up", lambda _, offsets: len(list(offsets))),
    ),
    ("parked_memory", "ParkedMemory", "order_keys"): (
        note("order of keys begun or ended in a life", lambda *_: 1),
    ),
    ("parked_keeping", "ParkedKeeping", "hold"): (
        note("lock carried from the front to a parked record", lambda *_: 1),
    ),
    ("parked_saving", "ParkedSaving", "write"): (_changes,),
    ("parked_saving", "ParkedSaving", "failed"): (_returned,),
    ("parked_memory", "ParkedMemory", "end_read"): (_capped,),
    ("parked_order", "LaneOrder", "end_read"): (_read,),
    ("parked_order", "LaneOrder", "saved"): (
        note(
            "row saved behind the horizon during a read",
            lambda result, order, _: order._is_reading and not result,
        ),
    ),
    ("parked_order", "LaneOrder", "shrink"): (note("horizon fell", lambda result, *_: result is not None),),
    ("parking", "Parking", "expire"): (
        note("parked lock ran out", lambda result, *_: sum(result.by_member.values())),
        note("parked lock prolonged", lambda result, *_: result.prolonged),
    ),
    ("parking", "Parking", "apply"): (
        before("parked lock renewed", lambda _, named, *__: sum(types[0] == 4 for _, types in named)),
    ),
    ("parking", "Parking", "release_member"): (
        note("parked record released by a session", lambda result, *_: len(result)),
    ),
    ("parking", "Parking", "take_dead_letters"): (
        note("dead letter of a parked record", lambda result, _: len(result)),
    ),
    ("parking", "Parking", "_give_up_exhausted"): (
        note("parked record given up at a lowered limit", lambda *_: 1),
    ),
    ("parking", "Parking", "expire_ready"): (
        note("parked record past its time to live", lambda result, *_: result),
    ),
    ("parking", "Parking", "sweep"): (note("swept", lambda result, *_: result),),
    ("parking", "Parking", "purge"): (
        before("purged while parked", lambda parking, end: sum(each < end for each in parking.entries)),
    ),
    ("share_writes", "SharePartitionWrites", "_pass_over"): (
        note("batch without records passed over", lambda *_, is_finished=True: 1),
    ),
    ("share_writes", "SharePartitionWrites", "persisted"): (_saved,),
    ("share_writes", "SharePartitionWrites", "persist_failed"): (_failed,),
    ("share_dead_letters", "SharePartitionDeadLetters", "take_dead_letters"): (
        before("letters waited for the whole lane", _letters_wait),
    ),
}


@cache
def watch() -> None:
    """Count from now on."""
    for (module, name, method), watches in _WATCHES.items():
        owner = getattr(import_module(f"{PACKAGE}.share.{module}"), name)
        for each in watches:
            setattr(owner, method, each(seen, getattr(owner, method)))


def missing(steps: int) -> dict[str, tuple[int, int]]:
    """What happened too rarely in so many steps: how often, and how often it should have. In a
    short run, once is enough."""
    wanted = {name: least * steps // 100_000 if steps >= 100_000 else 1 for name, least in WANTED.items()}
    return {name: (seen[name], least) for name, least in wanted.items() if seen[name] < least}


def report() -> str:
    return "\n".join(f"{seen[name]:>9}  {name}" for name in sorted(seen, key=lambda name: -seen[name]))
