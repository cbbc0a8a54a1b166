"""What the share coordinator decides: the changes of a request, its results, and what is saved of
each share-partition once they are. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from kbroker.formats.share_records import UNKNOWN_COUNT
from kbroker.formats.state import share_state_number
from kbroker.makers import maker
from kbroker.share.persister import Result
from kbroker.share_state.housekeeping import SharePartitionKey
from kbroker.share_state.loading import ShareState
from kbroker.share_state.parked import NO_GENERATION
from kbroker.storage.spi import Change

R = TypeVar("R", bound=Result)


class Saved(NamedTuple):
    """What a summary says of a share-partition; the defaults where it has no state."""

    state_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int = -1
    delivery_complete_count: int = UNKNOWN_COUNT
    waiting: int = 0
    generation: int = NO_GENERATION


_as_saved = maker(Saved, tuple[int, int, int, int, int, int])
"""One for each write."""


@dataclass(slots=True, eq=False)
class Entry:
    """What is in memory of a share-partition. `state` None: there is none, or its removal is not
    saved yet."""

    key: SharePartitionKey
    prefix: bytes
    state: ShareState | None
    saved: Saved
    unsaved: int = 0
    lost: bool = False


@dataclass(frozen=True, slots=True)
class ShareStateOutcome(Generic[R]):
    """See the head of this file. `results`, one per row asked for and in that order, hold once the
    changes are saved. There are none at all where the group id is empty, as in Kafka."""

    changes: tuple[Change, ...]
    results: tuple[R, ...]
    must_wait: bool
    changed: tuple[tuple[Entry, Saved], ...]
    """The coordinator's own: what will be saved then."""


class Decision(Generic[R]):
    """An outcome in the making."""

    def __init__(self, group_id: str = "") -> None:
        self.group_id = group_id
        self.changes: list[Change] = []
        self.changed: dict[Entry, None] = {}
        self.results: list[R] = []
        self.must_wait = False

    def change(self, entry: Entry, number: int, value: bytes | None) -> None:
        self.changes.append((entry.prefix + share_state_number(number), value))
        self.changed[entry] = None

    def outcome(self) -> ShareStateOutcome[R]:
        changed = []
        for entry in self.changed:
            entry.unsaved += 1
            changed.append((entry, to_be_saved(entry.state)))
        return ShareStateOutcome(
            tuple(self.changes), tuple(self.results), self.must_wait or bool(self.changes), tuple(changed)
        )


def to_be_saved(state: ShareState | None) -> Saved:
    if state is None:
        return Saved()
    epochs = state.state_epoch, state.leader_epoch
    return _as_saved(
        (*epochs, state.start_offset, state.delivery_complete_count, state.waiting, state.generation)
    )
