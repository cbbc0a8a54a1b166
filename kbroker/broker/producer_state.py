"""What a partition remembers of its idempotent producers (KIP-98, KIP-360): the last five batches of each producer id.

Entries are immutable and replaced, so that an append that is refused later (disk full) is undone by putting the old entries
back. `check` decides; `append` records; `confirm` and `undo` follow the commit, in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kbroker.broker.batch_validation import BadBatch
from kbroker.errors import ErrorCode
from kbroker.records import BatchHeader
from kbroker.state_records import Producer, ProducerBatch

REMEMBERED_BATCHES = 5
_SEQUENCES = 1 << 31
_NO_EPOCH = -1


class ProducerStatesStatistics(NamedTuple):
    """`unsettled`: appends that are neither confirmed nor undone."""

    producers: int
    unsettled: int


class ProducerStates:
    """The producers of one partition."""

    __slots__ = ("_entries", "_undo")

    def __init__(self, producers: Iterable[Producer] = ()) -> None:
        self._entries = {producer.producer_id: producer for producer in producers}
        self._undo: deque[tuple[int, Producer | None]] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Producer]:
        return iter(self._entries.values())

    def statistics(self) -> ProducerStatesStatistics:
        return ProducerStatesStatistics(len(self._entries), len(self._undo))

    @property
    def settled(self) -> bool:
        """Whether every append was confirmed or undone."""
        return not self._undo

    def check(self, header: BatchHeader) -> ProducerBatch | None:
        """None: append it. A ProducerBatch: it is a repeat of that one. Raises BadBatch 45 (sequence) or 47 (epoch)."""
        entry = self._entries.get(header.producer_id)
        known_epoch = _NO_EPOCH if entry is None else entry.producer_epoch
        if header.producer_epoch < known_epoch:
            reason = f"producer epoch {header.producer_epoch} is older than {known_epoch}"
            raise BadBatch(ErrorCode.invalid_producer_epoch, reason)
        if entry is None:
            return None
        first, last = header.base_sequence, _last_sequence(header)
        if header.producer_epoch > known_epoch:
            if first != 0 and known_epoch != _NO_EPOCH:
                raise BadBatch(ErrorCode.out_of_order_sequence_number, f"a new producer epoch begins at sequence 0, not {first}")
            return None
        for batch in entry.batches:
            if batch.first_sequence == first and batch.last_sequence == last:
                return batch
        expected = (entry.batches[-1].last_sequence + 1) % _SEQUENCES
        if first != expected and known_epoch != _NO_EPOCH:  # As in Kafka: a producer without an epoch may go on anywhere.
            raise BadBatch(ErrorCode.out_of_order_sequence_number, f"sequence {first} where {expected} was expected")
        return None

    def append(self, header: BatchHeader, base_offset: int, timestamp_ms: int) -> None:
        """Record an append that `check` let through; it is undone or confirmed later. `timestamp_ms`: the time of the append."""
        self._undo.append((header.producer_id, self._entries.get(header.producer_id)))
        self.replay(header, base_offset, timestamp_ms)

    def replay(self, header: BatchHeader, base_offset: int, timestamp_ms: int) -> None:
        """Record a batch that is in the log already."""
        entry = self._entries.get(header.producer_id)
        last_offset = base_offset + header.last_offset_delta
        batch = ProducerBatch(header.base_sequence, _last_sequence(header), base_offset, last_offset, timestamp_ms)
        earlier = entry.batches if entry is not None and entry.producer_epoch == header.producer_epoch else ()
        self._entries[header.producer_id] = Producer(header.producer_id, header.producer_epoch, (*earlier, batch)[-REMEMBERED_BATCHES:])

    def confirm(self) -> None:
        """The oldest append that is not settled counts."""
        self._undo.popleft()

    def undo(self) -> None:
        """Every append that is not settled is taken back."""
        while self._undo:
            producer_id, entry = self._undo.pop()
            if entry is None:
                del self._entries[producer_id]
            else:
                self._entries[producer_id] = entry

    def expire(self, oldest_ms: int) -> None:
        """Forget producers whose last batch is older (producer.id.expiration.ms). Only when settled."""
        gone = [producer_id for producer_id, entry in self._entries.items() if entry.batches[-1].timestamp_ms < oldest_ms]
        for producer_id in gone:
            del self._entries[producer_id]


def _last_sequence(header: BatchHeader) -> int:
    return (header.base_sequence + header.last_offset_delta) % _SEQUENCES
