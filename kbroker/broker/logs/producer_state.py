"""The idempotent producers of a partition (KIP-98, KIP-360): the last five batches of each producer
id.

Entries are immutable and replaced, so an append that is refused later (disk full) is undone by
restoring the old entry. `check` decides, `append` records; `confirm` and `undo` follow the commit,
in order.

An unknown producer may begin at any sequence, with one exception. If the disk has refused the first
batch of a producer, only that batch may come first: accepting a later one would make the retry of
the first one a sequence error, which is fatal for the client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from kbroker.broker.logs.validation import BadBatch
from kbroker.errors import ErrorCode
from kbroker.formats.batches import BatchHeader
from kbroker.formats.state import Producer, ProducerBatch

REMEMBERED_BATCHES = 5
_SEQUENCES = 1 << 31
_NO_EPOCH = -1


class _Unsettled(NamedTuple):
    """An append that is neither confirmed nor undone. `before`: the producer's entry without it."""

    producer_id: int
    before: Producer | None
    producer_epoch: int
    first_sequence: int
    timestamp_ms: int


class ProducerStatesStatistics(NamedTuple):
    """`unsettled`: appends that are neither confirmed nor undone."""

    producers: int
    unsettled: int


class ProducerStates:
    """The producers of one partition."""

    __slots__ = ("_entries", "_refused", "_unsettled")

    def __init__(self, producers: Iterable[Producer] = ()) -> None:
        self._entries = {producer.producer_id: producer for producer in producers}
        self._unsettled: deque[_Unsettled] = deque()
        self._refused: dict[int, _Unsettled] = {}
        """First batches that a full disk refused, of producers that are still unknown."""

    def __len__(self) -> int:
        return len(self._entries)

    def statistics(self) -> ProducerStatesStatistics:
        return ProducerStatesStatistics(len(self._entries), len(self._unsettled))

    def confirmed(self) -> tuple[Producer, ...]:
        """The state without unsettled appends, as of the high watermark."""
        entries = dict(self._entries)
        for append in reversed(self._unsettled):
            _restore(entries, append)
        return tuple(entries.values())

    def check(self, header: BatchHeader) -> ProducerBatch | None:
        """None: append the batch. A ProducerBatch: the batch repeats that one. Raises BadBatch 45
        (sequence) or 47 (epoch)."""
        entry = self._entries.get(header.producer_id)
        known_epoch = _NO_EPOCH if entry is None else entry.producer_epoch
        if header.producer_epoch < known_epoch:
            reason = f"producer epoch {header.producer_epoch} is older than {known_epoch}"
            raise BadBatch(ErrorCode.invalid_producer_epoch, reason)
        if entry is None:
            if self._refused:
                self._check_refused(header)
            return None
        first, last = header.base_sequence, _last_sequence(header)
        if header.producer_epoch > known_epoch:
            if first != 0 and known_epoch != _NO_EPOCH:
                raise BadBatch(
                    ErrorCode.out_of_order_sequence_number,
                    f"a new producer epoch begins at sequence 0, not {first}",
                )
            return None
        for batch in entry.batches:
            if batch.first_sequence == first and batch.last_sequence == last:
                return batch
        expected = (entry.batches[-1].last_sequence + 1) % _SEQUENCES
        # As in Kafka, a producer without an epoch may continue at any sequence.
        if first != expected and known_epoch != _NO_EPOCH:
            raise BadBatch(
                ErrorCode.out_of_order_sequence_number, f"sequence {first} where {expected} was expected"
            )
        return None

    def append(self, header: BatchHeader, base_offset: int, timestamp_ms: int) -> None:
        """Record an append that `check` accepted; it is confirmed or undone later.
        `timestamp_ms`: the time of the append."""
        producer_id = header.producer_id
        before = self._entries.get(producer_id)
        self._unsettled.append(
            _Unsettled(producer_id, before, header.producer_epoch, header.base_sequence, timestamp_ms)
        )
        if self._refused:
            self._refused.pop(producer_id, None)
        self.replay(header, base_offset, timestamp_ms)

    def replay(self, header: BatchHeader, base_offset: int, timestamp_ms: int) -> None:
        """Record a batch that is in the log already."""
        entry = self._entries.get(header.producer_id)
        last_offset = base_offset + header.last_offset_delta
        batch = ProducerBatch(
            header.base_sequence, _last_sequence(header), base_offset, last_offset, timestamp_ms
        )
        earlier = entry.batches if entry is not None and entry.producer_epoch == header.producer_epoch else ()
        self._entries[header.producer_id] = Producer(
            header.producer_id, header.producer_epoch, (*earlier, batch)[-REMEMBERED_BATCHES:]
        )

    def confirm(self) -> None:
        """Settle the oldest append: its batch is stored."""
        self._unsettled.popleft()

    def undo(self) -> None:
        """Undo every unsettled append."""
        while self._unsettled:
            append = self._unsettled.pop()
            _restore(self._entries, append)
            if append.before is None:
                self._refused[append.producer_id] = append

    def note_refused(self, header: BatchHeader, now_ms: int) -> None:
        """As `undo`, for a batch that was refused before it was appended."""
        producer_id, epoch = header.producer_id, header.producer_epoch
        known = self._refused.get(producer_id)
        if producer_id not in self._entries and (known is None or known.producer_epoch < epoch):
            self._refused[producer_id] = _Unsettled(producer_id, None, epoch, header.base_sequence, now_ms)

    def expire(self, oldest_ms: int) -> int:
        """Forget producers whose last batch is older (producer.id.expiration.ms). Returns how many.

        A producer with an unsettled append stays: undoing the append would bring its entry back.
        """
        busy = {append.producer_id for append in self._unsettled}
        gone = [
            key
            for key, entry in self._entries.items()
            if entry.batches[-1].timestamp_ms < oldest_ms and key not in busy
        ]
        for producer_id in gone:
            del self._entries[producer_id]
        for producer_id in [key for key, append in self._refused.items() if append.timestamp_ms < oldest_ms]:
            del self._refused[producer_id]
        return len(gone)

    def _check_refused(self, header: BatchHeader) -> None:
        refused = self._refused.get(header.producer_id)
        if refused is None or header.producer_epoch != refused.producer_epoch:
            return
        if header.base_sequence != refused.first_sequence:
            reason = (
                f"sequence {header.base_sequence}, but {refused.first_sequence} was refused before "
                "and has to be repeated first"
            )
            raise BadBatch(ErrorCode.out_of_order_sequence_number, reason)


def _restore(entries: dict[int, Producer], append: _Unsettled) -> None:
    if append.before is None:
        del entries[append.producer_id]
    else:
        entries[append.producer_id] = append.before


def _last_sequence(header: BatchHeader) -> int:
    return (header.base_sequence + header.last_offset_delta) % _SEQUENCES
