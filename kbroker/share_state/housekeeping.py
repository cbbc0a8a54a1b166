"""Which share-partitions get a cold snapshot: those that have fallen idle with updates behind their
snapshot (share coordinator housekeeping). Pure.

A snapshot removes the updates that it includes. So a busy share-partition never has more than
share.coordinator.snapshot.update.records.per.snapshot of them. An idle one would keep its updates
for good: hundreds of records to load, where one would do. So a snapshot that is older than an
interval, and has updates after it, is replaced.

No other housekeeping is needed. Kafka prunes its state topic below the oldest live snapshot. Here a
snapshot removes the keys of the updates that it includes, and a deletion all keys of the
share-partition; an engine reclaims the space itself (docs/internals/share-partitions.md has the
measurement). This module must not know what runs it, nor how often.
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
    """True if `state` has updates, and its snapshot was written at least `interval_ms` ago. Also
    true if it was written later than now: the clock was set."""
    return state.updates > 0 and not 0 <= now_ms - state.write_timestamp < interval_ms


def state_prefix(partition: TopicPartition) -> bytes:
    """The prefix of the share state of all groups on one topic partition."""
    return share_topic_prefix(partition.topic_id) + partition.partition.to_bytes(4, "big")


def with_updates(stored: Iterable[tuple[bytes, bytes]]) -> Sequence[SharePartitionKey]:
    """The share-partitions that have updates in a scan of share state."""
    found: dict[SharePartitionKey, None] = {}
    for encoded, _ in stored:
        key = parse_key(encoded)
        assert isinstance(key, ShareStateKey)
        if key.number:
            found[SharePartitionKey(key.group_id, TopicPartition(key.topic_id, key.partition))] = None
    return tuple(found)
