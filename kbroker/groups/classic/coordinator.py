"""Classic consumer groups: membership, and the replies to members and administrators. Pure;
kbroker/broker/groups/runner.py saves its outcomes and carries them out.

The coordinator knows nothing of partitions. Members join (JoinGroup, which waits for the others).
The leader gets the list of members and sends an assignment for each of them (SyncGroup, where the
others wait for it). From then on each member sends heartbeats until one is answered with a
rebalance. Metadata and assignments are opaque: consumers, Kafka Connect and others share this
protocol.

The store has the stable generations, and the fact that a group has become empty; everything else is
in memory only. After a restart the members of the last stable generation continue. Members that
joined later are unknown and join again.

Better than Kafka: a second request of a waiting member answers the first one, a member that is
removed while it waits gets an error, and a static member that returns to a full group finds its
place. classic/rebalance.py decides how a group gets from one generation to the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.group_records import ClassicGroupMetadata
from kbroker.formats.share_records import RecordType
from kbroker.formats.state import GroupKey, parse_key
from kbroker.groups.classic.messages import (
    NO_MEMBER_ID,
    ClassicGroupSettings,
    DescribedClassicGroup,
    DescribedClassicMember,
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
    check_group_id,
)
from kbroker.groups.classic.rebalance import Rebalances, sync_reply
from kbroker.groups.classic.state import ClassicEvent, ClassicGroup, ClassicMember, GroupState
from kbroker.groups.ids import CLASSIC, GroupIds, ListedGroup
from kbroker.groups.offsets.messages import CommitRequest
from kbroker.groups.outcome import GenerationSaved, Outcome, Records, Ticket, together
from kbroker.groups.stored_times import StoredTimes
from kbroker.protocol.consumer_protocol import CONSUMER_PROTOCOL

_CLIENT_ID_BYTES = 100
"""The part of a client or instance id that goes into a member id."""


class ClassicGroupsStatistics(NamedTuple):
    """`groups` by state. `pending_members`: member ids that clients got but have not joined with.
    `rebalances`: generations that became stable since the start."""

    groups: dict[str, int]
    members: int
    pending_members: int
    rebalances: int


class ClassicGroups:
    """`group_ids` and `times` are shared with the coordinators of other group types; `new_id` makes
    the unique part of a member id."""

    def __init__(
        self,
        settings: Callable[[], ClassicGroupSettings],
        group_ids: GroupIds,
        new_id: Callable[[], str],
        times: StoredTimes | None = None,
    ) -> None:
        self._settings = settings
        self._group_ids = group_ids
        self._new_id = new_id
        self._times = times or StoredTimes()
        self._groups: dict[str, ClassicGroup] = {}
        self._rebalances = Rebalances(settings)

    # --- members ---

    def join(self, request: JoinRequest, ticket: Ticket, *, now_ms: int) -> Outcome[JoinReply]:
        """JoinGroup. No reply: it waits for the other members, or for the initial rebalance
        delay."""
        records = Records(request.group_id, self._times)
        try:
            self.check_join(request)
            return records.outcome(self._join(request, ticket, records, now_ms))
        except KafkaError as refusal:
            return records.outcome(JoinReply(refusal.code, member_id=request.member_id))

    def check_join(self, request: JoinRequest) -> None:
        """The checks that need no group. Raises KafkaError."""
        check_group_id(request.group_id)
        settings = self._settings()
        least_ms, most_ms = settings.min_session_timeout_ms, settings.max_session_timeout_ms
        if not least_ms <= request.session_timeout_ms <= most_ms:
            raise KafkaError(ErrorCode.invalid_session_timeout)

    def _join(self, request: JoinRequest, ticket: Ticket, records: Records, now_ms: int) -> JoinReply | None:
        group = self._groups.get(request.group_id)
        if group is None:
            if request.member_id != NO_MEMBER_ID:
                raise KafkaError(ErrorCode.unknown_member_id)
            group = self._create(request.group_id, now_ms)
        if not group.has_room(request, self._settings().max_size):
            self._rebalances.remove_member(group, request.member_id, records)
            self._rebalances.complete_if_all_joined(group, records, now_ms)
            return JoinReply(ErrorCode.group_max_size_reached)
        if not group.supports(request.protocol_type, request.protocols):
            raise KafkaError(ErrorCode.inconsistent_group_protocol)
        if request.member_id == NO_MEMBER_ID:
            return self._join_first(group, request, ticket, records, now_ms)
        if request.member_id in group.pending and request.instance_id is None:
            self._add(group, request.member_id, request, ticket, records, now_ms)
            return None
        group.check_member(request.member_id, request.instance_id)
        return self._join_again(group, request, ticket, records, now_ms)

    def _join_first(
        self, group: ClassicGroup, request: JoinRequest, ticket: Ticket, records: Records, now_ms: int
    ) -> JoinReply | None:
        member_id = self._new_member_id(request)
        if request.instance_id is not None:
            old_id = group.static_ids.get(request.instance_id)
            if old_id is not None:
                return self._replace_static(group, old_id, member_id, request, ticket, records, now_ms)
        elif request.takes_member_id:
            self._rebalances.add_pending(group, member_id, request.session_timeout_ms, now_ms)
            return JoinReply(ErrorCode.member_id_required, member_id=member_id)
        self._add(group, member_id, request, ticket, records, now_ms)
        return None

    def _add(
        self,
        group: ClassicGroup,
        member_id: str,
        request: JoinRequest,
        ticket: Ticket,
        records: Records,
        now_ms: int,
    ) -> None:
        if not group.members:
            group.protocol_type = request.protocol_type
        member = ClassicMember.of(member_id, request)
        group.put(member)
        group.has_new_member = True
        self._rebalances.wait_for_join(group, member_id, ticket, records)
        self._rebalances.start_session(group, member, now_ms)
        self._rebalances.prepare_or_complete(
            group, f"{member_id!r} joins{_said(request.reason)}", records, now_ms
        )

    def _join_again(
        self, group: ClassicGroup, request: JoinRequest, ticket: Ticket, records: Records, now_ms: int
    ) -> JoinReply | None:
        """A member joins again because the group rebalances, or to start a rebalance. Every
        JoinGroup of the leader starts one (it has seen a change of topics), and so does a member's
        JoinGroup with other protocols. Otherwise the answer was lost, and is repeated."""
        member = group.members[request.member_id]
        is_same = member.protocols == request.protocols
        leads_stable = group.state is GroupState.STABLE and group.leader == member.member_id
        if group.state is not GroupState.PREPARING and is_same and not leads_stable:
            return group.join_reply(member.member_id)
        group.put(member.joining_again(request))
        self._rebalances.wait_for_join(group, member.member_id, ticket, records)
        self._rebalances.prepare_or_complete(
            group, f"{member.member_id!r} joins again{_said(request.reason)}", records, now_ms
        )
        return None

    def _replace_static(
        self,
        group: ClassicGroup,
        old_id: str,
        new_id: str,
        request: JoinRequest,
        ticket: Ticket,
        records: Records,
        now_ms: int,
    ) -> JoinReply | None:
        """A static member returns without its member id, or another client takes its place. The old
        id is fenced (KIP-345)."""
        old_leader = group.leader or NO_MEMBER_ID
        self._rebalances.replace_static(group, old_id, new_id, request, records, now_ms)
        if group.state is GroupState.STABLE and group.elected_protocol() == group.protocol_name:
            records.put(
                RecordType.CLASSIC_GROUP_METADATA, group.to_record(group.assignments(), records.times)
            )
            return _static_reply(group, new_id, old_leader, can_skip=request.can_skip_assignment)
        self._rebalances.wait_for_join(group, new_id, ticket, records)
        reason = f"static member {request.instance_id!r} joins again{_said(request.reason)}"
        self._rebalances.prepare_or_complete(group, reason, records, now_ms)
        return None

    def sync(self, request: SyncRequest, ticket: Ticket, *, now_ms: int) -> Outcome[SyncReply]:
        """SyncGroup. No reply: it waits for the leader's SyncGroup, or until that is saved."""
        records = Records(request.group_id, self._times)
        try:
            return records.outcome(self._sync(request, ticket, records))
        except KafkaError as refusal:
            return Outcome(reply=SyncReply(refusal.code))

    def _sync(self, request: SyncRequest, ticket: Ticket, records: Records) -> SyncReply | None:
        group = self._member_group(
            request.group_id, request.member_id, request.instance_id, request.generation
        )
        for asked, known in (
            (request.protocol_type, group.protocol_type),
            (request.protocol_name, group.protocol_name),
        ):
            if asked is not None and known is not None and asked != known:
                raise KafkaError(ErrorCode.inconsistent_group_protocol)
        if group.state is GroupState.PREPARING:
            raise KafkaError(ErrorCode.rebalance_in_progress)
        if group.state is GroupState.STABLE:
            self._rebalances.synced(group, request.member_id)
            return sync_reply(group, request.member_id)
        self._rebalances.wait_for_sync(group, request.member_id, ticket, records)
        if request.member_id == group.leader and group.saving is None:
            self._rebalances.save(group, dict(request.assignments), records)
        return None

    def heartbeat(self, request: HeartbeatRequest, *, now_ms: int) -> Outcome[HeartbeatReply]:
        """Heartbeat: continues the session, and reports a rebalance."""
        try:
            group = self._member_group(
                request.group_id, request.member_id, request.instance_id, request.generation
            )
        except KafkaError as refusal:
            return Outcome(reply=HeartbeatReply(refusal.code))
        self._rebalances.start_session(group, group.members[request.member_id], now_ms)
        rebalances = group.state is GroupState.PREPARING
        return Outcome(
            reply=HeartbeatReply(ErrorCode.rebalance_in_progress if rebalances else ErrorCode.none)
        )

    def leave(self, request: LeaveRequest, *, now_ms: int) -> Outcome[LeaveReply]:
        """LeaveGroup, for any number of members; each gets its own result."""
        try:
            check_group_id(request.group_id)
        except KafkaError as refusal:
            return Outcome(reply=LeaveReply(refusal.code))
        group = self._groups.get(request.group_id)
        if group is None:
            return Outcome(reply=LeaveReply.unknown(request))
        records = Records(request.group_id, self._times)
        before = len(group.members)
        rows = tuple(self._leave(group, leaving, records) for leaving in request.members)
        if len(group.members) < before:
            said = _said(next((leaving.reason for leaving in request.members if leaving.reason), None))
            reason = f"{before - len(group.members)} of {before} members leave{said}"
            self._rebalances.member_gone(group, reason, records, now_ms)
        else:
            # The group may have waited only for a pending member.
            self._rebalances.complete_if_all_joined(group, records, now_ms)
        return records.outcome(LeaveReply(members=rows))

    def _leave(self, group: ClassicGroup, leaving: Leaving, records: Records) -> LeaveRow:
        member_id, instance_id = leaving.member_id, leaving.instance_id
        code = ErrorCode.none
        try:
            if member_id == NO_MEMBER_ID and instance_id is not None:
                member_id = group.static_ids.get(instance_id, NO_MEMBER_ID)
            if member_id not in group.pending:
                group.check_member(member_id, instance_id)
            self._rebalances.remove_member(group, member_id, records)
        except KafkaError as refusal:
            code = refusal.code
        return LeaveRow(leaving.member_id, instance_id, code)

    def saved(self, effect: GenerationSaved, *, now_ms: int) -> Outcome[None]:
        """Answer all members that wait for the assignments of this generation."""
        records = Records(effect.group_id, self._times)
        group = self._groups.get(effect.group_id)
        if group is not None:
            self._rebalances.saved(group, effect.generation, records, now_ms)
        return records.outcome()

    # --- offsets ---

    def check_commit(self, request: CommitRequest, *, now_ms: int, in_transaction: bool = False) -> None:
        """Raises KafkaError if the group does not accept the commit. A member's plain commit renews
        its session. A client that is not a member may commit while the group is empty."""
        group = self._groups[request.group_id]
        if group.state is GroupState.EMPTY and request.generation < 0:
            return
        group.check_commit(request, in_transaction=in_transaction)
        if in_transaction:
            return
        self._rebalances.start_session(group, group.members[request.member_id], now_ms)

    def check_offset_delete(self, group_id: str) -> None:
        """Raises KafkaError if a group has members that are not consumers: their subscriptions are
        unknown, so all offsets stay."""
        group = self._groups[group_id]
        if group.state is not GroupState.EMPTY and group.protocol_type != CONSUMER_PROTOCOL:
            raise KafkaError(ErrorCode.non_empty_group)

    def subscribed(self, group_id: str) -> Callable[[str], bool]:
        """A function that says whether a member subscribes to a topic."""
        return self._groups[group_id].is_subscribed

    def may_expire(self, group_id: str) -> bool:
        """Whether offsets may expire now."""
        return self._groups[group_id].may_expire()

    def empty_since_ms(self, group_id: str) -> int | None:
        """When the last member left; None if the group has members, or never had any."""
        group = self._groups[group_id]
        was_left = group.protocol_type and group.state is GroupState.EMPTY
        return self._times.latest(group.since_ms) if was_left else None

    def ensure(self, group_id: str, *, now_ms: int) -> None:
        """Create a group that only has offsets, unless the group exists."""
        if group_id not in self._groups:
            self._create(group_id, now_ms)

    # --- administration ---

    def get(self, group_id: str) -> ClassicGroup | None:
        return self._groups.get(group_id)

    def ids(self) -> tuple[str, ...]:
        return tuple(self._groups)

    def is_empty(self, group_id: str) -> bool:
        """Whether the group has no members, and no client has an id to join with."""
        group = self._groups[group_id]
        return group.state is GroupState.EMPTY and not group.pending

    def describe(self, group_id: str) -> DescribedClassicGroup:
        return describe_group(group_id, self._groups.get(group_id))

    def listed(self) -> Iterator[ListedGroup]:
        """Rows of ListGroups. Groups may be created and deleted between two rows."""
        for group in tuple(self._groups.values()):
            if group.group_id in self._groups:
                yield ListedGroup(group.group_id, group.protocol_type, group.state, CLASSIC)

    def delete(self, group_id: str) -> Outcome[ErrorCode]:
        """DeleteGroups for one group, without its offsets."""
        group = self._groups.get(group_id)
        if group is None:
            return Outcome(reply=ErrorCode.group_id_not_found)
        if group.state is not GroupState.EMPTY:
            return Outcome(reply=ErrorCode.non_empty_group)
        records = Records(group_id, self._times)
        records.remove(RecordType.CLASSIC_GROUP_METADATA)
        self._drop(group)
        return records.outcome(ErrorCode.none)

    def statistics(self) -> ClassicGroupsStatistics:
        groups = self._groups.values()
        return ClassicGroupsStatistics(
            Counter(str(group.state) for group in groups),
            sum(len(group.members) for group in groups),
            sum(len(group.pending) for group in groups),
            self._rebalances.completed,
        )

    # --- conversion ---

    def take_out(self, group_id: str, records: Records) -> ClassicGroup:
        """Drop the group and its record, because it changes to another type. Waiting members must
        join again."""
        group = self._groups[group_id]
        for member_id in group.members:
            self._rebalances.answer_join(
                group, member_id, JoinReply(ErrorCode.rebalance_in_progress, member_id=member_id), records
            )
            self._rebalances.answer_sync(
                group, member_id, SyncReply(ErrorCode.rebalance_in_progress), records
            )
        records.remove(RecordType.CLASSIC_GROUP_METADATA)
        self._drop(group)
        return group

    def put_in(self, group: ClassicGroup, records: Records, *, rebalance: bool, now_ms: int) -> None:
        """Take over a group of another type, stable and with members. Its sessions start."""
        assert group.state is GroupState.STABLE
        self._group_ids.claim(group.group_id, CLASSIC)
        self._groups[group.group_id] = group
        records.put(RecordType.CLASSIC_GROUP_METADATA, group.to_record(group.assignments(), records.times))
        self._start_sessions(group, now_ms)
        if rebalance:
            self._rebalances.prepare(group, "it has become a classic group", records, now_ms)
        else:
            # All members have their targets now, so a partition may have a new owner.
            group.former_epochs.clear()

    # --- time ---

    def next_deadline_ms(self) -> int | None:
        """When to call `expire` next; there may be nothing to do then."""
        return self._rebalances.timers.next_ms()

    def expire(self, now_ms: int) -> Outcome[None]:
        """End sessions whose time is over, and stop waiting for late members."""
        outcomes: list[Outcome[object]] = []
        for name in self._rebalances.timers.take_due(now_ms):
            records = Records(name.group_id, self._times)
            self._rebalances.run_out(self._groups[name.group_id], name, records, now_ms)
            outcomes.append(records.outcome())
        return together(outcomes)

    # --- records ---

    def load(self, records: Iterable[tuple[bytes, bytes]], *, now_ms: int) -> None:
        """Load the records of any number of groups (a scan of GroupKey.namespace), and start all
        sessions. Skips other records. A group above the present maximum size rebalances, and
        the last members to join are refused."""
        for key, value in records:
            parsed = parse_key(key)
            if (
                not isinstance(parsed, GroupKey)
                or parsed.record_type is not RecordType.CLASSIC_GROUP_METADATA
            ):
                continue
            record = parsed.decode_value(value)
            assert isinstance(record, ClassicGroupMetadata)
            group = ClassicGroup.from_record(parsed.group_id, record, self._times, now_ms)
            self._group_ids.claim(group.group_id, CLASSIC)
            self._groups[group.group_id] = group
            self._start_sessions(group, now_ms)
            if len(group.members) > self._settings().max_size:
                self._rebalances.prepare(
                    group, "it is too large", Records(group.group_id, self._times), now_ms
                )

    def not_saved(
        self, group_id: str, records: Iterable[tuple[bytes, bytes]], *, now_ms: int
    ) -> Outcome[None]:
        """A decision could not be saved. `records`: everything that the store has of the group. The
        group stays as it is in memory: members join again, and the next generation is saved. A
        deleted group is restored from the store."""
        done = Records(group_id, self._times)
        group = self._groups.get(group_id)
        if group is None:
            self.load(records, now_ms=now_ms)
        else:
            self._rebalances.not_saved(group, done, now_ms)
        return done.outcome()

    def forget(self, group_id: str) -> None:
        """A conversion could not be saved, so the group is not a classic one."""
        group = self._groups.get(group_id)
        if group is not None:
            self._drop(group)

    # --- how it is done ---

    def _create(self, group_id: str, now_ms: int) -> ClassicGroup:
        self._group_ids.claim(group_id, CLASSIC)
        group = self._groups[group_id] = ClassicGroup(group_id, now_ms)
        return group

    def _drop(self, group: ClassicGroup) -> None:
        self._rebalances.forget(group)
        group.move(ClassicEvent.DELETED, group.since_ms)
        del self._groups[group.group_id]
        self._group_ids.release(group.group_id, CLASSIC)

    def _member_group(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> ClassicGroup:
        """The group, if it has this member in this generation. Raises KafkaError."""
        check_group_id(group_id)
        group = self._groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.unknown_member_id)
        group.check_member(member_id, instance_id)
        group.check_generation(member_id, generation)
        return group

    def _start_sessions(self, group: ClassicGroup, now_ms: int) -> None:
        for member in group.members.values():
            self._rebalances.start_session(group, member, now_ms)

    def _new_member_id(self, request: JoinRequest) -> str:
        name = request.client_id if request.instance_id is None else request.instance_id
        return f"{name.encode()[:_CLIENT_ID_BYTES].decode(errors='ignore')}-{self._new_id()}"


def _static_reply(group: ClassicGroup, member_id: str, old_leader: str, *, can_skip: bool) -> JoinReply:
    """Nothing changes for the other members. A leader that returns must not make a new assignment:
    the reply says so or, in versions without that field, names another leader."""
    reply = group.join_reply(member_id, skip_assignment=can_skip and group.leader == member_id)
    return reply if can_skip else reply._replace(leader=old_leader, members=())


def _said(reason: str | None) -> str:
    return f" ({reason!r})" if reason else ""


def describe_group(group_id: str, group: ClassicGroup | None) -> DescribedClassicGroup:
    """A row of DescribeGroups; an error if the group does not exist. A group that rebalances has no
    protocol, and so no metadata."""
    if group is None:
        return DescribedClassicGroup(group_id, ErrorCode.group_id_not_found, f"Group {group_id} not found.")
    protocol_name = group.protocol_name if group.state is GroupState.STABLE else None
    return DescribedClassicGroup(
        group_id,
        group_state=group.state,
        protocol_type=group.protocol_type,
        protocol_data=protocol_name or "",
        members=tuple(_describe_member(member, protocol_name) for member in group.members.values()),
    )


def _describe_member(member: ClassicMember, protocol_name: str | None) -> DescribedClassicMember:
    return DescribedClassicMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=b"" if protocol_name is None else member.metadata(protocol_name),
        member_assignment=member.assignment,
    )
