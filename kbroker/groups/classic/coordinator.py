"""Classic consumer groups: who is a member, and what members and administrators are answered. Pure;
how an outcome is carried out stands in outcome.py.

The coordinator knows nothing of partitions. Members join (JoinGroup, which waits for the others),
one of them is told of all and says who gets what (SyncGroup, where the others wait for it), and
from then on each says that it is there (Heartbeat) until it hears that the group rebalances. What
members offer and are given is theirs: consumers, Kafka Connect and others share this protocol.

What is saved is a stable generation, or that a group has become empty. Everything else lives in
memory alone: after a restart the members of the last stable generation go on, and whoever joined
since is unknown and joins again.

Better than Kafka: a second request of a member that waits already answers the first, a member that
is removed is told so where it waits, and a static member that comes back to a full group finds its
place. How a group comes from one generation to the next is classic/rebalance.py's business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.group_records import ClassicGroupMetadata
from kbroker.formats.share_records import RecordType
from kbroker.formats.state import GroupKey, parse_key
from kbroker.groups.classic.describe import describe_group
from kbroker.groups.classic.messages import (
    NO_MEMBER_ID,
    ClassicGroupSettings,
    DescribedClassicGroup,
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
from kbroker.groups.classic.state import ClassicGroup, ClassicMember, Event, GroupState
from kbroker.groups.ids import CLASSIC, GroupIds
from kbroker.groups.offset_messages import CommitRequest
from kbroker.groups.outcome import GenerationSaved, Outcome, Records, Ticket, together
from kbroker.groups.share.messages import ListedGroup
from kbroker.groups.stored_times import StoredTimes
from kbroker.protocol.consumer_protocol import CONSUMER_PROTOCOL

_CLIENT_ID_BYTES = 100
"""How much of a client or instance id goes into the member ids that are made of it."""


@dataclass(frozen=True, slots=True)
class ClassicGroupsStatistics:
    """`groups` by state. `pending_members`: ids given out whose owners have not joined yet.
    `rebalances`: generations that became stable since the start."""

    groups: dict[str, int]
    members: int
    pending_members: int
    rebalances: int


class ClassicGroups:
    """`group_ids` and `times` are shared with the coordinators of other group types; `new_id` makes
    what is unique in a member id."""

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
        """What can be said without knowing the group. Raises KafkaError."""
        check_group_id(request.group_id)
        settings = self._settings()
        if (
            not settings.min_session_timeout_ms
            <= request.session_timeout_ms
            <= settings.max_session_timeout_ms
        ):
            raise KafkaError(ErrorCode.invalid_session_timeout)

    def _join(self, request: JoinRequest, ticket: Ticket, records: Records, now_ms: int) -> JoinReply | None:
        group = self._groups.get(request.group_id)
        if group is None:
            if request.member_id != NO_MEMBER_ID:
                raise KafkaError(ErrorCode.unknown_member_id)
            group = self._create(request.group_id, now_ms)
        if not self._has_room(group, request):
            self._rebalances.remove_member(group, request.member_id, records)
            self._rebalances.complete_if_all_joined(group, records, now_ms)
            return JoinReply(ErrorCode.group_max_size_reached)
        if not group.supports(request.protocol_type, request.protocols):
            raise KafkaError(ErrorCode.inconsistent_group_protocol)
        if request.member_id == NO_MEMBER_ID:
            return self._join_anew(group, request, ticket, records, now_ms)
        if request.member_id in group.pending and request.instance_id is None:
            self._add(group, request.member_id, request, ticket, records, now_ms)
            return None
        group.check_member(request.member_id, request.instance_id)
        return self._join_again(group, request, ticket, records, now_ms)

    def _has_room(self, group: ClassicGroup, request: JoinRequest) -> bool:
        """While a group is preparing those count who have joined: if it has become too large, the
        last to come are left out. A static member that has forgotten its id comes back to its own
        place."""
        max_size = self._settings().max_size
        member_id = request.member_id
        if member_id == NO_MEMBER_ID and request.instance_id is not None:
            member_id = group.static_ids.get(request.instance_id, NO_MEMBER_ID)
        if group.state is GroupState.EMPTY:
            return True
        if group.state is GroupState.PREPARING:
            return member_id in group.joining or len(group.joining) < max_size
        return member_id in group.members or len(group.members) < max_size

    def _join_anew(
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
        """A member joins again because the group rebalances, or to make it rebalance: the leader
        does with any JoinGroup (it has seen that topics have changed), others by offering something
        else. Otherwise its answer got lost, and it gets it again."""
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
        """A static member comes back and has forgotten its id, or somebody took its place; the old
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
        """SyncGroup. No reply: it waits for the leader's, or for that to be saved."""
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
        """Heartbeat. A group that rebalances says so; the session goes on."""
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
        """LeaveGroup, of any number of members; each has its own result."""
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
            # It may have waited for a pending member only.
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
        """The effect of a leader's `sync`: all who wait for their assignments get them."""
        records = Records(effect.group_id, self._times)
        group = self._groups.get(effect.group_id)
        if group is not None:
            self._rebalances.saved(group, effect.generation, records, now_ms)
        return records.outcome()

    # --- offsets ---

    def check_commit(self, request: CommitRequest, *, now_ms: int) -> None:
        """That this group lets the request commit; raises KafkaError. A member's commit counts as
        its heartbeat. Whoever is no member may commit while the group is empty."""
        group = self._groups[request.group_id]
        if group.state is GroupState.EMPTY and request.generation < 0:
            return
        if request.generation < 0 and request.member_id == NO_MEMBER_ID and request.instance_id is None:
            raise KafkaError(ErrorCode.unknown_member_id)
        group.check_member(request.member_id, request.instance_id)
        group.check_generation(request.member_id, request.generation)
        if group.state is GroupState.COMPLETING:
            raise KafkaError(ErrorCode.rebalance_in_progress)
        self._rebalances.start_session(group, group.members[request.member_id], now_ms)

    def check_offset_delete(self, group_id: str) -> None:
        """Only of consumers the group knows what they subscribe to: members of other types keep all
        offsets. Raises KafkaError."""
        group = self._groups[group_id]
        if group.state is not GroupState.EMPTY and group.protocol_type != CONSUMER_PROTOCOL:
            raise KafkaError(ErrorCode.non_empty_group)

    def subscribed(self, group_id: str) -> Callable[[str], bool]:
        """Whether a member subscribes to a topic now."""
        return self._groups[group_id].is_subscribed

    def may_expire(self, group_id: str) -> bool:
        """Whether offsets may be forgotten now: not while a group rebalances, or when nobody knows
        what its members need."""
        group = self._groups[group_id]
        if not group.protocol_type or group.state is GroupState.EMPTY:
            return True
        return group.state is GroupState.STABLE and group.subscribed is not None

    def empty_since_ms(self, group_id: str) -> int | None:
        """When its last member left. None: there are some, or there never was one."""
        group = self._groups[group_id]
        is_told = group.protocol_type and group.state is GroupState.EMPTY
        return self._times.latest(group.since_ms) if is_told else None

    def ensure(self, group_id: str, *, now_ms: int) -> None:
        """A group that exists through its offsets alone."""
        if group_id not in self._groups:
            self._create(group_id, now_ms)

    # --- administration ---

    def get(self, group_id: str) -> ClassicGroup | None:
        return self._groups.get(group_id)

    def ids(self) -> tuple[str, ...]:
        return tuple(self._groups)

    def is_empty(self, group_id: str) -> bool:
        """No members, and nobody who was given an id to join with."""
        group = self._groups[group_id]
        return group.state is GroupState.EMPTY and not group.pending

    def describe(self, group_id: str) -> DescribedClassicGroup:
        return describe_group(group_id, self._groups.get(group_id))

    def listed(self) -> Iterator[ListedGroup]:
        return (
            ListedGroup(group.group_id, group.protocol_type, group.state, CLASSIC)
            for group in self._groups.values()
        )

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
        """The group is to be one of another type: it is forgotten, its record is removed, and
        whoever waits is told to join again."""
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
        """A group that was one of another type, stable and with members. Its sessions begin."""
        assert group.state is GroupState.STABLE
        self._group_ids.claim(group.group_id, CLASSIC)
        self._groups[group.group_id] = group
        records.put(RecordType.CLASSIC_GROUP_METADATA, group.to_record(group.assignments(), records.times))
        self._start_sessions(group, now_ms)
        if rebalance:
            self._rebalances.prepare(group, "it has become a classic group", records, now_ms)
        else:
            # All have their targets from now on, so what a member had before may be another's.
            group.former_epochs.clear()

    # --- time ---

    def next_deadline_ms(self) -> int | None:
        """When to call `expire` next; it may turn out that there was nothing to do."""
        return self._rebalances.timers.next_ms()

    def expire(self, now_ms: int) -> Outcome[None]:
        """Sessions that are over, members that are late."""
        outcomes: list[Outcome[object]] = []
        for name in self._rebalances.timers.take_due(now_ms):
            records = Records(name.group_id, self._times)
            self._rebalances.run_out(self._groups[name.group_id], name, records, now_ms)
            outcomes.append(records.outcome())
        return together(outcomes)

    # --- records ---

    def load(self, records: Iterable[tuple[bytes, bytes]], *, now_ms: int) -> None:
        """Take in the records of any number of groups (a scan of GroupKey.namespace); sessions
        begin anew. Other records are skipped. A group that is larger than is allowed now
        rebalances, and the last to join are left out."""
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
        """A decision could not be saved; `records` is what the store has of the group. What memory
        has counts: members join again, and the next generation is saved. Only a group that was
        deleted comes back as it was stored."""
        done = Records(group_id, self._times)
        group = self._groups.get(group_id)
        if group is None:
            self.load(records, now_ms=now_ms)
        else:
            self._rebalances.not_saved(group, done, now_ms)
        return done.outcome()

    def forget(self, group_id: str) -> None:
        """A conversion could not be saved: the group is none of these."""
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
        group.move(Event.DELETED, group.since_ms)
        del self._groups[group.group_id]
        self._group_ids.release(group.group_id, CLASSIC)

    def _member_group(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> ClassicGroup:
        """The group that this is a member of, in this generation. Raises KafkaError."""
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
    """Nothing changes for the others. A leader that came back must not share out anew: it is told
    to skip that, or, by a version that cannot say so, that somebody else leads."""
    reply = group.join_reply(member_id, skip_assignment=can_skip and group.leader == member_id)
    return reply if can_skip else replace(reply, leader=old_leader, members=())


def _said(reason: str | None) -> str:
    return f" ({reason!r})" if reason else ""
