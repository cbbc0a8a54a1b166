"""The jobs' access to a data directory: kbroker's formats as DataFrames, and a few look-ups in the
driver.

A cursor has the offset at which a job resumes in each partition. The job reads from there to an end
that is fixed in advance. Its output and the new cursor are therefore in the same commit. This
module must not know how the jobs use the data.
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
"""From `topic id:partition` to the next offset to read."""


class Directory(NamedTuple):
    """A data directory. `engines` is a text for the page."""

    path: Path
    cluster_id: str
    engines: str


class Part(NamedTuple):
    """An existing partition, with the bounds of its log that clients see."""

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
    """Checks the directory before Spark is started. Raises SourceError, in one line, if it is not a
    readable data directory."""
    with reading(path) as directory:
        found = directory.description
        directory.logs(), directory.state()
        return Directory(
            path.absolute(), found.cluster_id, f"log {found.log_engine}, state {found.state_engine}"
        )


def parts(path: Path, wanted: Iterable[str] | None = None) -> list[Part]:
    """The current partitions of all live topics, or of those named in `wanted`."""
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
    """Offsets that were written according to the engine, and are lost without having been removed:
    (topic, partition, first, end). Raises SourceError if the whole log of a partition is
    missing."""
    with reading(path) as directory:
        found = look_for(directory, SubscribePattern(".*"), with_damage=True)
        return [
            (each.topic, each.number, first, end) for each in found.values() for first, end in each.damage
        ]


def pieces(found: Iterable[Part], cursor: Cursor) -> list[Piece]:
    """The offsets of each partition from the cursor to its end. Records removed at the start of the
    log are skipped."""
    return [
        Piece(part, first, part.end)
        for part in found
        if (first := max(part.start, min(cursor.get(part.key, part.start), part.end))) < part.end
    ]


def advanced(found: Iterable[Part]) -> dict[str, int]:
    """The cursor at the current ends."""
    return {part.key: part.end for part in found}


def records(spark: SparkSession, path: Path, wanted: Iterable[Piece], *, headers: bool) -> DataFrame | None:
    """The records of these pieces; None if there are no pieces."""
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
    """Share-group state: the view `batches`, `share-partitions` or `history`, as of the first
    action on the frame."""
    return spark.read.format("kbroker-state").option("view", view).load(str(path))


def batches(spark: SparkSession, path: Path) -> DataFrame:
    """A row for each record batch of all logs."""
    return spark.read.format("kbroker-batches").load(str(path))
