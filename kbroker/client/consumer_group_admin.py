"""Requests about consumer groups, classic and KIP-848: their members and offsets.

Plain functions over a Connection, as in group_admin.py. An error of the whole response is raised as
KafkaError; errors of single rows are returned. Groups of both kinds have the same type here. Fields
that only one kind has are None for the other.

Requests about offsets use topic names. From version 10, OffsetFetch and OffsetCommit identify
topics by id only, which leaves out deleted topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

from kbroker.client.answers import check, reason
from kbroker.client.group_admin import Group, TopicPartition, by_topic, groups, refusal
from kbroker.client.rpc import Connection, Entity, key_of
from kbroker.errors import ErrorCode, KafkaError
from kbroker.protocol.consumer_protocol import CONSUMER_PROTOCOL, read_assignment, read_subscription

CLASSIC = "classic"
CONSUMER = "consumer"
EMPTY = "Empty"
OTHER_TYPES = ("share", "streams")
_DEAD = "Dead"  # before version 6, DescribeGroups returns this state for a group that does not exist
_NAMES_ONLY = 9  # the last version of OffsetFetch and OffsetCommit with topic names
_SEVERAL_GROUPS = 8  # the first version of OffsetFetch that takes several groups
_NOBODY: Mapping[str, Any] = {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
_CLASSIC_MEMBER = 0
Assignment: TypeAlias = Mapping[str, tuple[int, ...]]
"""Partitions by topic name."""


class ConsumerMemberDescription(NamedTuple):
    """`member_epoch`, `subscribed_regex`, `target_assignment` and `is_classic` are None in classic
    groups. `is_classic`: the member uses the classic protocol in a KIP-848 group; None if the
    broker does not report it (ConsumerGroupDescribe 0)."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rack_id: str | None
    member_epoch: int | None
    subscribed_topics: tuple[str, ...]
    subscribed_regex: str | None
    assignment: Assignment
    target_assignment: Assignment | None
    is_classic: bool | None


class ConsumerGroupDescription(NamedTuple):
    """`type`: CLASSIC or CONSUMER. `assignor`: empty if a classic group has not chosen one. Epochs
    are None in classic groups."""

    group_id: str
    type: str
    state: str
    assignor: str
    group_epoch: int | None
    assignment_epoch: int | None
    members: tuple[ConsumerMemberDescription, ...]


class CommittedOffset(NamedTuple):
    offset: int
    leader_epoch: int | None
    metadata: str


def consumer_groups(connection: Connection, states: Sequence[str] = ()) -> list[Group]:
    """The groups that Kafka's tools call consumer groups: KIP-848 groups, classic groups of
    consumers, and groups that only store offsets."""
    found = groups(connection, types=(), states=states)
    return [
        each
        for each in found
        if each.type == CONSUMER or (each.type in (CLASSIC, "") and each.protocol in (CONSUMER_PROTOCOL, ""))
    ]


def describe_consumer_groups(
    connection: Connection, group_ids: Sequence[str]
) -> list[ConsumerGroupDescription | KafkaError]:
    """One result for each id, in order. An id without a group gets group_id_not_found; a group that
    is no consumer group gets that or inconsistent_group_protocol."""
    found: dict[str, ConsumerGroupDescription | KafkaError] = {}
    if group_ids and key_of("consumer_group_describe") in connection.served_versions():
        answer = connection.call(
            "consumer_group_describe", group_ids=tuple(group_ids), include_authorized_operations=False
        )
        found = {row.group_id: _consumer_group(row) for row in answer.groups}
    if others := [each for each in group_ids if _is_not_found(found.get(each))]:
        answer = connection.call("describe_groups", groups=tuple(others), include_authorized_operations=False)
        for row in answer.groups:
            classic = _classic_group(row)
            # Otherwise the first response names the group's type, which this one does not.
            if row.group_id not in found or not _is_not_found(classic):
                found[row.group_id] = classic
    return [found[each] for each in group_ids]


def _is_not_found(found: ConsumerGroupDescription | KafkaError | None) -> bool:
    return found is None or (isinstance(found, KafkaError) and found.code is ErrorCode.group_id_not_found)


def _consumer_group(row: Entity) -> ConsumerGroupDescription | KafkaError:
    if row.error_code is not ErrorCode.none:
        return refusal(row, "describe", row.group_id)
    members = tuple(sorted(_consumer_member(each) for each in row.members))
    return ConsumerGroupDescription(
        row.group_id,
        CONSUMER,
        row.group_state,
        row.assignor_name,
        row.group_epoch,
        row.assignment_epoch,
        members,
    )


def _consumer_member(row: Entity) -> ConsumerMemberDescription:
    kind = getattr(row, "member_type", -1)
    return ConsumerMemberDescription(
        row.member_id,
        row.instance_id,
        row.client_id,
        row.client_host,
        row.rack_id,
        row.member_epoch,
        tuple(sorted(row.subscribed_topic_names)),
        row.subscribed_topic_regex or None,
        _partitions(row.assignment),
        _partitions(row.target_assignment),
        None if kind < 0 else kind == _CLASSIC_MEMBER,
    )


def _partitions(assignment: Entity) -> Assignment:
    return {row.topic_name: tuple(sorted(row.partitions)) for row in assignment.topic_partitions}


def _classic_group(row: Entity) -> ConsumerGroupDescription | KafkaError:
    if row.error_code is not ErrorCode.none:
        return refusal(row, "describe", row.group_id)
    if row.group_state == _DEAD:
        return KafkaError(ErrorCode.group_id_not_found, f"Group {row.group_id} not found.")
    if row.protocol_type not in (CONSUMER_PROTOCOL, ""):
        text = f"Group {row.group_id} is no consumer group: its protocol type is {row.protocol_type}."
        return KafkaError(ErrorCode.inconsistent_group_protocol, text)
    members = tuple(sorted(_classic_member(each) for each in row.members))
    return ConsumerGroupDescription(
        row.group_id, CLASSIC, row.group_state, row.protocol_data, None, None, members
    )


def _classic_member(row: Entity) -> ConsumerMemberDescription:
    topics: tuple[str, ...] = ()
    rack_id: str | None = None
    assigned: dict[str, tuple[int, ...]] = {}
    with suppress(ValueError):  # Not a consumer's bytes, or empty.
        subscription = read_subscription(row.member_metadata)
        topics, rack_id = tuple(sorted(subscription.topics)), subscription.rack_id
    with suppress(ValueError):
        assigned = {
            name: tuple(sorted(numbers))
            for name, numbers in read_assignment(row.member_assignment).partitions.items()
        }
    return ConsumerMemberDescription(
        row.member_id,
        getattr(row, "group_instance_id", None),
        row.client_id,
        row.client_host,
        rack_id,
        None,
        topics,
        None,
        assigned,
        None,
        None,
    )


def committed_offsets(connection: Connection, group_id: str) -> dict[TopicPartition, CommittedOffset]:
    """The group's committed offsets, by topic and partition; empty for a group that does not exist.
    Raises KafkaError."""
    version = connection.common_version("offset_fetch", at_most=_NAMES_ONLY)
    if version < _SEVERAL_GROUPS:
        group = connection.call("offset_fetch", version, group_id=group_id, topics=None)
    else:
        wanted = [{"group_id": group_id, "topics": None}]
        (group,) = connection.call("offset_fetch", version, groups=wanted, require_stable=False).groups
    why = reason(group.error_code, needs="describe", name=group_id)
    check(group.error_code, f"offsets of group {group_id}: {why}")
    offsets = {}
    for topic in group.topics:
        for row in topic.partitions:
            why = reason(row.error_code, needs="describe", name=topic.name)
            check(row.error_code, f"offset of group {group_id}, {topic.name}-{row.partition_index}: {why}")
            if row.committed_offset >= 0:
                offsets[TopicPartition(topic.name, row.partition_index)] = _committed(row)
    return dict(sorted(offsets.items()))


def _committed(row: Entity) -> CommittedOffset:
    epoch = getattr(row, "committed_leader_epoch", -1)
    return CommittedOffset(row.committed_offset, None if epoch < 0 else epoch, row.metadata or "")


def commit_offsets(
    connection: Connection, group_id: str, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, KafkaError]:
    """Commit offsets for a group without members; creates the group if it does not exist.

    Returns the refused partitions; the offsets of all others are durable. All are refused if the
    group has members (unknown_member_id) or another type (group_id_not_found).
    """
    version = connection.common_version("offset_commit", at_most=_NAMES_ONLY)
    rows = [
        {
            "name": topic,
            "partitions": [
                {
                    "partition_index": number,
                    "committed_offset": offsets[TopicPartition(topic, number)],
                    "committed_metadata": "",
                }
                for number in numbers
            ],
        }
        for topic, numbers in by_topic(offsets).items()
    ]
    answer = connection.call("offset_commit", version, group_id=group_id, topics=rows, **_NOBODY)
    return _refused(answer, group_id)


def delete_offsets(
    connection: Connection, group_id: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, KafkaError]:
    """Delete the group's offsets of these partitions. A consumer that reads them later begins where
    its auto.offset.reset says.

    Returns the refused partitions, for instance those of topics that the group is subscribed to.
    The deletion of all others is durable. Raises KafkaError if nothing was deleted.
    """
    wanted = by_topic(partitions)
    rows = [
        {"name": topic, "partitions": [{"partition_index": number} for number in numbers]}
        for topic, numbers in wanted.items()
    ]
    answer = connection.call("offset_delete", group_id=group_id, topics=rows)
    why = reason(answer.error_code, needs="delete", name=group_id)
    check(answer.error_code, f"group {group_id}: {why}")
    return _refused(answer, group_id)


def _refused(answer: Entity, group_id: str) -> dict[TopicPartition, KafkaError]:
    """Both requests need READ on the group and on the topics."""
    return {
        TopicPartition(topic.name, row.partition_index): refusal(row, "read", group_id, topic.name)
        for topic in answer.topics
        for row in topic.partitions
        if row.error_code is not ErrorCode.none
    }
