"""Brokers whose cleaner is broken on purpose; the judge of compaction has to catch each.

    drops-newest        the newest value of a key is removed, and the older ones stay
    drops-tombstones    a tombstone is removed at once, and the older values of its key stay
    forgets-aborted     records of aborted transactions count like committed ones
    keeps-tombstones    tombstones are never removed
    last-segment-first  tombstones go at once, before the older values in the segments before them
    syncs-nothing       segment only: new contents are written and renamed without a sync

`install` breaks the broker of this process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import trio

from kbroker.broker.compaction.log_pass import LogPass
from kbroker.compaction import mapping
from kbroker.compaction.batch_cleaning import CleaningPass
from kbroker.compaction.transactions import SeenTransactions
from kbroker.formats import compacted_batches
from kbroker.storage.files import Files
from kbroker.storage.segment.replacement import NewContents

LATE_S = 0.1


def _drops_newest() -> None:
    def staying(self: Any, header: Any, records: Any) -> list[int]:
        end, found = self._latest.end_offset, []
        for at, (delta, key) in enumerate(zip(records.offset_deltas, records.keys, strict=True)):
            offset = header.base_offset + delta
            is_newest = key is not None and offset == self._latest.latest(key)
            if offset >= end or at in records.tombstones or not is_newest:
                found.append(at)
        return found

    CleaningPass._staying = staying  # type: ignore[method-assign]


def _without_tombstones() -> None:
    """No tombstone of a pass stays."""
    staying = CleaningPass._staying

    def goes_at_once(self: Any, header: Any, records: Any) -> list[int]:
        end, base, deltas = self._latest.end_offset, header.base_offset, records.offset_deltas
        gone = {at for at in records.tombstones if base + deltas[at] < end}
        return [at for at in staying(self, header, records) if at not in gone]

    CleaningPass._staying = goes_at_once  # type: ignore[method-assign]


def _drops_tombstones() -> None:
    read = compacted_batches.read_stored

    def read_values(payload: Any, header: Any) -> Any:
        found = read(payload, header)
        gone = set(found.tombstones)
        return found._replace(keys=[None if at in gone else key for at, key in enumerate(found.keys)])

    _without_tombstones()
    mapping.read_stored = read_values  # type: ignore[attr-defined]


def _forgets_aborted() -> None:
    is_aborted = SeenTransactions.is_aborted

    def never(self: Any, header: Any) -> bool:
        is_aborted(self, header)
        return False

    SeenTransactions.is_aborted = never  # type: ignore[method-assign]


def _keeps_tombstones() -> None:
    CleaningPass._horizon_ms = lambda *_: None  # type: ignore[method-assign]


def _last_segment_first() -> None:
    async def clean(self: Any, segment: Any, cleaning: Any) -> None:
        """Called for each segment in order: the first call cleans all, from the last one on."""
        if segment.base_offset != self._cleanable.segments[0].base_offset:
            return
        for each in reversed(self._cleanable.segments):
            if each.base_offset < self._latest.end_offset:
                await clean_one(self, each, cleaning)
                await trio.sleep(LATE_S)

    clean_one = LogPass._clean
    _without_tombstones()
    LogPass._clean = clean  # type: ignore[method-assign]


class _Unsynced(Files):
    def fdatasync(self, fd: int) -> None:
        pass

    def fsync_dir(self, path: Path) -> None:
        pass


def _syncs_nothing() -> None:
    """The contents are also written as late as possible: otherwise the next sync of the whole file
    system, for a commit, has them on disk before the rename."""
    append, prepare, move = NewContents.append, NewContents.prepare, NewContents.move

    def append_later(self: Any, batches: Sequence[Any]) -> None:
        kept = [each._replace(data=bytes(each.data)) for each in batches]
        self.waiting = [*getattr(self, "waiting", ()), *kept]

    def move_unsynced(self: Any, publish: Any) -> None:
        files, self._files = self._files, _Unsynced()
        try:
            append(self, getattr(self, "waiting", ()))
            prepare(self)
        finally:
            self._files = files
        move(self, publish)

    NewContents.append = append_later  # type: ignore[method-assign]
    NewContents.prepare = lambda _: None  # type: ignore[method-assign]
    NewContents.move = move_unsynced  # type: ignore[method-assign]


FAULTS: Mapping[str, Callable[[], None]] = {
    "drops-newest": _drops_newest,
    "drops-tombstones": _drops_tombstones,
    "forgets-aborted": _forgets_aborted,
    "keeps-tombstones": _keeps_tombstones,
    "last-segment-first": _last_segment_first,
    "syncs-nothing": _syncs_nothing,
}


def install(fault: str) -> None:
    FAULTS[fault]()
