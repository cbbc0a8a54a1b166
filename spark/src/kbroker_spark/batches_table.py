"""The format kbroker-batches: a row for each record batch as it is stored, with its header and
whether its CRC is right.

Everything on disk is shown: batches below the log start offset whose segment still exists, control
batches, and logs whose topic was deleted. Damage is a row with a problem, for the offsets at which
nothing else can be read. The logs are divided into ranges that are read in parallel. The ranges are
fixed when a frame's first action is planned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from kbroker.formats.batches import BatchHeader
from kbroker.formats.compacted_batches import delete_horizon_ms
from kbroker.formats.compression import Codec
from kbroker.storage.spi import LogReader, StateReader
from kbroker_spark.batch_scan import FoundBatch, LogRange, scan, split
from kbroker_spark.data import reading, topics
from kbroker_spark.errors import SourceError
from kbroker_spark.tables import (
    BIGINT,
    BOOLEAN,
    INT,
    STRING,
    TIMESTAMP,
    Row,
    arrow_batches,
    columns,
    listed,
    micros,
    projected,
    switched,
)

if TYPE_CHECKING:
    import pyarrow as pa

OPTIONS: Final = ("path", "topics", "checkCrc", "bytesPerPartition")
DEFAULT_BYTES: Final = 128 << 20

SCHEMA: Final = columns(
    topic=STRING, topic_id=STRING, partition=INT, base_offset=BIGINT, last_offset=BIGINT, record_count=INT,
    size_bytes=INT, codec=STRING,
    timestamp_type=INT, first_timestamp=TIMESTAMP, max_timestamp=TIMESTAMP, delete_horizon=TIMESTAMP,
    leader_epoch=INT,
    producer_id=BIGINT, producer_epoch=INT,
    base_sequence=INT, is_transactional=BOOLEAN, is_control=BOOLEAN, crc_ok=BOOLEAN, problem=STRING,
)  # fmt: skip
_NO_HEADER: Final = (None,) * 13
_CODECS: Final = {int(codec): codec.name.lower() for codec in Codec}


class Ranges(InputPartition):
    """The ranges that one task reads."""

    def __init__(self, ranges: Sequence[LogRange]) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)


class BatchesReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str], wanted: StructType) -> None:
        projected(SCHEMA, wanted)
        self._path, self._wanted = options["path"], wanted
        self._topics, self._check_crc = listed(options, "topics"), switched(options, "checkCrc", True)
        self._most_bytes = _positive(options, "bytesPerPartition", DEFAULT_BYTES)

    def partitions(self) -> Sequence[InputPartition]:
        with reading(self._path) as data:
            return [
                Ranges(each)
                for each in gathered(
                    log_ranges(data.logs(), data.state(), self._topics, self._most_bytes), self._most_bytes
                )
            ]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Ranges):
            return  # Spark passes None where there are no partitions.
        with reading(self._path) as data:
            yield from arrow_batches(
                rows(data.logs(), partition.ranges, check_crc=self._check_crc), SCHEMA, self._wanted
            )


def schema(options: Mapping[str, str]) -> StructType:
    return SCHEMA


def reader(options: Mapping[str, str], wanted: StructType) -> BatchesReader:
    return BatchesReader(options, wanted)


def log_ranges(
    logs: LogReader, state: StateReader, names: frozenset[str] | None, most_bytes: int
) -> list[LogRange]:
    """The ranges of the logs of the topics in `names`; of all logs, if that is None."""
    by_id = {topic.topic_id: topic.name for topic in topics(state)}
    found: list[LogRange] = []
    for log in sorted(logs.logs()):
        topic = by_id.get(log.topic_id)
        if names is None or topic in names:
            try:
                found += split(topic, log, logs.segments(log), most_bytes)
            except KeyError:
                continue  # Deleted by the live broker since it was listed.
    return found


def gathered(ranges: Sequence[LogRange], most_bytes: int) -> list[list[LogRange]]:
    """Lists of ranges, one for each task. Small ranges share a task, so that thousands of small
    logs do not make thousands of tasks."""
    found: list[list[LogRange]] = []
    size = 0
    for each in ranges:
        if found and size + each.size_bytes <= most_bytes:
            found[-1].append(each)
            size += each.size_bytes
        else:
            found.append([each])
            size = each.size_bytes
    return found


def rows(logs: LogReader, ranges: Sequence[LogRange], *, check_crc: bool) -> Iterator[Row]:
    for wanted in ranges:
        key = (wanted.topic, str(wanted.topic_id), wanted.partition)
        for found in scan(logs, wanted, check_crc=check_crc):
            yield *key, found.first_offset, found.last_offset, *_header(found), found.crc_ok, found.problem


def _header(found: FoundBatch) -> Row:
    header: BatchHeader | None = found.header
    if header is None:
        return _NO_HEADER
    has_producer, horizon_ms = header.has_producer, delete_horizon_ms(header)
    return (
        header.record_count,
        header.size_bytes,
        _CODECS.get(header.codec_id, f"codec {header.codec_id}"),
        int(header.is_log_append_time),
        micros(header.base_timestamp_ms) if horizon_ms is None else None,
        micros(header.max_timestamp_ms),
        micros(horizon_ms),
        header.partition_leader_epoch,
        header.producer_id if has_producer else None,
        header.producer_epoch if has_producer else None,
        header.base_sequence if has_producer else None,
        header.is_transactional,
        header.is_control,
    )


def _positive(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name.lower())
    if text is None:
        return default
    if not text.strip().isdecimal() or not int(text):
        raise SourceError(f"Option '{name}' is '{text}': expected a positive number")
    return int(text)
