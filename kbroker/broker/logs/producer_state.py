"""The idempotent producers of a partition (KIP-98, KIP-360): the last five batches of each producer
id, and its open transaction.

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

from kbroker.broker.logs.open_transactions import OpenTransactions
from kbroker.broker.logs.validation import BadBatch
from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.batches import BatchHeader
from kbroker.formats.state import Producer, ProducerBatch
from kbroker.formats.transactions import AbortedTransaction, Marker, MarkerType

REMEMBERED_BATCHES = 5
_SEQUENCES = 1 << 31
_NO_EPOCH = -1
_LAST_EPOCH = (1 << 15) - 1
"""It only fences, and cannot be incremented for a marker."""


class _Unsettled(NamedTuple):
    """An append that is neither confirmed nor undone. `before`: the producer's entry without it.
    `marker`: it is a marker, at `offset`, of the transaction that begins at `open_from`."""

    producer_id: int
    before: Producer | None
    producer_epoch: int
    first_sequence: int
    timestamp_ms: int
    marker: MarkerType | None = None
    offset: int = -1
    open_from: int = -1


class ProducerStatesStatistics(NamedTuple):
    """`unsettled`: appends that are neither confirmed nor undone. `open`: transactions."""

    producers: int
    unsettled: int
    open: int


class ProducerStates:
    """The producers of one partition."""

    __slots__ = ("_entries", "_refused", "_unsettled", "transactions")

    def __init__(
        self, producers: Iterable[Producer] = (), aborted: Iterable[AbortedTransaction] = ()
    ) -> None:
        self._entries = {producer.producer_id: producer for producer in producers}
        self.transactions = OpenTransactions(aborted)
        self._reset_open()
        self._unsettled: deque[_Unsettled] = deque()
        self._refused: dict[int, _Unsettled] = {}
        """First batches that a full disk refused, of producers that are still unknown."""

    def __len__(self) -> int:
        return len(self._entries)

    def statistics(self) -> ProducerStatesStatistics:
        return ProducerStatesStatistics(len(self._entries), len(self._unsettled), len(self.transactions))

    def knows(self, producer_id: int) -> bool:
        return producer_id in self._entries

    def has_newer_epoch(self, header: BatchHeader) -> bool:
        """Whether the log has a later epoch of the batch's producer."""
        entry = self._entries.get(header.producer_id)
        return entry is not None and header.producer_epoch < entry.producer_epoch

    def coordinator_epoch(self, producer_id: int) -> int:
        """That of the producer's last marker; -1 if there is none."""
        entry = self._entries.get(producer_id)
        return -1 if entry is None else entry.coordinator_epoch

    def has_open(self, producer_id: int) -> bool:
        """Whether the producer has a transaction here whose marker is not appended."""
        entry = self._entries.get(producer_id)
        return entry is not None and entry.open_from >= 0

    def confirmed(self) -> tuple[Producer, ...]:
        """The state without unsettled appends, as of the high watermark."""
        entries = dict(self._entries)
        for append in reversed(self._unsettled):
            _restore(entries, append)
        return tuple(entries.values())

    def check(self, header: BatchHeader) -> ProducerBatch | None:
        """None: append the batch. A ProducerBatch: the batch repeats that one. Raises BadBatch 45
        (sequence), 47 (epoch) or 48 (a plain batch in a transaction)."""
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
            _check_plain(entry, header)
            return None
        for batch in entry.batches:
            if batch.first_sequence == first and batch.last_sequence == last:
                return batch
        expected = (entry.batches[-1].last_sequence + 1) % _SEQUENCES if entry.batches else 0
        # As in Kafka, a producer without an epoch may continue at any sequence.
        if first != expected and known_epoch != _NO_EPOCH:
            raise BadBatch(
                ErrorCode.out_of_order_sequence_number, f"sequence {first} where {expected} was expected"
            )
        _check_plain(entry, header)
        return None

    def check_marker(self, producer_id: int, epoch: int, coordinator_epoch: int, *, version: int) -> None:
        """Whether a marker may be appended. With transaction version 2 the epoch has been
        incremented for it, unless the marker is a repeat. Raises KafkaError 47 or 52."""
        entry = self._entries.get(producer_id)
        if entry is None:
            return
        is_repeat = epoch == entry.producer_epoch and (entry.open_from < 0 or epoch == _LAST_EPOCH)
        is_old = epoch <= entry.producer_epoch if version >= 2 else epoch < entry.producer_epoch
        if is_old and not is_repeat:
            raise KafkaError(ErrorCode.invalid_producer_epoch)
        if coordinator_epoch < entry.coordinator_epoch:
            raise KafkaError(ErrorCode.transaction_coordinator_fenced)

    def append_marker(self, header: BatchHeader, marker: Marker, offset: int, timestamp_ms: int) -> None:
        """Record a marker; it is confirmed or undone later."""
        producer_id = header.producer_id
        before = self._entries.get(producer_id)
        unsettled = _Unsettled(
            producer_id,
            before,
            header.producer_epoch,
            -1,
            timestamp_ms,
            marker.kind,
            offset,
            -1 if before is None else before.open_from,
        )
        self._unsettled.append(unsettled)
        self._mark(header, marker, timestamp_ms)

    def replay_marker(self, header: BatchHeader, marker: Marker, timestamp_ms: int) -> None:
        """Record a marker that is in the log already."""
        before = self._entries.get(header.producer_id)
        self._mark(header, marker, timestamp_ms)
        if before is not None:
            is_abort = marker.kind is MarkerType.ABORT
            self.transactions.end(before.open_from, header.base_offset, is_abort=is_abort)

    def replay_emptied_marker(self, header: BatchHeader, timestamp_ms: int) -> None:
        """Record a marker of which compaction left the header only. It has ended nothing that is
        still in the log, and only its producer's epoch is known."""
        before = self._entries.get(header.producer_id)
        if before is not None and before.open_from >= 0:
            self.transactions.end(before.open_from, header.base_offset, is_abort=False)
            before = self._entries[header.producer_id] = before._replace(open_from=-1)
        if before is None or before.producer_epoch < header.producer_epoch:
            coordinator_epoch = -1 if before is None else before.coordinator_epoch
            self._entries[header.producer_id] = Producer(
                header.producer_id, header.producer_epoch, (), coordinator_epoch, -1, timestamp_ms,
                header.max_timestamp_ms,
            )  # fmt: skip

    def _mark(self, header: BatchHeader, marker: Marker, timestamp_ms: int) -> None:
        """A new epoch has no batches: the next one begins at sequence 0."""
        producer_id, epoch = header.producer_id, header.producer_epoch
        before = self._entries.get(producer_id)
        batches = before.batches if before is not None and before.producer_epoch == epoch else ()
        self._entries[producer_id] = Producer(
            producer_id, epoch, batches, marker.coordinator_epoch, -1, timestamp_ms, header.max_timestamp_ms
        )

    def append(self, header: BatchHeader, base_offset: int, timestamp_ms: int, newest_ms: int) -> None:
        """Record an append that `check` accepted; it is confirmed or undone later.
        `timestamp_ms`: the time of the append. `newest_ms`: the stored batch's greatest one."""
        producer_id = header.producer_id
        before = self._entries.get(producer_id)
        self._unsettled.append(
            _Unsettled(producer_id, before, header.producer_epoch, header.base_sequence, timestamp_ms)
        )
        if self._refused:
            self._refused.pop(producer_id, None)
        self._add(header, base_offset, timestamp_ms, newest_ms)

    def replay(self, header: BatchHeader, base_offset: int, timestamp_ms: int) -> None:
        """Record a batch that is in the log already. One without records is what compaction left of
        a transaction that has ended, and its marker may be gone."""
        self._add(header, base_offset, timestamp_ms, header.max_timestamp_ms)

    def _add(self, header: BatchHeader, base_offset: int, timestamp_ms: int, newest_ms: int) -> None:
        entry = self._entries.get(header.producer_id)
        last_offset = base_offset + header.last_offset_delta
        batch = ProducerBatch(
            header.base_sequence, _last_sequence(header), base_offset, last_offset, timestamp_ms
        )
        earlier = entry.batches if entry is not None and entry.producer_epoch == header.producer_epoch else ()
        more = (-1, -1, -1) if entry is None else entry[3:6]
        found = Producer(
            header.producer_id,
            header.producer_epoch,
            (*earlier, batch)[-REMEMBERED_BATCHES:],
            *more,
            newest_ms,
        )
        if header.is_transactional and found.open_from < 0 and header.record_count:
            found = found._replace(open_from=base_offset)
            self.transactions.begin(header.producer_id, base_offset)
        self._entries[header.producer_id] = found

    def confirm(self) -> None:
        """Settle the oldest append: its batch is stored."""
        settled = self._unsettled.popleft()
        if settled.marker is not None:
            is_abort = settled.marker is MarkerType.ABORT
            self.transactions.end(settled.open_from, settled.offset, is_abort=is_abort)

    def undo(self) -> None:
        """Undo every unsettled append."""
        refused: dict[int, _Unsettled] = {}
        while self._unsettled:
            append = self._unsettled.pop()
            _restore(self._entries, append)
            if append.marker is None:
                refused[append.producer_id] = append
        for producer_id, append in refused.items():
            if producer_id not in self._entries:
                self._refused[producer_id] = append
        if len(self.transactions):
            self._reset_open()

    def forget_producers(self) -> None:
        """A part of the log cannot be read. Open transactions stay open; their producers may
        continue at any epoch and sequence, as unknown ones may."""
        self._entries = {
            producer_id: each._replace(producer_epoch=_NO_EPOCH, batches=())
            for producer_id, each in self._entries.items()
            if each.open_from >= 0
        }

    def _reset_open(self) -> None:
        found = self._entries.values()
        self.transactions.reset((each.open_from, each.producer_id) for each in found if each.open_from >= 0)

    def note_refused(self, header: BatchHeader, now_ms: int) -> None:
        """As `undo`, for a batch that was refused before it was appended."""
        producer_id, epoch = header.producer_id, header.producer_epoch
        known = self._refused.get(producer_id)
        if producer_id not in self._entries and (known is None or known.producer_epoch < epoch):
            self._refused[producer_id] = _Unsettled(producer_id, None, epoch, header.base_sequence, now_ms)

    def expire(self, oldest_ms: int) -> int:
        """Forget producers whose last batch is older (producer.id.expiration.ms). Returns how many.

        A producer with an open transaction stays. So does one with an unsettled append: undoing the
        append would bring its entry back.
        """
        busy = {append.producer_id for append in self._unsettled}
        gone = [
            key
            for key, entry in self._entries.items()
            if entry.timestamp_ms < oldest_ms and entry.open_from < 0 and key not in busy
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


def _check_plain(entry: Producer, header: BatchHeader) -> None:
    if entry.open_from >= 0 and not header.is_transactional:
        raise BadBatch(ErrorCode.invalid_txn_state, "the producer has an open transaction here")


def _last_sequence(header: BatchHeader) -> int:
    return (header.base_sequence + header.last_offset_delta) % _SEQUENCES
