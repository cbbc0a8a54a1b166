"""What the share engine takes and what it answers: plain values that `broker/` carries out or puts on the wire."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class StateBatch(NamedTuple):
    """A run of offsets in one state, as persisted (ShareSnapshot/ShareUpdate StateBatches). `state` is a RecordState id."""

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
    """One AcknowledgementBatch of a request; one type for all offsets or one per offset. Checked by ack_validation before."""

    first_offset: int
    last_offset: int
    types: Sequence[int]


class Persist(NamedTuple):
    """Save this through the Persister, then call persisted(token) or persist_failed(token, now_ms) on the share-partition."""

    token: int
    start_offset: int
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]
    state_epoch: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class ShareSettings:
    """A group's effective settings that the engine needs (share.* group configs over group.share.* broker configs)."""

    delivery_count_limit: int = 5
    lock_duration_ms: int = 30_000
    max_record_locks: int = 2000
    renew_enabled: bool = True
