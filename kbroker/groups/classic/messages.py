"""Requests, replies and settings of classic groups.

Replies have the field names of kio's response messages (JoinGroup v9, SyncGroup v5, Heartbeat v4,
LeaveGroup v5, DescribeGroups v6), so the API layer converts them field by field. It adds throttling
and authorized operations itself. Times are milliseconds.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.state import MAX_GROUP_ID_BYTES

NO_MEMBER_ID: Final = ""
NO_GENERATION: Final = -1


# --- requests, settings ---


class ClassicGroupSettings(NamedTuple):
    """group.* of the broker. `initial_rebalance_delay_ms`: how long a group that was empty waits
    for more members."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 2_147_483_647


class Protocol(NamedTuple):
    """An assignor that a member offers, with its metadata: for consumers the subscription."""

    name: str
    metadata: bytes


class JoinRequest(NamedTuple):
    """JoinGroup. `takes_member_id`: a member without an id first gets one to join with (KIP-394,
    from v4). `can_skip_assignment`: the reply may ask a leader to keep the assignment (KIP-814,
    from v9)."""

    group_id: str
    member_id: str
    instance_id: str | None
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    client_id: str = ""
    client_host: str = ""
    reason: str | None = None
    takes_member_id: bool = True
    can_skip_assignment: bool = True


class SyncRequest(NamedTuple):
    """SyncGroup. `protocol_type` and `protocol_name` None: not stated. `assignments`: the leader's,
    by member id."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


class HeartbeatRequest(NamedTuple):
    group_id: str
    member_id: str
    instance_id: str | None
    generation: int


class Leaving(NamedTuple):
    """A member to remove. An administrator may name a static member by its instance id alone."""

    member_id: str
    instance_id: str | None = None
    reason: str | None = None


class LeaveRequest(NamedTuple):
    group_id: str
    members: tuple[Leaving, ...]


def check_group_id(group_id: str) -> None:
    """Raises INVALID_GROUP_ID, also for ids that are too long for the keys of some stores."""
    if not group_id or len(group_id.encode()) > MAX_GROUP_ID_BYTES:
        raise KafkaError(ErrorCode.invalid_group_id)


# --- replies ---


class JoinMember(NamedTuple):
    """A member in the leader's JoinGroup reply. `metadata`: for the group's protocol."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


class JoinReply(NamedTuple):
    error_code: ErrorCode = ErrorCode.none
    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = NO_MEMBER_ID
    skip_assignment: bool = False
    member_id: str = NO_MEMBER_ID
    members: tuple[JoinMember, ...] = ()


class SyncReply(NamedTuple):
    error_code: ErrorCode = ErrorCode.none
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class HeartbeatReply(NamedTuple):
    error_code: ErrorCode = ErrorCode.none


class LeaveRow(NamedTuple):
    member_id: str
    group_instance_id: str | None
    error_code: ErrorCode = ErrorCode.none


class LeaveReply(NamedTuple):
    error_code: ErrorCode = ErrorCode.none
    members: tuple[LeaveRow, ...] = ()

    @classmethod
    def unknown(cls, request: LeaveRequest) -> LeaveReply:
        """The reply if the group does not exist."""
        return cls(
            members=tuple(
                LeaveRow(each.member_id, each.instance_id, ErrorCode.unknown_member_id)
                for each in request.members
            )
        )


class DescribedClassicMember(NamedTuple):
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    member_metadata: bytes
    member_assignment: bytes


class DescribedClassicGroup(NamedTuple):
    """A row of DescribeGroups; the defaults are for a group that does not exist."""

    group_id: str
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    group_state: str = "Dead"
    protocol_type: str = ""
    protocol_data: str = ""
    members: tuple[DescribedClassicMember, ...] = ()
