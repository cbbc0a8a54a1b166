"""How a member of a consumer group comes from the partitions that it has to those that it is to
have (KIP-848). Pure, one function.

A member has partitions at an epoch; the group has a target for it at an epoch. With each of its
heartbeats a member takes one step:

    its state               it takes            unless it waits; then, if it subscribes to something else now, it
    STABLE                  the way below       is at the target's epoch               only gives up what it is not to have
    UNREVOKED_PARTITIONS    the way below       reports partitions that it is to       only gives up what it is not to have
                                                give up, or does not say
    UNRELEASED_PARTITIONS   the way below       (never)

    the way: has to give up partitions,      are partitions of its target    next state              epoch
    and does not say that it has done so     still another member's
    yes                                      (either)                        UNREVOKED_PARTITIONS    stays
    no                                       yes                             UNRELEASED_PARTITIONS   the target's
    no                                       no                              STABLE                  the target's

So nobody is told to have a partition while another member may still be reading it. On the way it
keeps what it has and is to have, and gets what it is to have and is free; each partition knows the
epoch at which the member got it, which says whether a late commit for it is still good (KIP-1251).
This module must not know groups, records or time.
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
    """As in the records."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2


@dataclass(frozen=True, slots=True)
class Current:
    """What a member has: `assigned`, which it was told, and `revoking`, which it is to give up.
    `previous_epoch`: its epoch in a reply before the last, which may have been lost."""

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
        """Since which epoch the member has the partition; None: it does not have it."""
        found = self.assigned.get(topic_id, {}).get(partition)
        return self.revoking.get(topic_id, {}).get(partition) if found is None else found


class Goal(NamedTuple):
    """What a member is to have, at which epoch. Of topics that it does not subscribe to any more it
    gets nothing, whatever the target."""

    epoch: int
    target: Partitions
    topic_ids: Collection[UUID]


def reconcile(
    current: Current,
    goal: Goal,
    owned: Partitions | None,
    is_free: Callable[[UUID, int], bool],
    *,
    subscribed_anew: bool,
) -> Current:
    """The member's next step; `current` itself if it takes none. `owned`: what it reports, None if
    it does not say; `is_free`: no member has the partition."""
    if _WAITS[current.state](current, goal, owned):
        return _shrink(current, goal, owned) if subscribed_anew else current
    return _advance(current, goal, owned, is_free)


_WAITS: Final[Mapping[MemberState, Callable[[Current, Goal, Partitions | None], bool]]] = {
    MemberState.STABLE: lambda current, goal, owned: current.epoch == goal.epoch,
    MemberState.UNREVOKED_PARTITIONS: lambda current, goal, owned: _holds(owned, current.revoking),
    MemberState.UNRELEASED_PARTITIONS: lambda current, goal, owned: False,
}


def _shrink(current: Current, goal: Goal, owned: Partitions | None) -> Current:
    """Nothing new for the member, but it must not read on what it does not subscribe to."""
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
    """Whether the member reports one of these partitions. One that does not say what it has may
    have all."""
    if owned is None:
        return True
    return any(
        number in revoking.get(topic_id, ()) for topic_id, numbers in owned.items() for number in numbers
    )
