"""The source "kbroker" in streaming queries: tells Spark the end of the next micro-batch and the
ranges that it reads.

One object of this class lives in a separate process beside Spark's driver, which requests offsets
and partitions from it while the query runs. Copies, pickled when the query started, only `read` in
the workers. All state that must survive a run is in Spark's checkpoint. Nothing here depends on
`commit` or `stop`, which Spark calls late or never.

A query's starting offsets must be stored before anything is read. Spark stores the end of each
batch, but not the start of the first one, and requests the start again after a crash in the first
batch. "latest" would then be a later offset, and the records in between would be lost. The first
batch of such a query is therefore empty: its end equals its start, and Spark stores it.

Needs pyspark 4.2, the first with admission control for sources in Python.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from kbroker_spark.batch_reader import RangePartition, check_stable, finder, lose, rows, without_aborted
from kbroker_spark.committed import CommittedLogs
from kbroker_spark.data import DataDir, reading
from kbroker_spark.errors import SourceError
from kbroker_spark.limits import Patience, proportional_ends
from kbroker_spark.lookup import Partition, look
from kbroker_spark.offsets import LATEST, Bounds, Edge, Offsets, TopicPartition, resolve, split, to_json
from kbroker_spark.options import parse
from kbroker_spark.schema import checked
from kbroker_spark.stream_plan import (
    Available,
    LogState,
    Picture,
    StreamJson,
    StreamOffset,
    available,
    offset_at,
    ranges,
)

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
except ImportError as error:
    from pyspark import __version__

    raise SourceError(
        f"streaming from kbroker needs pyspark 4.2 or later, but this is {__version__}: upgrade it, or use "
        "spark.read"
    ) from error

if TYPE_CHECKING:
    import pyarrow as pa

_REST = 9
"""Spark requests the latest offset every 10 ms while nothing is new. Reading the disk may take
longer than that (RocksDB: a snapshot by hard links). The pause before the next read is therefore
this many times the duration of the last one."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the module's docstring. `clock` returns monotonic seconds; `sleep` waits for some
    seconds.

    All methods raise SourceError for a directory that cannot be read, and, with failOnDataLoss,
    DataLoss for lost records.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        schema: StructType,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = parse(options, streaming=True)
        self._schema = checked(schema)
        self._clock = clock
        self._sleep = sleep
        self._committed = CommittedLogs() if self._options.read_committed else None
        self._picture: Picture | None = None
        self._look_again_at = 0.0
        self._initial: StreamOffset | None = None
        self._pin = False
        self._target: Picture | None = None
        self._patience = Patience(
            self._options.min_offsets_per_trigger or 1, self._options.max_trigger_delay_ms
        )
        self._told: set[str] = set()

    # --- called by Spark for the query ---

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._look()

    def initialOffset(self) -> StreamJson:
        """The start of a new query. Each call returns the same, as Spark calls this twice. Spark
        does not call it for a query with a checkpoint."""
        if self._initial is None:
            self._initial = self._starting_offset()
        return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Spark passes this limit to every call of latestOffset, unless the trigger is Once. A
        limit cannot be both a minimum and a maximum. With both options, this returns the minimum,
        and the maximum is read from the options."""
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: StreamJson, limit: ReadLimit) -> StreamJson:
        """The end of the batch that begins at `start`; `start` itself, unchanged, if there is no
        batch now."""
        begin = StreamOffset.from_json(start)
        if self._pins(begin):
            return start
        picture = self._rested_look()
        found = available(begin, picture, self._target)
        self._report(found.losses)
        if isinstance(limit, ReadMinRows) and self._waits(found):
            return start
        end = offset_at(self._ends(found, limit), picture)
        return start if begin.same_place(end) else end.to_json()

    def reportLatestOffset(self) -> StreamJson | None:
        """The log ends at the last read of the disk, for the query's progress."""
        if self._picture is None:
            return None
        return to_json({partition: state.end for partition, state in self._picture.items()})

    def partitions(self, start: StreamJson, end: StreamJson) -> Sequence[InputPartition]:
        """The ranges that a batch reads. After a restart, Spark first requests these for the last
        stored batch, before it requests offsets."""
        self._pin = False
        picture = self._look() if self._picture is None else self._picture
        wanted, losses = ranges(StreamOffset.from_json(start), StreamOffset.from_json(end), picture)
        self._report(losses)
        for each in wanted:
            # Only if the batch was planned with read_uncommitted.
            check_stable(each, picture[each.topic_partition].committed)
        pieces = split(
            wanted,
            min_partitions=self._options.min_partitions,
            max_records=self._options.max_records_per_partition,
        )
        return [
            RangePartition(without_aborted(piece, picture[piece.topic_partition].committed))
            for piece in pieces
        ]

    # --- in a worker ---

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        return rows(self._options, self._schema, partition.range)

    # --- the start of a query ---

    def _starting_offset(self) -> StreamOffset:
        with reading(self._options.path) as directory:
            found = self._see(directory, missing_ok=False)
            picture = _picture(found)
            if self._target is not None:
                picture = {
                    partition: self._target.get(partition, state) for partition, state in picture.items()
                }
            offsets = resolve(
                self._options.starting,
                {partition: Bounds(state.bounds.start, state.end) for partition, state in picture.items()},
                finder(directory, found),
                option=self._options.starting_option,
                no_match=self._options.starting_no_match,
            )
        self._pin = self._may_move(offsets, picture)
        return offset_at(offsets, picture)

    def _may_move(self, offsets: Mapping[TopicPartition, int], picture: Picture) -> bool:
        """Whether the same options may resolve to other offsets later. A record found by time stays
        the result for that time."""
        match self._options.starting:
            case Edge.EARLIEST:
                return False
            case Offsets(by_partition):
                return LATEST in by_partition.values()
        return any(offset == picture[partition].end for partition, offset in offsets.items())

    def _pins(self, begin: StreamOffset) -> bool:
        """Whether the batch that begins here is the empty first one. There is at most one."""
        pins = self._pin and self._initial is not None and begin.same_place(self._initial)
        self._pin = False
        return pins

    # --- the end of a batch ---

    def _waits(self, found: Available) -> bool:
        """Whether to wait for more records. With Trigger.AvailableNow none will come, so there is
        no wait."""
        size = sum(span.size for span in found.spans.values())
        return self._target is None and self._patience.waits(size, int(self._clock() * 1000))

    def _ends(self, found: Available, limit: ReadLimit) -> Mapping[TopicPartition, int]:
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_offsets_per_trigger
        if most is None or isinstance(limit, ReadAllAvailable):
            return {partition: span.end for partition, span in found.spans.items()}
        return proportional_ends(most, found.spans)

    # --- the disk ---

    def _rested_look(self) -> Picture:
        """With Trigger.AvailableNow the end is already known, so the last picture is good
        enough."""
        rest = self._look_again_at - self._clock()
        if rest > 0:
            if self._target is not None and self._picture is not None:
                return self._picture
            self._sleep(rest)
        return self._look()

    def _look(self) -> Picture:
        began = self._clock()
        with reading(self._options.path) as directory:
            self._picture = _picture(self._see(directory, missing_ok=True))
        now = self._clock()
        self._look_again_at = now + _REST * (now - began)
        return self._picture

    def _see(self, directory: DataDir, *, missing_ok: bool) -> Mapping[TopicPartition, Partition]:
        see = look if self._committed is None else self._committed.look
        return see(directory, self._options.selection, missing_ok=missing_ok)

    def _report(self, losses: Iterable[str]) -> None:
        """Raises DataLoss, or warns of each loss once."""
        new = [line for line in losses if line not in self._told]
        if new:
            lose("; ".join(new), fail=self._options.fail_on_data_loss)
        self._told.update(new)


def _picture(found: Mapping[TopicPartition, Partition]) -> Picture:
    return {
        partition: LogState(each.topic.topic_id, each.bounds, each.committed)
        for partition, each in found.items()
    }
