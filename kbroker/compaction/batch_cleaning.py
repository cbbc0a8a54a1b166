"""A pass over a log: which records of each batch stay. The rules are those of Kafka's log cleaner.

    1. A record at or after the end of the offset map stays.
    2. A record without key goes, and one whose key has a later record.
    3. A tombstone (a null value) goes when the delete horizon of its batch has passed. The first
       pass that meets the tombstone sets the horizon: now + delete.retention.ms.
    4. Records of aborted transactions go. A marker whose transaction has no batch left gets a
       delete horizon, and goes after it.
    5. A batch without records stays, as a header, if it is the last one of a producer or ends the
       range of the pass: sequence numbers continue from it, and readers reach the end of the range.

Batches of which all records stay are not rewritten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from kbroker.compaction.offset_map import OffsetMap
from kbroker.compaction.transactions import SeenTransactions
from kbroker.formats.batches import BatchHeader, Buffer, read_header, records_payload
from kbroker.formats.compacted_batches import (
    StoredRecords,
    delete_horizon_ms,
    emptied,
    read_stored,
    rebuilt,
)
from kbroker.formats.transactions import is_marker

_LATEST_MS: Final = (1 << 63) - 1


class LastOfProducer(NamedTuple):
    """The last that a producer wrote. `data_offset`: the last offset of its last data batch; None
    if the log has none, but markers of its `epoch`."""

    data_offset: int | None
    epoch: int


class PassRules(NamedTuple):
    """`end_offset`: where the range of the pass stops. `producers`: the active ones by their id."""

    now_ms: int
    delete_retention_ms: int
    end_offset: int
    producers: Mapping[int, LastOfProducer]


class CleaningPass:
    """Takes all batches below `rules.end_offset` in the order of the log."""

    def __init__(self, rules: PassRules, latest: OffsetMap, transactions: SeenTransactions) -> None:
        self._rules, self._latest, self._transactions = rules, latest, transactions
        self.removed_records = 0
        self.empty_markers: list[int] = []
        """Offsets of the markers whose transaction has no batch left."""

    def clean(self, batch: Buffer) -> Buffer | None:
        """What becomes of one batch: itself, a batch with fewer records, or None. Raises
        CorruptPayload if its records cannot be read."""
        header = read_header(batch)
        if header.is_control:
            return self._clean_marker(batch, header)
        is_aborted = self._transactions.is_aborted(header)
        if not header.record_count:
            return batch if self._must_stay(header) else None
        if is_aborted:
            self.removed_records += header.record_count
            return self._without_records(header)
        records = read_stored(bytes(records_payload(batch, header)), header)
        staying = self._staying(header, records)
        self.removed_records += header.record_count - len(staying)
        if not staying:
            return self._without_records(header)
        horizon_ms = None
        has_tombstone = records.tombstones and not set(records.tombstones).isdisjoint(staying)
        if has_tombstone and delete_horizon_ms(header) is None:
            horizon_ms = self._horizon_ms(header, records, staying)
        if horizon_ms is None and len(staying) == header.record_count:
            return batch
        return rebuilt(header, records, staying, horizon_ms=horizon_ms)

    def _staying(self, header: BatchHeader, records: StoredRecords) -> Sequence[int]:
        """The numbers of the records that stay."""
        base, end, keys = header.base_offset, self._latest.end_offset, records.keys
        newest = self._latest.latest_of([key or b"" for key in keys])
        each = zip(records.offset_deltas, keys, newest, strict=True)
        staying = [
            at
            for at, (delta, key, latest) in enumerate(each)
            if (key is not None and base + delta >= latest) or base + delta >= end
        ]
        horizon_ms = delete_horizon_ms(header)
        if records.tombstones and horizon_ms is not None and self._rules.now_ms >= horizon_ms:
            old = {at for at in records.tombstones if base + records.offset_deltas[at] < end}
            staying = [at for at in staying if at not in old]
        return staying

    def _clean_marker(self, batch: Buffer, header: BatchHeader) -> Buffer | None:
        if not is_marker(header):
            return batch  # Control records of kbroker's own, which are found by their offsets.
        if not header.record_count:
            return batch if self._must_stay(header) else None
        if not self._transactions.ends_empty(header):
            return batch
        self.empty_markers.append(header.base_offset)
        horizon_ms = delete_horizon_ms(header)
        if horizon_ms is None:
            records = read_stored(bytes(records_payload(batch, header)), header)
            every = range(header.record_count)
            horizon_ms = self._horizon_ms(header, records, every)
            return batch if horizon_ms is None else rebuilt(header, records, every, horizon_ms=horizon_ms)
        return batch if self._rules.now_ms < horizon_ms else self._without_records(header)

    def _without_records(self, header: BatchHeader) -> bytes | None:
        return emptied(header) if self._must_stay(header) else None

    def _must_stay(self, header: BatchHeader) -> bool:
        is_last = header.last_offset + 1 == self._rules.end_offset
        return is_last or self._is_last_of_producer(header)

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        last = self._rules.producers.get(header.producer_id) if header.has_producer else None
        if last is None:
            return False
        if last.data_offset is not None:
            return header.last_offset == last.data_offset
        return header.is_control and header.producer_epoch == last.epoch

    def _horizon_ms(self, header: BatchHeader, records: StoredRecords, staying: Sequence[int]) -> int | None:
        """None if it, or the times of the records beside it, cannot be stored: a tombstone then
        stays."""
        horizon_ms = self._rules.now_ms + self._rules.delete_retention_ms
        if horizon_ms > _LATEST_MS:
            return None
        shift_ms, deltas = header.base_timestamp_ms - horizon_ms, records.timestamp_deltas
        fits = all(abs(deltas[at] + shift_ms) <= _LATEST_MS for at in staying)
        return horizon_ms if fits else None
