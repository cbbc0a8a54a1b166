"""Consumer groups of the new protocol (KIP-848): the coordinator computes the assignment, and each
member moves to it by heartbeats.

    group epoch        rises whenever the members, their subscriptions or the subscribed topics
                       change
    assignment epoch   the group epoch of the targets, the assignments that members should have
    member epoch       how far a member is: it has given up all partitions that its target at that
                       epoch lacks, and has those of its target that are free

Decisions show in memory at once; kbroker/broker/groups/runner.py saves outcomes and carries them
out. No request waits: Kafka resolves regular expressions in the background, kbroker at the first
heartbeat.

reconciliation.py says how a member reaches its target, consumer/rebalance.py how the group gets new
targets, consumer/mixed.py what members of the classic protocol do, and conversion.py how groups
change their protocol. This module must not know where records are kept, or which connection a
member has.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Final
from uuid import UUID

from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.group_records import CONSUMER_GROUP_VALUES, NOT_CLASSIC, ConsumerGroupMember
from kbroker.formats.share_records import RecordType
from kbroker.formats.state import GroupKey, parse_key
from kbroker.groups.assignors.spi import ConsumerAssignor
from kbroker.groups.classic.coordinator import ClassicGroups
from kbroker.groups.consumer.checks import check_form, member_of, replaced_member, static_member_of
from kbroker.groups.consumer.conversion import Conversions
from kbroker.groups.consumer.messages import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupSettings,
    ConsumerGroupsStatistics,
    DescribedConsumerGroup,
    DescribedConsumerMember,
    IterableTopicsView,
)
from kbroker.groups.consumer.rebalance import ConsumerRebalances, ConsumerTimerKind, with_new
from kbroker.groups.consumer.reconciliation import MemberState, Owned
from kbroker.groups.consumer.state import ConsumerGroup, ConsumerMember
from kbroker.groups.consumer.subscriptions import Subscriptions
from kbroker.groups.ids import CONSUMER, GroupIds, ListedGroup
from kbroker.groups.offsets.messages import CommitRequest
from kbroker.groups.outcome import Outcome, Records, together
from kbroker.groups.share.messages import (
    Assignment,
    DescribedAssignment,
    DescribedTopicPartitions,
    GroupHeartbeatReply,
    TopicPartitions,
    TopicsView,
)
from kbroker.groups.stored_times import StoredTimes
from kbroker.protocol.consumer_protocol import CONSUMER_PROTOCOL

logger = logging.getLogger(__name__)

CONSUMER_RECORD_TYPES: Final = frozenset(CONSUMER_GROUP_VALUES.keys() - {RecordType.CLASSIC_GROUP_METADATA})
"""Record types that only consumer groups have."""

_FIRST_COMMIT_VERSION = 9
"""The first OffsetCommit version with a member epoch."""
_CLASSIC, _CONSUMER = 0, 1
"""Member types of ConsumerGroupDescribe v1."""


class ConsumerGroups:
    """All consumer groups.

    - `settings(group_id)`: the settings that apply to a group now
    - `assignors`: by name, the broker's first choice first
    - `new_id`: makes member ids
    - `group_ids`, `times`: shared with the coordinators of other group types"""

    def __init__(
        self,
        settings: Callable[[str], ConsumerGroupSettings],
        group_ids: GroupIds,
        topics: IterableTopicsView,
        assignors: Mapping[str, ConsumerAssignor],
        new_id: Callable[[], str],
        times: StoredTimes | None = None,
    ) -> None:
        self._settings = settings
        self._group_ids = group_ids
        self.topics = topics
        self.new_id = new_id
        self.times = times or StoredTimes()
        self._groups: dict[str, ConsumerGroup] = {}
        self._classic: ClassicGroups | None = None
        subscriptions = Subscriptions(topics)
        self.rebalances = ConsumerRebalances(settings, subscriptions, assignors)
        self._conversions = Conversions(settings, topics, subscriptions)

    def convert_with(self, classic: ClassicGroups) -> None:
        """Convert groups from and to these classic groups."""
        self._classic = classic

    # --- members ---

    def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, *, now_ms: int
    ) -> Outcome[GroupHeartbeatReply]:
        """ConsumerGroupHeartbeat. A refusal is a reply; Kafka's order of checks decides which."""
        try:
            check_form(request, self.rebalances.assignors)
            if request.member_epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH):
                return self._leave(request, now_ms)
            return self._beat(request, now_ms)
        except KafkaError as refusal:
            return Outcome(reply=GroupHeartbeatReply.refusal(refusal))

    def _beat(self, request: ConsumerGroupHeartbeatRequest, now_ms: int) -> Outcome[GroupHeartbeatReply]:
        group = self._group_for(request)
        member_id = request.member_id or self.new_id()
        self._check_size(group, member_id)
        old = replaced_member(group, request, member_id)
        if request.subscribed_topic_regex:
            self.rebalances.subscriptions.expressions.compiled(request.subscribed_topic_regex)
        records = Records(request.group_id, self.times)
        self._adopt(group, records, now_ms)
        member = self._member(group, old, member_id, records)
        if member.is_classic:
            # It has changed its protocol.
            self.rebalances.forget_member(group.group_id, member.member_id)
        member.rights = request.rights
        had = member.current.assigned
        missed_a_reply = request.member_epoch != member.current.epoch
        subscription_changed = self.rebalances.take_over(group, member, _said(member.said, request), records)
        self.rebalances.start_session(group, member, now_ms)
        try:
            self.rebalances.assign(group, records, now_ms)
        except KafkaError as failure:
            return records.outcome(GroupHeartbeatReply.refusal(failure))
        self.rebalances.step(
            group, member, request.owned, records, now_ms, subscription_changed=subscription_changed
        )
        wants_assignment = (
            missed_a_reply
            or request.member_epoch == JOIN_EPOCH
            or request.is_full
            or member.current.assigned != had
        )
        if logger.isEnabledFor(logging.DEBUG):
            _tell(request, member)
        return records.outcome(self._reply(member, group.group_id, wants_assignment))

    def _group_for(self, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroup:
        """The group, or a new one that this heartbeat may create."""
        group = self._groups.get(request.group_id)
        if group is not None:
            return group
        classic = self._classic.get(request.group_id) if self._classic is not None else None
        if classic is not None and request.member_epoch == JOIN_EPOCH:
            return self._conversions.to_consumer_group(classic)
        if classic is not None and classic.protocol_type == CONSUMER_PROTOCOL:
            # It was a member before the group became a classic one, and may join again. Clients
            # treat GROUP_ID_NOT_FOUND as fatal (DIF-76).
            raise KafkaError(ErrorCode.unknown_member_id, f"Group {request.group_id} is a classic group now.")
        if self._group_ids.type_of(request.group_id) is not None:
            raise _other_type(request.group_id)
        if request.member_epoch != JOIN_EPOCH:
            raise KafkaError(ErrorCode.group_id_not_found, f"Consumer group {request.group_id} not found.")
        return ConsumerGroup(request.group_id)

    def _adopt(self, group: ConsumerGroup, records: Records, now_ms: int) -> None:
        """Keep the group. If it was converted from a classic group, that one is dropped."""
        if group.group_id in self._groups:
            return
        if self._classic is not None and self._classic.get(group.group_id) is not None:
            logger.info("group %s becomes a consumer group", group.group_id)
            self._classic.take_out(group.group_id, records)
            if group.members:
                group.put_all(records)
        self._add(group, now_ms)

    def _add(self, group: ConsumerGroup, now_ms: int) -> None:
        self._group_ids.claim(group.group_id, CONSUMER)
        self._groups[group.group_id] = group
        self.rebalances.start_timers(group, now_ms)

    def _member(
        self, group: ConsumerGroup, old: ConsumerMember | None, member_id: str, records: Records
    ) -> ConsumerMember:
        """The member that `replaced_member` has accepted, under its present id."""
        if old is None:
            return group.members.get(member_id) or ConsumerMember(member_id)
        return self.rebalances.replace(group, old, member_id, records)

    def _check_size(self, group: ConsumerGroup, member_id: str) -> None:
        max_size = self._settings(group.group_id).max_size
        if len(group.members) >= max_size and member_id not in group.members:
            message = f"The consumer group has reached its maximum capacity of {max_size} members."
            raise KafkaError(ErrorCode.group_max_size_reached, message)

    def _reply(self, member: ConsumerMember, group_id: str, with_assignment: bool) -> GroupHeartbeatReply:
        return GroupHeartbeatReply(
            member_id=member.member_id,
            member_epoch=member.current.epoch,
            heartbeat_interval=timedelta(milliseconds=self._settings(group_id).heartbeat_interval_ms),
            assignment=_assignment(member.current.assigned) if with_assignment else None,
        )

    def _leave(self, request: ConsumerGroupHeartbeatRequest, now_ms: int) -> Outcome[GroupHeartbeatReply]:
        group = self.existing(request.group_id)
        if request.instance_id is None:
            member = member_of(group, request.member_id)
        else:
            member = static_member_of(group, request.member_id, request.instance_id)
        records = Records(request.group_id, self.times)
        if request.member_epoch == LEAVE_STATIC_EPOCH:
            self.rebalances.leave_for_a_while(group, member, records)
        else:
            self.remove(group, [member], records, now_ms)
        return records.outcome(
            GroupHeartbeatReply(member_id=member.member_id, member_epoch=request.member_epoch)
        )

    # --- leaving members ---

    def remove(
        self, group: ConsumerGroup, members: Collection[ConsumerMember], records: Records, now_ms: int
    ) -> None:
        """Remove members that left or were late. The group may become a classic one."""
        if self.may_downgrade(group, members):
            self.downgrade(group, members, records, now_ms, rebalance=True)
        else:
            self.rebalances.remove(group, members, records)

    def may_downgrade(
        self, group: ConsumerGroup, leaving: Collection[ConsumerMember], joining: int = 0
    ) -> bool:
        """Whether the group becomes a classic one once `leaving` are gone and `joining` classic
        members have taken their place."""
        return self._classic is not None and self._conversions.may_downgrade(group, leaving, joining)

    def downgrade(
        self,
        group: ConsumerGroup,
        leaving: Collection[ConsumerMember],
        records: Records,
        now_ms: int,
        *,
        rebalance: bool,
    ) -> None:
        """Make the group a classic one, after `may_downgrade` has allowed it."""
        assert self._classic is not None
        logger.info("group %s becomes a classic group", group.group_id)
        made = self._conversions.to_classic_group(group, leaving, now_ms)
        group.remove_all(records)
        self.forget(group.group_id)
        self._classic.put_in(made, records, rebalance=rebalance, now_ms=now_ms)

    # --- offsets ---

    def check_commit(self, request: CommitRequest) -> None:
        """OffsetCommit. Raises KafkaError if the client is not a member, or if it lacks one of the
        partitions or got it only at a later epoch (KIP-1251)."""
        group = self.existing(request.group_id)
        if request.generation < 0 and not group.members:
            return
        member = member_of(group, request.member_id)
        if not member.is_classic and request.version < _FIRST_COMMIT_VERSION:
            raise KafkaError(
                ErrorCode.unsupported_version,
                "Members that use the consumer protocol commit with version 9 or above.",
            )
        current = member.current
        if request.generation == current.epoch:
            return
        since = [current.epoch_of(topic_id, partition) for topic_id, partition in request.offsets]
        if request.generation > current.epoch or any(
            epoch is None or epoch > request.generation for epoch in since
        ):
            raise _stale(member)

    def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> None:
        """OffsetFetch. Raises KafkaError if the group does not have the member in this epoch."""
        if member_id is None:
            if member_epoch < 0:
                return
            raise KafkaError(ErrorCode.unknown_server_error, "An epoch without a member id.")
        member = member_of(self.existing(group_id), member_id)
        if member.current.epoch != member_epoch:
            raise _stale(member)

    def subscribed(self, group_id: str) -> Callable[[str], bool]:
        """A function that says whether a member subscribes to a topic, by its name or by a regular
        expression."""
        members = self.existing(group_id).members.values()
        return self.rebalances.subscriptions.names(members).__contains__

    # --- administration ---

    def get(self, group_id: str) -> ConsumerGroup | None:
        return self._groups.get(group_id)

    def ids(self) -> Collection[str]:
        return self._groups.keys()

    def is_empty(self, group_id: str) -> bool:
        """Whether the group has no members; True for a group that does not exist."""
        group = self._groups.get(group_id)
        return group is None or not group.members

    def listed(self) -> Iterator[ListedGroup]:
        """Rows of ListGroups. Groups may be created and deleted between two rows."""
        for group in tuple(self._groups.values()):
            if group.group_id in self._groups:
                yield ListedGroup(group.group_id, CONSUMER, group.state, CONSUMER)

    def describe(self, group_id: str) -> DescribedConsumerGroup:
        """A row of ConsumerGroupDescribe."""
        if not group_id:
            return DescribedConsumerGroup(group_id, ErrorCode.invalid_group_id)
        try:
            group = self.existing(group_id)
        except KafkaError as refusal:
            return DescribedConsumerGroup(group_id, refusal.code, refusal.message)
        return describe_group(group, group.preferred_assignor(self.rebalances.assignors), self.topics)

    def delete(self, group_id: str) -> Outcome[ErrorCode]:
        """DeleteGroups for one group, without its offsets."""
        try:
            group = self.existing(group_id)
        except KafkaError as refusal:
            return Outcome(reply=refusal.code)
        if group.members:
            return Outcome(reply=ErrorCode.non_empty_group)
        records = Records(group_id, self.times)
        group.remove_all(records)
        self.forget(group_id)
        return records.outcome(ErrorCode.none)

    def statistics(self) -> ConsumerGroupsStatistics:
        groups = self._groups.values()
        return ConsumerGroupsStatistics(
            groups=Counter(group.state for group in groups),
            members=sum(len(group.members) for group in groups),
            classic_members=sum(1 for group in groups for _ in group.classic_members()),
            rebalances=self.rebalances.rebalances,
        )

    # --- time ---

    def next_deadline_ms(self) -> int | None:
        """When to call `expire` next; there may be nothing to do then."""
        return self.rebalances.timers.next_ms()

    def expire(self, now_ms: int) -> Outcome[None]:
        """Remove members whose timers have run out."""
        late: dict[str, dict[str, ConsumerMember]] = {}
        for name in self.rebalances.timers.take_due(now_ms):
            member = self._groups[name.group_id].members[name.member_id]
            if (
                name.kind is not ConsumerTimerKind.REBALANCE
                or member.current.state is MemberState.UNREVOKED_PARTITIONS
            ):
                late.setdefault(name.group_id, {})[name.member_id] = member
        outcomes: list[Outcome[object]] = []
        for group_id, members in late.items():
            records = Records(group_id, self.times)
            self.remove(self._groups[group_id], members.values(), records, now_ms)
            outcomes.append(records.outcome())
        return together(outcomes)

    # --- records ---

    def load(self, records: Iterable[tuple[bytes, bytes]], *, now_ms: int) -> None:
        """Load the records of any number of groups (a scan of GroupKey.namespace), and start all
        sessions. Skips records of other group types."""
        loaded: dict[str, ConsumerGroup] = {}
        for key, value in records:
            parsed = parse_key(key)
            if isinstance(parsed, GroupKey) and parsed.record_type in CONSUMER_RECORD_TYPES:
                group = loaded.setdefault(parsed.group_id, ConsumerGroup(parsed.group_id))
                group.replay(parsed, parsed.decode_value(value))
        for group in loaded.values():
            group.assignment_ms = self.times.loaded(group.assignment_ms, now_ms)
            self._add(group, now_ms)

    def forget(self, group_id: str) -> None:
        """Drop the group, if there is one."""
        group = self._groups.pop(group_id, None)
        if group is not None:
            self.rebalances.forget_group(group)
            self._group_ids.release(group_id, CONSUMER)

    def not_saved(
        self, group_id: str, records: Iterable[tuple[bytes, bytes]], *, now_ms: int
    ) -> Outcome[None]:
        """Restore the group from the store. Members that the store does not have become unknown,
        and join again."""
        self.forget(group_id)
        self.load(records, now_ms=now_ms)
        return Outcome()

    def existing(self, group_id: str) -> ConsumerGroup:
        """Raises KafkaError GROUP_ID_NOT_FOUND."""
        group = self._groups.get(group_id)
        if group is not None:
            return group
        if self._group_ids.type_of(group_id) is not None:
            raise _other_type(group_id)
        raise KafkaError(ErrorCode.group_id_not_found, f"Group {group_id} not found.")


def _said(before: ConsumerGroupMember, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupMember:
    """The member's details, updated by the request. It no longer uses the classic protocol."""
    names = request.subscribed_topic_names
    return with_new(
        before,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        subscribed_topic_names=None if names is None else tuple(sorted(set(names))),
        subscribed_topic_regex=request.subscribed_topic_regex,
        rebalance_timeout=None if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms,
        server_assignor=request.server_assignor,
        classic=NOT_CLASSIC,
    )


def _assignment(assigned: Owned) -> Assignment:
    return Assignment(
        tuple(TopicPartitions(topic_id, tuple(sorted(assigned[topic_id]))) for topic_id in sorted(assigned))
    )


def _tell(request: ConsumerGroupHeartbeatRequest, member: ConsumerMember) -> None:
    """Log the step: these lines help to explain why two members seem to have the same partition."""
    now = member.current
    logger.debug(
        "group %s: %s (%s) at epoch %d reports %s: epoch %d, %s, assigned %s, to give up %s",
        request.group_id,
        member.member_id,
        request.client_id,
        request.member_epoch,
        "nothing" if request.owned is None else _short(request.owned),
        now.epoch,
        now.state.name,
        _short(now.assigned),
        _short(now.revoking),
    )


def _short(partitions: Mapping[UUID, Iterable[int]]) -> str:
    return str({str(topic_id)[:8]: sorted(numbers) for topic_id, numbers in partitions.items()})


def _stale(member: ConsumerMember) -> KafkaError:
    return KafkaError(ErrorCode.illegal_generation if member.is_classic else ErrorCode.stale_member_epoch)


def _other_type(group_id: str) -> KafkaError:
    return KafkaError(ErrorCode.group_id_not_found, f"Group {group_id} is not a consumer group.")


def describe_group(group: ConsumerGroup, assignor: str, topics: TopicsView) -> DescribedConsumerGroup:
    return DescribedConsumerGroup(
        group.group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=assignor,
        members=tuple(_described_member(group, member, topics) for member in group.members.values()),
    )


def _described_member(
    group: ConsumerGroup, member: ConsumerMember, topics: TopicsView
) -> DescribedConsumerMember:
    said, current = member.said, member.current
    return DescribedConsumerMember(
        member_id=member.member_id,
        instance_id=said.instance_id,
        rack_id=said.rack_id,
        member_epoch=current.epoch,
        client_id=said.client_id,
        client_host=said.client_host,
        subscribed_topic_names=said.subscribed_topic_names,
        subscribed_topic_regex=said.subscribed_topic_regex,
        assignment=_described([current.assigned, current.revoking], topics),
        target_assignment=_described([group.targets.get(member.member_id, {})], topics),
        member_type=_CLASSIC if member.is_classic else _CONSUMER,
    )


def _described(parts: Iterable[Mapping[UUID, Iterable[int]]], topics: TopicsView) -> DescribedAssignment:
    """The rows of an assignment, without deleted topics."""
    numbers: dict[UUID, set[int]] = {}
    for part in parts:
        for topic_id, found in part.items():
            numbers.setdefault(topic_id, set()).update(found)
    known = [
        (topic, tuple(sorted(numbers[topic_id])))
        for topic_id in sorted(numbers)
        if (topic := topics.by_id(topic_id)) is not None
    ]
    return DescribedAssignment(
        tuple(DescribedTopicPartitions(topic.topic_id, topic.name, found) for topic, found in known)
    )
