"""Stores that are broken on purpose: each does one thing wrong that a checker has to catch, and delegates the rest.

    skips-sync      sync() returns at once: caught by power cuts, never by kill -9
    drops-writes    two of three write()s are forgotten, once the store has settled in
    answers-early   write() returns before it writes; the write is made when the next one comes
    loses-offsets   state stores: every third offset that a consumer group commits is not written
    notes-early     segment only: checkpoints tell of batches that no sync() has seen yet

A broken engine is named like skips-sync:segment. `install` makes the names known in this process, and only there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kbroker import plugins
from kbroker.state_records import GroupOffsetKey

SETTLED = 20
"""Writes of a state store that nothing happens to: a broker that forgets its own start would fail in plain sight."""


class Broken:
    """Everything that is not broken is the real store's."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class SkipsSync(Broken):
    def sync(self) -> None:
        pass


class DropsWrites(Broken):
    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self._writes = 0
        self._settled = SETTLED if hasattr(store, "scan") else 0

    def write(self, *args: Any, **options: Any) -> None:
        self._writes += 1
        if self._writes < self._settled or self._writes % 3 == 0:
            self._store.write(*args, **options)


class AnswersEarly(Broken):
    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self._late: Callable[[], None] = lambda: None

    def write(self, *args: Any, **options: Any) -> None:
        self._late()
        self._late = lambda: self._store.write(*args, **options)

    def close(self) -> None:
        self._late()
        self._store.close()


class LosesOffsets(Broken):
    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self._offsets = 0

    def write(self, *args: Any, **options: Any) -> None:
        changes, *others = args
        self._store.write([change for change in changes if not self._loses(*change)], *others, **options)

    def _loses(self, key: bytes, value: bytes | None) -> bool:
        if not key.startswith(GroupOffsetKey.namespace) or value is None:
            return False
        self._offsets += 1
        return self._offsets % 3 == 0


class NotesEarly(Broken):
    def write(self, *args: Any, **options: Any) -> None:
        self._store.write(*args, **options)
        with self._store._maintenance:
            self._store._checkpoints.synced([(segment, len(segment.index)) for segment in self._store._dirty])
            self._store._checkpoints.write_due(len(self._store._dirty))


BROKEN: dict[str, type[Broken]] = {
    "skips-sync": SkipsSync,
    "drops-writes": DropsWrites,
    "answers-early": AnswersEarly,
    "loses-offsets": LosesOffsets,
    "notes-early": NotesEarly,
}


def install() -> None:
    """From now on `plugins` finds broken engines by name."""
    load = plugins.load

    def load_broken(group: str, name: str) -> Any:
        fault, _, engine = name.rpartition(":")
        factory = load(group, engine)
        if not fault:
            return factory
        return replace(factory, open=lambda *args: BROKEN[fault](factory.open(*args)))

    plugins.load = load_broken
