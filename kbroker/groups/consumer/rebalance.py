"""How consumer groups of the new protocol get from one group epoch to the next, and what happens
when members are late. Pure.

    take_over     update a member's details: another subscription, or other topics, start a new
                  group epoch
    assign        if the group epoch is newer than the targets, compute new targets for all members,
                  no more often than the assignment interval allows
    step          move a member one step towards its target (reconciliation.py)
    remove        drop members, which starts a new group epoch. A member's next heartbeat computes
                  the targets

    timer      of                           when it runs out, the member is removed
    SESSION    every member                 it was silent for too long
    REBALANCE  a member that must revoke    other members wait for its partitions
    JOIN       a classic member             it has a rebalance to join and did not
    SYNC       a classic member             it has joined and did not ask for its assignment

This module must not know how requests are checked or answered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from enum import Enum, auto
from typing import NamedTuple

from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.group_records import ConsumerGroupMember
from kbroker.groups.assignors.spi import ConsumerAssignor, ConsumerAssignorMember, PartitionAssignorError
from kbroker.groups.consumer.messages import ConsumerGroupSettings, Partitions
from kbroker.groups.consumer.reconciliation import Goal, MemberState, reconcile
from kbroker.groups.consumer.state import ConsumerGroup, ConsumerMember
from kbroker.groups.consumer.subscriptions import Subscriptions
from kbroker.groups.outcome import Records
from kbroker.groups.timers import Timers

logger = logging.getLogger(__name__)


class ConsumerTimerKind(Enum):
    SESSION = auto()
    REBALANCE = auto()
    JOIN = auto()
    SYNC = auto()


class ConsumerTimer(NamedTuple):
    kind: ConsumerTimerKind
    group_id: str
    member_id: str


class ConsumerRebalances:
    """`assignors`: by name, the broker's first choice first."""

    def __init__(
        self,
        settings: Callable[[str], ConsumerGroupSettings],
        subscriptions: Subscriptions,
        assignors: Mapping[str, ConsumerAssignor],
    ) -> None:
        self.settings = settings
        self.subscriptions = subscriptions
        self.assignors = assignors
        self.timers: Timers[ConsumerTimer] = Timers()
        self.rebalances = 0

    # --- heartbeats ---

    def take_over(
        self, group: ConsumerGroup, member: ConsumerMember, said: ConsumerGroupMember, records: Records
    ) -> bool:
        """Update the member's details. True if its subscription has changed. As in Kafka, an epoch
        starts, too, if the group's assignor becomes another one by the member's vote."""
        has_new_vote = said.server_assignor != member.said.server_assignor
        assignor = group.preferred_assignor(self.assignors) if has_new_vote else None
        other_names = said.subscribed_topic_names != member.said.subscribed_topic_names
        other_regex = (said.subscribed_topic_regex or "") != (member.said.subscribed_topic_regex or "")
        group.set_said(member, said, records)
        other_topics = member.rights is not None and self._sees_others(member) and not other_regex
        other_assignor = has_new_vote and group.preferred_assignor(self.assignors) != assignor
        other_subscription = other_names or other_regex or other_topics
        if other_subscription or other_assignor or group.topics_version != self.subscriptions.version:
            epochs = self._new_epochs(group, member, other_names, other_regex)
            self._note_topics(group, records, epochs=epochs or int(other_topics or other_assignor))
        return other_subscription

    def _sees_others(self, member: ConsumerMember) -> bool:
        """Whether the member's regular expression matches other topics than before, since topics or
        the rights of its client have changed. After a start it may have matched all."""
        regex = member.said.subscribed_topic_regex
        if not regex:
            member.seen = None
            return False
        before = hash(self.subscriptions.resolve(regex)) if member.seen is None else member.seen
        member.seen = hash(self.subscriptions.resolve(regex, member.rights))
        return member.seen != before

    def _new_epochs(
        self, group: ConsumerGroup, member: ConsumerMember, other_names: bool, other_regex: bool
    ) -> int:
        """The number of new epochs, as in Kafka. Kafka resolves a new regular expression later, and
        then starts another epoch for it, unless no topic matches."""
        regex = member.said.subscribed_topic_regex
        is_new = (
            other_regex
            and bool(regex)
            and all(each.said.subscribed_topic_regex != regex for each in _others(group, member))
        )
        for_topics = is_new and bool(self.subscriptions.resolve(regex or "", member.rights))
        return int(other_names or (other_regex and not is_new)) + int(for_topics)

    def assign(self, group: ConsumerGroup, records: Records, now_ms: int) -> None:
        """Compute targets for the present group epoch, unless it has targets or it is too early.
        Raises UNKNOWN_SERVER_ERROR if the assignor fails: earlier decisions stand, and the next
        heartbeat of any member retries."""
        interval_ms = self.settings(group.group_id).assignment_interval_ms
        is_early = bool(group.assignment_ms) and 0 <= now_ms - group.assignment_ms < interval_ms
        if is_early or not group.assignment_pending:
            return
        members = {
            member.member_id: ConsumerAssignorMember(
                self.subscriptions.topic_ids(member),
                group.targets.get(member.member_id, {}),
                member.said.instance_id,
                member.said.rack_id,
            )
            for member in group.members.values()
        }
        partitions = self.subscriptions.partitions(
            frozenset().union(*(member.topic_ids for member in members.values()))
        )
        name = group.preferred_assignor(self.assignors)
        try:
            given = self.assignors[name].assign(members, partitions)
            targets = {member_id: dict(given[member_id]) for member_id in members}
        except Exception as error:  # It may be a plugin: its faults must affect this group only.
            is_faulty = not isinstance(error, PartitionAssignorError)
            text = "group %s: the assignor %s has no assignment for epoch %d: %r"
            logger.error(text, group.group_id, name, group.epoch, error, exc_info=is_faulty)
            message = f"Failed to compute a new target assignment for epoch {group.epoch}: {error}"
            raise KafkaError(ErrorCode.unknown_server_error, message) from error
        group.set_targets(targets, now_ms, records)

    def step(
        self,
        group: ConsumerGroup,
        member: ConsumerMember,
        owned: Partitions | None,
        records: Records,
        now_ms: int,
        *,
        subscription_changed: bool,
    ) -> None:
        """Move one step towards the target. A member that must revoke partitions has its rebalance
        timeout to do it."""
        if not subscription_changed and member.current.is_reconciled_to(group.assignment_epoch):
            return
        target = group.targets.get(member.member_id, {})
        goal = Goal(group.assignment_epoch, target, self.subscriptions.topic_ids(member))
        current = reconcile(
            member.current, goal, owned, group.is_free, subscription_changed=subscription_changed
        )
        if current == member.current:
            return
        group.set_current(member, current, records)
        if member.is_classic:
            return
        name = ConsumerTimer(ConsumerTimerKind.REBALANCE, group.group_id, member.member_id)
        if current.state is MemberState.UNREVOKED_PARTITIONS:
            self.timers.set(name, now_ms + member.said.rebalance_timeout)
        else:
            self.timers.cancel(name)

    # --- leaving members ---

    def remove(self, group: ConsumerGroup, members: Collection[ConsumerMember], records: Records) -> None:
        for member in members:
            group.remove_member(member, records)
            self.forget_member(group.group_id, member.member_id)
        self._note_topics(group, records, epochs=1)

    def replace(
        self, group: ConsumerGroup, old: ConsumerMember, member_id: str, records: Records
    ) -> ConsumerMember:
        """Another client has a static member's instance id now: give it the member's place."""
        was_another = member_id != old.member_id and member_id in group.members
        self.forget_member(group.group_id, old.member_id)
        self.forget_member(group.group_id, member_id)
        member = group.replace_member(old, member_id, records)
        if was_another:  # The group has one member less: the others get its partitions.
            self._note_topics(group, records, epochs=1)
        return member

    def leave_for_a_while(self, group: ConsumerGroup, member: ConsumerMember, records: Records) -> None:
        """The session continues, and ends the membership of a static member that does not return in
        time."""
        group.leave_for_a_while(member, records)
        self.timers.cancel(ConsumerTimer(ConsumerTimerKind.REBALANCE, group.group_id, member.member_id))

    def _note_topics(self, group: ConsumerGroup, records: Records, *, epochs: int) -> None:
        """Start `epochs` new group epochs; if 0, start one if topics or partitions have changed
        since the last."""
        group.topics_version = self.subscriptions.version
        names = self.subscriptions.names(group.members.values())
        metadata_hash = self.subscriptions.hash(names)
        epochs = epochs or int(metadata_hash != group.metadata_hash)
        if epochs:
            group.bump(epochs, metadata_hash, records)
            self.rebalances += 1

    # --- time ---

    def start_session(self, group: ConsumerGroup, member: ConsumerMember, now_ms: int) -> None:
        """The member sent a request: restart its session timeout."""
        classic = member.said.classic.session_timeout if member.is_classic else None
        timeout_ms = self.settings(group.group_id).session_timeout_ms if classic is None else classic
        self.timers.set(
            ConsumerTimer(ConsumerTimerKind.SESSION, group.group_id, member.member_id), now_ms + timeout_ms
        )

    def start_timers(self, group: ConsumerGroup, now_ms: int) -> None:
        """Start the timers of a group that was loaded or converted, with the full timeouts."""
        for member in group.members.values():
            self.start_session(group, member, now_ms)
            if member.current.state is MemberState.UNREVOKED_PARTITIONS and not member.is_classic:
                self.timers.set(
                    ConsumerTimer(ConsumerTimerKind.REBALANCE, group.group_id, member.member_id),
                    now_ms + member.said.rebalance_timeout,
                )

    def forget_member(self, group_id: str, member_id: str) -> None:
        for kind in ConsumerTimerKind:
            self.timers.cancel(ConsumerTimer(kind, group_id, member_id))

    def forget_group(self, group: ConsumerGroup) -> None:
        """Cancel all timers of the group."""
        for member_id in group.members:
            self.forget_member(group.group_id, member_id)


def with_new(said: ConsumerGroupMember, **news: object) -> ConsumerGroupMember:
    """A member's details with new values; None: unchanged."""
    return replace(said, **{name: value for name, value in news.items() if value is not None})  # type: ignore[arg-type]


def _others(group: ConsumerGroup, member: ConsumerMember) -> Iterator[ConsumerMember]:
    return (each for each in group.members.values() if each is not member)
