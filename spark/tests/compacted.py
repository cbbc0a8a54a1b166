"""Logs with transactions that are compacted without a broker, as its cleaner does it: each batch is
a segment, and a pass takes all of them up to the last one or the first open transaction."""

from __future__ import annotations

from collections.abc import Iterator

from kbroker.compaction.batch_cleaning import CleaningPass, LastOfProducer, PassRules
from kbroker.compaction.mapping import add_keys
from kbroker.compaction.offset_map import OffsetMap
from kbroker.compaction.transactions import SeenTransactions
from kbroker.formats.batches import Buffer, iter_headers, iter_records, read_header
from kbroker.formats.transactions import AbortedKey
from kbroker.storage.spi import LogId, StampedBatch
from kbroker.testing.log_store_model import replace
from spark.tests.stored import Stored
from spark.tests.transactional import StoredLog, committed

KEYS = 5


def key_of(offset: int) -> bytes:
    """Few keys, in no simple order."""
    return b"k%d" % (offset * offset % 11 % KEYS)


class CompactedLog(StoredLog):
    """Its records have few keys."""

    def __init__(self, data: Stored, topic: str = "t") -> None:
        super().__init__(data, topic, key_of)
        self._cleaned_to = 0

    @property
    def log(self) -> LogId:
        return LogId(self.topic_id, 0)

    @property
    def left(self) -> list[int]:
        """The offsets of the data records that are stored."""
        return [
            record.offset
            for batch in self.batches()
            if not read_header(batch).is_control
            for record in iter_records(batch)
            if record.offset >= self.start
        ]

    @property
    def committed(self) -> list[int]:
        left = set(self.left)
        return [each for each in committed(self.events, self.start, self.end) if each in left]

    def batches(self, first: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Those that are stored."""
        until = self.end if end is None else end
        for view in self._data.logs.read(self.log, first, max_bytes=1 << 30, end_offset=until):
            for position, header in iter_headers(view):
                yield bytes(view[position : position + header.size_bytes])

    def layout(self) -> list[tuple[int, int, int]]:
        """Base offset, last offset and number of records of each batch."""
        headers = map(read_header, self.batches())
        return [(each.base_offset, each.last_offset, each.record_count) for each in headers]

    def clean(self, *, now_ms: int = 1_000_000, delete_retention_ms: int = 0, save: bool = True) -> None:
        """One pass. With a `delete_retention_ms` of 0, tombstones and markers go in the pass after
        the one that first meets them, if its `now_ms` is not lower. `save`: whether the producers
        are saved before markers go; the older snapshot stays without that."""
        segments = self._data.logs.segments(self.log)[:-1]
        segments = [each for each in segments if each.end_offset <= self.stable_end]
        if not segments:
            return
        end = segments[-1].end_offset
        start = segments[0].base_offset
        aborted = list(self._states.transactions.aborted_in(start, end))
        latest, seen = OffsetMap(1 << 20, self.end), SeenTransactions(aborted)
        latest.end_offset = max(self._cleaned_to, start)
        for batch in self.batches(latest.end_offset, end):
            assert add_keys(latest, seen, batch)
        latest.end_offset = end
        rules = PassRules(now_ms, delete_retention_ms, end, self._last_of_producers())
        cleaning = CleaningPass(rules, latest, SeenTransactions(aborted))
        for each in segments:
            old = list(self.batches(each.base_offset, each.end_offset))
            new = [cleaned for batch in old if (cleaned := cleaning.clean(batch)) is not None]
            self._before_markers_go(cleaning.empty_markers, save)
            cleaning.empty_markers = []
            if new != old:
                replace(self._data.logs, self.log, each.base_offset, list(map(self._stamped, new)))
        self._cleaned_to = end

    def remove(self, offset: int) -> None:
        """The batch that begins there, in a segment of its own."""
        replace(self._data.logs, self.log, offset, [])

    def expire_producers(self) -> None:
        """As the broker forgets them (producer.id.expiration.ms). Those in a transaction stay."""
        self._states.expire(1 << 62)

    def _last_of_producers(self) -> dict[int, LastOfProducer]:
        return {
            each.producer_id: LastOfProducer(
                each.batches[-1].last_offset if each.batches else None, each.producer_epoch
            )
            for each in self._states.confirmed()
        }

    def _before_markers_go(self, markers: list[int], save: bool) -> None:
        if markers:
            self._states.transactions.forget(markers)
            self._data.state.write([(AbortedKey(*self.log, each).encode(), None) for each in markers])
            if save:
                self.save()

    def _stamped(self, batch: Buffer) -> StampedBatch:
        data = bytes(batch)
        header = read_header(data)
        return StampedBatch(self.log, header.base_offset, header.last_offset, header.max_timestamp_ms, data)
