"""Calls a stream reader as Spark's micro-batch execution does, one batch at a time, with a
checkpoint and a sink that survive a crash."""

from __future__ import annotations

import json
import pickle
from collections.abc import Container
from typing import Any, NamedTuple

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from kbroker_spark.schema import full_schema
from kbroker_spark.stream_reader import StreamReader


class Seen(NamedTuple):
    """A row in the sink."""

    topic: str
    partition: int
    offset: int


class Clock:
    """Stands still unless it is set or read: each reading advances it by `step`."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.step = 0.0
        self.slept = 0.0

    def __call__(self) -> float:
        self.seconds += self.step
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.slept += seconds
        self.seconds += seconds


class Checkpoint:
    """`offsets`: Spark's offset log, the end of each batch as text. `sink`: rows by batch, so that
    a batch that is written twice appears once."""

    def __init__(self) -> None:
        self.offsets: list[str] = []
        self.committed = 0
        self.sink: dict[int, list[Seen]] = {}

    @property
    def rows(self) -> list[Seen]:
        return sorted(row for rows in self.sink.values() for row in rows)

    def seen(self, topic: str, partition: int = 0) -> list[int]:
        """Offsets of all rows of a partition; duplicates appear twice."""
        return [row.offset for row in self.rows if row[:2] == (topic, partition)]

    @property
    def pinned(self) -> dict[tuple[str, int], int]:
        """Where the first batch ended."""
        topics = json.loads(self.offsets[0]).items()
        return {
            (topic, int(partition)): offset
            for topic, offsets in topics
            for partition, offset in offsets.items()
        }

    @property
    def end(self) -> Any:
        return json.loads(self.offsets[-1])


class Run:
    """One run of a query, from its start to its end or crash. The value of a record is its offset,
    or null at the offsets `nulls`."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        path: object,
        *,
        available_now: bool = False,
        nulls: Container[int] = (),
        **options: object,
    ) -> None:
        self.clock = Clock()
        self._nulls = nulls
        texts = {name: str(value) for name, value in {"path": path, **options}.items()}
        self.reader = StreamReader(texts, full_schema(include_headers=False), self.clock, self.clock.sleep)
        self._worker: StreamReader = pickle.loads(pickle.dumps(self.reader))
        self._checkpoint = checkpoint
        if available_now:
            self.reader.prepareForTriggerAvailableNow()
        if checkpoint.offsets:
            latest = json.loads(checkpoint.offsets[-1])
            assert self.reader.partitions(latest, latest) == []
        if checkpoint.committed < len(checkpoint.offsets):
            self._process(crash=False)

    def batch(self, limit: ReadLimit | None = None, *, crash: bool = False) -> bool:
        """Returns whether there was one. `crash`: it is in the offset log but not committed, and
        this run ends."""
        start = self._start(len(self._checkpoint.offsets))
        self.clock.seconds += 0.01
        end = json.dumps(
            self.reader.latestOffset(json.loads(start), limit or self.reader.getDefaultReadLimit())
        )
        if self._checkpoint.offsets and end == start:
            return False
        self._checkpoint.offsets.append(end)
        self._process(crash)
        return True

    def all_batches(self) -> int:
        """Like a run with Trigger.AvailableNow; returns the number of batches."""
        count = 0
        while self.batch():
            count += 1
            assert count < 1000, "it does not end"
        return count

    def _start(self, number: int) -> str:
        if number:
            return self._checkpoint.offsets[number - 1]
        first, second = json.dumps(self.reader.initialOffset()), json.dumps(self.reader.initialOffset())
        assert first == second
        return first

    def _process(self, crash: bool) -> None:
        number = len(self._checkpoint.offsets) - 1
        start, end = self._start(number), self._checkpoint.offsets[number]
        rows = []
        for partition in self.reader.partitions(json.loads(start), json.loads(end)):
            for batch in self._worker.read(pickle.loads(pickle.dumps(partition))):
                columns = [batch.column(name).to_pylist() for name in ("topic", "partition", "offset")]
                values = [None if offset in self._nulls else b"%d" % offset for offset in columns[2]]
                assert batch.column("value").to_pylist() == values
                rows += map(Seen, *columns)
        if not crash:
            self._checkpoint.sink[number] = rows
            self._checkpoint.committed = number + 1


ALL = ReadAllAvailable()
