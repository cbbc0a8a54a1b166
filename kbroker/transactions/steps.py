"""How the state of a transactional id follows from the one before it. Pure functions on records.

    EMPTY ── begun ──► ONGOING ── ended ──► PREPARE_COMMIT ── completed ──► COMPLETE_COMMIT
      ▲                   │                 PREPARE_ABORT  ── completed ──► COMPLETE_ABORT
      │                   └─ fenced ──────►     ▲                                │
      │                                         └── ended without a begin (v2) ──┤
      └──────────── initialized ◄────────────────────────────────────────────────┘
                                             begun: ONGOING again, without a new epoch

An epoch from EXHAUSTED on cannot be incremented for its client: the id gets another producer id,
and the epoch begins at 0. The greatest epoch is used only to fence.

This module must not know when a client may ask for a step (coordinator.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from kbroker.formats.transactions import (
    NO_EPOCH,
    NO_PRODUCER,
    TransactionPartition,
    TransactionRecord,
    TransactionState,
)

EXHAUSTED: Final = (1 << 15) - 2
"""The last epoch that a client gets."""
PREPARED: Final = frozenset((TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT))
COMPLETE: Final = frozenset((TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT))


def is_exhausted(epoch: int) -> bool:
    return epoch >= EXHAUSTED


def created(producer_id: int, timeout_ms: int, now_ms: int) -> TransactionRecord:
    return TransactionRecord(producer_id, 0, timeout_ms, updated_ms=now_ms)


def initialized(
    before: TransactionRecord, timeout_ms: int, now_ms: int, *, is_known: bool
) -> TransactionRecord:
    """The next epoch. `is_known`: the client has sent the present epoch, and may send it again."""
    last_epoch = before.producer_epoch if is_known else NO_EPOCH
    return _emptied(before, before.producer_id, before.producer_epoch + 1, last_epoch, timeout_ms, now_ms)


def repeated(before: TransactionRecord, timeout_ms: int, now_ms: int) -> TransactionRecord:
    """A client has sent the last epoch again, so the answer to its increment was lost."""
    epochs = before.producer_epoch, before.last_producer_epoch
    return _emptied(before, before.producer_id, *epochs, timeout_ms, now_ms)


def rotated(
    before: TransactionRecord, producer_id: int, timeout_ms: int, now_ms: int, *, is_known: bool
) -> TransactionRecord:
    """Another producer id, because the epochs of this one are exhausted."""
    last_epoch = before.producer_epoch if is_known else NO_EPOCH
    return _emptied(before, producer_id, 0, last_epoch, timeout_ms, now_ms)


def _emptied(
    before: TransactionRecord, producer_id: int, epoch: int, last_epoch: int, timeout_ms: int, now_ms: int
) -> TransactionRecord:
    has_rotated = producer_id != before.producer_id
    return TransactionRecord(
        producer_id,
        epoch,
        timeout_ms,
        last_producer_epoch=last_epoch,
        previous_producer_id=before.producer_id if has_rotated else before.previous_producer_id,
        updated_ms=now_ms,
        version=before.version,
    )


def begun(
    before: TransactionRecord,
    partitions: Iterable[TransactionPartition],
    groups: Iterable[str],
    version: int,
    now_ms: int,
) -> TransactionRecord:
    """A transaction with these logs and groups, or the present one with them in addition."""
    is_ongoing = before.state is TransactionState.ONGOING
    return replace(
        before,
        state=TransactionState.ONGOING,
        partitions=before.partitions.union(partitions) if is_ongoing else frozenset(partitions),
        groups=before.groups.union(groups) if is_ongoing else frozenset(groups),
        started_ms=before.started_ms if is_ongoing else now_ms,
        updated_ms=now_ms,
        version=version,
    )


def ended(
    before: TransactionRecord, *, is_commit: bool, version: int, next_producer_id: int, now_ms: int
) -> TransactionRecord:
    """The decision to commit or abort. With version 2 the epoch is incremented: a late request of
    this transaction cannot end the next one (KIP-890)."""
    increments = version >= 2
    return replace(
        before,
        state=TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT,
        producer_epoch=before.producer_epoch + 1 if increments else before.producer_epoch,
        last_producer_epoch=before.producer_epoch if increments else before.last_producer_epoch,
        next_producer_id=next_producer_id,
        started_ms=before.started_ms if before.state is TransactionState.ONGOING else now_ms,
        updated_ms=now_ms,
        version=version,
    )


def fenced(before: TransactionRecord, next_producer_id: int, now_ms: int) -> TransactionRecord:
    """Abort an ongoing transaction without its client, whose epoch ends with it.
    `next_producer_id`: if the epochs are exhausted."""
    return replace(
        before,
        state=TransactionState.PREPARE_ABORT,
        producer_epoch=before.producer_epoch + 1,
        last_producer_epoch=before.producer_epoch,
        next_producer_id=next_producer_id,
        updated_ms=now_ms,
    )


def completed(before: TransactionRecord, now_ms: int) -> TransactionRecord:
    """Every marker is written."""
    is_commit = before.state is TransactionState.PREPARE_COMMIT
    done = replace(
        before,
        state=TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT,
        partitions=frozenset(),
        groups=frozenset(),
        updated_ms=now_ms,
    )
    if before.next_producer_id == NO_PRODUCER:
        return done
    return replace(
        done,
        producer_id=before.next_producer_id,
        producer_epoch=0,
        previous_producer_id=before.producer_id,
        next_producer_id=NO_PRODUCER,
    )
