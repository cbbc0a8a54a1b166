"""Requests about groups: list, describe and delete them, and the offsets of share groups.

Plain functions over a Caller, as in admin.py. Each sends one request and converts response rows
to named tuples. An error of the whole response is raised as KafkaError; errors of single rows are
returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..errors import ErrorCode, KafkaError
from .answers import check, lacking, reason
from .caller import Caller, Entity

_GROUP_KEY = 0  # FindCoordinator's key type of all groups, share groups included
UNKNOWN = -1
"""In place of an offset. As a start offset it means that the share-partition has no state yet: the
group's reset policy will decide where it begins."""


class Group(NamedTuple):
    group_id: str
    state: str
    type: str
    protocol: str


class CoordinatorNode(NamedTuple):
    node_id: int
    host: str
    port: int


class ShareMemberDescription(NamedTuple):
    """`assignment`: partitions by topic name."""

    member_id: str
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topics: tuple[str, ...]
    assignment: Mapping[str, tuple[int, ...]]


class ShareGroupDescription(NamedTuple):
    group_id: str
    state: str
    group_epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[ShareMemberDescription, ...]


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def by_topic(places: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partition numbers by topic, in the order of `places`."""
    numbers: dict[str, list[int]] = {}
    for place in places:
        numbers.setdefault(place.topic, []).append(place.partition)
    return numbers


class ShareOffset(NamedTuple):
    """The start offset and lag of a share-partition. None: not known. `lag` is also None if the
    broker serves only version 0."""

    topic: str
    partition: int
    start_offset: int | None
    leader_epoch: int | None
    lag: int | None
    error: KafkaError | None


def groups(connection: Caller, types: Sequence[str] = ("share",), states: Sequence[str] = ()) -> list[Group]:
    """Groups of these types and states, sorted by id; an empty sequence means all. `type` and
    `state` are empty if the broker is too old to report them."""
    answer = connection.call("list_groups", states_filter=tuple(states), types_filter=tuple(types))
    check(answer.error_code, needs="describe")
    return sorted(
        Group(
            row.group_id,
            getattr(row, "group_state", ""),
            getattr(row, "group_type", "").lower(),
            row.protocol_type,
        )
        for row in answer.groups
    )


def group_types(connection: Caller) -> dict[str, str]:
    """Types of all groups, by id."""
    return {each.group_id: each.type for each in groups(connection, types=())}


def kind_of_group(group_type: str) -> str:
    """A person calls groups of both protocols consumer groups."""
    return f"a {'consumer' if group_type == 'classic' else group_type} group"


def find_coordinators(connection: Caller, group_ids: Sequence[str]) -> dict[str, CoordinatorNode]:
    """The broker that coordinates each group, whether the group exists or not. Raises
    KafkaError."""
    answer = connection.call("find_coordinator", key_type=_GROUP_KEY, coordinator_keys=tuple(group_ids))
    for row in answer.coordinators:
        check(row.error_code, row.error_message, needs="describe", name=row.key)
    return {row.key: CoordinatorNode(row.node_id, row.host, row.port) for row in answer.coordinators}


def describe_share_group(connection: Caller, group_id: str) -> ShareGroupDescription:
    """Raises KafkaError(group_id_not_found) if the group does not exist or has another type."""
    (group,) = describe_share_groups(connection, [group_id])
    if isinstance(group, KafkaError):
        raise group
    return group


def describe_share_groups(
    connection: Caller, group_ids: Sequence[str]
) -> list[ShareGroupDescription | KafkaError]:
    """One result for each id, in order; group_id_not_found if the group does not exist or has
    another type."""
    answer = connection.call(
        "share_group_describe", group_ids=tuple(group_ids), include_authorized_operations=False
    )
    rows = {row.group_id: row for row in answer.groups}
    return [_share_group(rows[group_id]) for group_id in group_ids]


def _share_group(row: Entity) -> ShareGroupDescription | KafkaError:
    if row.error_code is not ErrorCode.none:
        why = lacking(row.error_code, "describe", row.group_id)
        return KafkaError(row.error_code, why or row.error_message)
    members = tuple(sorted(_share_member(member) for member in row.members))
    return ShareGroupDescription(
        row.group_id, row.group_state, row.group_epoch, row.assignment_epoch, row.assignor_name, members
    )


def _share_member(row: Entity) -> ShareMemberDescription:
    assignment = {part.topic_name: tuple(sorted(part.partitions)) for part in row.assignment.topic_partitions}
    topics = tuple(sorted(row.subscribed_topic_names))
    return ShareMemberDescription(
        row.member_id, row.member_epoch, row.client_id, row.client_host, topics, assignment
    )


def delete_groups(connection: Caller, group_ids: Iterable[str]) -> dict[str, KafkaError]:
    """Delete groups of any type, with their state and offsets. Returns the refused ones; the
    deletion of all others is durable."""
    answer = connection.call("delete_groups", groups_names=tuple(group_ids))
    return {
        row.group_id: refusal(row, "delete", row.group_id)
        for row in answer.results
        if row.error_code is not ErrorCode.none
    }


def describe_share_group_offsets(
    connection: Caller, group_id: str, partitions: Mapping[str, Iterable[int]] | None = None
) -> list[ShareOffset]:
    """Offsets of these partitions, or of all that the group has; sorted by topic and partition, and
    empty if the group does not exist. Raises KafkaError."""
    wanted = (
        None
        if partitions is None
        else [{"topic_name": name, "partitions": tuple(each)} for name, each in partitions.items()]
    )
    answer = connection.call(
        "describe_share_group_offsets", groups=[{"group_id": group_id, "topics": wanted}]
    )
    (group,) = answer.groups
    check(group.error_code, group.error_message, needs="describe", name=group_id)
    return sorted(
        (_share_offset(topic.topic_name, row) for topic in group.topics for row in topic.partitions),
        key=_place,
    )


def _share_offset(topic: str, row: Entity) -> ShareOffset:
    """With an error the other fields are ignored: Kafka sets start offset 0 then."""
    if row.error_code is not ErrorCode.none:
        return ShareOffset(topic, row.partition_index, None, None, None, refusal(row, "describe", topic))
    if row.start_offset == UNKNOWN:
        return ShareOffset(topic, row.partition_index, None, None, None, None)
    lag: int = getattr(row, "lag", UNKNOWN)
    return ShareOffset(
        topic, row.partition_index, row.start_offset, row.leader_epoch, None if lag == UNKNOWN else lag, None
    )


def _place(offset: ShareOffset) -> tuple[str, int]:
    return offset.topic, offset.partition


def alter_share_group_offsets(
    connection: Caller, group_id: str, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, KafkaError]:
    """Set the start offsets of these partitions; creates the group if it does not exist. UNKNOWN:
    the reset policy decides.

    The state of records that were acquired, released or finished is dropped. Returns the refused
    partitions; the change of all others is durable. Raises KafkaError if nothing was altered, for
    instance non_empty_group.
    """
    rows = [
        {
            "topic_name": topic,
            "partitions": [
                {"partition_index": number, "start_offset": offsets[TopicPartition(topic, number)]}
                for number in numbers
            ],
        }
        for topic, numbers in by_topic(offsets).items()
    ]
    answer = connection.call("alter_share_group_offsets", group_id=group_id, topics=rows)
    check(answer.error_code, answer.error_message, needs="read", name=group_id)
    return {
        TopicPartition(topic.topic_name, row.partition_index): refusal(row, "read", topic.topic_name)
        for topic in answer.responses
        for row in topic.partitions
        if row.error_code is not ErrorCode.none
    }


def delete_share_group_offsets(
    connection: Caller, group_id: str, topics: Iterable[str]
) -> dict[str, KafkaError]:
    """Delete the group's state of these topics. If the group reads them again, they begin as for a
    new group.

    Returns the refused topics; the deletion of all others is durable. Raises KafkaError if nothing
    was deleted.
    """
    answer = connection.call(
        "delete_share_group_offsets", group_id=group_id, topics=[{"topic_name": name} for name in topics]
    )
    check(answer.error_code, answer.error_message, needs="delete", name=group_id)
    return {
        row.topic_name: refusal(row, "read", row.topic_name)
        for row in answer.responses
        if row.error_code is not ErrorCode.none
    }


def refusal(row: Entity, needs: str, name: str, topic: str = "") -> KafkaError:
    """The error of a refused row, with the broker's message if the row has one. `topic`: the name
    for the right on a topic, if the request needs one on a group as well."""
    code = row.error_code
    named = topic if topic and code is ErrorCode.topic_authorization_failed else name
    return KafkaError(code, reason(code, getattr(row, "error_message", None), needs=needs, name=named))
