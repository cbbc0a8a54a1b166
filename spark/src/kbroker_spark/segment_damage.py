"""Finds records that the segment engine's files prove to have been in a log but its reader does not
show: files that were cut or overwritten.

The engine's reader stops at the first invalid batch. After a crash this is right: later bytes were
never confirmed. Three things prove that more was on disk: the index left by an orderly stop, a
segment's checkpoint, and the end of the previous segment that a segment stores (`follows`). The
proofs are read before the log's end, so that writes of a live broker between the two reads do not
look like damage.

This module must not know Spark, nor other engines, whose databases check themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from kbroker.storage.files import Files
from kbroker.storage.segment.checkpoint import load_checkpoint
from kbroker.storage.segment.index import INDEX
from kbroker.storage.segment.reader import log_name
from kbroker.storage.segment.recovery import SavedIndexes, read_follows, take_saved_indexes
from kbroker.storage.spi import LogId, LogReader

_FILES = Files()


def saved_indexes(directory: Path) -> SavedIndexes:
    """The indexes of all logs that the last orderly stop left, for `missing`; empty while a broker
    runs and after a crash."""
    return take_saved_indexes(directory, _FILES) or {}


def missing(directory: Path, saved: SavedIndexes, log: LogId, logs: LogReader) -> list[tuple[int, int]]:
    """Ranges [first, end) of offsets that were on disk and are not shown, in ascending order.
    Raises KeyError if the log was deleted."""
    path = directory / log_name(log)
    newest = logs.segments(log)[-1].base_offset
    proven = dict(_proven_ends(path, saved, newest))
    shown = logs.segments(log)
    found = [
        gap
        for before, after in pairwise(shown)
        for gap in _gap_between(path, before.end_offset, after.base_offset)
    ]
    last = shown[-1].end_offset
    for base_offset, end in sorted(proven.items()):
        if base_offset >= shown[0].base_offset and end > last:
            found.append((last, end))
            last = end
    return found


def _proven_ends(path: Path, saved: SavedIndexes, newest: int) -> Iterator[tuple[int, int]]:
    """(base offset, proven end offset) of the newest shown segment and all later ones. A sealed
    segment that is not shown is assumed to have at least one record."""
    try:
        offsets = [int(name) for name in _FILES.listdir(path) if name.isdigit()]
    except FileNotFoundError:
        return
    for base_offset in sorted(offset for offset in offsets if offset >= newest):
        known = saved.get((path.name, base_offset))
        if known is not None and known.index.next_offset is not None:
            yield base_offset, known.index.next_offset
            continue
        segment = path / f"{base_offset:020}"
        try:
            if (
                checkpoint := load_checkpoint(segment, _FILES)
            ) is not None and checkpoint.index.next_offset is not None:
                yield base_offset, checkpoint.index.next_offset
            elif base_offset > newest and (segment / INDEX).exists():
                yield base_offset, base_offset + 1
        except FileNotFoundError:
            continue


def _gap_between(path: Path, end: int, base_offset: int) -> Iterator[tuple[int, int]]:
    """The offsets missing between two segments. Logs may have holes between segments too; the later
    segment stores the end of the one before it."""
    if end < base_offset:
        follows = read_follows(path / f"{base_offset:020}", _FILES)
        if follows is not None and end < follows:
            yield end, follows
