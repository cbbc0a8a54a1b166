"""Data directories written through the engines themselves, without a broker: rare content takes one
line.

    with writing(tmp_path, "segment") as data:
        topic = data.topic("t", partitions=2)
        data.append(topic, 0, batch([Record(...)], offset=100))
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

from kbroker import plugins
from kbroker.formats.batches import Record, build_batch, read_header
from kbroker.formats.compression import Codec
from kbroker.formats.state import (
    Config,
    ConfigKey,
    LogStart,
    LogStartKey,
    ResourceType,
    Topic,
    TopicKey,
    TopicState,
)
from kbroker.storage.data_dir import DESCRIPTION
from kbroker.storage.spi import LogId, LogSettings, LogStore, StampedBatch, StateStore

SMALL = LogSettings(segment_bytes=1 << 12)


def records(count: int, *, first_ms: int = 1000, step_ms: int = 1) -> list[Record]:
    """Values count up from 0 in each call; the batch determines the offsets."""
    return [
        Record(0, first_ms + number * step_ms, b"k%d" % number, b"v%d" % number) for number in range(count)
    ]


def batch(content: Sequence[Record], offset: int, *, codec: Codec = Codec.NONE, attributes: int = 0) -> bytes:
    return build_batch(content, base_offset=offset, codec=codec, attributes=attributes)


@dataclass
class Stored:
    """A directory that is open for writing."""

    path: Path
    logs: LogStore
    state: StateStore

    def topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        state: TopicState = TopicState.LIVE,
        settings: LogSettings = SMALL,
        **config: str,
    ) -> UUID:
        topic_id = uuid4()
        self.state.write([(TopicKey(topic_id).encode(), Topic(name, partitions, 5, state).encode())])
        if config:
            entries = {key.replace("_", "."): value for key, value in config.items()}
            self.state.write([(ConfigKey(ResourceType.TOPIC, name).encode(), Config(entries).encode())])
        for partition in range(partitions):
            self.logs.create(LogId(topic_id, partition), settings)
        return topic_id

    def append(self, topic_id: UUID, partition: int, *batches: bytes) -> None:
        for data in batches:
            self.append_all(topic_id, partition, [data])

    def append_all(self, topic_id: UUID, partition: int, batches: Iterable[bytes]) -> None:
        """In one call of the engine."""
        headers = [(read_header(data), data) for data in batches]
        log = LogId(topic_id, partition)
        stamped = [
            StampedBatch(log, each.base_offset, each.last_offset, each.max_timestamp_ms, data)
            for each, data in headers
        ]
        self.logs.write(stamped, now_ms=1)
        self.logs.sync()

    def log_start(self, topic_id: UUID, partition: int, offset: int) -> None:
        """The state after DeleteRecords."""
        self.state.write([(LogStartKey(topic_id, partition).encode(), LogStart(offset).encode())])
        self.state.sync()

    def tombstone(self, topic_id: UUID, name: str, partitions: int = 1) -> None:
        """The first half of a deletion; `logs.drop` is the other."""
        self.state.write(
            [(TopicKey(topic_id).encode(), Topic(name, partitions, 5, TopicState.DELETING).encode())]
        )


def describe(path: Path, **changes: object) -> None:
    """kbroker.json."""
    values = {
        "format_version": 1,
        "cluster_id": "AAAAAAAAAAAAAAAAAAAAAA",
        "log_engine": "segment",
        "state_engine": "segment",
        **changes,
    }
    path.mkdir(parents=True, exist_ok=True)
    (path / DESCRIPTION).write_text(json.dumps(values))


@contextmanager
def writing(path: Path, engine: str = "segment", **options: str) -> Iterator[Stored]:
    """Closed cleanly on exit; `options` are those of the log engine."""
    describe(path, log_engine=engine, state_engine=engine)
    logs: LogStore = plugins.log_store_factory(engine).open(path / f"log-{engine}", options, 1)
    state: StateStore = plugins.state_store_factory(engine).open(path / f"state-{engine}", {}, 1)
    try:
        yield Stored(path, logs, state)
    finally:
        logs.close()
        state.close()
