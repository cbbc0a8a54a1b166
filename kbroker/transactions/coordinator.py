"""Decides about the requests of transactional producers (KIP-98, KIP-360, KIP-890). Pure.

    decision = transactions.end(id, producer, is_commit=True, version=2, now=now)

A decision refuses the request, or names a `Transition`: a record to be saved. Memory changes when
it is saved, so no client sees a state that a failed save undoes. Until then, and until the markers
of an ended transaction are written, other requests for the id are CONCURRENT_TRANSACTIONS, which
clients repeat.

    saved, PREPARE_*    write the markers, then `complete`
    saved, others       answer the client
    not_saved           the id stays as it was

Both transaction versions are served at once, even for one id: version 1 keeps its epoch from one
transaction to the next, version 2 gets a new one with each end. Times are pairs: the wall clock's
for records, and a steady one for timeouts, so that a step of the wall clock aborts nothing.

It must not know how records are saved, nor where markers are written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from kbroker.errors import ErrorCode
from kbroker.formats.transactions import (
    NO_EPOCH,
    NO_PRODUCER,
    TransactionPartition,
    TransactionRecord,
    TransactionState,
)
from kbroker.transactions import steps
from kbroker.transactions.steps import COMPLETE, EXHAUSTED, PREPARED, is_exhausted

_OK: Final = ErrorCode.none
_BUSY: Final = ErrorCode.concurrent_transactions
_FENCED: Final = ErrorCode.producer_fenced
_UNKNOWN: Final = ErrorCode.invalid_producer_id_mapping
_WRONG_STATE: Final = ErrorCode.invalid_txn_state


class Moment(NamedTuple):
    """`wall_ms` may be set back; `steady_ms` never goes back while the broker runs."""

    wall_ms: int
    steady_ms: int


class ProducerEpoch(NamedTuple):
    """A producer as a request names it, or as an answer does."""

    producer_id: int = NO_PRODUCER
    epoch: int = NO_EPOCH


NOBODY: Final = ProducerEpoch()


class TransactionSettings(NamedTuple):
    """Broker settings: transaction.max.timeout.ms and transactional.id.expiration.ms."""

    max_timeout_ms: int = 900_000
    expiration_ms: int = 604_800_000


class Transition(NamedTuple):
    """`record` None: the id has expired, and is removed. `is_late`: its transaction has lasted too
    long."""

    transactional_id: str
    before: TransactionRecord | None
    record: TransactionRecord | None
    is_late: bool = False

    @property
    def ends(self) -> bool:
        """Whether markers have to be written. The logs of the transaction must be durable before
        the record is."""
        return self.record is not None and self.record.state in PREPARED


class TransactionDecision(NamedTuple):
    """`code` is the answer once `transition` is saved. An InitProducerId that fences another
    client's transaction is refused, and has a transition all the same."""

    code: ErrorCode = ErrorCode.none
    producer: ProducerEpoch = NOBODY
    transition: Transition | None = None


class TransactionsStatistics(NamedTuple):
    """`by_state`: the number of ids in each state. Since the start: `committed`, `aborted` by their
    clients or others, and of these `timed_out`."""

    by_state: Mapping[TransactionState, int]
    pending: int
    committed: int
    aborted: int
    timed_out: int


class _Entry:
    """`pending`: a transition that is being saved. `since_ms`: the steady time at which the
    transaction began or, outside one, of the last change."""

    __slots__ = ("pending", "record", "since_ms")

    def __init__(self, record: TransactionRecord | None, since_ms: int) -> None:
        self.record = record
        self.pending: Transition | None = None
        self.since_ms = since_ms


class Transactions:
    """`next_producer_id` returns a number that no producer had before; it neither waits nor
    fails."""

    def __init__(
        self, settings: Callable[[], TransactionSettings], next_producer_id: Callable[[], int]
    ) -> None:
        self._settings = settings
        self._next_producer_id = next_producer_id
        self._entries: dict[str, _Entry] = {}
        self._exhausted: set[str] = set()
        self._committed = self._aborted = self._timed_out = 0

    def load(self, records: Iterable[tuple[str, TransactionRecord]], now: Moment) -> None:
        """Begin with what is stored. The markers of ids in PREPARED have to be written again, as it
        is not known which ones were: see `unfinished`."""
        for transactional_id, record in records:
            is_ongoing = record.state is TransactionState.ONGOING
            age_ms = now.wall_ms - (record.started_ms if is_ongoing else record.updated_ms)
            entry = self._entries[transactional_id] = _Entry(None, now.steady_ms - max(0, age_ms))
            self._set(transactional_id, entry, record)

    def unfinished(self) -> list[str]:
        """The ids whose markers are to be written."""
        return [each for each, record in self.records() if record.state in PREPARED]

    def records(self) -> Iterator[tuple[str, TransactionRecord]]:
        """Ids with their records. Ids may come and go between two of them."""
        for name in tuple(self._entries):
            entry = self._entries.get(name)
            if entry is not None and entry.record is not None:
                yield name, entry.record

    def exhausted(self) -> int:
        """How many ids get another producer id with their next epoch."""
        return len(self._exhausted)

    def record(self, transactional_id: str) -> TransactionRecord | None:
        entry = self._entries.get(transactional_id)
        return None if entry is None else entry.record

    def statistics(self) -> TransactionsStatistics:
        by_state = dict.fromkeys(TransactionState, 0)
        for _, record in self.records():
            by_state[record.state] += 1
        pending = sum(entry.pending is not None for entry in self._entries.values())
        return TransactionsStatistics(by_state, pending, self._committed, self._aborted, self._timed_out)

    # --- InitProducerId ---

    def init(
        self, transactional_id: str, timeout_ms: int, expected: ProducerEpoch, now: Moment
    ) -> TransactionDecision:
        """A producer begins with the id, or (KIP-360: `expected` is not NOBODY) recovers from an
        error. Its last transaction is aborted; its client has to ask again then."""
        if not 0 < timeout_ms <= self._settings().max_timeout_ms:
            return TransactionDecision(ErrorCode.invalid_transaction_timeout)
        entry = self._entries.setdefault(transactional_id, _Entry(None, now.steady_ms))
        if entry.pending is not None:
            return TransactionDecision(_BUSY)
        before = entry.record
        if before is None:
            return self._initialize(
                transactional_id, steps.created(self._next_producer_id(), timeout_ms, now.wall_ms)
            )
        if _is_next_producer_of(before, expected):
            return TransactionDecision(_BUSY)
        if expected != NOBODY and not _is_producer_of(before, expected):
            return TransactionDecision(_FENCED)
        if before.state in PREPARED:
            return TransactionDecision(_BUSY)
        if before.state is TransactionState.ONGOING:
            return TransactionDecision(
                _BUSY, transition=self._begin(transactional_id, self._fenced(before, now))
            )
        return self._next_epoch(transactional_id, before, timeout_ms, expected, now)

    def _next_epoch(
        self,
        transactional_id: str,
        before: TransactionRecord,
        timeout_ms: int,
        expected: ProducerEpoch,
        now: Moment,
    ) -> TransactionDecision:
        is_known, is_newest = expected != NOBODY, expected.epoch == before.producer_epoch
        if is_exhausted(before.producer_epoch) and (is_newest or not is_known):
            producer_id = self._next_producer_id()
            record = steps.rotated(before, producer_id, timeout_ms, now.wall_ms, is_known=is_known)
        elif is_newest or not is_known:
            record = steps.initialized(before, timeout_ms, now.wall_ms, is_known=is_known)
        elif expected.epoch == before.last_producer_epoch:
            record = steps.repeated(before, timeout_ms, now.wall_ms)
        else:
            return TransactionDecision(_FENCED)
        return self._initialize(transactional_id, record)

    def _initialize(self, transactional_id: str, record: TransactionRecord) -> TransactionDecision:
        producer = ProducerEpoch(record.producer_id, record.producer_epoch)
        return TransactionDecision(_OK, producer, self._begin(transactional_id, record))

    # --- AddPartitionsToTxn, AddOffsetsToTxn ---

    def add(
        self,
        transactional_id: str,
        producer: ProducerEpoch,
        partitions: Collection[TransactionPartition],
        groups: Collection[str],
        version: int,
        now: Moment,
    ) -> TransactionDecision:
        """Logs and consumer groups become part of the transaction, which begins with the first
        one."""
        entry = self._entries.get(transactional_id)
        if entry is None or (before := entry.record) is None:
            return TransactionDecision(
                _missing(transactional_id) if entry is None or entry.pending is None else _BUSY
            )
        if entry.pending is not None:
            return TransactionDecision(_BUSY)
        if (code := _check(before, producer)) is not _OK:
            return TransactionDecision(code)
        is_there = before.partitions.issuperset(partitions) and before.groups.issuperset(groups)
        if before.state is TransactionState.ONGOING and is_there:
            return TransactionDecision()
        record = steps.begun(before, partitions, groups, version, now.wall_ms)
        return TransactionDecision(transition=self._begin(transactional_id, record))

    def verify(
        self, transactional_id: str, producer: ProducerEpoch, part: TransactionPartition | str
    ) -> ErrorCode:
        """Whether a log may take a batch of the producer's transaction, or a group an offset;
        TRANSACTION_ABORTABLE if it is no part of it. An end that is being saved lets none in: its
        logs are synced already."""
        entry = self._entries.get(transactional_id)
        if entry is None or (before := entry.record) is None:
            return _missing(transactional_id)
        if entry.pending is not None and entry.pending.ends:
            return _BUSY
        if (code := _check(before, producer)) is not _OK:
            return code
        parts: Collection[object] = before.groups if isinstance(part, str) else before.partitions
        return _OK if part in parts else ErrorCode.transaction_abortable

    # --- EndTxn ---

    def end(
        self, transactional_id: str, producer: ProducerEpoch, *, is_commit: bool, version: int, now: Moment
    ) -> TransactionDecision:
        """Commit or abort. `producer` of the decision is the next one; version 1 does not
        answer it."""
        entry = self._entries.get(transactional_id)
        if entry is None or (before := entry.record) is None:
            return TransactionDecision(
                _missing(transactional_id) if entry is None or entry.pending is None else _BUSY
            )
        check = _check_end_1 if version < 2 else _check_end_2
        code, has_effect = check(before, producer, is_commit, is_pending=entry.pending is not None)
        if code is not _OK:
            return TransactionDecision(code)
        if not has_effect:
            return TransactionDecision(_OK, ProducerEpoch(before.producer_id, before.producer_epoch))
        has_next = version >= 2 and is_exhausted(before.producer_epoch)
        next_id = self._next_producer_id() if has_next else NO_PRODUCER
        record = steps.ended(
            before, is_commit=is_commit, version=version, next_producer_id=next_id, now_ms=now.wall_ms
        )
        epoch = 0 if has_next else record.producer_epoch
        known = ProducerEpoch(next_id if has_next else record.producer_id, epoch)
        return TransactionDecision(_OK, known, self._begin(transactional_id, record))

    def complete(self, transactional_id: str, now: Moment) -> Transition:
        """All markers of an id in PREPARED are durable. Memory has the new state at once: a start
        that finds the old one writes the markers again, which changes nothing."""
        entry = self._entries[transactional_id]
        before = entry.record
        assert before is not None
        assert before.state in PREPARED, f"{transactional_id}: {before}"
        record = steps.completed(before, now.wall_ms)
        self._committed += record.state is TransactionState.COMPLETE_COMMIT
        self._aborted += record.state is TransactionState.COMPLETE_ABORT
        self._set(transactional_id, entry, record)
        entry.since_ms = now.steady_ms
        return Transition(transactional_id, before, record)

    # --- time ---

    def abort_timed_out(self, now: Moment) -> list[Transition]:
        """Fence the transactions that have lasted longer than their clients allow."""
        late = [
            (name, record)
            for name, since_ms, record in self._ongoing()
            if since_ms + record.timeout_ms < now.steady_ms
        ]
        return [self._begin(name, self._fenced(record, now), is_late=True) for name, record in late]

    def abort_ongoing(self, now: Moment) -> list[Transition]:
        """Fence all transactions, because a power cut may have taken a part of them."""
        found = [(name, record) for name, _, record in self._ongoing()]
        return [self._begin(name, self._fenced(record, now)) for name, record in found]

    def _ongoing(self) -> Iterator[tuple[str, int, TransactionRecord]]:
        for name, entry in self._entries.items():
            record = entry.record
            if record is not None and entry.pending is None and record.state is TransactionState.ONGOING:
                yield name, entry.since_ms, record

    def _fenced(self, before: TransactionRecord, now: Moment) -> TransactionRecord:
        next_id = self._next_producer_id() if is_exhausted(before.producer_epoch) else NO_PRODUCER
        return steps.fenced(before, next_id, now.wall_ms)

    def remove_expired(self, now: Moment) -> list[Transition]:
        """Forget ids that were not used for long and have no transaction."""
        oldest_ms = now.steady_ms - self._settings().expiration_ms
        old = [
            name
            for name, entry in self._entries.items()
            if entry.record is not None
            and entry.pending is None
            and (entry.record.state is TransactionState.EMPTY or entry.record.state in COMPLETE)
            and entry.since_ms <= oldest_ms
        ]
        return [self._begin(name, None) for name in old]

    # --- saving ---

    def _begin(
        self, transactional_id: str, record: TransactionRecord | None, *, is_late: bool = False
    ) -> Transition:
        entry = self._entries[transactional_id]
        assert entry.pending is None, f"{transactional_id} has a transition already"
        entry.pending = Transition(transactional_id, entry.record, record, is_late)
        return entry.pending

    def saved(self, transition: Transition, now: Moment) -> None:
        entry = self._ended(transition)
        was_ongoing = entry.record is not None and entry.record.state is TransactionState.ONGOING
        if transition.record is None:
            del self._entries[transition.transactional_id]
            self._exhausted.discard(transition.transactional_id)
            return
        self._set(transition.transactional_id, entry, transition.record)
        self._timed_out += transition.is_late
        if not (was_ongoing and transition.record.state is TransactionState.ONGOING):
            entry.since_ms = now.steady_ms

    def not_saved(self, transition: Transition) -> None:
        entry = self._ended(transition)
        if entry.record is None:
            del self._entries[transition.transactional_id]

    def _set(self, transactional_id: str, entry: _Entry, record: TransactionRecord) -> None:
        entry.record = record
        change = self._exhausted.add if is_exhausted(record.producer_epoch) else self._exhausted.discard
        change(transactional_id)

    def _ended(self, transition: Transition) -> _Entry:
        entry = self._entries[transition.transactional_id]
        assert entry.pending is transition, f"{transition.transactional_id} has another transition"
        entry.pending = None
        return entry


def _is_producer_of(record: TransactionRecord, expected: ProducerEpoch) -> bool:
    return expected.producer_id == record.producer_id or (
        expected.producer_id == record.previous_producer_id and is_exhausted(expected.epoch)
    )


def _is_next_producer_of(record: TransactionRecord, producer: ProducerEpoch) -> bool:
    """Whether the end of the transaction has answered this producer, and the markers are not
    written yet."""
    return record.state in PREPARED and producer == (record.next_producer_id, 0)


def _missing(transactional_id: str) -> ErrorCode:
    """There cannot be an empty id."""
    return _UNKNOWN if transactional_id else ErrorCode.invalid_request


def _check(record: TransactionRecord, producer: ProducerEpoch) -> ErrorCode:
    """Whether a producer may continue its transaction, or begin one."""
    if _is_next_producer_of(record, producer):
        return _BUSY
    if producer.producer_id != record.producer_id:
        return _UNKNOWN
    if producer.epoch != record.producer_epoch or producer.epoch > EXHAUSTED:
        return _FENCED
    return _BUSY if record.state in PREPARED else _OK


_FOR_COMMIT: Final = (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
_FOR_ABORT: Final = (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT)


def _check_end_1(
    record: TransactionRecord, producer: ProducerEpoch, is_commit: bool, *, is_pending: bool
) -> tuple[ErrorCode, bool]:
    """EndTxn v0-4: the code, and whether the transaction ends now. A repeat succeeds."""
    if producer.producer_id != record.producer_id:
        return _UNKNOWN, False
    if producer.epoch != record.producer_epoch:
        return _FENCED, False
    if is_pending:
        return _BUSY, False
    if record.state is TransactionState.ONGOING:
        return _OK, True
    prepared, complete = _FOR_COMMIT if is_commit else _FOR_ABORT
    if record.state is prepared:
        return _BUSY, False
    return (_OK if record.state is complete else _WRONG_STATE), False


def _check_end_2(
    record: TransactionRecord, producer: ProducerEpoch, is_commit: bool, *, is_pending: bool
) -> tuple[ErrorCode, bool]:
    """EndTxn v5. An abort without a transaction takes a new epoch. A commit of a transaction that
    the coordinator has aborted is PRODUCER_FENCED (KAFKA-20785), in Kafka 48. The producer that
    an end has answered waits for the markers (KAFKA-18464)."""
    if is_pending or _is_next_producer_of(record, producer):
        return _BUSY, False
    is_newest = producer.epoch == record.producer_epoch <= EXHAUSTED
    has_rotated = (
        producer.epoch == EXHAUSTED
        and record.producer_epoch == 0
        and producer.producer_id == record.previous_producer_id
    )
    is_last = producer.epoch == record.last_producer_epoch
    is_repeat = has_rotated or (is_last and producer.epoch + 1 == record.producer_epoch)
    if producer.producer_id != record.producer_id and not has_rotated:
        return _UNKNOWN, False
    state = record.state
    if state in PREPARED:
        if not is_repeat:
            return (_BUSY if is_newest else _FENCED), False
        if state is (_FOR_COMMIT if is_commit else _FOR_ABORT)[0]:
            return _BUSY, False
        return (_FENCED if is_commit else _WRONG_STATE), False
    if state in COMPLETE and is_repeat:
        if state is (_FOR_COMMIT if is_commit else _FOR_ABORT)[1]:
            return _OK, False
        return (_FENCED if is_commit else _WRONG_STATE), False
    if not is_newest:
        return _FENCED, False
    if state is TransactionState.ONGOING or not is_commit:
        return _OK, True
    return _WRONG_STATE, False
