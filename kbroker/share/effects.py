"""What the share engine takes and returns: plain values, which `broker/` carries out or encodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import NamedTuple

from kbroker.share.parked import Lane, ParkingChange
from kbroker.share.reasons import ReasonChange
from kbroker.share.record_state import RecordState
from kbroker.share.redelivery import Redelivery

_STATE_OF = attrgetter("state")


class StateBatch(NamedTuple):
    """A run of offsets in one state, as it is saved (StateBatches of ShareSnapshot and
    ShareUpdate). `state` is a RecordState id."""

    first_offset: int
    last_offset: int
    state: int
    delivery_count: int


class AcquiredRange(NamedTuple):
    """One AcquiredRecords entry of a ShareFetch response."""

    first_offset: int
    last_offset: int
    delivery_count: int


class AckBatch(NamedTuple):
    """One AcknowledgementBatch of a request, with one type for all offsets or one for each. Already
    checked by ack_validation."""

    first_offset: int
    last_offset: int
    types: Sequence[int]


class Persist(NamedTuple):
    """Save this through the Persister, then call persisted(token) or persist_failed(token, now_ms)
    on the share-partition. The fields after the token are those of a WriteRequest after its
    partition."""

    token: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]
    parking: tuple[ParkingChange, ...] = ()
    waiting: int = 0
    """How many records are parked after that; only where `parking` is not empty."""
    reasons: tuple[ReasonChange, ...] = ()
    """Of rejections. The engine gives none: the caller adds them."""
    given_up: int = 0
    """How many records are given up for good with this, or were before and no saved Persist counts
    them: without a dead letter queue, or with their dead letters. Not those that the log lost."""

    @property
    def archiving(self) -> bool:
        """True if this saves records as ARCHIVING, for the first time or again."""
        if RecordState.ARCHIVING in map(_STATE_OF, self.batches):  # Evaluated for every save.
            return True
        return bool(self.parking) and any(
            change.parked is not None and change.parked.lane is Lane.ARCHIVING for change in self.parking
        )


class DeadLetterCause(Enum):
    """Why a record becomes a dead letter: KIP-1191, but for EXPIRED, which is kbroker's own."""

    REJECTED = "rejected"
    EXHAUSTED = "exhausted"
    EXPIRED = "expired"


class DeadLetter(NamedTuple):
    """A run of records to write to the dead letter queue: ARCHIVING, and saved as that."""

    first_offset: int
    last_offset: int
    delivery_count: int
    cause: DeadLetterCause


@dataclass(frozen=True, slots=True)
class ShareSettings:
    """A group's effective settings, as far as the engine needs them: its share.* configs over the
    broker's group.share.* configs. Those after `dead_letter_queue` are a work queue's
    (settings/queue.py); 0 or None switches each off.

    - `dead_letter_queue`: the group has one (share.version 2, and
      errors.deadletterqueue.topic.name).
    - `park_from_ms`: longer waits are spent outside the window (parking.py).
    - `limits_undecided`: `max_record_locks` limits the undecided records, not the span of the
      window.
    - `scans`: members get scanned records only (scanning.py).
    - `schedules`: records that are scheduled for later are delivered when they are due.
    - `paused`: members get no records.
    - `priorities`: of topics, by name.
    - `ttl_ms`: records older than this are given up instead of delivered.
    - `ordered`: records of one key are delivered one after another (key_order.py); only with
      `scans`.
    - `read_committed`: members get no records of open and aborted transactions. The reader of the
      log sees to that.
    - `is_queue`: one of a work queue's settings has not its default. Then the last attempt delivers
      a record alone at every limit (throttle.py), and a record that has reached the limit, because
      it was lowered, is given up instead of delivered.
    """

    delivery_count_limit: int = 5
    lock_duration_ms: int = 30_000
    max_record_locks: int = 2000
    renew_enabled: bool = True
    dead_letter_queue: bool = False
    prefetch: int = 0
    redelivery: Redelivery | None = None
    lock_max_ms: int = 0
    park_from_ms: float | None = None
    limits_undecided: bool = False
    scans: bool = False
    schedules: bool = False
    max_delay_ms: int = 0
    paused: bool = False
    priorities: tuple[tuple[str, int], ...] = ()
    ttl_ms: int = 0
    ordered: bool = False
    read_committed: bool = False
    is_queue: bool = False

    @property
    def parks(self) -> bool:
        """True if records may have to wait outside the window."""
        return self.redelivery is not None or self.scans

    @property
    def works_alone(self) -> bool:
        """True if its records are examined even while it has no members."""
        return self.schedules or self.ttl_ms > 0
