"""Offsets of a stream: what a checkpoint keeps, how far the next micro-batch goes, and which ranges
a planned one reads. Pure.

A checkpoint has the JSON of Spark's Kafka source, `{"orders": {"0": 23, "1": 40}}`: next offset to
read by topic and partition. A recreated topic has the name of the old one and offsets of its own,
so beside each topic there is its id, as a topic without partitions whose name no topic can have:
`{"orders": {"0": 23}, "orders#bbbbbbbbQkOAAAAAAAAAAA": {}}`. Spark's Kafka source reads that as
nothing, and here a checkpoint without ids is taken as it is: a query moves over with its
checkpoint, in both directions.

What was lost (see failOnDataLoss) is looked for twice. `available` compares the checkpoint with
what is on disk before a batch is written down, so that a query that must not lose anything stops
with a checkpoint that is still true. `ranges` looks again, because a batch that was written down
before a crash is read after it. The readers of the ranges look once more, while they read.
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

StreamJson: TypeAlias = dict[str, dict[str, int]]


class LogState(NamedTuple):
    """One partition on disk."""

    topic_id: UUID
    bounds: Bounds


Picture: TypeAlias = Mapping[TopicPartition, LogState]
"""All partitions that a stream reads, as they are at one moment."""


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """Where a stream stands: the next offset of each partition. `ids` may lack topics: a checkpoint
    of Spark's Kafka source has none."""

    next: Mapping[TopicPartition, int]
    ids: Mapping[str, UUID]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StreamOffset:
        """SourceError where it is neither ours nor that of Spark's Kafka source."""
        marks = [topic.partition("#") for topic in value if "#" in topic]
        try:
            offsets = from_json({topic: offsets for topic, offsets in value.items() if "#" not in topic})
            ids = {topic: UUID(bytes=urlsafe_b64decode(text + "==")) for topic, _, text in marks}
        except ValueError as error:
            raise SourceError(
                f'the checkpoint holds {value!r}, not offsets like {{"topic": {{"0": 23}}}}: it is another '
                "source's; "
                "give the query a checkpointLocation of its own"
            ) from error
        return cls(offsets, ids)

    def to_json(self) -> StreamJson:
        """In one order for equal offsets, as Spark compares the text."""
        offsets = to_json(self.next)
        marks: StreamJson = {
            f"{topic}#{_id_text(topic_id)}": {}
            for topic, topic_id in sorted(self.ids.items())
            if topic in offsets
        }
        return offsets | marks

    def is_of(self, topic: str, topic_id: UUID) -> bool:
        """Whether its offsets are of the topic with this id, for all that is known."""
        return self.ids.get(topic, topic_id) == topic_id

    def continues(self, other: StreamOffset, topic: str) -> bool:
        """Whether both have offsets of the same topic, for all that is known."""
        return topic not in other.ids or self.is_of(topic, other.ids[topic])

    def same_place(self, other: StreamOffset) -> bool:
        """Whether a batch from here to there has nothing to read, and nothing new to write down."""
        return self.next == other.next and all(self.continues(other, topic) for topic in self.ids)


def _id_text(topic_id: UUID) -> str:
    """As Kafka's tools print it."""
    return urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def offset_at(ends: Mapping[TopicPartition, int], picture: Picture) -> StreamOffset:
    """The stream's offset once it has read up to `ends`."""
    return StreamOffset(dict(ends), {each.topic: picture[each].topic_id for each in ends})


@dataclass(slots=True)
class Available:
    """`spans`: where reading goes on in each partition, and how far it can go. `losses`: one line
    each, none where all is well."""

    spans: dict[TopicPartition, Span] = field(default_factory=dict)
    losses: list[str] = field(default_factory=list)


def available(start: StreamOffset, picture: Picture, target: Picture | None = None) -> Available:
    """What there is to read after `start`. With a `target` (Trigger.AvailableNow) nothing that came
    later is seen."""
    found = Available(losses=_gone(start, picture))
    for partition, state in sorted(picture.items()):
        end = state.bounds.end
        if target is not None:
            if partition not in target or target[partition].topic_id != state.topic_id:
                continue
            end = min(end, target[partition].bounds.end)
        first, loss = _first(start, partition, state)
        found.losses += [loss] if loss else []
        found.spans[partition] = Span(first, max(first, end))
    return found


def _gone(start: StreamOffset, picture: Picture) -> list[str]:
    """Topics and partitions of `start` that are not there any more."""
    present = {partition.topic: state.topic_id for partition, state in picture.items()}
    topics = sorted({partition.topic for partition in start.next})
    lines = [
        f"topic {topic} is gone: it was deleted, or it is not subscribed to any more"
        for topic in topics
        if topic not in present
    ]
    recreated = [topic for topic in topics if topic in present and not start.is_of(topic, present[topic])]
    lines += [f"topic {topic} was deleted and created again" for topic in recreated]
    told = {topic for topic in topics if topic not in present} | set(recreated)
    return lines + [
        f"partition {each} is gone"
        for each in sorted(start.next)
        if each not in picture and each.topic not in told
    ]


def _first(start: StreamOffset, partition: TopicPartition, state: LogState) -> tuple[int, str | None]:
    """The offset from which a partition is read on, with a line where that is not what `start`
    says. New ones begin with the earliest."""
    begin, end = state.bounds
    if not start.is_of(partition.topic, state.topic_id):
        return begin, None
    first = start.next.get(partition)
    if first is None:
        return (
            begin,
            f"partition {partition} is new, and its offsets below {begin} are gone already"
            if begin > 0
            else None,
        )
    if first < begin:
        return begin, f"offsets {first} to {begin - 1} of {partition} are gone, its log begins at {begin}"
    if first > end:
        return end, f"offset {first} of {partition} was to be read next, but its log ends at {end}"
    return first, None


def ranges(start: StreamOffset, end: StreamOffset, picture: Picture) -> tuple[list[Range], list[str]]:
    """What a batch from `start` to `end` reads, without empty ranges; and a line for all that was
    lost since `end` was planned."""
    planned = []
    losses = []
    for partition, until in sorted(end.next.items()):
        if start.next.get(partition) == until and start.continues(end, partition.topic):
            continue
        state = picture.get(partition)
        if state is None or not end.is_of(partition.topic, state.topic_id):
            losses.append(f"{partition} is gone, whose offsets below {until} were to be read")
            continue
        first, lost_below = _first(start, partition, state)
        wanted = Range(partition.topic, state.topic_id, partition.partition, first, until)
        there, lost_above = without_lost(wanted, state.bounds)
        losses += [line for line in (lost_below, lost_above) if line]
        planned += [there] if there.size > 0 else []
    return planned, losses
