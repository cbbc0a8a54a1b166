"""Two engines that get the same calls, and two stores that get what each of them saves.

    world --call--> Pair --> new engine --Persist--> new store
                       |                               | rows are equal,
                       '---> old engine --Persist--> old store  key by key

A world talks to a Pair as to one engine. Every result is compared, except for a Persist: of two
Persists only the rows that they leave in the stores have to be equal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

from kbroker.share.held import HeldRecords
from tests.share.engine import LOOKS
from tests.share.parked_store import Store
from tests.share.shadow.coverage import seen
from tests.share.shadow.old_tree import PACKAGE, as_old, fields_of, plain

_NO_ERROR = "no error"
_SHOWN = 12


class Decided(NamedTuple):
    """A difference that is wanted. `allows(new, old)`: which pairs of values it covers."""

    reason: str
    allows: Callable[[Any, Any], bool] = lambda new, old: True


DECIDED: Mapping[str, Decided] = {
    "next_deadline_ms": Decided(
        "As in the front window, a lock counts until it ends, also while its holder's answer is being "
        "saved: expire() may find nothing to do.",
        lambda new, old: new is not None and (old is None or new <= old),
    ),
}
"""Differences of the new engine that were decided on purpose, by the first word of a difference's
text: `acquire_parked`, `statistics.locks`, `rows.parked`."""


class Difference(Exception):
    """The two engines differ. The first word of `place` is a key of DECIDED."""

    def __init__(self, place: str, new: object, old: object, more: Sequence[Difference] = ()) -> None:
        self.place, self.new, self.old = place, new, old
        super().__init__("\n".join([f"{place}: new {new!r}, old {old!r}", *map(str, more)]))


class Both(NamedTuple):
    """A value of each tree that only the engines look into."""

    new: Any
    old: Any


class Judge:
    """Compares. `persists`: by token of the new engine, the old engine's Persist of the same
    call."""

    def __init__(self) -> None:
        self.persists: dict[int, Any] = {}
        self.calls: deque[tuple[str, Any, Any]] = deque(maxlen=_SHOWN)
        self.held: Both | None = None

    def reloaded(self) -> None:
        self.persists, self.held = {}, None

    def same(self, place: str, new: Any, old: Any) -> None:
        if new == old or (is_dataclass(new) and fields_of(new) == fields_of(old)):
            return
        new, old = plain(new), plain(old)
        if new == old:
            return
        if isinstance(new, dict) and isinstance(old, dict):
            for key in sorted(new.keys() | old.keys(), key=str):
                self.same(f"{place}.{key}", new.get(key), old.get(key))
            return
        decided = DECIDED.get(place.partition(" ")[0])
        if decided is None or not decided.allows(new, old):
            raise Difference(place, new, old)

    def call(self, name: str, pair: Both, *args: Any, **named: Any) -> Any:
        self.calls.append((name, args, named))
        token = self.persists.pop(args[0]).token if name in _SETTLING else None
        new = _outcome(pair.new, [_new(each) for each in args], named)
        args = args if token is None else (token,)
        old = _outcome(pair.old, [_old(each) for each in args], as_old(named))
        codes = [_code(outcome.error) for outcome in (new, old)]
        if codes[0] != codes[1]:
            raise Difference(f"{name}.fails", *codes) from (new.error or old.error)
        if new.error is not None:
            seen[f"{name} refused"] += 1
            raise new.error
        return self._results(name, new.value, old.value)

    def _results(self, name: str, new: Any, old: Any) -> Any:
        kind = type(new).__name__
        if kind == "Persist" or type(old).__name__ == "Persist":
            self.same(f"{name}.saves", new is not None, old is not None)
            if new is None or old is None:
                return new
            self.same(f"{name}.epochs", new[1:3], old[1:3])
            self.same(f"{name}.archiving", new.archiving, old.archiving)
            self.persists[new.token] = old
            return new
        if kind == "KeyOrder":
            return Pair(new, old, self)
        if kind == "Look":
            return Both(new, old)
        if isinstance(new, Iterator):
            new, old = list(new), list(old)
        self.same(name, new, old)
        return new


class _Outcome(NamedTuple):
    value: Any
    error: Exception | None


def _outcome(method: Callable[..., Any], args: list[Any], named: dict[str, Any]) -> _Outcome:
    try:
        return _Outcome(method(*args, **named), None)
    except Exception as error:
        return _Outcome(None, error)


def _code(error: Exception | None) -> str:
    return _NO_ERROR if error is None else str(getattr(error, "code", repr(error)))


_SETTLING = frozenset({"persisted", "persist_failed"})


def _new(value: Any) -> Any:
    return value.new if isinstance(value, Both) else value


def _old(value: Any) -> Any:
    return value.old if isinstance(value, Both) else as_old(value)


class Pair:
    """Two engines, or parts of them, that are called as one."""

    def __init__(self, new: Any, old: Any, judge: Judge) -> None:
        self._new, self._old, self._judge = new, old, judge

    def __getattr__(self, name: str) -> Any:
        new = getattr(self._new, name)
        if name in LOOKS or name.startswith("_"):
            return new
        old = getattr(self._old, name)
        if callable(new):
            return partial(self._judge.call, name, Both(new, old))
        return self._judge._results(name, new, old)

    def look(self, names: Sequence[str], *args: Any) -> None:
        """Compare these properties, or the answers of these methods to `args`."""
        for name in names:
            new, old = getattr(self._new, name), getattr(self._old, name)
            if callable(new):
                new, old = new(*args), old(*args)
            self._judge.same(name, new, old)

    def count_held(self, of_group: HeldRecords | None) -> None:
        old = None if of_group is None else import_module(f"{PACKAGE}.share.held").HeldRecords()
        self._new.count_held(of_group)
        self._old.count_held(old)
        self._judge.held = None if of_group is None else Both(of_group, old)


class TwinStore(Store):
    """The store of the new engine, with that of the old one beside it."""

    def __init__(self, judge: Judge, start: int = 0) -> None:
        super().__init__(start)
        self.old = Store(start)
        self._judge = judge
        self._has_changed = False

    def keep_parked(self, persist: Any) -> None:
        self._has_changed = True
        super().keep_parked(persist)
        self.old.keep_parked(self._judge.persists[persist.token])

    def keep_state(self, persist: Any) -> None:
        self._has_changed = True
        super().keep_state(persist)
        self.old.keep_state(self._judge.persists[persist.token])

    def cut(self, end_offset: int, log_start: int) -> None:
        super().cut(end_offset, log_start)
        self.old.cut(end_offset, log_start)
        self._has_changed = True

    def load(self) -> None:
        super().load()
        self.old.load()
        self._has_changed = True

    def compare(self) -> None:
        if not self._has_changed:
            return
        self._has_changed = False
        new, old = rows_of(self), rows_of(self.old)
        if new != old:
            found = []
            for key in sorted(new.keys() | old.keys()):
                try:
                    self._judge.same(f"rows.{' '.join(key)}", new.get(key), old.get(key))
                except Difference as difference:
                    found.append(difference)
            if found:
                raise Difference(found[0].place, found[0].new, found[0].old, found[1:])


def rows_of(store: Store) -> dict[tuple[str, ...], Any]:
    """What a persister has stored, by key: the state of each offset, each parked record by its
    place, and kept bytes."""
    rows: dict[tuple[str, ...], Any] = {
        ("start",): store.start,
        ("complete",): store.complete,
        ("waiting",): store.waiting,
    }
    for first, last, state, count in store.batches:
        for offset in range(first, last + 1):
            rows["state", f"{offset}"] = int(state), count
    for place, parked in store.places.items():
        rows["parked", f"{parked.offset}", f"{[plain(each) for each in place]}"] = tuple(parked)
    for offset, record in store.records.items():
        rows["bytes", f"{offset}"] = record
    return rows
