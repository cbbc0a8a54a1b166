"""Offsets of a stream: the content of a checkpoint, the end of the next micro-batch, and the ranges
that a planned batch reads. Pure.

A checkpoint has the JSON of Spark's Kafka source, `{"orders": {"0": 23, "1": 40}}`: the next offset
to read by topic and partition. A recreated topic has the name of the old one but starts its offsets
again. Each topic's id is therefore stored too, as a topic without partitions whose name is not a
legal topic name: `{"orders": {"0": 23}, "orders#bbbbbbbbQkOAAAAAAAAAAA": {}}`. Spark's Kafka source
reads nothing from that entry, and this source accepts checkpoints without ids. A query can thus
move between the sources with its checkpoint, in both directions.

Lost records (see failOnDataLoss) are detected in three places:

- `available` compares the checkpoint with the disk before Spark stores a batch. A query that must
  not lose records then stops with a checkpoint that is still valid.
- `ranges` checks again, because a batch stored before a crash is read after it.
- The readers of the ranges check while they read.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from kbroker_spark.errors import SourceError
from kbroker_spark.limits import Span
from kbroker_spark.offsets import Bounds, Range, TopicPartition, from_json, to_json, without_lost
from kbroker_spark.transactions import Committed

StreamJson: TypeAlias = dict[str, dict[str, int]]


class LogState(NamedTuple):
    """A partition on disk. `committed`: with kafka.isolation.level=read_committed, what such a
    consumer may read."""

    topic_id: UUID
    bounds: Bounds
    committed: Committed | None = None

    @property
    def end(self) -> int:
        """A stream reads up to here."""
        return self.bounds.end if self.committed is None else self.committed.end


Picture: TypeAlias = Mapping[TopicPartition, LogState]
"""All partitions that a stream reads, as of one moment."""


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The position of a stream: the next offset of each partition. `ids` may lack topics, since a
    checkpoint of Spark's Kafka source has no ids."""

    next: Mapping[TopicPartition, int]
    ids: Mapping[str, UUID]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StreamOffset:
        """Raises SourceError if it was written neither by this source nor by Spark's Kafka
        source."""
        marks = [topic.partition("#") for topic in value if "#" in topic]
        try:
            offsets = from_json({topic: offsets for topic, offsets in value.items() if "#" not in topic})
            ids = {topic: UUID(bytes=urlsafe_b64decode(text + "==")) for topic, _, text in marks}
        except ValueError as error:
            raise SourceError(
                f'the checkpoint holds {value!r}, not offsets like {{"topic": {{"0": 23}}}}: it '
                "belongs to another source; "
                "give the query its own checkpointLocation"
            ) from error
        return cls(offsets, ids)

    def to_json(self) -> StreamJson:
        """Equal offsets give equal text, which Spark compares."""
        offsets = to_json(self.next)
        marks: StreamJson = {
            f"{topic}#{_id_text(topic_id)}": {}
            for topic, topic_id in sorted(self.ids.items())
            if topic in offsets
        }
        return offsets | marks

    def is_of(self, topic: str, topic_id: UUID) -> bool:
        """Whether its offsets may belong to the topic with this id: the id is equal or unknown."""
        return self.ids.get(topic, topic_id) == topic_id

    def continues(self, other: StreamOffset, topic: str) -> bool:
        """Whether both may have offsets of the same topic: the ids are equal or unknown."""
        return topic not in other.ids or self.is_of(topic, other.ids[topic])

    def same_place(self, other: StreamOffset) -> bool:
        """Whether a batch from here to `other` has nothing to read and nothing new to store."""
        return self.next == other.next and all(self.continues(other, topic) for topic in self.ids)


def _id_text(topic_id: UUID) -> str:
    """As Kafka's tools print it."""
    return urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def offset_at(ends: Mapping[TopicPartition, int], picture: Picture) -> StreamOffset:
    """The stream's offset once it has read up to `ends`."""
    return StreamOffset(dict(ends), {each.topic: picture[each].topic_id for each in ends})


@dataclass(slots=True)
class Available:
    """`spans`: the offsets that can be read next, by partition. `losses`: one line for each
    loss."""

    spans: dict[TopicPartition, Span] = field(default_factory=dict)
    losses: list[str] = field(default_factory=list)


def available(start: StreamOffset, picture: Picture, target: Picture | None = None) -> Available:
    """The offsets that can be read after `start`. With a `target` (Trigger.AvailableNow), offsets
    and partitions newer than it are left out."""
    found = Available(losses=_gone(start, picture))
    for partition, state in sorted(picture.items()):
        end = state.end
        if target is not None:
            if partition not in target or target[partition].topic_id != state.topic_id:
                continue
            end = min(end, target[partition].end)
        first, loss = _first(start, partition, state)
        found.losses += [loss] if loss else []
        found.spans[partition] = Span(first, max(first, end))
    return found


def _gone(start: StreamOffset, picture: Picture) -> list[str]:
    """Lines about the topics and partitions of `start` that no longer exist."""
    present = {partition.topic: state.topic_id for partition, state in picture.items()}
    topics = sorted({partition.topic for partition in start.next})
    lines = [
        f"topic {topic} is gone: it was deleted, or is no longer subscribed to"
        for topic in topics
        if topic not in present
    ]
    recreated = [topic for topic in topics if topic in present and not start.is_of(topic, present[topic])]
    lines += [f"topic {topic} was deleted and recreated" for topic in recreated]
    told = {topic for topic in topics if topic not in present} | set(recreated)
    return lines + [
        f"partition {each} is gone"
        for each in sorted(start.next)
        if each not in picture and each.topic not in told
    ]


def _first(start: StreamOffset, partition: TopicPartition, state: LogState) -> tuple[int, str | None]:
    """The next offset to read of a partition, with a line if it differs from `start`. New
    partitions begin at the earliest offset."""
    begin, end = state.bounds
    if not start.is_of(partition.topic, state.topic_id):
        return begin, None
    first = start.next.get(partition)
    if first is None:
        return (
            begin,
            f"partition {partition} is new, and its offsets below {begin} are already gone"
            if begin > 0
            else None,
        )
    if first < begin:
        return begin, f"offsets {first} to {begin - 1} of {partition} are gone, its log begins at {begin}"
    if first > end:
        return end, f"offset {first} of {partition} was to be read next, but its log ends at {end}"
    return first, None


def ranges(start: StreamOffset, end: StreamOffset, picture: Picture) -> tuple[list[Range], list[str]]:
    """The ranges of a batch from `start` to `end`, without empty ones, and a line for each loss
    since `end` was planned."""
    planned = []
    losses = []
    for partition, until in sorted(end.next.items()):
        if start.next.get(partition) == until and start.continues(end, partition.topic):
            continue
        state = picture.get(partition)
        if state is None or not end.is_of(partition.topic, state.topic_id):
            losses.append(f"{partition} is gone: its offsets below {until} were to be read")
            continue
        first, lost_below = _first(start, partition, state)
        wanted = Range(partition.topic, state.topic_id, partition.partition, first, until)
        there, lost_above = without_lost(wanted, state.bounds)
        losses += [line for line in (lost_below, lost_above) if line]
        planned += [there] if there.size > 0 else []
    return planned, losses
