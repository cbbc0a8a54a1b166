"""The store of parked_world.py, and the checker's knowledge of each record."""

from __future__ import annotations

from dataclasses import dataclass, field

from kbroker.share.effects import Persist, StateBatch
from kbroker.share.parked import Lane, Parked, Place
from kbroker.share.state_batches import combine

READ_AT_ONCE = 3
_FINAL = (2, 4)


def record_of(offset: int) -> bytes:
    return b"%d" % offset


@dataclass
class Store:
    """`records`: the stored parked records."""

    start: int
    batches: tuple[StateBatch, ...] = ()
    places: dict[Place, Parked] = field(default_factory=dict)
    offsets: dict[int, Place] = field(default_factory=dict)
    waiting: int = 0
    complete: int = 0
    records: dict[int, bytes] = field(default_factory=dict)

    def keep_parked(self, persist: Persist) -> None:
        for offset, stale, parked, record in persist.parking:
            if record:
                self.records[offset] = record
            elif record is not None:
                self.records.pop(offset, None)
            for place in stale:
                assert place.offset == offset
                self.places.pop(place, None)
            if parked is None:
                self.offsets.pop(offset, None)
            else:
                assert parked.offset == offset
                self.places[parked.place] = parked
                self.offsets[offset] = parked.place
        if persist.parking:
            self.waiting = persist.waiting

    def keep_state(self, persist: Persist) -> None:
        self.start = max(self.start, persist.start_offset)
        self.complete = persist.delivery_complete_count
        self.batches = combine(self.batches, persist.batches, self.start)

    def keeps(self, offset: int) -> bool:
        return offset in self.offsets and self.places[self.offsets[offset]].kept

    def is_final(self, offset: int) -> bool:
        return offset < self.start or any(
            b.first_offset <= offset <= b.last_offset and b.state in _FINAL for b in self.batches
        )

    def cut(self, end_offset: int, log_start: int) -> None:
        """A load after a power cut drops the state of records that the log has lost."""
        for offset, place in list(self.offsets.items()):
            if offset >= end_offset or (offset < log_start and not self.keeps(offset)):
                del self.offsets[offset], self.places[place]
                self.records.pop(offset, None)
        self.waiting, self.start = len(self.offsets), min(self.start, end_offset)
        self.batches = tuple(
            batch._replace(last_offset=min(batch.last_offset, end_offset - 1))
            for batch in self.batches
            if batch.first_offset < end_offset
        )

    def load(self) -> None:
        """A load by a persister of two stores: a parked record is valid only once its place in the
        window is final."""
        for offset, place in list(self.offsets.items()):
            if not self.is_final(offset):
                del self.offsets[offset], self.places[place]
                self.records.pop(offset, None)
        self.waiting = len(self.offsets)

    def read(self, lane: Lane, after: tuple[int, int]) -> list[Parked]:
        found = [
            parked
            for place, parked in self.places.items()
            if place.lane == lane and (place.due_ms, place.offset) > after
        ]
        return sorted(found, key=lambda parked: parked.place)[:READ_AT_ONCE]


@dataclass
class Job:
    """The checker's knowledge of a record. `count`: of its last delivery; also its holder, until
    when, and when it may be redelivered (in this life). `done`: an accept was confirmed.
    `given_up`: a dead letter is owed. `expired`: it is not delivered in this life."""

    count: int = 0
    least_count: int = 0
    member: str | None = None
    deadline_ms: float = 0
    answered: bool = False
    """Its holder has answered, but the answer could not be saved."""
    due_ms: float = 0
    done: bool = False
    given_up: bool = False
    gone: bool = False
    may_be_kept: bool = False
    """`gone`, unless the write under way then has kept it."""
    may_be_over: bool = False
    """A write that ends it was reported as failed."""
    was_moved: bool = False
    """Parked as a record that a member had held: its schedule no longer applies."""
    expired: bool = False
    came_back: bool = False
    """It was released, which was not saved."""
    scheduled_ms: int = 0
    """On the wall clock."""
