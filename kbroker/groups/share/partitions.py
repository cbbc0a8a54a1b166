"""The partitions for which a share group has share state: Initializing, then Initialized, then
Deleting (record 15).

A partition can be assigned only when it is initialised. Its start offset is

    -1    for a topic that is new to the group: share.auto.offset.reset decides at the first load
    0     for new partitions of a known topic: `latest` would lose records that were produced before
          the group noticed the partition

The first attempt chooses the start offset, and retries keep it. After a restart every topic without
an initialised partition is new.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final
from uuid import UUID

from kbroker.errors import ErrorCode
from kbroker.groups.outcome import Records
from kbroker.groups.share.messages import TopicsView
from kbroker.groups.share.state import ShareGroup, ShareMember, TopicPart, share_partitions
from kbroker.share.persister import InitializeRequest, Result, TopicPartition

UNDECIDED: Final = -1
BEGINNING: Final = 0


def partitions_to_initialize(
    group: ShareGroup, topics: TopicsView, now_ms: int, retry_ms: int, records: Records
) -> tuple[InitializeRequest, ...]:
    """Partitions of subscribed topics that have no share state and no recent initialisation. They
    are Initializing from now on."""
    stuck = any(now_ms - asked_ms >= retry_ms for asked_ms in group.asked_ms.values())
    if not (group.must_look_for_partitions or stuck):
        return ()
    group.must_look_for_partitions = False
    wanted = list(_missing(group, topics, now_ms, retry_ms))
    if not wanted:
        return ()
    for partition in wanted:
        group.start_offsets.setdefault(partition, _start_offset(group, partition))
    for topic_id, number in wanted:
        topic = topics.by_id(topic_id)
        assert topic is not None
        group.initializing.setdefault(topic_id, TopicPart(topic.name)).partitions.add(number)
        group.deleting.pop(topic_id, None)
    group.asked_ms.update(dict.fromkeys(wanted, now_ms))
    group.put_partitions(records)
    return tuple(
        InitializeRequest(partition, group.epoch, group.start_offsets[partition]) for partition in wanted
    )


def _missing(group: ShareGroup, topics: TopicsView, now_ms: int, retry_ms: int) -> Iterator[TopicPartition]:
    for name in group.subscribed_names():
        topic = topics.by_name(name)
        if topic is None:
            continue
        initialized = group.initialized.get(topic.topic_id)
        for number in range(len(topic.partitions)):
            partition = TopicPartition(topic.topic_id, number)
            asked_ms = group.asked_ms.get(partition)
            on_its_way = asked_ms is not None and now_ms - asked_ms < retry_ms
            if not on_its_way and (initialized is None or number not in initialized.partitions):
                yield partition


def _start_offset(group: ShareGroup, partition: TopicPartition) -> int:
    topic_id, number = partition
    if topic_id in group.initialized:
        return BEGINNING
    initializing = group.initializing.get(topic_id)
    return BEGINNING if initializing is not None and number not in initializing.partitions else UNDECIDED


def is_waiting(group: ShareGroup, member: ShareMember) -> bool:
    """Whether partitions of a topic that the member subscribes to are being initialised."""
    return any(group.initializing[each.topic_id].name in member.topic_names for each in group.asked_ms)


def take_initialized(group: ShareGroup, results: Iterable[Result], records: Records) -> None:
    """Move partitions that the persister initialised to Initialized. The next heartbeat retries
    those that it refused."""
    for result in results:
        topic_id, number = result.partition
        part = group.initializing.get(topic_id)
        group.asked_ms.pop(result.partition, None)
        if part is None or number not in part.partitions:
            continue  # The topic was deleted meanwhile.
        _discard(group.initializing, result.partition)
        if result.code is ErrorCode.none:
            group.initialized.setdefault(topic_id, TopicPart(part.name)).partitions.add(number)
            group.start_offsets.pop(result.partition, None)
            group.must_compare_targets = True
        else:
            group.must_look_for_partitions = True
    group.put_partitions(records)


def start_deleting(group: ShareGroup, topics: TopicsView, records: Records) -> tuple[TopicPartition, ...]:
    """Move all partitions that have, or may have, share state to Deleting, and return them."""
    wanted = dict.fromkeys((*share_partitions(group.initialized), *share_partitions(group.initializing)))
    for topic_id in group.deleting:
        topic = topics.by_id(topic_id)
        wanted.update(
            dict.fromkeys(
                TopicPartition(topic_id, number) for number in range(len(topic.partitions) if topic else 0)
            )
        )
    for moved in (group.initialized, group.initializing):
        group.deleting.update({topic_id: part.name for topic_id, part in moved.items()})
        moved.clear()
    group.asked_ms.clear()
    group.start_offsets.clear()
    group.must_look_for_partitions = group.must_compare_targets = True
    if wanted:
        group.put_partitions(records)
    return tuple(wanted)


def take_deleted(group: ShareGroup, results: Sequence[Result], records: Records) -> None:
    """Forget the topics whose partitions were all deleted. The others stay Deleting, for another
    attempt."""
    failed = {result.partition.topic_id for result in results if result.code is not ErrorCode.none}
    for topic_id in {result.partition.topic_id for result in results} - failed:
        group.deleting.pop(topic_id, None)
    group.put_partitions(records)


def forget_topic(group: ShareGroup, topic_id: UUID, records: Records) -> None:
    """The topic was deleted."""
    known = [
        topics for topics in (group.initializing, group.initialized, group.deleting) if topic_id in topics
    ]
    for topics in known:
        del topics[topic_id]
    group.forget_attempts(topic_id)
    if known:
        group.must_compare_targets = True
        group.put_partitions(records)


def _discard(topics: dict[UUID, TopicPart], partition: TopicPartition) -> None:
    part = topics[partition.topic_id]
    part.partitions.discard(partition.partition)
    if not part.partitions:
        del topics[partition.topic_id]
