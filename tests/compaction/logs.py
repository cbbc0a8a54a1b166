"""A log of batches in memory, and passes over it as the broker runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kbroker.compaction.batch_cleaning import CleaningPass, LastOfProducer, PassRules
from kbroker.compaction.mapping import add_keys
from kbroker.compaction.offset_map import OffsetMap
from kbroker.compaction.transactions import SeenTransactions
from kbroker.formats.batches import (
    NO_PRODUCER,
    TRANSACTIONAL,
    BatchHeader,
    ProducerInfo,
    Record,
    build_batch,
    crc_is_valid,
    iter_records,
    read_header,
)
from kbroker.formats.compression import Codec
from kbroker.formats.transactions import AbortedTransaction, MarkerType, build_marker

NOW_MS = 1_700_000_000_000
RETENTION_MS = 60_000


def record(key: str | None, value: str | None, timestamp_ms: int = NOW_MS) -> Record:
    return Record(
        0,
        timestamp_ms,
        None if key is None else key.encode(),
        None if value is None else value.encode(),
        (("h", b"1"),),
    )


class MemoryLog:
    """`batches` are whole batches with their offsets."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.next_offset = 0
        self.aborted: list[AbortedTransaction] = []
        self.producers: dict[int, LastOfProducer] = {}
        self.cleaned_to = 0
        self._open: dict[int, int] = {}

    def append(
        self,
        *records: Record,
        codec: Codec = Codec.NONE,
        producer: ProducerInfo = NO_PRODUCER,
        is_transactional: bool = False,
    ) -> None:
        attributes = TRANSACTIONAL if is_transactional else 0
        base = self.next_offset
        self.batches.append(
            build_batch(records, base_offset=base, codec=codec, producer=producer, attributes=attributes)
        )
        self.next_offset += len(records)
        if producer is not NO_PRODUCER:
            last = LastOfProducer(self.next_offset - 1, producer.producer_epoch)
            self.producers[producer.producer_id] = last
        if is_transactional:
            self._open.setdefault(producer.producer_id, base)

    def end(self, kind: MarkerType, producer_id: int, epoch: int = 0) -> None:
        batch = bytearray(build_marker(kind, producer_id, epoch, 0, NOW_MS))
        batch[:8] = self.next_offset.to_bytes(8, "big")
        self.batches.append(bytes(batch))
        first = self._open.pop(producer_id, self.next_offset)
        if kind is MarkerType.ABORT:
            end = self.next_offset + 1
            self.aborted.append(AbortedTransaction(producer_id, first, self.next_offset, end))
        self.next_offset += 1

    def clean(
        self,
        *,
        now_ms: int = NOW_MS,
        end: int | None = None,
        map_bytes: int = 1 << 20,
        producers: Mapping[int, LastOfProducer] | None = None,
        retention_ms: int = RETENTION_MS,
    ) -> CleaningPass:
        """A pass up to `end`; `producers`: the active ones, by default all. `retention_ms`: how
        long deletions stay."""
        end = self.next_offset if end is None else end
        latest = OffsetMap(map_bytes, self.next_offset)
        latest.end_offset = self.cleaned_to
        seen = SeenTransactions(self.aborted)
        for batch in self.batches:
            header = read_header(batch)
            is_dirty = header.last_offset >= self.cleaned_to and header.last_offset < end
            if is_dirty and not add_keys(latest, seen, batch):
                break
        rules = PassRules(now_ms, retention_ms, end, self.producers if producers is None else producers)
        found = CleaningPass(rules, latest, SeenTransactions(self.aborted))
        kept: list[bytes] = []
        for batch in self.batches:
            if read_header(batch).last_offset >= latest.end_offset:
                kept.append(batch)
            elif (cleaned := found.clean(batch)) is not None:
                kept.append(bytes(cleaned))
        self.batches, self.cleaned_to = kept, latest.end_offset
        return found

    def headers(self) -> Sequence[BatchHeader]:
        for batch in self.batches:
            assert crc_is_valid(batch, 0, read_header(batch))
        return [read_header(batch) for batch in self.batches]

    def records(self) -> Sequence[Record]:
        """Of all data batches, markers left out."""
        return [
            each
            for batch in self.batches
            if not read_header(batch).is_control
            for each in iter_records(batch)
        ]

    def layout(self) -> list[tuple[int, int, int]]:
        """Base offset, last offset and record count of each batch."""
        return [(each.base_offset, each.last_offset, each.record_count) for each in self.headers()]
