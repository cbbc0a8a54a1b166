"""What the jobs read of a data directory: the formats of kbroker as DataFrames, and the few things
that the driver asks itself.

Reading from a cursor: a job keeps, for each partition, the offset that it goes on from, and reads
to an end that is fixed before. So what it writes and where it goes on from next time are in one
commit. This module must not know what the jobs make of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from kbroker_spark.data import TopicInfo, bounds, reading, topics
from kbroker_spark.lookup import look as look_for
from kbroker_spark.options import SubscribePattern

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Cursor: TypeAlias = Mapping[str, int]
"""`topic id:partition` to the next offset to be read."""


class Directory(NamedTuple):
    """`engines` is written for people."""

    path: Path
    cluster_id: str
    engines: str


class Part(NamedTuple):
    """A partition that is there, and what clients see of its log."""

    topic: TopicInfo
    partition: int
    start: int
    end: int

    @property
    def key(self) -> str:
        return f"{self.topic.topic_id}:{self.partition}"

    @property
    def name(self) -> str:
        return f"{self.topic.name}-{self.partition}"


class Piece(NamedTuple):
    part: Part
    first: int
    end: int


def look(path: Path) -> Directory:
    """Raises SourceError, in one line, for whatever is not a readable data directory: before Spark
    is started."""
    with reading(path) as directory:
        found = directory.description
        directory.logs(), directory.state()
        return Directory(
            path.absolute(), found.cluster_id, f"log {found.log_engine}, state {found.state_engine}"
        )


def parts(path: Path, wanted: Iterable[str] | None = None) -> list[Part]:
    """All partitions of live topics, or of those with these names, as they are now."""
    names = None if wanted is None else set(wanted)
    found = []
    with reading(path) as directory:
        for topic in topics(directory.state()):
            if names is not None and topic.name not in names:
                continue
            for partition in range(topic.partitions):
                try:
                    start, end = bounds(directory.logs(), directory.state(), topic, partition)
                except KeyError:
                    continue  # Deleted since it was listed.
                found.append(Part(topic, partition, start, end))
    return found


def missing(path: Path) -> list[tuple[TopicInfo, int, int, int]]:
    """Offsets that the engine knows to have been written, and that are gone though nobody removed
    them: topic, partition, first, end. Raises SourceError where the log of a topic is missing as a
    whole."""
    with reading(path) as directory:
        found = look_for(directory, SubscribePattern(".*"), with_damage=True)
        return [
            (each.topic, each.number, first, end) for each in found.values() for first, end in each.damage
        ]


def pieces(found: Iterable[Part], cursor: Cursor) -> list[Piece]:
    """What is new of each partition since the cursor. Records that went with the log's start are
    passed over."""
    return [
        Piece(part, first, part.end)
        for part in found
        if (first := max(part.start, min(cursor.get(part.key, part.start), part.end))) < part.end
    ]


def advanced(found: Iterable[Part]) -> dict[str, int]:
    """The cursor behind what is there now."""
    return {part.key: part.end for part in found}


def records(spark: SparkSession, path: Path, wanted: Iterable[Piece], *, headers: bool) -> DataFrame | None:
    """The records of these pieces; None where there are none."""
    by_topic: dict[str, dict[str, tuple[int, int]]] = {}
    for part, first, end in wanted:
        by_topic.setdefault(part.topic.name, {})[str(part.partition)] = (first, end)
    if not by_topic:
        return None

    def offsets(place: int) -> str:
        return json.dumps(
            {
                topic: {number: ends[place] for number, ends in each.items()}
                for topic, each in by_topic.items()
            }
        )

    return (
        spark.read.format("kbroker")
        .option("assign", json.dumps({topic: sorted(map(int, each)) for topic, each in by_topic.items()}))
        .option("startingOffsets", offsets(0))
        .option("endingOffsets", offsets(1))
        .option("failOnDataLoss", "false")
        .option("includeHeaders", str(headers).lower())
        .load(str(path))
    )


def state(spark: SparkSession, path: Path, view: str) -> DataFrame:
    """Share-group state: `batches`, `share-partitions` or `history`; a picture of the moment of the
    first action on it."""
    return spark.read.format("kbroker-state").option("view", view).load(str(path))


def batches(spark: SparkSession, path: Path) -> DataFrame:
    """A row for each record batch of all logs."""
    return spark.read.format("kbroker-batches").load(str(path))
