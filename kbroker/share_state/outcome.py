"""The outcome of a share coordinator's decision: changes for the store, results for the caller, and
the entries that wait for the save. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from kbroker.formats.makers import maker
from kbroker.formats.share_records import UNKNOWN_COUNT
from kbroker.formats.state import share_state_number
from kbroker.share.persister import Result
from kbroker.share_state.housekeeping import SharePartitionKey
from kbroker.share_state.loading import ShareState
from kbroker.share_state.parked import NO_GENERATION
from kbroker.storage.spi import Change

R = TypeVar("R", bound=Result)


class Saved(NamedTuple):
    """The saved state of a share-partition in brief; the defaults where it has none."""

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
    """A share-partition in memory. `state` None: there is none, or its removal is not saved yet."""

    key: SharePartitionKey
    prefix: bytes
    state: ShareState | None
    saved: Saved
    unsaved: int = 0
    lost: bool = False


@dataclass(frozen=True, slots=True)
class ShareStateOutcome(Generic[R]):
    """See coordinator.py. `results`, one per requested row and in that order, hold once the changes
    are saved. They are empty where the group id is empty, as in Kafka."""

    changes: tuple[Change, ...]
    results: tuple[R, ...]
    must_wait: bool
    changed: tuple[tuple[Entry, Saved], ...]
    """For confirm() and failed(): the entries, and their state once saved."""


class Draft(Generic[R]):
    """An outcome under construction."""

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
