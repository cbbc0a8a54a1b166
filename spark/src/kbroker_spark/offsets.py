"""Decides which offsets to read: starting and ending positions, ranges, their division into Spark
partitions, and lost records.

Pure: knows no directory and no Spark. The conventions are those of Spark's own Kafka source: an
offset is the next one to read, JSON is {"topic": {"0": 23}}, -2 is earliest and -1 latest, ends are
exclusive, and an offset need not have a record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import ceil, floor
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from kbroker_spark.errors import AFTER_LOSS, DataLoss, SourceError

LATEST = -1
EARLIEST = -2


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Bounds(NamedTuple):
    """`start`: the log start offset as clients see it; `end`: the next offset to be written. start
    <= end."""

    start: int
    end: int


class Edge(Enum):
    """A starting or ending position that is the same word for all partitions."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True)
class Offsets:
    """Positions by partition; LATEST and EARLIEST may be among them."""

    by_partition: Mapping[TopicPartition, int]


@dataclass(frozen=True)
class Timestamp:
    """In every partition, the first record that is not older. Milliseconds since 1970."""

    ms: int


@dataclass(frozen=True)
class Timestamps:
    """The same, with a time for each partition."""

    by_partition: Mapping[TopicPartition, int]


Position: TypeAlias = Edge | Offsets | Timestamp | Timestamps


class Aborted(NamedTuple):
    """An aborted transaction in one log: the transactional batches of this producer with first <=
    base offset < last. Its marker is at `last`."""

    producer_id: int
    first: int
    last: int


@dataclass(frozen=True)
class Range:
    """Records of one topic partition with first <= offset < end, without those of `aborted`. Only
    plain values: Spark pickles it.

    `aborted` is None if the log has no transactions, and with read_uncommitted empty."""

    topic: str
    topic_id: UUID
    partition: int
    first: int
    end: int
    aborted: tuple[Aborted, ...] | None = ()

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """The number of offsets; there may be fewer records."""
        return self.end - self.first


# --- JSON ---


def from_json(values: object) -> dict[TopicPartition, int]:
    """{"t": {"0": 23}} as parsed from JSON. ValueError for anything else."""
    found = {}
    for topic, by_partition in _object(values).items():
        for partition, number in _object(by_partition).items():
            if not partition.isascii() or not partition.isdecimal() or type(number) is not int:
                raise ValueError(f"{partition!r}: {number!r}")
            found[TopicPartition(topic, int(partition))] = number
    return found


def to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """The format of Spark's checkpoints: keys are strings, sorted by topic and partition number."""
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def _object(values: object) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise ValueError(f"{values!r} is not a JSON object")
    return values


# --- positions ---


def resolve(
    position: Position,
    bounds: Mapping[TopicPartition, Bounds],
    find: Callable[[TopicPartition, int], int | None],
    *,
    option: str,
    no_match: str = "error",
) -> dict[TopicPartition, int]:
    """The offset at which each partition of `bounds` begins or ends.

    `find(partition, ms)` returns the earliest offset whose record is not older than that, or None.
    For None, `no_match` selects an error or the partition's end. Explicit offsets are returned
    unchanged, whether or not the log has them: see `without_lost`. Raises SourceError if `option`'s
    JSON does not name exactly the partitions of `bounds`.
    """
    match position:
        case Edge.EARLIEST:
            return {partition: each.start for partition, each in bounds.items()}
        case Edge.LATEST:
            return {partition: each.end for partition, each in bounds.items()}
        case Offsets(by_partition):
            _check_names_all(by_partition, bounds, option)
            return {partition: _edge(by_partition[partition], each) for partition, each in bounds.items()}
        case Timestamp(ms):
            times: Mapping[TopicPartition, int] = dict.fromkeys(bounds, ms)
        case Timestamps(times):
            _check_names_all(times, bounds, option)
    return {
        partition: _at_time(partition, times[partition], each, find, no_match)
        for partition, each in bounds.items()
    }


def _edge(offset: int, bounds: Bounds) -> int:
    return {LATEST: bounds.end, EARLIEST: bounds.start}.get(offset, offset)


def _at_time(
    partition: TopicPartition,
    ms: int,
    bounds: Bounds,
    find: Callable[[TopicPartition, int], int | None],
    no_match: str,
) -> int:
    found = find(partition, ms)
    if found is not None:
        return found
    if no_match == "error":
        raise SourceError(
            f"No offset matched from request of topic-partition {partition} and timestamp {ms}: all its "
            "records are older; "
            "give an earlier time, or set startingOffsetsByTimestampStrategy to latest"
        )
    return bounds.end


def _check_names_all(
    named: Mapping[TopicPartition, int], wanted: Mapping[TopicPartition, Bounds], option: str
) -> None:
    if named.keys() != wanted.keys():
        hint = "; use -1 for latest, -2 for earliest" if option.endswith("Offsets") else ""
        raise SourceError(
            f"If {option} contains specific values, you must specify all TopicPartitions{hint}: "
            f"specified {_listed(named)}, to be read {_listed(wanted)}"
        )


def _listed(partitions: Iterable[TopicPartition]) -> str:
    names = [str(each) for each in sorted(partitions)]
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return ", ".join(names[:10]) + more if names else "none"


# --- lost records ---


def without_lost(wanted: Range, bounds: Bounds) -> tuple[Range, str | None]:
    """The part of `wanted` that lies within the log, and a line about the lost part, or None.

    An empty range loses nothing. Holes inside the log are not a loss: offsets need not have
    records.
    """
    if wanted.size <= 0:
        return wanted, None
    first, end = max(wanted.first, bounds.start), min(wanted.end, bounds.end)
    if (first, end) == (wanted.first, wanted.end):
        return wanted, None
    first = min(first, wanted.end)
    name = wanted.topic_partition
    if first > wanted.first:
        text = f"offsets {wanted.first} to {first - 1} of {name} are gone, its log begins at {bounds.start}"
    else:
        text = (
            f"offsets {max(end, wanted.first)} to {wanted.end - 1} of {name} are not there, its log "
            f"ends at {bounds.end}"
        )
    return replace(wanted, first=first, end=max(first, end)), text


def data_loss(text: str, resume: int | None = None) -> DataLoss:
    """The error for a line of `without_lost`."""
    return DataLoss(
        f"Some data may have been lost: {text} (retention, DeleteRecords or a deleted topic). {AFTER_LOSS}",
        resume,
    )


# --- Spark partitions ---


def split(
    ranges: Iterable[Range], *, min_partitions: int | None = None, max_records: int | None = None
) -> list[Range]:
    """Ranges for Spark partitions, in the order of `ranges`; empty ones are dropped.

    `max_records` limits the offsets of a range. `min_partitions` is a hint: large ranges are
    divided in proportion to their size and small ones stay whole, so the number of partitions may
    differ slightly.
    """
    pieces = [each for each in ranges if each.size > 0]
    if max_records is not None:
        pieces = [part for each in pieces for part in _divide(each, ceil(each.size / max_records))]
    if min_partitions is None or len(pieces) >= min_partitions:
        return pieces
    total = sum(each.size for each in pieces)
    small = {each for each in pieces if _parts(each.size, total, min_partitions) == 1}
    large_total = total - sum(each.size for each in small)
    wanted = max(min_partitions - len(small), 1)
    return [
        part
        for each in pieces
        for part in ((each,) if each in small else _divide(each, _parts(each.size, large_total, wanted)))
    ]


def _parts(size: int, total: int, wanted: int) -> int:
    return max(floor(size / total * wanted + 0.5), 1)


def _divide(whole: Range, parts: int) -> Iterator[Range]:
    """Parts as even as possible, none empty. The remainder goes to the later parts."""
    parts = min(parts, whole.size)
    first = whole.first
    for number in range(parts):
        end = first + (whole.end - first) // (parts - number)
        yield replace(whole, first=first, end=end)
        first = end


def ranges(
    partitions: Mapping[TopicPartition, UUID],
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> Sequence[Range]:
    """A range for each partition, from its start to its end; one that ends before it starts is
    empty."""
    return [
        Range(each.topic, topic_id, each.partition, starts[each], max(starts[each], ends[each]))
        for each, topic_id in sorted(partitions.items())
    ]
