"""Members of the classic protocol in a consumer group (KIP-848, online migration): JoinGroup,
SyncGroup, Heartbeat and LeaveGroup.

Such a member has a target and moves towards it like any other. Its JoinGroup takes the place of a
heartbeat: it carries the subscription and the partitions that the member has, and the generation is
the member epoch. No request waits and there is no leader: SyncGroup returns the coordinator's
assignment. For the next step, a member must join again. Its heartbeats are answered with

    REBALANCE_IN_PROGRESS    if the group has newer targets, if the member must give up partitions,
                             or if partitions of its target have become free. From then on it has
                             its rebalance timeout to join again
    no error                 otherwise

This module must not know how groups change from one protocol to the other.
"""

from __future__ import annotations

from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.group_records import ClassicMember, ClassicProtocol, ConsumerGroupMember
from kbroker.formats.state import MAX_MEMBER_ID_BYTES
from kbroker.groups.classic.messages import (
    NO_MEMBER_ID,
    HeartbeatReply,
    HeartbeatRequest,
    JoinReply,
    JoinRequest,
    LeaveReply,
    LeaveRequest,
    LeaveRow,
    Leaving,
    SyncReply,
    SyncRequest,
)
from kbroker.groups.consumer.checks import member_of, static_member_of
from kbroker.groups.consumer.coordinator import ConsumerGroups
from kbroker.groups.consumer.messages import MigrationPolicy, Partitions
from kbroker.groups.consumer.rebalance import ConsumerTimer, ConsumerTimerKind, with_new
from kbroker.groups.consumer.reconciliation import MemberState
from kbroker.groups.consumer.state import ConsumerGroup, ConsumerMember
from kbroker.groups.outcome import Outcome, Records
from kbroker.protocol.consumer_protocol import (
    CONSUMER_PROTOCOL,
    Subscription,
    read_subscription,
    write_assignment,
)


class MixedGroups:
    """Requests of the classic protocol to existing consumer groups."""

    def __init__(self, consumer: ConsumerGroups) -> None:
        self._consumer = consumer
        self._rebalances = consumer.rebalances
        self._topics = consumer.topics

    # --- JoinGroup ---

    def join(self, request: JoinRequest, *, now_ms: int) -> Outcome[JoinReply]:
        """JoinGroup to a consumer group that has members. The caller has made the checks that need
        no group."""
        try:
            return self._join(self._consumer.existing(request.group_id), request, now_ms)
        except KafkaError as refusal:
            return Outcome(reply=JoinReply(refusal.code))

    def _join(self, group: ConsumerGroup, request: JoinRequest, now_ms: int) -> Outcome[JoinReply]:
        member_id = request.member_id or self._consumer.new_id()
        self._check_join(group, request, member_id)
        if request.takes_member_id and request.member_id == NO_MEMBER_ID and request.instance_id is None:
            return Outcome(reply=JoinReply(ErrorCode.member_id_required, member_id=member_id))
        old = _replaced_member(group, request)
        subscription = _subscription(request)
        downgrades = (
            old is not None and not old.is_classic and self._consumer.may_downgrade(group, [old], joining=1)
        )
        records = Records(group.group_id, self._consumer.times)
        member = self._member(group, old, member_id, records)
        subscription_changed = self._rebalances.take_over(
            group, member, _said(member.said, request, subscription), records
        )
        self._joined(group, member, request, now_ms)
        if not downgrades:
            try:
                self._rebalances.assign(group, records, now_ms)
            except KafkaError as failure:
                return records.outcome(JoinReply(failure.code))
        is_stale = downgrades and group.assignment_pending
        if not is_stale:
            self._rebalances.step(
                group,
                member,
                self._owned(subscription),
                records,
                now_ms,
                subscription_changed=subscription_changed,
            )
        if downgrades:
            self._consumer.downgrade(group, (), records, now_ms, rebalance=is_stale)
        return records.outcome(_join_reply(member))

    def _check_join(self, group: ConsumerGroup, request: JoinRequest, member_id: str) -> None:
        """Raises KafkaError if the member may not join."""
        settings = self._rebalances.settings(group.group_id)
        if settings.migration_policy is MigrationPolicy.DISABLED:
            raise KafkaError(ErrorCode.inconsistent_group_protocol)
        if len(group.members) >= settings.max_size and member_id not in group.members:
            raise KafkaError(ErrorCode.group_max_size_reached)
        if not _supports(group, request):
            raise KafkaError(ErrorCode.inconsistent_group_protocol)
        if len(member_id.encode()) > MAX_MEMBER_ID_BYTES:
            raise KafkaError(ErrorCode.invalid_request)

    def _member(
        self, group: ConsumerGroup, old: ConsumerMember | None, member_id: str, records: Records
    ) -> ConsumerMember:
        if old is None:
            return group.members.get(member_id) or ConsumerMember(member_id)
        return self._rebalances.replace(group, old, member_id, records)

    def _owned(self, subscription: Subscription) -> Partitions:
        """The partitions that the member reports, of topics that exist."""
        found = ((self._topics.by_name(name), numbers) for name, numbers in subscription.owned.items())
        return {topic.topic_id: numbers for topic, numbers in found if topic is not None}

    def _joined(
        self, group: ConsumerGroup, member: ConsumerMember, request: JoinRequest, now_ms: int
    ) -> None:
        """Start the timers of a member that has joined: it has its rebalance timeout to ask for its
        assignment."""
        self._rebalances.forget_member(group.group_id, member.member_id)
        self._rebalances.start_session(group, member, now_ms)
        self._rebalances.timers.set(
            ConsumerTimer(ConsumerTimerKind.SYNC, group.group_id, member.member_id),
            now_ms + request.rebalance_timeout_ms,
        )

    # --- SyncGroup and Heartbeat ---

    def sync(self, request: SyncRequest, *, now_ms: int) -> Outcome[SyncReply]:
        """SyncGroup: returns the partitions that the member has."""
        try:
            return Outcome(reply=self._sync(self._consumer.existing(request.group_id), request, now_ms))
        except KafkaError as refusal:
            return Outcome(reply=SyncReply(refusal.code))

    def _sync(self, group: ConsumerGroup, request: SyncRequest, now_ms: int) -> SyncReply:
        member = _classic_member_of(group, request.member_id, request.instance_id, request.generation)
        if request.protocol_type not in (None, CONSUMER_PROTOCOL) or request.protocol_name not in (
            None,
            _protocol_name(member),
        ):
            raise KafkaError(ErrorCode.inconsistent_group_protocol)
        if (
            member.current.epoch < group.assignment_epoch
            and member.current.state is not MemberState.UNREVOKED_PARTITIONS
        ):
            self._must_join(group, member, now_ms)
            raise KafkaError(ErrorCode.rebalance_in_progress)
        self._rebalances.timers.cancel(
            ConsumerTimer(ConsumerTimerKind.SYNC, group.group_id, member.member_id)
        )
        self._rebalances.start_session(group, member, now_ms)
        return SyncReply(
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=self._assignment(member),
        )

    def heartbeat(self, request: HeartbeatRequest, *, now_ms: int) -> Outcome[HeartbeatReply]:
        """Heartbeat: reports whether the member must join again."""
        records = Records(request.group_id, self._consumer.times)
        try:
            self._heartbeat(self._consumer.existing(request.group_id), request, records, now_ms)
        except KafkaError as refusal:
            return records.outcome(HeartbeatReply(refusal.code))
        return records.outcome(HeartbeatReply())

    def _heartbeat(
        self, group: ConsumerGroup, request: HeartbeatRequest, records: Records, now_ms: int
    ) -> None:
        member = _classic_member_of(group, request.member_id, request.instance_id, request.generation)
        self._rebalances.start_session(group, member, now_ms)
        if all(each.is_classic for each in group.members.values()):
            # There may be no heartbeats of the consumer protocol that notice changed topics or
            # departed members.
            self._rebalances.take_over(group, member, member.said, records)
            self._rebalances.assign(group, records, now_ms)
        if self._is_to_join(group, member):
            self._must_join(group, member, now_ms)
            raise KafkaError(ErrorCode.rebalance_in_progress)

    def _is_to_join(self, group: ConsumerGroup, member: ConsumerMember) -> bool:
        current = member.current
        if current.epoch < group.assignment_epoch or current.state is MemberState.UNREVOKED_PARTITIONS:
            return True
        return current.state is MemberState.UNRELEASED_PARTITIONS and not _waits_for_others(group, member)

    def _must_join(self, group: ConsumerGroup, member: ConsumerMember, now_ms: int) -> None:
        """Give the member its rebalance timeout to join, from the first answer that requests it."""
        name = ConsumerTimer(ConsumerTimerKind.JOIN, group.group_id, member.member_id)
        if self._rebalances.timers.deadline_ms(name) is None:
            self._rebalances.timers.set(name, now_ms + member.said.rebalance_timeout)

    def _assignment(self, member: ConsumerMember) -> bytes:
        version = read_subscription(member.said.classic.supported_protocols[0].metadata).version
        found = (
            (self._topics.by_id(topic_id), numbers) for topic_id, numbers in member.current.assigned.items()
        )
        return write_assignment(
            {topic.name: tuple(sorted(numbers)) for topic, numbers in found if topic is not None}, version
        )

    # --- LeaveGroup ---

    def leave(self, request: LeaveRequest, *, now_ms: int) -> Outcome[LeaveReply]:
        """LeaveGroup, for members of both protocols."""
        records = Records(request.group_id, self._consumer.times)
        rows: list[LeaveRow] = []
        gone: dict[str, ConsumerMember] = {}
        try:
            group = self._consumer.existing(request.group_id)
        except KafkaError:
            return Outcome(reply=LeaveReply.unknown(request))
        for leaving in request.members:
            code = ErrorCode.none
            try:
                member = _leaving_member(group, leaving)
                gone[member.member_id] = member
            except KafkaError as refusal:
                code = refusal.code
            rows.append(LeaveRow(leaving.member_id, leaving.instance_id, code))
        if gone:
            self._consumer.remove(group, list(gone.values()), records, now_ms)
        return records.outcome(LeaveReply(members=tuple(rows)))


def _protocol_name(member: ConsumerMember) -> str:
    """The protocol in the answer to its JoinGroup: the first that it offers."""
    return member.said.classic.supported_protocols[0].name


def _supports(group: ConsumerGroup, request: JoinRequest) -> bool:
    """Whether the request has a protocol that all classic members of the group support."""
    if request.protocol_type != CONSUMER_PROTOCOL:
        return False
    known = [
        {protocol.name for protocol in member.said.classic.supported_protocols}
        for member in group.classic_members()
    ]
    return any(all(protocol.name in names for names in known) for protocol in request.protocols)


def _subscription(request: JoinRequest) -> Subscription:
    """Raises INCONSISTENT_GROUP_PROTOCOL or UNKNOWN_SERVER_ERROR if the member is not a
    consumer."""
    metadata = request.protocols[0].metadata
    if not metadata:
        raise KafkaError(ErrorCode.inconsistent_group_protocol, "A consumer's metadata is empty.")
    try:
        return read_subscription(metadata)
    except ValueError as error:
        raise KafkaError(ErrorCode.unknown_server_error, str(error)) from error


def _said(
    before: ConsumerGroupMember, request: JoinRequest, subscription: Subscription
) -> ConsumerGroupMember:
    protocols = tuple(
        ClassicProtocol(name=protocol.name, metadata=protocol.metadata) for protocol in request.protocols
    )
    return with_new(
        before,
        instance_id=request.instance_id,
        rack_id=subscription.rack_id or None,
        client_id=request.client_id,
        client_host=request.client_host,
        subscribed_topic_names=tuple(sorted(set(subscription.topics))),
        subscribed_topic_regex="",
        rebalance_timeout=None if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms,
        classic=ClassicMember(session_timeout=request.session_timeout_ms, supported_protocols=protocols),
    )


def _join_reply(member: ConsumerMember) -> JoinReply:
    """The answer to a JoinGroup. There is no leader, so no member gets a list of members."""
    return JoinReply(
        generation_id=member.current.epoch,
        protocol_type=CONSUMER_PROTOCOL,
        protocol_name=_protocol_name(member),
        member_id=member.member_id,
    )


def _classic_member_of(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
) -> ConsumerMember:
    member = (
        member_of(group, member_id)
        if instance_id is None
        else static_member_of(group, member_id, instance_id)
    )
    if not member.is_classic:
        raise KafkaError(ErrorCode.unknown_member_id)
    if member.current.epoch != generation:
        raise KafkaError(ErrorCode.illegal_generation)
    return member


def _replaced_member(group: ConsumerGroup, request: JoinRequest) -> ConsumerMember | None:
    """The static member whose place the joining one takes; it may still be there. Raises
    KafkaError."""
    if request.instance_id is None:
        return None
    if request.member_id != NO_MEMBER_ID:
        static_member_of(group, request.member_id, request.instance_id)
        return None
    return group.static_member(request.instance_id)


def _leaving_member(group: ConsumerGroup, leaving: Leaving) -> ConsumerMember:
    """An administrator may name a static member by its instance id alone."""
    if leaving.instance_id is None:
        return member_of(group, leaving.member_id)
    member_id = leaving.member_id or group.instances.get(leaving.instance_id, NO_MEMBER_ID)
    return static_member_of(group, member_id, leaving.instance_id)


def _waits_for_others(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Whether another member still has a partition of this member's target."""
    return any(
        number not in member.current.assigned.get(topic_id, ()) and not group.is_free(topic_id, number)
        for topic_id, numbers in group.targets.get(member.member_id, {}).items()
        for number in numbers
    )
