"""A decision about a group of any type: changes to save, effects to carry out then, and a reply.

    outcome = groups.join(request, ticket, now_ms=...)

Decisions about groups are visible in memory at once. Committed offsets become visible when they are
saved: they are an effect. kbroker/broker/groups/runner.py saves outcomes, carries them out, and
documents the order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

from kbroker.formats.group_records import AnyGroupOffset
from kbroker.formats.share_records import Message, RecordType
from kbroker.formats.state import GroupKey
from kbroker.groups.stored_times import StoredTimes
from kbroker.share.persister import InitializeRequest, TopicPartition
from kbroker.storage.spi import Change

R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")


class Ticket:
    """A request that may have to wait for its answer. The caller creates it; coordinators keep it
    and return it in an `Answer`."""

    __slots__ = ()


class Answer(NamedTuple):
    """The reply to a request that waited. Its client may have hung up meanwhile."""

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
    """These offsets of a group are saved: they are committed or, if all of them are None, removed
    for the reason `why_gone`. `in_transaction`: by the end of a transaction."""

    group_id: str
    offsets: Mapping[OffsetOf, AnyGroupOffset | None]
    why_gone: WhyGone | None = None
    in_transaction: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ApplyPending:
    """These offsets of a producer's transaction are saved."""

    producer_id: int
    group_id: str
    offsets: Mapping[OffsetOf, AnyGroupOffset]


@dataclass(frozen=True, slots=True, eq=False)
class EndPending:
    """The transaction of a producer has ended for the offsets. `superseded`: those of other
    producers that were saved before, as (producer id, group id, log)."""

    producer_id: int
    superseded: tuple[tuple[int, str, OffsetOf], ...] = ()


class GenerationSaved(NamedTuple):
    """The assignments that the leader of a classic group gave to its members are saved."""

    group_id: str
    generation: int


class InitializeSharePartitions(NamedTuple):
    """Call Persister.initialize with this, then pass the results to `initialized`, or to
    `offsets_altered` if `alter_offsets` returned this effect."""

    group_id: str
    requests: tuple[InitializeRequest, ...]


class DeleteShareState(NamedTuple):
    """Call Persister.delete with this, then pass the results to `deleted`, or to `offsets_deleted`
    if `delete_offsets` returned this effect."""

    group_id: str
    partitions: tuple[TopicPartition, ...]


Effect: TypeAlias = (
    Answer
    | ApplyOffsets
    | ApplyPending
    | EndPending
    | GenerationSaved
    | InitializeSharePartitions
    | DeleteShareState
)
"""The last two call the persister, which takes time: the caller does so after the save."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[R_co]):
    """A decision. Without a reply, the request waits, or other steps come first.

    - `changes`: for the state store, in one write
    - `effects`: carried out when the changes are saved
    - `group_ids`: groups whose state in memory is valid only if the changes are saved"""

    changes: tuple[Change, ...] = ()
    reply: R_co | None = None
    effects: tuple[Effect, ...] = ()
    group_ids: tuple[str, ...] = ()


class Coordinator(ABC):
    """Decides about groups, and learns whether its decisions were saved."""

    def effect_saved(self, effect: Effect, *, now_ms: int) -> Outcome[None]:
        """The changes of the effect's outcome are saved."""
        return Outcome()

    def effect_not_saved(self, effect: Effect) -> None:  # noqa: B027 - most have nothing to withdraw
        """The changes could not be saved; a call of `not_saved` follows for each affected group."""

    @abstractmethod
    def not_saved(
        self, group_id: str, records: Collection[tuple[bytes, bytes]], *, now_ms: int
    ) -> Outcome[None]:
        """Restore a group after a decision about it could not be saved. `records`: everything that
        the store has of it (a scan of `group_prefix`). Returns no changes.

        Every outcome submitted after the failed one must fail as well, and this call must follow in
        the same step."""

    @abstractmethod
    def topic_deleted(self, topic_id: UUID) -> Outcome[None]:
        """Remove a deleted topic from all groups."""

    @abstractmethod
    def topic_ids(self) -> Collection[UUID]:
        """All topics that a group has stored something for."""

    @abstractmethod
    def next_deadline_ms(self) -> int | None:
        """When to call `expire` next; there may be nothing to do then. None: no timer is set."""

    @abstractmethod
    def expire(self, now_ms: int) -> Outcome[None]:
        """Decide about everything that is due."""


class Records:
    """Collects the changes and effects of a decision about one group. `times` converts times for
    records."""

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

    def outcome(self, reply: R | None = None, *effects: Effect) -> Outcome[R]:
        return Outcome(
            tuple(self.changes),
            reply,
            (*self.effects, *effects),
            (self.group_id,) if self.changes else (),
        )


def together(outcomes: Iterable[Outcome[object]]) -> Outcome[None]:
    """Join decisions about several groups into one, for one commit."""
    outcomes = list(outcomes)
    return Outcome(
        tuple(change for outcome in outcomes for change in outcome.changes),
        None,
        tuple(effect for outcome in outcomes for effect in outcome.effects),
        tuple(dict.fromkeys(group_id for outcome in outcomes for group_id in outcome.group_ids)),
    )
