"""Resolves a selection of topics, and a time, against a data directory: to partitions with their
bounds, and to offsets.

Used to plan batch and streaming queries. Must not know Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kbroker.formats.batches import BatchHeader, iter_headers, iter_records
from kbroker.formats.compression import CorruptPayload
from kbroker.formats.state import Topic, TopicKey, TopicState
from kbroker.storage.spi import LogId, LogReader
from kbroker_spark.data import DataDir, TopicInfo, bounds_from, log_starts, topics
from kbroker_spark.errors import SourceError
from kbroker_spark.offsets import Bounds, TopicPartition
from kbroker_spark.options import Assign, Selection, Subscribe, SubscribePattern
from kbroker_spark.segment_damage import missing, saved_indexes
from kbroker_spark.transactions import Committed

_SCAN_BYTES = 1 << 20


@dataclass(frozen=True)
class Partition:
    """A partition that a query reads."""

    topic: TopicInfo
    number: int
    bounds: Bounds
    damage: tuple[tuple[int, int], ...] = ()
    """Ranges [first, end) of offsets that cannot be read although the files prove that they
    existed."""
    committed: Committed | None = None
    """With kafka.isolation.level=read_committed: what such a consumer may read."""

    @property
    def log(self) -> LogId:
        return self.topic.log(self.number)

    @property
    def readable(self) -> Bounds:
        """The bounds of the records that a query may read."""
        return self.bounds if self.committed is None else Bounds(self.bounds.start, self.committed.end)


def look(
    directory: DataDir, selection: Selection, *, missing_ok: bool = False, with_damage: bool = False
) -> dict[TopicPartition, Partition]:
    """The partitions that `selection` names, with their current bounds, in order of topic and
    number. `with_damage` also reads the metadata of each log's newest segments.

    Topics deleted during the call are left out. Raises SourceError if a named topic or partition
    does not exist (unless `missing_ok`), or if its log is missing.
    """
    state = directory.state()
    starts, live = log_starts(state), topics(state)
    # Only now: a frozen reader opened earlier might lack the logs of topics created since.
    logs = directory.logs()
    damage = _damage_of(directory) if with_damage else _no_damage
    found: dict[TopicPartition, Partition] = {}
    for topic, numbers in _selected(live, selection, directory, missing_ok):
        for number in numbers:
            try:
                log = topic.log(number)
                there = bounds_from(logs, log, starts.get(log, 0))
                found[TopicPartition(topic.name, number)] = Partition(topic, number, there, damage(log))
            except KeyError as error:
                directory.refresh()
                logs = directory.logs()
                if _is_live(directory, topic):
                    raise SourceError(
                        f"{directory.path} has no log of {topic.name}-{number}: the directory was copied "
                        "in part, or damaged; "
                        "look with kbroker storage inspect"
                    ) from error
    return found


def _damage_of(directory: DataDir) -> Callable[[LogId], tuple[tuple[int, int], ...]]:
    """Only the segment engine needs this; the databases of other engines check themselves."""
    if directory.description.log_engine != "segment":
        return _no_damage
    saved = saved_indexes(directory.log_path)
    return lambda log: tuple(missing(directory.log_path, saved, log, directory.logs()))


def _no_damage(_: LogId) -> tuple[tuple[int, int], ...]:
    return ()


def _is_live(directory: DataDir, topic: TopicInfo) -> bool:
    value = directory.state().get(TopicKey(topic.topic_id).encode())
    return value is not None and Topic.decode(value).state is TopicState.LIVE


def _selected(
    live: Sequence[TopicInfo], selection: Selection, directory: DataDir, missing_ok: bool
) -> Iterator[tuple[TopicInfo, Iterable[int]]]:
    by_name = {topic.name: topic for topic in live}
    match selection:
        case SubscribePattern(pattern):
            matches = re.compile(pattern).fullmatch
            yield from ((topic, range(topic.partitions)) for topic in live if matches(topic.name))
        case Subscribe(names):
            for name in sorted(names):
                if missing_ok and name not in by_name:
                    continue
                topic = _named(by_name, name, directory)
                yield topic, range(topic.partitions)
        case Assign(partitions):
            for name in sorted({each.topic for each in partitions}):
                if missing_ok and name not in by_name:
                    continue
                topic = _named(by_name, name, directory)
                numbers = sorted(each.partition for each in partitions if each.topic == name)
                if missing_ok:
                    numbers = [number for number in numbers if number < topic.partitions]
                elif numbers[-1] >= topic.partitions:
                    raise SourceError(
                        f"topic {name} has no partition {numbers[-1]}: it has {topic.partitions}, the "
                        "first is 0"
                    )
                yield topic, numbers


def _named(by_name: Mapping[str, TopicInfo], name: str, directory: DataDir) -> TopicInfo:
    if name in by_name:
        return by_name[name]
    names = sorted(by_name)
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    there = f"there are {', '.join(names[:10])}{more}" if names else "there are no topics"
    raise SourceError(f"there is no topic {name} in {directory.path}: {there}")


def offset_at_time(logs: LogReader, partition: Partition, timestamp_ms: int) -> int | None:
    """The earliest readable offset whose record is not older than `timestamp_ms`; None if all
    records are older.

    Exact for each record, like Kafka's ListOffsets, even if times are out of order. Raises KeyError
    if the log was deleted.
    """
    log = partition.log
    base_offset = logs.find_by_timestamp(log, timestamp_ms)
    if base_offset is None:
        return None
    start, end = partition.readable
    offset, max_bytes = max(base_offset, start), 1  # usually the first batch has the record
    while offset < end and (views := logs.read(log, offset, max_bytes=max_bytes, end_offset=end)):
        for view in views:
            for position, header in iter_headers(view):
                found = _in_batch(view, position, header, partition, timestamp_ms)
                if found is not None:
                    return found if found < end else None
                offset = header.last_offset + 1
        max_bytes = _SCAN_BYTES
    return None


def _in_batch(
    view: memoryview, position: int, header: BatchHeader, partition: Partition, timestamp_ms: int
) -> int | None:
    if header.is_control or header.max_timestamp_ms < timestamp_ms:
        return None
    try:
        for record in iter_records(view, position):
            if record.timestamp_ms >= timestamp_ms and record.offset >= partition.bounds.start:
                return record.offset
    except CorruptPayload as error:
        raise SourceError(
            f"{partition.topic.name}-{partition.number} is damaged at offset {header.base_offset} "
            f"({error}), so no offset can be found by "
            "time: give offsets, and look with kbroker storage inspect --check"
        ) from error
    return None
