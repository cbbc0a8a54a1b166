"""The records that the state store keeps for each topic and its partitions, apart from the share
groups': reading them, the first ones, and the removal of all."""

from __future__ import annotations

from uuid import UUID

from kbroker.broker.logs.leader_epochs import EpochEntry
from kbroker.formats.state import (
    CleanedKey,
    LeaderEpoch,
    LeaderEpochKey,
    LogStart,
    LogStartKey,
    ProducerSnapshotKey,
    TopicKey,
    control_hint_topic_prefix,
    dead_letter_topic_prefix,
    given_up_topic_prefix,
    share_topic_prefix,
)
from kbroker.formats.transactions import TransactionalLogKey, aborted_prefix
from kbroker.storage.spi import Change, LogId, StateReader


def first_epochs(topic_id: UUID, indexes: range, leader_epoch: int) -> list[Change]:
    """New partitions begin with this broker life's epoch, at offset 0."""
    value = LeaderEpoch(0).encode()
    return [(LeaderEpochKey(topic_id, index, leader_epoch).encode(), value) for index in indexes]


def stored_epochs(store: StateReader, log: LogId) -> list[EpochEntry]:
    prefix = LeaderEpochKey(log.topic_id, log.partition, 0).encode()[:-4]
    return [
        EpochEntry(
            LeaderEpochKey.parse(key[len(LeaderEpochKey.namespace) :]).epoch,
            LeaderEpoch.decode(value).start_offset,
        )
        for key, value in store.scan(prefix)
    ]


def stored_log_start(store: StateReader, log: LogId) -> int:
    value = store.get(LogStartKey(log.topic_id, log.partition).encode())
    return 0 if value is None else LogStart.decode(value).offset


def removal_of(store: StateReader, topic_id: UUID, partitions: int) -> list[Change]:
    """The changes that remove every record of a topic from the state store, the topic's own record
    last."""
    changes: list[Change] = []
    for index in range(partitions):
        changes.append((LogStartKey(topic_id, index).encode(), None))
        changes.append((CleanedKey(topic_id, index).encode(), None))
        changes.append((TransactionalLogKey(topic_id, index).encode(), None))
        for key in (
            LeaderEpochKey(topic_id, index, 0).encode()[:-4],
            ProducerSnapshotKey(topic_id, index, 0).encode()[:-8],
            aborted_prefix(topic_id, index),
        ):
            changes += [(found, None) for found, _ in store.scan(key)]
    for prefix in (
        share_topic_prefix(topic_id),
        dead_letter_topic_prefix(topic_id),
        given_up_topic_prefix(topic_id),
        control_hint_topic_prefix(topic_id),
    ):
        changes += [(found, None) for found, _ in store.scan(prefix)]
    changes.append((TopicKey(topic_id).encode(), None))
    return changes
