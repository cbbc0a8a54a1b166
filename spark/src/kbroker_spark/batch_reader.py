"""Batch queries: a plan of offset ranges, and the rows of a range as Arrow batches. Streaming
queries read ranges in the same way.

`partitions` runs once for a DataFrame, at its first action, and fixes the ranges; later writes and
deletions do not change them. `read` runs in the workers, each of which opens its own readers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from kbroker_spark.aborted_batches import AbortedBatches, UnknownTransaction
from kbroker_spark.committed import CommittedLogs
from kbroker_spark.data import DataDir, read_range, reading
from kbroker_spark.decode import CorruptBatch, Piece, decode
from kbroker_spark.errors import DataLoss, SourceError
from kbroker_spark.lookup import Partition, look, offset_at_time
from kbroker_spark.offsets import (
    LATEST,
    Offsets,
    Position,
    Range,
    TopicPartition,
    data_loss,
    ranges,
    resolve,
    split,
    without_lost,
)
from kbroker_spark.options import ISOLATION, ReadOptions, parse
from kbroker_spark.schema import arrow_schema, checked, column_names
from kbroker_spark.tables import record_batch
from kbroker_spark.transactions import Committed

logger = logging.getLogger(__name__)

_OF_THE_RANGE = frozenset({"topic", "partition"})


class RangePartition(InputPartition):
    """A range, wrapped so that Spark can send it to a worker."""

    def __init__(self, wanted: Range) -> None:
        super().__init__(wanted)
        self.range = wanted


class BatchReader(DataSourceReader):
    """`options` as Spark passes them. Raises SourceError if the options or the schema are
    invalid."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = parse(options, streaming=False)
        self._schema = checked(schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Empty ranges are left out, so the result may be empty."""
        for line in self._options.ignored:
            logger.warning("%s", line)
        return [RangePartition(each) for each in plan(self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Where there are no ranges, Spark passes a partition without one."""
        if isinstance(partition, RangePartition):
            yield from rows(self._options, self._schema, partition.range)


def plan(options: ReadOptions) -> list[Range]:
    """The ranges of a batch query as of now. Raises SourceError, and DataLoss where requested
    offsets are missing and failOnDataLoss is set."""
    with reading(options.path) as directory:
        see = CommittedLogs().look if options.read_committed else look
        found = see(directory, options.selection, with_damage=True)
        bounds = {partition: each.readable for partition, each in found.items()}
        find = finder(directory, found)
        starts = resolve(
            options.starting, bounds, find, option=options.starting_option, no_match=options.starting_no_match
        )
        ends = resolve(options.ending, bounds, find, option=options.ending_option, no_match="latest")
    wanted = []
    for each in ranges({partition: one.topic.topic_id for partition, one in found.items()}, starts, ends):
        partition = found[each.topic_partition]
        there, lost = without_lost(each, partition.bounds)
        lost = lost or _missing(each, partition, is_open=_is_open(options.ending, each.topic_partition))
        if lost is not None:
            lose(lost, fail=options.fail_on_data_loss)
        check_stable(there, partition.committed)
        wanted.append(there)
    pieces = split(
        wanted, min_partitions=options.min_partitions, max_records=options.max_records_per_partition
    )
    return [without_aborted(each, found[each.topic_partition].committed) for each in pieces]


def check_stable(wanted: Range, committed: Committed | None) -> None:
    """Raises SourceError for a range whose records are not all decided. They are not lost, so
    failOnDataLoss does not matter."""
    if committed is not None and wanted.size > 0 and wanted.end > committed.end:
        raise SourceError(
            f"offsets {max(committed.end, wanted.first)} to {wanted.end - 1} of {wanted.topic_partition} "
            f"cannot be read with {ISOLATION}=read_committed: a transaction is open from offset "
            f"{committed.end} on; try again when it has ended, or end before it"
        )


def without_aborted(wanted: Range, committed: Committed | None) -> Range:
    """The range as a task gets it."""
    if committed is None:
        return wanted
    return replace(wanted, aborted=committed.aborted_in(wanted.first, wanted.end))


def _is_open(ending: Position, partition: TopicPartition) -> bool:
    """Whether a query reads the partition up to its end."""
    return not isinstance(ending, Offsets) or ending.by_partition[partition] == LATEST


def _missing(wanted: Range, partition: Partition, *, is_open: bool) -> str | None:
    """A line about records that the range lacks for a reason that the log's bounds do not show:
    files were cut or overwritten, or the log ends before the range begins. `is_open`: records
    missing at the end of the log belong to the range."""
    # Records missing at the log's end may include the marker of an open transaction.
    ends = {wanted.end, partition.bounds.end} if wanted.end == partition.readable.end else {wanted.end}
    for first, end in partition.damage:
        if end > wanted.first and (first < wanted.end or (is_open and first in ends)):
            return (
                f"offsets {first} to {end - 1} of {wanted.topic_partition} cannot be read: its files "
                "are damaged or were copied in part"
            )
    if is_open and wanted.first > partition.bounds.end:
        return (
            f"offset {wanted.first} of {wanted.topic_partition} was to be read first, but its log ends "
            f"at {partition.bounds.end}"
        )
    return None


def finder(
    directory: DataDir, found: Mapping[TopicPartition, Partition]
) -> Callable[[TopicPartition, int], int | None]:
    """A function for `resolve` that finds offsets by time in the partitions that `look` found. It
    raises SourceError for a log that has been deleted since."""

    def find(partition: TopicPartition, ms: int) -> int | None:
        try:
            return offset_at_time(directory.logs(), found[partition], ms)
        except KeyError as error:
            raise SourceError(
                f"{partition} is gone: its topic was deleted while the query was planned; run it again"
            ) from error

    return find


def lose(line: str, *, fail: bool) -> None:
    """Raises DataLoss, or logs a warning if failOnDataLoss is false."""
    if fail:
        raise data_loss(line)
    logger.warning("%s: continuing without it, as failOnDataLoss is false", line)


def rows(options: ReadOptions, schema: StructType, wanted: Range) -> Iterator[pa.RecordBatch]:
    """The records of a range, with exactly the columns of `schema` (a checked one) in its order.
    Raises SourceError and DataLoss."""
    columns = frozenset(column_names(schema)) - _OF_THE_RANGE
    target = arrow_schema(schema)
    aborted = AbortedBatches(wanted.aborted) if wanted.aborted or wanted.aborted is None else None
    offset: int | None = wanted.first
    with reading(options.path) as directory:
        while offset is not None:
            try:
                for chunks in read_range(
                    directory.logs(),
                    wanted.topic_id,
                    wanted.partition,
                    offset,
                    wanted.end,
                    name=str(wanted.topic_partition),
                ):
                    for piece in decode(
                        chunks,
                        first=offset,
                        end=wanted.end,
                        columns=columns,
                        decoder=options.decoder,
                        aborted=aborted,
                    ):
                        yield _batch(piece, wanted, schema, target)
                return
            except DataLoss as loss:
                if options.fail_on_data_loss:
                    raise
                logger.warning("%s", loss)
                offset = loss.resume
            except UnknownTransaction as error:
                raise SourceError(
                    f"{wanted.topic_partition} has a transaction at offset {error.offset} that the state "
                    "does not know: the data directory was copied in part, restore a backup"
                ) from error
            except CorruptBatch as error:
                raise SourceError(
                    f"{wanted.topic_partition} is damaged: {error}; look with kbroker storage inspect "
                    "--check, restore a backup, or read "
                    "around it with startingOffsets and endingOffsets"
                ) from error


def _batch(piece: Piece, wanted: Range, schema: StructType, target: pa.Schema) -> pa.RecordBatch:
    arrays = dict(piece.columns)
    arrays["topic"] = pa.repeat(pa.scalar(wanted.topic, pa.string()), piece.rows)
    arrays["partition"] = pa.repeat(pa.scalar(wanted.partition, pa.int32()), piece.rows)
    return record_batch([arrays[name] for name in column_names(schema)], target)
