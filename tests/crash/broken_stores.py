"""Stores that are broken on purpose: each does one thing wrong that a checker has to catch, and
delegates the rest.

    skips-sync          sync() returns at once: caught by power cuts, never by kill -9
    drops-writes        two of three write()s are dropped, after the first SETTLED writes
    answers-early       write() returns before it writes; the next write() makes the previous one
    loses-offsets       state stores: every third offset that a consumer group commits is not
                        written
    notes-early         segment only: checkpoints contain batches that no sync() has covered yet
    skips-slices        segment only: a write to more logs than files closes them unsynced
    moves-early         segment's state only: entries gathered for LMDB are moved there before the
                        log is synced
    moves-no-removals   segment's state only: removals do not wait for their move
    believes-purged     state stores: the producer snapshot that is saved with a log's start is
                        lost, and an older one claims to belong to that start
    keeps-snapshots     state stores: a producer snapshot is removed only by a newer one
    keeps-starts        state stores: the start of a log is never moved back, whatever a power cut
                        has removed from its end
    ids-unsynced        state stores: the sync() after a new block of producer ids returns at once;
                        the next sync() covers it

A broken engine has a name such as skips-sync:segment. `install` makes the names known in this
process only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from kbroker import plugins
from kbroker.formats.state import PRODUCER_IDS, GroupOffsetKey, LogStart, LogStartKey, ProducerSnapshotKey

SETTLED = 20
"""The first writes of a state store, which are spared: a broker that loses its own start would fail
too obviously."""


class Broken:
    """Delegates everything that is not broken to the real store."""

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
            dirty = self._store._unsynced.dirty
            self._store._checkpoints.synced([(segment, len(segment.index)) for segment in dirty])
            self._store._checkpoints.write_due(len(self._store._unsynced.dirty))


class SkipsSlices(Broken):
    def __init__(self, store: Any) -> None:
        super().__init__(store)
        store._unsynced.sync_slice = lambda *_: None


class MovesEarly(Broken):
    def sync(self) -> None:
        self._store._on_disk.freeze(self._store._log.end_offset)
        self._store._on_disk.move()
        self._store.sync()


class MovesNoRemovals(Broken):
    def __init__(self, store: Any) -> None:
        super().__init__(store)
        apply = store._on_disk.apply
        store._on_disk.apply = lambda changes: apply([change for change in changes if change[1] is not None])


def _offset_of(key: bytes) -> int | None:
    """Of the producer snapshot with this key; None if the key is of another kind."""
    namespace = ProducerSnapshotKey.namespace
    return ProducerSnapshotKey.parse(key[len(namespace) :]).offset if key.startswith(namespace) else None


def _log_of(key: bytes) -> bytes:
    """The common prefix of all keys of producer snapshots of one log."""
    return key[:-8]


class BelievesPurged(Broken):
    def write(self, *args: Any, **options: Any) -> None:
        changes, *others = args
        if any(key.startswith(LogStartKey.namespace) for key, _ in changes):
            changes = [(key, value) for key, value in changes if _offset_of(key) is None]
        self._store.write(changes, *others, **options)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, value in self._store.scan(prefix):
            yield self._moved(key), value

    @contextmanager
    def snapshot(self) -> Iterator[BelievesPurged]:
        with self._store.snapshot() as moment:
            yield BelievesPurged(moment)

    def _moved(self, key: bytes) -> bytes:
        offset = _offset_of(key)
        if offset is None:
            return key
        found = ProducerSnapshotKey.parse(key[len(ProducerSnapshotKey.namespace) :])
        start = self._store.get(LogStartKey(found.topic_id, found.partition).encode())
        begins = 0 if start is None else LogStart.decode(start).offset
        return ProducerSnapshotKey(found.topic_id, found.partition, max(offset, begins)).encode()


class KeepsSnapshots(Broken):
    def write(self, *args: Any, **options: Any) -> None:
        changes, *others = args
        renewed = {
            _log_of(key) for key, value in changes if _offset_of(key) is not None and value is not None
        }
        kept = [
            (key, value)
            for key, value in changes
            if value is not None or _offset_of(key) is None or _log_of(key) in renewed
        ]
        self._store.write(kept, *others, **options)


class KeepsStarts(Broken):
    def write(self, *args: Any, **options: Any) -> None:
        changes, *others = args
        self._store.write([change for change in changes if not self._goes_back(*change)], *others, **options)

    def _goes_back(self, key: bytes, value: bytes | None) -> bool:
        if not key.startswith(LogStartKey.namespace) or value is None:
            return False
        stored = self._store.get(key)
        return stored is not None and LogStart.decode(value).offset < LogStart.decode(stored).offset


class IdsUnsynced(Broken):
    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self._skips = False

    def write(self, *args: Any, **options: Any) -> None:
        self._store.write(*args, **options)
        self._skips = self._skips or any(key == PRODUCER_IDS.encode() for key, _ in args[0])

    def sync(self) -> None:
        if self._skips:
            self._skips = False
        else:
            self._store.sync()


BROKEN: dict[str, type[Broken]] = {
    "skips-sync": SkipsSync,
    "drops-writes": DropsWrites,
    "answers-early": AnswersEarly,
    "loses-offsets": LosesOffsets,
    "notes-early": NotesEarly,
    "skips-slices": SkipsSlices,
    "moves-early": MovesEarly,
    "moves-no-removals": MovesNoRemovals,
    "believes-purged": BelievesPurged,
    "keeps-snapshots": KeepsSnapshots,
    "keeps-starts": KeepsStarts,
    "ids-unsynced": IdsUnsynced,
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
