"""What a decision about a classic or consumer group comes to: changes to save, effects to carry out
then, a reply.

    outcome = groups.join(request, ticket, now_ms=...)                  no await between here
    commit.submit(outcome.changes, on_done)                             and here (nothing to submit: go on)
    saved:   carry out the effects in their order, answer with the reply; without one the request
             waits for its Answer
    failed:  give its ApplyOffsets to groups.offsets.not_saved; then groups.not_saved(group_id,
             store.scan(group_prefix(group_id)),
             now_ms=...) for each of outcome.group_ids, and carry out what that decides; answer COORDINATOR_NOT_AVAILABLE to whoever
             asked and to all who had an Answer in it

Decisions about groups show in memory at once, committed offsets only when they are saved: they are
an effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, TypeAlias, TypeVar
from uuid import UUID

from kbroker.formats.group_records import AnyGroupOffset
from kbroker.formats.share_records import Message, RecordType
from kbroker.formats.state import GroupKey
from kbroker.groups.stored_times import StoredTimes
from kbroker.storage.spi import Change

R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")


class Ticket:
    """A request that may have to wait for its answer. Whoever asks makes it; coordinators keep it
    and give it back."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """The reply to a request that waited. Nobody may be there any more to hear it."""

    ticket: Ticket
    reply: object


OffsetOf: TypeAlias = tuple[UUID, int]
"""Topic id and partition."""


class WhyGone(Enum):
    """Why offsets are removed."""

    DELETED = auto()
    EXPIRED = auto()


@dataclass(frozen=True, slots=True, eq=False)
class ApplyOffsets:
    """These offsets of a group are saved: give them to `Offsets.apply`; if not, to
    `Offsets.not_saved`. Committed ones, or, all of them None, ones that are removed, with the
    reason."""

    group_id: str
    offsets: Mapping[OffsetOf, AnyGroupOffset | None]
    why_gone: WhyGone | None = None


@dataclass(frozen=True, slots=True)
class GenerationSaved:
    """What the leader of a classic group gave to its members is saved: tell `ClassicGroups.saved`,
    and carry out what it decides."""

    group_id: str
    generation: int


Effect: TypeAlias = Answer | ApplyOffsets | GenerationSaved


@dataclass(frozen=True, slots=True)
class Outcome(Generic[R_co]):
    """See the head of this file. `group_ids`: whose state was changed by this in memory and counts
    only if it is saved."""

    changes: tuple[Change, ...] = ()
    reply: R_co | None = None
    effects: tuple[Effect, ...] = ()
    group_ids: tuple[str, ...] = ()


class Records:
    """What a decision about one group collects. `times`: what moments are in a record."""

    def __init__(self, group_id: str, times: StoredTimes) -> None:
        self.times = times
        self.changes: list[Change] = []
        self.effects: list[Effect] = []
        self.group_id = group_id

    def put(self, record_type: RecordType, value: Message, member_id: str | None = None) -> None:
        self.changes.append((GroupKey(record_type, self.group_id, member_id).encode(), value.encode()))

    def remove(self, record_type: RecordType, member_id: str | None = None) -> None:
        self.changes.append((GroupKey(record_type, self.group_id, member_id).encode(), None))

    def answer(self, ticket: Ticket, reply: object) -> None:
        self.effects.append(Answer(ticket, reply))

    def outcome(self, reply: R | None = None) -> Outcome[R]:
        return Outcome(
            tuple(self.changes), reply, tuple(self.effects), (self.group_id,) if self.changes else ()
        )


def together(outcomes: Iterable[Outcome[object]]) -> Outcome[None]:
    """What several groups have to save and to do, in one commit."""
    outcomes = list(outcomes)
    return Outcome(
        tuple(change for outcome in outcomes for change in outcome.changes),
        None,
        tuple(effect for outcome in outcomes for effect in outcome.effects),
        tuple(dict.fromkeys(group_id for outcome in outcomes for group_id in outcome.group_ids)),
    )
