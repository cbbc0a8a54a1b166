"""Which share-partitions get a cold snapshot: those whose stored state is more than it need be
(share coordinator housekeeping). Pure.

A snapshot removes the updates that it takes in, so a busy share-partition never keeps more than
share.coordinator.snapshot.update.records.per.snapshot of them. One that falls idle would keep what
it has got for good: hundreds of records to load where one says the same. So a snapshot that is
older than an interval, and has updates after it, is replaced.

Nothing else is to be kept house of. Kafka prunes its state topic below the oldest live snapshot;
here an update's key is removed with the snapshot that takes it in and a deleted share-partition's
keys with it, and an engine gives up by itself what no key needs any more (docs/persisters.md has
the measurement). This module must not know who runs it, nor how often.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kbroker.formats.state import ShareStateKey, parse_key, share_topic_prefix
from kbroker.share.persister import TopicPartition
from kbroker.share_state.loading import ShareState


class SharePartitionKey(NamedTuple):
    group_id: str
    partition: TopicPartition


def is_cold(state: ShareState, *, now_ms: int, interval_ms: int) -> bool:
    """Whether `state` has updates and its snapshot was written at least `interval_ms` ago, or later
    than now: somebody set the clock."""
    return state.updates > 0 and not 0 <= now_ms - state.write_timestamp < interval_ms


def state_prefix(partition: TopicPartition) -> bytes:
    """Scan this for the share state of all groups on one topic partition."""
    return share_topic_prefix(partition.topic_id) + partition.partition.to_bytes(4, "big")


def with_updates(stored: Iterable[tuple[bytes, bytes]]) -> Sequence[SharePartitionKey]:
    """The share-partitions that have updates in what a scan of share state gave."""
    found: dict[SharePartitionKey, None] = {}
    for encoded, _ in stored:
        key = parse_key(encoded)
        assert isinstance(key, ShareStateKey)
        if key.number:
            found[SharePartitionKey(key.group_id, TopicPartition(key.topic_id, key.partition))] = None
    return tuple(found)
