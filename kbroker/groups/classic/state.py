"""A classic group in memory: its states, its members, and the record of a generation.

                          .------REBALANCE-------.
                          v                      |
    Empty --REBALANCE--> PreparingRebalance --JOINED--> CompletingRebalance --SAVED--> Stable
      ^                   |        ^                                                     |
      '-----ALL_LEFT------'        '-----------------------REBALANCE---------------------'
    each of them --DELETED--> Dead

While the group is preparing, it waits for its members to join again. While it is completing, it
waits for the leader's assignments; once those are saved, it is stable. The store has only stable
generations, and the fact that a group has become empty (record type 2).

`ClassicGroup` holds state and answers questions about it; classic/coordinator.py and
classic/rebalance.py decide what happens when. This module knows no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import Final, NamedTuple

from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.group_records import ClassicGroupMember, ClassicGroupMetadata
from kbroker.groups.classic.messages import NO_MEMBER_ID, JoinMember, JoinReply, JoinRequest, Protocol
from kbroker.groups.offsets.messages import CommitRequest
from kbroker.groups.outcome import Ticket
from kbroker.groups.stored_times import StoredTimes
from kbroker.protocol.consumer_protocol import CONSUMER_PROTOCOL, read_subscribed_topics


class GroupState(StrEnum):
    """The names in DescribeGroups and ListGroups."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class ClassicEvent(Enum):
    REBALANCE = auto()
    JOINED = auto()
    ALL_LEFT = auto()
    SAVED = auto()
    DELETED = auto()


TRANSITIONS: Final[dict[tuple[GroupState, ClassicEvent], GroupState]] = {
    (GroupState.EMPTY, ClassicEvent.REBALANCE): GroupState.PREPARING,
    (GroupState.COMPLETING, ClassicEvent.REBALANCE): GroupState.PREPARING,
    (GroupState.STABLE, ClassicEvent.REBALANCE): GroupState.PREPARING,
    (GroupState.PREPARING, ClassicEvent.JOINED): GroupState.COMPLETING,
    (GroupState.PREPARING, ClassicEvent.ALL_LEFT): GroupState.EMPTY,
    (GroupState.COMPLETING, ClassicEvent.SAVED): GroupState.STABLE,
    (GroupState.EMPTY, ClassicEvent.DELETED): GroupState.DEAD,
    (GroupState.PREPARING, ClassicEvent.DELETED): GroupState.DEAD,
    (GroupState.COMPLETING, ClassicEvent.DELETED): GroupState.DEAD,
    (GroupState.STABLE, ClassicEvent.DELETED): GroupState.DEAD,
}


class ClassicMember(NamedTuple):
    """`is_new`: it has not learned a generation yet, so it sends no heartbeats."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    is_new: bool = False

    @classmethod
    def of(cls, member_id: str, request: JoinRequest) -> ClassicMember:
        return cls(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
            request.protocols,
            is_new=True,
        )

    def joining_again(self, request: JoinRequest) -> ClassicMember:
        """The member with the request's protocols and timeouts. Client id and host stay."""
        return self._replace(
            protocols=request.protocols,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
        )

    def names(self) -> set[str]:
        """The names of the protocols that it offers, without duplicates."""
        return {protocol.name for protocol in self.protocols}

    def metadata(self, protocol_name: str | None) -> bytes:
        return next((protocol.metadata for protocol in self.protocols if protocol.name == protocol_name), b"")


@dataclass(slots=True)
class ClassicGroup:
    """A classic group.

    - `since_ms`: when it entered its state
    - `pending`: member ids that clients got and have not used yet
    - `joining`, `syncing`: requests that wait for other members, by member id
    - `unsynced`: members that have not asked for the assignment of this generation
    - `saving`: the leader's assignments while they are being saved
    - `is_initial`: the group was empty before this rebalance"""

    group_id: str
    since_ms: int
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    protocol_type: str = ""
    protocol_name: str | None = None
    leader: str | None = None
    members: dict[str, ClassicMember] = field(default_factory=dict)
    static_ids: dict[str, str] = field(default_factory=dict)
    pending: set[str] = field(default_factory=set)
    joining: dict[str, Ticket] = field(default_factory=dict)
    syncing: dict[str, Ticket] = field(default_factory=dict)
    unsynced: set[str] = field(default_factory=set)
    saving: Mapping[str, bytes] | None = None
    subscribed: frozenset[str] | None = None
    """Topic names of all members. None: unknown, since there is no generation or the members are
    not consumers."""
    is_initial: bool = False
    former_epochs: dict[str, int] = field(default_factory=dict)
    """In a group that was a consumer group before: the epoch of each member. Members keep using it
    until they join."""
    has_new_member: bool = False
    delay_ms: int = 0
    delay_left_ms: int = 0
    """For the initial rebalance: whether a member joined since the delay began, the delay's length,
    and by how much it may still be extended."""
    _offered: Counter[str] = field(default_factory=Counter)

    def move(self, event: ClassicEvent, now_ms: int) -> None:
        self.is_initial = self.state is GroupState.EMPTY
        self.state, self.since_ms = TRANSITIONS[self.state, event], now_ms

    # --- members ---

    def put(self, member: ClassicMember) -> None:
        """Add or replace a member."""
        old = self.members.get(member.member_id)
        if old is not None:
            self._withdraw(old)
        self._offered.update(member.names())
        self.members[member.member_id] = member
        self.pending.discard(member.member_id)
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id

    def replace_static(self, old_id: str, new: ClassicMember) -> None:
        """Replace a static member by the client that now has its instance id. The old member's
        requests must have been answered."""
        assert old_id not in self.joining
        assert old_id not in self.syncing
        self._withdraw(self.members.pop(old_id))
        if old_id in self.unsynced:
            self.unsynced.remove(old_id)
            self.unsynced.add(new.member_id)
        if self.leader == old_id:
            self.leader = new.member_id
        self.put(new)

    def remove(self, member_id: str) -> None:
        """Remove a member or a pending one. Its requests must have been answered."""
        assert member_id not in self.joining
        assert member_id not in self.syncing
        self.pending.discard(member_id)
        self.unsynced.discard(member_id)
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self._withdraw(member)
        if member.instance_id is not None:
            del self.static_ids[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    def _withdraw(self, member: ClassicMember) -> None:
        """Remove the member's protocols from the count of offers."""
        for name in member.names():
            self._offered[name] -= 1
            if not self._offered[name]:
                del self._offered[name]

    def check_member(self, member_id: str, instance_id: str | None) -> None:
        """Raises KafkaError if this is not a member, or is a static member whose instance id
        another client has taken (KIP-345)."""
        if instance_id is not None and self.static_ids.get(instance_id, member_id) != member_id:
            raise KafkaError(ErrorCode.fenced_instance_id)
        if member_id not in self.members or (instance_id is not None and instance_id not in self.static_ids):
            raise KafkaError(ErrorCode.unknown_member_id)

    def check_generation(self, member_id: str, generation: int) -> None:
        """Raises KafkaError for any other generation. While the group prepares its first generation
        as a classic group, members may also use their former epochs: no partition has a new owner
        yet (DIF-75)."""
        if generation == self.generation:
            return
        if self.state is not GroupState.PREPARING or self.former_epochs.get(member_id) != generation:
            raise KafkaError(ErrorCode.illegal_generation)

    def check_commit(self, request: CommitRequest, *, in_transaction: bool = False) -> None:
        """Raises KafkaError unless the commit is a member's in this generation. Members commit in a
        transaction during a rebalance, too: it has the records of their generation."""
        if request.generation < 0 and request.member_id == NO_MEMBER_ID and request.instance_id is None:
            raise KafkaError(ErrorCode.unknown_member_id)
        self.check_member(request.member_id, request.instance_id)
        self.check_generation(request.member_id, request.generation)
        if self.state is GroupState.COMPLETING and not in_transaction:
            raise KafkaError(ErrorCode.rebalance_in_progress)

    def has_room(self, request: JoinRequest, max_size: int) -> bool:
        """Whether the member can join. While the group is preparing, only members that have joined
        again take up room: if the group has become too large, the last ones are refused. A static
        member without its member id returns to its own place."""
        member_id = request.member_id
        if member_id == NO_MEMBER_ID and request.instance_id is not None:
            member_id = self.static_ids.get(request.instance_id, NO_MEMBER_ID)
        if self.state is GroupState.EMPTY:
            return True
        if self.state is GroupState.PREPARING:
            return member_id in self.joining or len(self.joining) < max_size
        return member_id in self.members or len(self.members) < max_size

    def may_expire(self) -> bool:
        """Whether offsets may expire: not during a rebalance, nor while the members' subscriptions
        are unknown."""
        if not self.protocol_type or self.state is GroupState.EMPTY:
            return True
        return self.state is GroupState.STABLE and self.subscribed is not None

    def has_all_joined(self) -> bool:
        return len(self.joining) == len(self.members) and not self.pending

    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def elect_joined_leader(self) -> bool:
        """Make the first member that has joined the leader, unless the leader has joined. False if
        no member has."""
        if self.leader not in self.joining:
            self.leader = next(
                (member_id for member_id in self.members if member_id in self.joining), self.leader
            )
        return self.leader in self.joining

    # --- protocols ---

    def supports(self, protocol_type: str, protocols: tuple[Protocol, ...]) -> bool:
        """Whether a client that offers these protocols can be a member: at least one protocol must
        be common to all members."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type and protocols)
        return protocol_type == self.protocol_type and any(
            self._offered[each.name] == len(self.members) for each in protocols
        )

    def elected_protocol(self) -> str:
        """The protocol that most members prefer among those that all of them support. A tie goes to
        the first one voted for."""
        count = len(self.members)
        votes = Counter(
            next(protocol.name for protocol in member.protocols if self._offered[protocol.name] == count)
            for member in self.members.values()
        )
        return votes.most_common(1)[0][0]

    def begin_generation(self) -> None:
        """Start the next generation, with the present members."""
        self.generation += 1
        self.former_epochs.clear()
        self.protocol_name = self.elected_protocol() if self.members else None
        self.note_subscriptions()
        self.unsynced = set(self.members)

    def note_subscriptions(self) -> None:
        self.subscribed = None
        if self.protocol_type == CONSUMER_PROTOCOL and (self.protocol_name is not None or not self.members):
            topics = [
                _subscribed_topics(member.metadata(self.protocol_name)) for member in self.members.values()
            ]
            known = [each for each in topics if each is not None]
            if len(known) == len(topics):
                self.subscribed = frozenset().union(*known)

    def is_subscribed(self, topic_name: str) -> bool:
        """Consumers whose subscriptions cannot be read are subscribed to everything."""
        if self.subscribed is None:
            return self.protocol_type == CONSUMER_PROTOCOL
        return topic_name in self.subscribed

    # --- answers and records ---

    def join_reply(self, member_id: str, *, skip_assignment: bool = False) -> JoinReply:
        """The answer to a member's JoinGroup; the leader's lists all members."""
        return JoinReply(
            generation_id=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.leader or NO_MEMBER_ID,
            skip_assignment=skip_assignment,
            member_id=member_id,
            members=self._member_rows() if member_id == self.leader else (),
        )

    def _member_rows(self) -> tuple[JoinMember, ...]:
        return tuple(
            JoinMember(member.member_id, member.instance_id, member.metadata(self.protocol_name))
            for member in self.members.values()
        )

    def assignments(self) -> dict[str, bytes]:
        return {member.member_id: member.assignment for member in self.members.values()}

    def to_record(self, assignments: Mapping[str, bytes], times: StoredTimes) -> ClassicGroupMetadata:
        """The record of this generation, with the given assignments by member id."""
        return ClassicGroupMetadata(
            protocol_type=self.protocol_type,
            generation=self.generation,
            protocol=self.protocol_name,
            leader=self.leader,
            current_state_timestamp=times.to_store(self.since_ms),
            members=tuple(
                ClassicGroupMember(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout=member.rebalance_timeout_ms,
                    session_timeout=member.session_timeout_ms,
                    subscription=member.metadata(self.protocol_name),
                    assignment=assignments.get(member.member_id, b""),
                )
                for member in self.members.values()
            ),
        )

    @classmethod
    def from_record(
        cls, group_id: str, record: ClassicGroupMetadata, times: StoredTimes, now_ms: int
    ) -> ClassicGroup:
        """The stored group. Until members join again, they offer only the elected protocol."""
        stored_ms = record.current_state_timestamp
        since_ms = now_ms if stored_ms < 0 else times.loaded(stored_ms, now_ms)
        group = cls(
            group_id,
            since_ms,
            generation=record.generation,
            protocol_type=record.protocol_type,
            protocol_name=record.protocol,
        )
        group.leader = record.leader
        for row in record.members:
            protocols = (Protocol(record.protocol or "", row.subscription),)
            timeouts = (row.session_timeout, row.rebalance_timeout)
            group.put(
                ClassicMember(
                    row.member_id,
                    row.group_instance_id,
                    row.client_id,
                    row.client_host,
                    *timeouts,
                    protocols,
                    row.assignment,
                )
            )
        if group.members:
            group.state = GroupState.STABLE
        group.note_subscriptions()
        return group


def _subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """None if the metadata is not a consumer's subscription."""
    try:
        return read_subscribed_topics(metadata)
    except ValueError:
        return None
