"""What the share engine takes and what it answers: plain values that `broker/` carries out or puts
on the wire."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import NamedTuple

from kbroker.share.parked import Lane, ParkingChange
from kbroker.share.record_state import RecordState
from kbroker.share.redelivery import Redelivery

_STATE_OF = attrgetter("state")


class StateBatch(NamedTuple):
    """A run of offsets in one state, as persisted (ShareSnapshot/ShareUpdate StateBatches). `state`
    is a RecordState id."""

    first_offset: int
    last_offset: int
    state: int
    delivery_count: int


class AcquiredRange(NamedTuple):
    """One AcquiredRecords entry of a ShareFetch answer."""

    first_offset: int
    last_offset: int
    delivery_count: int


class AckBatch(NamedTuple):
    """One AcknowledgementBatch of a request; one type for all offsets or one per offset. Checked by
    ack_validation before."""

    first_offset: int
    last_offset: int
    types: Sequence[int]


class Persist(NamedTuple):
    """Save this through the Persister, then call persisted(token) or persist_failed(token, now_ms)
    on the share-partition."""

    token: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]
    parking: tuple[ParkingChange, ...] = ()
    waiting: int = 0
    """How many records are parked then; only where `parking` says something."""

    @property
    def archiving(self) -> bool:
        """True if records become ARCHIVING with this, or are said once more to be."""
        if RecordState.ARCHIVING in map(_STATE_OF, self.batches):  # looked at with every save
            return True
        return any(
            change.parked is not None and change.parked.lane is Lane.ARCHIVING for change in self.parking
        )


class DeadLetterCause(Enum):
    """Why a record becomes a dead letter (KIP-1191; the last one is kbroker's own)."""

    REJECTED = "rejected"
    EXHAUSTED = "exhausted"
    EXPIRED = "expired"


class DeadLetter(NamedTuple):
    """A run of records that are to be written to the dead letter queue: ARCHIVING, and saved as
    that."""

    first_offset: int
    last_offset: int
    delivery_count: int
    cause: DeadLetterCause


@dataclass(frozen=True, slots=True)
class ShareSettings:
    """A group's effective settings that the engine needs (share.* group configs over group.share.*
    broker configs).

    `dead_letter_queue`: the group has one (share.version 2, and errors.deadletterqueue.topic.name
    is set). Those behind it are those of a work queue (settings/queue.py), each off where it is 0
    or None.

    `park_from_ms`: waits that are longer are spent outside the window (parking.py); None: none is.
    `scans`: nobody is given what was not looked at before (scanning.py). `schedules`: what is
    scheduled for later waits for it. `limits_undecided`: `max_record_locks` counts records that are
    not decided, and not the span from the first of them to the last. `paused`: nobody is given
    records. `priorities`: of topics by name. `ttl_ms`: records that are older are given up instead
    of delivered. `ordered`: records of one key are delivered one after another (key_order.py); only
    with `scans`.
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

    @property
    def works_alone(self) -> bool:
        """Whether its records are looked at while it has no members."""
        return self.schedules or self.ttl_ms > 0
