"""The format kbroker-topics: live topics and their partitions, with the bounds and sizes of their
logs and the topics' settings.

There is a row for each partition. If a partition has no log (it is being created, or the directory
is damaged), the log's columns are null.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from pyspark.sql.types import StructType

from kbroker.storage.spi import LogId, LogReader
from kbroker_spark.data import DataDir, topics
from kbroker_spark.log_ends import LogEnds
from kbroker_spark.table_source import FrozenReader
from kbroker_spark.tables import BIGINT, INT, STRING, STRING_MAP, TIMESTAMP, Row, columns, listed, micros

OPTIONS: Final = ("path", "topics")

SCHEMA: Final = columns(
    topic=STRING,
    topic_id=STRING,
    partition=INT,
    created=TIMESTAMP,
    start_offset=BIGINT,
    end_offset=BIGINT,
    size_bytes=BIGINT,
    segments=INT,
    newest=TIMESTAMP,
    configs=STRING_MAP,
)
_NO_LOG: Final = (None,) * 5


def schema(options: Mapping[str, str]) -> StructType:
    return SCHEMA


def reader(options: Mapping[str, str], wanted: StructType) -> FrozenReader:
    return FrozenReader(rows, options, SCHEMA, wanted)


def rows(data: DataDir, options: Mapping[str, str]) -> Iterator[Row]:
    names = listed(options, "topics")
    with data.state().snapshot() as moment:
        found, logs = topics(moment), data.logs()
        ends = LogEnds(logs, moment, found)
    for topic in found:
        if names is None or topic.name in names:
            for partition in range(topic.partitions):
                key = (topic.name, str(topic.topic_id), partition, micros(topic.created_ms))
                yield *key, *_log(logs, ends, topic.log(partition)), list(topic.config.items())


def _log(logs: LogReader, ends: LogEnds, log: LogId) -> Row:
    bounds = ends.get(log)
    if bounds is None:
        return _NO_LOG
    try:
        segments = logs.segments(log)
    except KeyError:
        return _NO_LOG  # The topic was deleted meanwhile.
    size = sum(segment.size_bytes for segment in segments)
    return *bounds, size, len(segments), micros(max(segment.max_timestamp_ms for segment in segments))
