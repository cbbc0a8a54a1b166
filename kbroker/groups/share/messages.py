"""Requests, replies and settings of share groups, and the coordinators' view of the topics.

Replies have the field names of kio's response messages (ShareGroupHeartbeat v1, ShareGroupDescribe
v1, Describe-, Alter- and DeleteShareGroupOffsets), so the API layer converts them
field by field. It adds throttling and authorized operations itself.
"""

from __future__ import annotations

from collections.abc import Sized
from datetime import timedelta
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from kbroker.errors import ErrorCode, KafkaError

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1


# --- requests, settings, topics ---


class ShareGroupHeartbeatRequest(NamedTuple):
    """ShareGroupHeartbeat. `member_epoch` 0 joins, -1 leaves. None in `rack_id` or
    `subscribed_topic_names`: unchanged."""

    group_id: str
    member_id: str
    member_epoch: int
    rack_id: str | None = None
    subscribed_topic_names: tuple[str, ...] | None = None
    client_id: str = ""
    client_host: str = ""


class ShareGroupSettings(NamedTuple):
    """The settings that apply to a group, with times in milliseconds: its own share.*, otherwise
    the broker's group.share.*. `assignor` is a name in ASSIGNORS (assignors/share.py)."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000
    initialize_retry_interval_ms: int = 30_000
    max_size: int = 200
    assignor: str = "simple"


class TopicView(Protocol):
    @property
    def topic_id(self) -> UUID: ...
    @property
    def name(self) -> str: ...
    @property
    def partitions(self) -> Sized:
        """Numbered from 0."""


class TopicsView(Protocol):
    """The live topics. `version` changes whenever a topic is created, deleted or gets
    partitions."""

    @property
    def version(self) -> int: ...
    def by_name(self, name: str) -> TopicView | None: ...
    def by_id(self, topic_id: UUID) -> TopicView | None: ...


# --- replies ---


class TopicPartitions(NamedTuple):
    topic_id: UUID
    partitions: tuple[int, ...]


class Assignment(NamedTuple):
    topic_partitions: tuple[TopicPartitions, ...]


class GroupHeartbeatReply(NamedTuple):
    """The reply to ShareGroupHeartbeat and ConsumerGroupHeartbeat. `assignment` None: unchanged. A
    refusal has all the defaults."""

    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval: timedelta = timedelta(0)
    assignment: Assignment | None = None

    @classmethod
    def refusal(cls, error: KafkaError) -> GroupHeartbeatReply:
        return cls(error.code, error.message)


class DescribedTopicPartitions(NamedTuple):
    topic_id: UUID
    topic_name: str
    partitions: tuple[int, ...]


class DescribedAssignment(NamedTuple):
    topic_partitions: tuple[DescribedTopicPartitions, ...]


class DescribedShareMember(NamedTuple):
    member_id: str
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    assignment: DescribedAssignment


class DescribedShareGroup(NamedTuple):
    """A row of ShareGroupDescribe."""

    group_id: str
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    group_state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor_name: str = ""
    members: tuple[DescribedShareMember, ...] = ()


class PartitionOffset(NamedTuple):
    """A partition in DescribeShareGroupOffsets; the defaults are for a share-partition without
    state. `first_open`, for metrics only: the first offset that is part of the lag."""

    partition_index: int
    start_offset: int = -1
    leader_epoch: int = 0
    lag: int = -1
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    first_open: int = -1


class TopicOffsets(NamedTuple):
    """A topic in DescribeShareGroupOffsets; without an id if it does not exist."""

    topic_name: str
    topic_id: UUID | None
    partitions: tuple[PartitionOffset, ...]


class PartitionDone(NamedTuple):
    """A partition in AlterShareGroupOffsets."""

    partition_index: int
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None


class TopicDone(NamedTuple):
    """A topic in AlterShareGroupOffsets (with partitions) or DeleteShareGroupOffsets (with an
    error)."""

    topic_name: str
    topic_id: UUID | None
    partitions: tuple[PartitionDone, ...] = ()
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None


class OffsetsReply(NamedTuple):
    """AlterShareGroupOffsets and DeleteShareGroupOffsets."""

    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    responses: tuple[TopicDone, ...] = ()

    @classmethod
    def refusal(cls, error: KafkaError) -> OffsetsReply:
        return cls(error.code, error.message)


class ShareGroupStatistics(NamedTuple):
    """`initializing`: share-partitions whose initialisation the persister has not answered;
    `rebalances`: since the start."""

    groups: int
    empty_groups: int
    members: int
    rebalances: int
    initializing: int
