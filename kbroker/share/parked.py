"""Parked records: records that wait outside the in-flight window, in a store ordered by due time.

A record that must wait for long (for its redelivery, or because it is scheduled) would fill the
window and hold back the start offset. So its place in the window becomes ARCHIVED, which is final,
and the record is parked: a key in the store says when it is due. When that has come, a member
acquires it by its offset, like any record. Only an accept, a rejection or the delivery limit
removes the key.

    lane          in order of               due by
    REDELIVERY    due time                  the life clock: no step of the wall clock
    SCHEDULE      due time                  the wall clock
    ARCHIVING     offset (`due_ms` is 0)    at once: a dead letter is to be written

These are values, shared by the share engine, which decides, and persisters, which keep them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple


class Lane(IntEnum):
    """The ids are stored."""

    REDELIVERY = 2
    SCHEDULE = 3
    ARCHIVING = 4


class Place(NamedTuple):
    """Where a parked record stands in the order of its share-partition. `key_hash`: as Parked has
    it."""

    lane: Lane
    due_ms: int
    offset: int
    key_hash: int | None = None


class Parked(NamedTuple):
    """A parked record as it is stored. `due_ms`: since 1970. `delivery_count`: deliveries that are
    over. `rejected` and `expired`: of the lane ARCHIVING, the cause; else the delivery limit was
    reached. `leader_epoch`: of the broker life that parked it, which tells whether a power cut took
    the record from the log. `key_hash`: of its key, where the group keeps the order of keys
    (key_order.py); it never changes. `kept`: the record itself lies beside it, and the log may
    go."""

    offset: int
    lane: Lane
    due_ms: int
    delivery_count: int
    leader_epoch: int
    rejected: bool = False
    expired: bool = False
    key_hash: int | None = None
    kept: bool = False

    @property
    def place(self) -> Place:
        return Place(self.lane, self.due_ms, self.offset, self.key_hash)


class ParkingChange(NamedTuple):
    """A record is parked, parked elsewhere, or (`parked` None) parked no more. `stale`: the places
    where it may stand in the store, which are removed if they are not its place now. `record`: what
    is kept of it from now on, as a batch of its own; b"": nothing any more; None: as before."""

    offset: int
    stale: Sequence[Place]
    parked: Parked | None
    record: bytes | None = None
