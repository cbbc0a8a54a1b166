"""The producer state of a partition across restarts: a snapshot in the state store, and the tail of the log replayed on top.

A snapshot is saved after every `SNAPSHOT_BYTES` of appends and at a clean stop, so that a replay reads little; what expired or
fell below the log start is left out of the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.broker.producer_state import ProducerStates
from kbroker.broker.stored_batches import iter_possible
from kbroker.clock import wall_clock_ms
from kbroker.errors import KafkaError
from kbroker.state_records import ProducerSnapshot, ProducerSnapshotKey
from kbroker.storage.spi import Change, StateReader

if TYPE_CHECKING:
    from kbroker.broker.partition import Partition

SNAPSHOT_BYTES = 64 << 20
_REPLAY_BYTES = 4 << 20


def load_producers(partition: Partition, store: StateReader) -> ProducerStates:
    """The state as of the high watermark. Call it before anything is appended in this broker life.

    A replayed batch counts as written now: records may bear any timestamp, and a producer must not be forgotten for that.
    """
    now_ms = wall_clock_ms()
    states = ProducerStates()
    offset = partition.log_start_offset
    log = partition.log
    for key, value in store.scan(ProducerSnapshotKey(log.topic_id, log.partition, 0).encode()[:-8]):
        snapshot_offset = ProducerSnapshotKey.parse(key[len(ProducerSnapshotKey.namespace) :]).offset
        if snapshot_offset <= partition.high_watermark:
            states = ProducerStates(ProducerSnapshot.decode(value).producers)
            offset = max(offset, snapshot_offset)
    while offset < partition.high_watermark:
        try:
            views = partition.read_now(offset, max_bytes=_REPLAY_BYTES, end_offset=partition.high_watermark)
        except KafkaError:  # It has been reported. Producers from behind it are new ones, as if they had expired.
            break
        if not views:
            break
        for _, _, header in iter_possible(views, partition.high_watermark):
            if header.has_producer and header.base_offset >= offset:
                written_ms = header.max_timestamp_ms if header.is_log_append_time else now_ms
                states.replay(header, header.base_offset, written_ms)
            offset = max(offset, header.last_offset + 1)
    return states


def snapshot_changes(partition: Partition, store: StateReader, oldest_ms: int) -> list[Change]:
    """What saves the producer state of a partition with nothing in flight, replacing earlier snapshots. Empty if never loaded."""
    states = partition.loaded_producers
    if states is None or not states.settled or not partition.settled:
        return []
    states.expire(oldest_ms)
    log = partition.log
    key = ProducerSnapshotKey(log.topic_id, log.partition, partition.high_watermark).encode()
    changes: list[Change] = [(found, None) for found, _ in store.scan(key[:-8]) if found != key]
    changes.append((key, ProducerSnapshot(tuple(states)).encode()))
    partition.bytes_since_snapshot = 0
    return changes
