"""Parked records: records that wait outside the in-flight window, in a store ordered by due time.

    window   | ARCHIVED | available | acquired |         the record's place is final
                  |
                  v
    store    | due 5 | due 7 | due 12 | ...              the record waits here

A record with a long wait (for its redelivery, or because it is scheduled) would fill the window and
hold back the start offset. So its place in the window becomes ARCHIVED, which is final, and the
record is parked: a key in the store holds its due time. When that has come, a member acquires it by
its offset, like any other record. Only an accept, a rejection or the delivery limit removes the
key.

    lane          in order of               due by
    REDELIVERY    due time                  the life clock: no step of the wall clock
    SCHEDULE      due time                  the wall clock
    ARCHIVING     offset (`due_ms` is 0)    at once: a dead letter is to be written

The share engine decides on these values, and persisters store them.
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
    """Where a parked record stands in the order of its share-partition. `key_hash`: as in
    Parked."""

    lane: Lane
    due_ms: int
    offset: int
    key_hash: int | None = None


class Parked(NamedTuple):
    """A parked record as it is stored.

    - `due_ms`: since 1970.
    - `delivery_count`: finished deliveries.
    - `leader_epoch`: of the broker life that parked it. It shows whether a power cut removed the
      record from the log.
    - `rejected`, `expired`: the cause, in the lane ARCHIVING; otherwise the delivery limit was
      reached.
    - `key_hash`: of its key, where the group keeps the order of keys (key_order.py). It never
      changes.
    - `kept`: the record itself is stored beside it, and the log may be removed.
    """

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
    """A record is parked, moved, or no longer parked (`parked` None).

    - `stale`: places where it may stand in the store. They are removed, except for its new one.
    - `record`: the bytes to keep from now on, as a batch of its own. b"": keep none any more; None:
      no change.
    """

    offset: int
    stale: Sequence[Place]
    parked: Parked | None
    record: bytes | None = None
