"""Consumer groups as ConsumerGroupDescribe shows them. Nothing here changes a group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from kbroker.groups.consumer.messages import DescribedConsumerGroup, DescribedConsumerMember
from kbroker.groups.consumer.state import ConsumerGroup, ConsumerMember
from kbroker.groups.share.messages import DescribedAssignment, DescribedTopicPartitions, TopicsView

_CLASSIC, _CONSUMER = 0, 1
"""Member types of ConsumerGroupDescribe v1."""


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
