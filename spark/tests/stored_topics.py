"""A data directory written by the engines themselves, without a broker: topics that grow, lose segments, and are deleted, step by step."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kbroker import plugins
from kbroker.records import Record, build_batch
from kbroker.state_records import LogStart, LogStartKey, Topic, TopicKey
from kbroker.storage.data_dir import DataDirectory
from kbroker.storage.spi import LogId, LogSettings, LogStore, StampedBatch, StateStore

_NOW_MS = 1_700_000_000_000
_ONE_BATCH_PER_SEGMENT = LogSettings(segment_bytes=1)


class StoredTopics:
    """Each record's value is its offset, its time `_NOW_MS` plus its offset; each call of `append` is a batch and a segment of its own."""

    def __init__(self, path: Path, logs: LogStore, state: StateStore) -> None:
        self.path = path
        self._logs = logs
        self._state = state
        self._ids: dict[str, uuid.UUID] = {}

    def create(self, topic: str, partitions: int = 1) -> None:
        """Or give it more partitions."""
        topic_id = self._ids.setdefault(topic, uuid.uuid4())
        for partition in range(partitions):
            self._logs.create(LogId(topic_id, partition), _ONE_BATCH_PER_SEGMENT)
        self._state.write([(TopicKey(topic_id).encode(), Topic(topic, partitions, _NOW_MS).encode())])

    def append(self, topic: str, count: int, partition: int = 0, *, behind_hole_of: int = 0) -> None:
        log = LogId(self._ids[topic], partition)
        first = self._logs.bounds(log).end_offset + behind_hole_of
        records = [Record(0, _NOW_MS + offset, None, b"%d" % offset) for offset in range(first, first + count)]
        data = build_batch(records, base_offset=first)
        self._logs.write([StampedBatch(log, first, first + count - 1, records[-1].timestamp_ms, data)], now_ms=_NOW_MS)

    def trim(self, topic: str, start: int, partition: int = 0) -> None:
        """As retention: `start` is the end of a segment."""
        self._logs.trim(LogId(self._ids[topic], partition), start)

    def delete_records(self, topic: str, start: int, partition: int = 0) -> None:
        """As DeleteRecords, of which no segment knows."""
        self._state.write([(LogStartKey(self._ids[topic], partition).encode(), LogStart(start).encode())])

    def truncate(self, topic: str, end: int, partition: int = 0) -> None:
        """As a power cut: `end` is the end of a batch."""
        self._logs.truncate(LogId(self._ids[topic], partition), end)

    def delete(self, topic: str) -> None:
        topic_id = self._ids.pop(topic)
        self._state.write([(TopicKey(topic_id).encode(), None)])
        for partition in range(10):
            self._logs.drop(LogId(topic_id, partition))


def time_of(offset: int) -> str:
    """An option's value."""
    return str(_NOW_MS + offset)


@contextmanager
def stored_topics(path: Path, topics: Mapping[str, int] | None = None) -> Iterator[StoredTopics]:
    """`topics`: partitions by name."""
    with DataDirectory.open(path, "segment", "segment") as directory:
        logs = plugins.log_store_factory("segment").open(directory.log_path, {}, 1)
        state = plugins.state_store_factory("segment").open(directory.state_path, {}, 1)
        try:
            stored = StoredTopics(path, logs, state)
            for topic, partitions in (topics or {}).items():
                stored.create(topic, partitions)
            yield stored
        finally:
            logs.close()
            state.close()
