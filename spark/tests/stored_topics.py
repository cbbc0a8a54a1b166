"""Topics without a broker, step by step: they grow, lose their beginning or end, are deleted and
recreated."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

from kbroker.formats.batches import Record, build_batch
from kbroker.formats.state import Topic, TopicKey
from kbroker.storage.spi import LogId, LogSettings
from spark.tests.stored import Stored, writing

_NOW_MS = 1_700_000_000_000
_ONE_BATCH_PER_SEGMENT = LogSettings(segment_bytes=1)


class StoredTopics:
    """Each record's value is its offset, its timestamp `_NOW_MS` plus its offset; each call of
    `append` makes a batch and a segment."""

    def __init__(self, data: Stored) -> None:
        self.path = data.path
        self._data = data
        self._topics: dict[str, tuple[UUID, int]] = {}

    def create(self, topic: str, partitions: int = 1) -> None:
        """Create a topic, or add partitions to it."""
        topic_id, _ = self._topics.get(topic, (uuid.uuid4(), 0))
        self._topics[topic] = topic_id, partitions
        for partition in range(partitions):
            self._data.logs.create(LogId(topic_id, partition), _ONE_BATCH_PER_SEGMENT)
        self._data.state.write([(TopicKey(topic_id).encode(), Topic(topic, partitions, _NOW_MS).encode())])

    def append(self, topic: str, count: int, partition: int = 0, *, behind_hole_of: int = 0) -> None:
        log = self._log(topic, partition)
        first = self._data.logs.bounds(log).end_offset + behind_hole_of
        records = [
            Record(0, _NOW_MS + offset, None, b"%d" % offset) for offset in range(first, first + count)
        ]
        self._data.append(*log, build_batch(records, base_offset=first))

    def trim(self, topic: str, start: int, partition: int = 0) -> None:
        """Like retention: `start` is the end of a segment."""
        self._data.logs.trim(self._log(topic, partition), start)

    def delete_records(self, topic: str, start: int, partition: int = 0) -> None:
        """Like DeleteRecords, which leaves segments unchanged."""
        self._data.log_start(*self._log(topic, partition), start)

    def truncate(self, topic: str, end: int, partition: int = 0) -> None:
        """Like a power cut: `end` is the end of a batch."""
        self._data.logs.truncate(self._log(topic, partition), end)

    def delete(self, topic: str) -> None:
        topic_id, partitions = self._topics.pop(topic)
        self._data.tombstone(topic_id, topic, partitions)
        for partition in range(partitions):
            self._data.logs.drop(LogId(topic_id, partition))

    def _log(self, topic: str, partition: int) -> LogId:
        return LogId(self._topics[topic][0], partition)


def time_of(offset: int) -> str:
    """A timestamp as an option's value."""
    return str(_NOW_MS + offset)


@contextmanager
def stored_topics(path: Path, topics: Mapping[str, int] | None = None) -> Iterator[StoredTopics]:
    """`topics`: partitions by name."""
    with writing(path) as data:
        stored = StoredTopics(data)
        for topic, partitions in (topics or {}).items():
            stored.create(topic, partitions)
        yield stored
