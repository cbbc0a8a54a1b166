"""A transaction coordinator with what surrounds it: a store, saves that wait or fail, markers, and
two clocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any
from uuid import UUID

from kbroker.errors import ErrorCode
from kbroker.formats.transactions import TransactionPartition, TransactionRecord, TransactionState
from kbroker.transactions.coordinator import (
    NOBODY,
    Moment,
    ProducerEpoch,
    TransactionDecision,
    Transactions,
    TransactionSettings,
    Transition,
)

T = "t"
OK = ErrorCode.none
BUSY = ErrorCode.concurrent_transactions
FENCED = ErrorCode.producer_fenced
WRONG_STATE = ErrorCode.invalid_txn_state
WRONG_PRODUCER = ErrorCode.invalid_producer_id_mapping
BAD_TIMEOUT = ErrorCode.invalid_transaction_timeout
NOT_ADDED = ErrorCode.transaction_abortable

EMPTY = TransactionState.EMPTY
ONGOING = TransactionState.ONGOING
PREPARE_COMMIT = TransactionState.PREPARE_COMMIT
PREPARE_ABORT = TransactionState.PREPARE_ABORT
COMPLETE_COMMIT = TransactionState.COMPLETE_COMMIT
COMPLETE_ABORT = TransactionState.COMPLETE_ABORT
COMPLETED = {PREPARE_COMMIT: COMPLETE_COMMIT, PREPARE_ABORT: COMPLETE_ABORT}

DAY_MS = 86_400_000
TIMEOUT_MS = 60_000
TOPIC = UUID(int=1)
FIRST = TransactionPartition(TOPIC, 0)
SECOND = TransactionPartition(TOPIC, 1)
PID = 7
"""The producer id of records made by `a_record`. New ids begin at FIRST_NEW."""
FIRST_NEW = 1000


def a_record(state: TransactionState, epoch: int = 5, **changed: Any) -> TransactionRecord:
    """As a transaction of version 2 leaves it, or the one before if none is being ended."""
    has_partitions = state in (ONGOING, PREPARE_COMMIT, PREPARE_ABORT)
    values: dict[str, Any] = {
        "producer_id": PID,
        "producer_epoch": epoch,
        "timeout_ms": TIMEOUT_MS,
        "state": state,
        "partitions": frozenset((FIRST,) if has_partitions else ()),
        "last_producer_epoch": epoch - 1,
        "started_ms": -1 if state is EMPTY else World.START.wall_ms,
        "updated_ms": World.START.wall_ms,
        "version": 2,
    }
    return TransactionRecord(**values | changed)


class World:
    """Saves every transition at once and writes markers at once, unless a test calls the
    coordinator itself."""

    START = Moment(wall_ms=1_800_000_000_000, steady_ms=5_000_000)

    def __init__(self, record: TransactionRecord | None = None, **named: TransactionRecord) -> None:
        """`record` is T's."""
        self.settings = TransactionSettings()
        self.now = self.START
        self._ids = count(FIRST_NEW)
        self.store = dict(named) if record is None else {T: record, **named}
        self.start()

    def start(self) -> None:
        """As after kill -9: only the store remains."""
        self.transactions = Transactions(lambda: self.settings, self.new_id)
        self.transactions.load(self.store.items(), self.now)

    def new_id(self) -> int:
        return next(self._ids)

    def pass_ms(self, milliseconds: int, *, wall_step_ms: int = 0) -> None:
        """Let time pass; the wall clock may be set by a step meanwhile."""
        self.now = Moment(self.now.wall_ms + milliseconds + wall_step_ms, self.now.steady_ms + milliseconds)

    # --- requests, decided but not saved ---

    def init(
        self, expected: ProducerEpoch = NOBODY, name: str = T, timeout_ms: int = TIMEOUT_MS
    ) -> TransactionDecision:
        return self.transactions.init(name, timeout_ms, expected, self.now)

    def add(
        self,
        producer: ProducerEpoch,
        *partitions: TransactionPartition,
        version: int = 2,
        groups: tuple[str, ...] = (),
        name: str = T,
    ) -> TransactionDecision:
        wanted = partitions or (() if groups else (FIRST,))
        return self.transactions.add(name, producer, wanted, groups, version, self.now)

    def end(
        self, producer: ProducerEpoch, *, is_commit: bool = True, version: int = 2, name: str = T
    ) -> TransactionDecision:
        return self.transactions.end(name, producer, is_commit=is_commit, version=version, now=self.now)

    # --- carrying out ---

    def save(self, decision: TransactionDecision) -> TransactionDecision:
        if decision.transition is not None:
            self.save_transition(decision.transition)
        return decision

    def save_transition(self, transition: Transition) -> None:
        if transition.record is None:
            del self.store[transition.transactional_id]
        else:
            self.store[transition.transactional_id] = transition.record
        self.transactions.saved(transition, self.now)

    def write_markers(self, name: str = T) -> TransactionRecord:
        """All markers of an ended transaction are written."""
        transition = self.transactions.complete(name, self.now)
        assert transition.record is not None
        self.store[name] = transition.record
        return transition.record

    def carry_out(self, decision: TransactionDecision) -> TransactionDecision:
        """Save, and write the markers of what ends."""
        self.save(decision)
        if decision.transition is not None and decision.transition.ends:
            self.write_markers(decision.transition.transactional_id)
        return decision

    def fail(self, decision: TransactionDecision) -> None:
        assert decision.transition is not None
        self.transactions.not_saved(decision.transition)

    # --- looks ---

    def record(self, name: str = T) -> TransactionRecord:
        found = self.transactions.record(name)
        assert found is not None
        return found

    def producer(self, name: str = T) -> ProducerEpoch:
        record = self.record(name)
        return ProducerEpoch(record.producer_id, record.producer_epoch)

    def state(self, name: str = T) -> TransactionState:
        return self.record(name).state

    def all(self) -> Mapping[str, TransactionRecord]:
        return dict(self.transactions.records())


def codes_without_transition(*decisions: TransactionDecision) -> Iterator[ErrorCode]:
    for decision in decisions:
        assert decision.transition is None
        yield decision.code
