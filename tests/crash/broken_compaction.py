"""Brokers whose cleaner is broken on purpose; the judge of compaction has to catch each.

    drops-newest        the newest value of a key is removed, and the older ones stay
    drops-tombstones    a tombstone is removed at once, and the older values of its key stay
    forgets-aborted     records of aborted transactions count like committed ones
    keeps-tombstones    tombstones are never removed
    last-segment-first  tombstones go at once, before the older values in the segments before them
    syncs-nothing       segment only: new contents are renamed before they are on disk

`install` breaks the broker of this process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import trio

from kbroker.broker.compaction.log_pass import LogPass
from kbroker.compaction import mapping
from kbroker.compaction.batch_cleaning import CleaningPass
from kbroker.compaction.transactions import SeenTransactions
from kbroker.storage.segment.replacement import NewContents

LATE_S = 0.1


def _drops_newest() -> None:
    def stays(self: Any, header: Any, record: Any) -> bool:
        offset = header.base_offset + record.offset_delta
        return bool(
            offset >= self._latest.end_offset
            or record.key is None
            or record.is_tombstone
            or offset != self._latest.latest(record.key)
        )

    CleaningPass._stays = stays  # type: ignore[method-assign]


def _drops_tombstones() -> None:
    stays, read = CleaningPass._stays, mapping.iter_stored

    def stays_unless_tombstone(self: Any, header: Any, record: Any) -> bool:
        is_clean = header.base_offset + record.offset_delta < self._latest.end_offset
        return not (is_clean and record.is_tombstone) and stays(self, header, record)

    CleaningPass._stays = stays_unless_tombstone  # type: ignore[method-assign]
    mapping.iter_stored = lambda *args: (each for each in read(*args) if not each.is_tombstone)


def _forgets_aborted() -> None:
    is_aborted = SeenTransactions.is_aborted

    def never(self: Any, header: Any) -> bool:
        is_aborted(self, header)
        return False

    SeenTransactions.is_aborted = never  # type: ignore[method-assign]


def _keeps_tombstones() -> None:
    CleaningPass._horizon_ms = lambda *_: None  # type: ignore[method-assign]


def _last_segment_first() -> None:
    stays = CleaningPass._stays

    def goes_at_once(self: Any, header: Any, record: Any) -> bool:
        is_clean = header.base_offset + record.offset_delta < self._latest.end_offset
        return not (is_clean and record.is_tombstone) and stays(self, header, record)

    async def clean(self: Any, segment: Any, cleaning: Any) -> None:
        """Called for each segment in order: the first call cleans all, from the last one on."""
        if segment.base_offset != self._cleanable.segments[0].base_offset:
            return
        for each in reversed(self._cleanable.segments):
            if each.base_offset < self._latest.end_offset:
                await clean_one(self, each, cleaning)
                await trio.sleep(LATE_S)

    clean_one = LogPass._clean
    CleaningPass._stays = goes_at_once  # type: ignore[method-assign]
    LogPass._clean = clean  # type: ignore[method-assign]


def _syncs_nothing() -> None:
    prepare = NewContents.prepare

    def unsynced(self: Any) -> None:
        files = self._files
        sync, sync_dir = files.fdatasync, files.fsync_dir
        files.fdatasync = files.fsync_dir = lambda *_: None
        try:
            prepare(self)
        finally:
            files.fdatasync, files.fsync_dir = sync, sync_dir

    NewContents.prepare = unsynced  # type: ignore[method-assign]


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
