"""The transactions of one log: which were aborted, and where the first open one begins.

The log alone has the truth: a marker decides about the batches of its producer before it, and a
transaction without a marker is open. So records whose marker still exists are decided even if the
log has lost the beginning of their transaction. The state only saves reading: its newest snapshot
of the log's producers has the open transactions as of an offset, and it was written together with
the list of those that were aborted below that offset. From there on the log is read.

Compaction removes the records of aborted transactions, and later markers whose transaction has no
batch left. Before a marker goes, the broker saves a snapshot that is newer than it. So a marker
that the log lacks is one that the newest snapshot knows.

A decision never changes, because the broker stores it before it writes markers. Must not know
Spark.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple, TypeAlias

import numpy as np

from kbroker.formats.batches import CONTROL, NO_PRODUCER_ID, TRANSACTIONAL
from kbroker.formats.compression import CorruptPayload
from kbroker.formats.state import ProducerSnapshot, ProducerSnapshotKey
from kbroker.formats.transactions import AbortedKey, Marker, MarkerType, aborted_prefix
from kbroker.storage.spi import LogId, LogReader, StateReader
from kbroker_spark.batch_groups import CorruptBatch, walked
from kbroker_spark.data import read_range
from kbroker_spark.offsets import Aborted, Bounds

_last = attrgetter("last")
_FIELDS = ("producer_id", "base_offset", "attributes", "record_count")
Snapshots: TypeAlias = Mapping[int, bytes]


@dataclass(frozen=True)
class Committed:
    """What a consumer with read_committed may read of a log.

    - `end`: the last stable offset; it gets no record at or above it
    - `aborted`: the aborted transactions, in the order of their markers; None if there are no
      transactions at all
    """

    end: int
    aborted: Sequence[Aborted] | None = None

    def aborted_in(self, first: int, end: int) -> tuple[Aborted, ...] | None:
        """Those that may have records in [first, end)."""
        if self.aborted is None:
            return None
        begin = bisect_right(self.aborted, first, key=_last)
        stop = bisect_left(self._least_first, end, begin)
        return tuple(each for each in self.aborted[begin:stop] if each.first < end)

    @cached_property
    def _least_first(self) -> Sequence[int]:
        """For each aborted transaction, where it or the earliest of the later ones begins."""
        firsts = [each.first for each in self.aborted or ()]
        return list(accumulate(reversed(firsts), min))[::-1]


class LogTransactions:
    """The transactions of a log below `offset`, which `read` moves on."""

    def __init__(
        self, offset: int, aborted: Iterable[Aborted] = (), opened: Mapping[int, int] | None = None
    ) -> None:
        self.offset = offset
        self._aborted = list(aborted)
        self._open = dict(opened or {})
        """First offset by producer id."""

    @classmethod
    def stored(cls, moment: StateReader, log: LogId, bounds: Bounds, snapshots: Snapshots) -> LogTransactions:
        """What a moment of the state has; nothing, as of the log's start, if it has no valid
        snapshot. A snapshot beyond the log's end describes batches that a power cut took."""
        newest = _newest(bounds, snapshots)
        if newest is None:
            return cls(bounds.start)
        try:
            aborted = _stored_aborted(moment, log, Bounds(bounds.start, newest.offset))
        except (ValueError, TypeError):
            return cls(bounds.start)  # Damaged; the log has everything, too.
        return cls(newest.offset, aborted, newest.opened)

    @property
    def has_open(self) -> bool:
        return bool(self._open)

    def lacks_an_end(self, bounds: Bounds, snapshots: Snapshots) -> bool:
        """Whether the newest snapshot shows that a transaction that is open here has ended. Its
        marker was removed before it was read."""
        newest = _newest(bounds, snapshots) if self._open else None
        return newest is not None and any(
            first < newest.offset and newest.opened.get(producer_id, newest.offset) > first
            for producer_id, first in self._open.items()
        )

    def read(self, logs: LogReader, log: LogId, end: int, name: str) -> None:
        """Moves on to `end`. Raises DataLoss if the log has lost batches from `offset` on, and
        ValueError for damage; this object is of no use then.

        `name` (topic-partition) is for error messages."""
        for chunks in read_range(logs, *log, self.offset, end, name=name):
            for data, positions, headers in walked(chunks):
                attributes = headers["attributes"]
                is_wanted = (attributes & (TRANSACTIONAL | CONTROL)) != 0
                is_wanted &= headers["producer_id"] > NO_PRODUCER_ID
                chosen = np.flatnonzero(is_wanted)
                fields = (headers[field][chosen].tolist() for field in _FIELDS)
                for position, *header in zip(positions[chosen].tolist(), *fields, strict=True):
                    self._take(data, position, *header)
        self.offset = max(self.offset, end)

    def _take(
        self, data: memoryview, position: int, producer_id: int, offset: int, attributes: int, records: int
    ) -> None:
        """A batch of a transaction, or a marker. Those without records are left by compaction:
        their transaction has ended, and nothing of it is to be left out."""
        if attributes & CONTROL:
            first = self._open.pop(producer_id, None)
            is_abort = records and _marker(data, position, offset).kind is MarkerType.ABORT
            if first is not None and is_abort:
                self._aborted.append(Aborted(producer_id, first, offset))
        elif records:
            self._open.setdefault(producer_id, offset)

    def committed(self, log_start: int) -> Committed:
        """As of `offset`. Forgets transactions whose marker is below `log_start`."""
        gone = bisect_right(self._aborted, log_start - 1, key=_last)
        self._aborted = self._aborted[gone:] if gone else self._aborted
        first_open = min(self._open.values(), default=self.offset)
        return Committed(max(log_start, min(first_open, self.offset)), self._aborted)


class _Snapshot(NamedTuple):
    """`opened`: first offset of the open transactions below `offset`, by producer id."""

    offset: int
    opened: Mapping[int, int]


def _newest(bounds: Bounds, snapshots: Snapshots) -> _Snapshot | None:
    """The newest one within the log; None if there is none, or if it is damaged."""
    offset = max((each for each in snapshots if bounds.start <= each <= bounds.end), default=None)
    if offset is None:
        return None
    try:
        producers = ProducerSnapshot.decode(snapshots[offset]).producers
    except (ValueError, TypeError):
        return None
    return _Snapshot(offset, {each.producer_id: each.open_from for each in producers if each.open_from >= 0})


def stored_snapshots(moment: StateReader, log: LogId) -> Snapshots:
    """The stored snapshots of a log's producers, by their offset."""
    prefix = ProducerSnapshotKey(*log, 0).encode()[:-8]
    return {
        ProducerSnapshotKey.parse(key[len(ProducerSnapshotKey.namespace) :]).offset: value
        for key, value in moment.scan(prefix)
    }


def _stored_aborted(moment: StateReader, log: LogId, bounds: Bounds) -> list[Aborted]:
    """Those whose marker is within the bounds."""
    found = []
    for key, value in moment.scan(aborted_prefix(*log)):
        each = AbortedKey.parse(key[len(AbortedKey.namespace) :]).decode_value(value)
        if bounds.start <= each.last_offset < bounds.end:
            found.append(Aborted(each.producer_id, each.first_offset, each.last_offset))
    return found


def _marker(data: memoryview, position: int, offset: int) -> Marker:
    try:
        return Marker.from_batch(data, position)
    except (ValueError, CorruptPayload) as error:
        raise CorruptBatch(offset, str(error)) from error
