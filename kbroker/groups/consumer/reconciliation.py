"""How a member of a consumer group gets from the partitions that it has to those of its target
(KIP-848). Pure, one function.

A member has partitions, at an epoch; the group has a target for it, at another epoch. Each
heartbeat moves the member by at most one step. Whether it takes one depends on its state:

    STABLE                   takes one unless it is at the target's epoch
    UNREVOKED_PARTITIONS     takes one unless it still reports partitions that it must give up, or
                             reports nothing
    UNRELEASED_PARTITIONS    always takes one

A member that takes none only gives up topics that it no longer subscribes to. A step leads to

    UNREVOKED_PARTITIONS     if the member must give up partitions and has not reported that it did;
                             its epoch stays
    UNRELEASED_PARTITIONS    otherwise, if other members still have partitions of its target; its
                             epoch becomes the target's
    STABLE                   otherwise; its epoch becomes the target's

So no member gets a partition that another member may still be reading. During the steps a member
keeps its partitions that are in the target, and gets free partitions of the target. For each
partition the epoch at which the member got it is kept, which decides whether a late commit for it
is valid (KIP-1251). This module must not know groups, records or time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from kbroker.groups.consumer.messages import Partitions

Owned: TypeAlias = Mapping[UUID, Mapping[int, int]]
"""Partitions by topic, each with the member epoch at which the member got it; no topic without
partitions."""


class MemberState(IntEnum):
    """The values in the records."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2


@dataclass(frozen=True, slots=True)
class Current:
    """The partitions of a member: `assigned`, which replies have given it, and `revoking`, which it
    must give up. `previous_epoch`: its epoch before the last reply, which may have been lost."""

    epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Owned = field(default_factory=dict)
    revoking: Owned = field(default_factory=dict)

    def at(self, epoch: int, state: MemberState, assigned: Owned, revoking: Owned) -> Current:
        return Current(epoch, self.epoch, state, assigned, revoking)

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == epoch

    def epoch_of(self, topic_id: UUID, partition: int) -> int | None:
        """The epoch at which the member got the partition; None: it does not have it."""
        found = self.assigned.get(topic_id, {}).get(partition)
        return self.revoking.get(topic_id, {}).get(partition) if found is None else found


class Goal(NamedTuple):
    """The target of a member, and its epoch. Topics that are not in `topic_ids`, the member's
    subscription, are ignored."""

    epoch: int
    target: Partitions
    topic_ids: Collection[UUID]


def reconcile(
    current: Current,
    goal: Goal,
    owned: Partitions | None,
    is_free: Callable[[UUID, int], bool],
    *,
    subscription_changed: bool,
) -> Current:
    """Return the member's partitions after its next step, `current` itself if it takes none.
    `owned`: the partitions that it reports, None if it reports nothing. `is_free`: says whether no
    member has a partition."""
    if _WAITS[current.state](current, goal, owned):
        return _shrink(current, goal, owned) if subscription_changed else current
    return _advance(current, goal, owned, is_free)


_WAITS: Final[Mapping[MemberState, Callable[[Current, Goal, Partitions | None], bool]]] = {
    MemberState.STABLE: lambda current, goal, owned: current.epoch == goal.epoch,
    MemberState.UNREVOKED_PARTITIONS: lambda current, goal, owned: _holds(owned, current.revoking),
    MemberState.UNRELEASED_PARTITIONS: lambda current, goal, owned: False,
}


def _shrink(current: Current, goal: Goal, owned: Partitions | None) -> Current:
    """Remove topics that the member no longer subscribes to."""
    lost = {
        topic_id: epochs for topic_id, epochs in current.assigned.items() if topic_id not in goal.topic_ids
    }
    if not lost:
        return current
    assigned = {topic_id: epochs for topic_id, epochs in current.assigned.items() if topic_id not in lost}
    revoking = {
        **current.revoking,
        **{topic_id: {**current.revoking.get(topic_id, {}), **epochs} for topic_id, epochs in lost.items()},
    }
    if _holds(owned, revoking):
        return current.at(current.epoch, MemberState.UNREVOKED_PARTITIONS, assigned, revoking)
    return replace(current, previous_epoch=current.epoch, assigned=assigned)


def _advance(
    current: Current, goal: Goal, owned: Partitions | None, is_free: Callable[[UUID, int], bool]
) -> Current:
    target = {topic_id: numbers for topic_id, numbers in goal.target.items() if topic_id in goal.topic_ids}
    assigned: dict[UUID, dict[int, int]] = {}
    revoking: dict[UUID, dict[int, int]] = {}
    for topic_id, epochs in current.assigned.items():
        wanted = target.get(topic_id, ())
        for number, epoch in epochs.items():
            (assigned if number in wanted else revoking).setdefault(topic_id, {})[number] = epoch
    if revoking and _holds(owned, revoking):
        return current.at(current.epoch, MemberState.UNREVOKED_PARTITIONS, assigned, revoking)
    is_whole = True
    for topic_id, numbers in target.items():
        mine, given_up = current.assigned.get(topic_id, {}), current.revoking.get(topic_id, {})
        for number in numbers:
            if number in mine:
                continue
            if number in given_up or is_free(topic_id, number):
                assigned.setdefault(topic_id, {})[number] = goal.epoch
            else:
                is_whole = False
    return current.at(
        goal.epoch, MemberState.STABLE if is_whole else MemberState.UNRELEASED_PARTITIONS, assigned, {}
    )


def _holds(owned: Partitions | None, revoking: Owned) -> bool:
    """Whether the member reports one of these partitions. A member that reports nothing may have
    all of them."""
    if owned is None:
        return True
    return any(
        number in revoking.get(topic_id, ()) for topic_id, numbers in owned.items() for number in numbers
    )
