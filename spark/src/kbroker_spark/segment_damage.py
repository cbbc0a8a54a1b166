"""What the segment engine's files prove to have been in a log, and its reader does not show: files
that were cut or overwritten.

The engine's reader shows batches up to the first that is none, which after a crash is right: what
is behind it was never confirmed. Three things say that more was there and on disk: the index left
by an orderly stop, a segment's checkpoint, and a segment that says (`follows`) where the one before
it ended. Proofs are read before what is shown, so that a live broker's progress between looks like
nothing.

This module must not know Spark, nor any other engine, whose databases check themselves.
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
    """For `missing`: what the last orderly stop left of all logs; nothing while a broker runs, or
    after a crash."""
    return take_saved_indexes(directory, _FILES) or {}


def missing(directory: Path, saved: SavedIndexes, log: LogId, logs: LogReader) -> list[tuple[int, int]]:
    """Offsets [first, end) that were on disk and are not shown, rising. Raises KeyError when the
    log is gone."""
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
    """(base offset, end offset) of segments, from the newest shown one on; of a sealed one that is
    not shown it is told that it has a record."""
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
    """Logs may have holes, also between segments; the later segment knows where the one before
    ended."""
    if end < base_offset:
        follows = read_follows(path / f"{base_offset:020}", _FILES)
        if follows is not None and end < follows:
            yield end, follows
