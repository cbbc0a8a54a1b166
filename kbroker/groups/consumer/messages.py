"""Requests, replies and settings of consumer groups of the new protocol (KIP-848).

Replies have the field names of kio's response messages (ConsumerGroupHeartbeat v1,
ConsumerGroupDescribe v1), so the API layer converts them field by field. It adds throttling and
authorized operations itself. classic/messages.py has the requests of members of the classic
protocol.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final, NamedTuple, Protocol, TypeAlias
from uuid import UUID

from kbroker.errors import ErrorCode
from kbroker.groups.share import messages as share_group_api
from kbroker.groups.share.messages import DescribedAssignment, TopicView
from kbroker.security.rights import Rights

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
LEAVE_STATIC_EPOCH: Final = -2
"""A static member leaves for a while: its partitions are kept for the next client with its instance
id."""

Partitions: TypeAlias = Mapping[UUID, tuple[int, ...]]
"""Partition numbers by topic, ascending; no topic without partitions."""


class MigrationPolicy(StrEnum):
    """group.consumer.migration.policy: the conversions that a group with members may make between
    the classic and the consumer protocol."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"

    @property
    def may_upgrade(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE)

    @property
    def may_downgrade(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE)


class ConsumerGroupSettings(NamedTuple):
    """The settings that apply to a group: its own consumer.*, otherwise the broker's
    group.consumer.*. `classic_max_size`: group.max.size, for groups that become classic."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000
    max_size: int = (1 << 31) - 1
    migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    classic_max_size: int = (1 << 31) - 1


class IterableTopicsView(share_group_api.TopicsView, Protocol):
    """The live topics, iterable, so that regular expressions can be matched with their names."""

    def __iter__(self) -> Iterator[TopicView]: ...


class ConsumerGroupHeartbeatRequest(NamedTuple):
    """ConsumerGroupHeartbeat. None, or -1 in `rebalance_timeout_ms`: unchanged.

    - `member_epoch`: 0 joins, -1 leaves, -2 leaves for a while
    - `owned`: the partitions that the member reports
    - `rights`: of the client; None: it may do everything"""

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_topic_names: tuple[str, ...] | None = None
    subscribed_topic_regex: str | None = None
    server_assignor: str | None = None
    owned: Partitions | None = None
    client_id: str = ""
    client_host: str = ""
    version: int = 1
    rights: Rights | None = None

    @property
    def is_full(self) -> bool:
        """Whether all fields are set. The reply to such a heartbeat has the assignment."""
        subscribes = self.subscribed_topic_names is not None or self.subscribed_topic_regex is not None
        return self.rebalance_timeout_ms != -1 and subscribes and self.owned is not None


class DescribedConsumerMember(NamedTuple):
    """`assignment` includes partitions that the member must still give up. `member_type`: 0 for the
    classic protocol, 1 for the new one."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None
    assignment: DescribedAssignment
    target_assignment: DescribedAssignment
    member_type: int


class DescribedConsumerGroup(NamedTuple):
    """A row of ConsumerGroupDescribe."""

    group_id: str
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    group_state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor_name: str = ""
    members: tuple[DescribedConsumerMember, ...] = ()


class ConsumerGroupsStatistics(NamedTuple):
    """`groups`: by state; `classic_members`: those of `members` that use the classic protocol;
    `rebalances`: new group epochs since the start."""

    groups: Mapping[str, int]
    members: int
    classic_members: int
    rebalances: int
