"""The format kbroker-state: share-group state of any built-in persister, as tables.

    view                 a row for each
    batches              state batch of a share-partition; one with nulls for a share-partition
                         without batches
    share-partitions     share-partition: its offsets, its lag, and the number of records by state
    history              stored snapshot and update, in order, back to the oldest snapshot that is
                         stored
    waiting              parked record, by offset

A state that cannot be read is a row whose `problem` says why. Rows are pure functions of the two
readers. Of Spark, this module may know only the types.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any, Final, TypeAlias
from uuid import UUID

from pyspark.sql.types import StructType

from kbroker.formats.parked_records import NO_GENERATION
from kbroker.formats.share_records import (
    UNCHANGED_OFFSET,
    UNKNOWN_COUNT,
    UNKNOWN_EPOCH,
    ShareSnapshot,
    StateBatchRecord,
)
from kbroker.formats.state import ControlHint, GivenUp, GivenUpKey
from kbroker.share.lag import NOTHING_PARKED
from kbroker.share.parked import Lane
from kbroker.share.record_state import RecordState
from kbroker.storage.segment import log_store as segment_store
from kbroker.storage.spi import LogId, LogReader
from kbroker_spark.control_log import controls
from kbroker_spark.data import DataDir, TopicInfo, topics
from kbroker_spark.log_ends import LogEnds
from kbroker_spark.share_history import (
    Histories,
    SharePartitionId,
    Step,
    add_entries,
    from_controls,
    from_state_log,
    history,
)
from kbroker_spark.share_states import (
    LogView,
    SharePartition,
    Wanted,
    from_entries,
    from_logs,
    hints,
    keeps_control_records,
    parked_of_batches,
    parked_of_state,
    parked_records,
    state_name,
)
from kbroker_spark.table_source import FrozenReader
from kbroker_spark.tables import (
    BIGINT,
    BOOLEAN,
    INT,
    STRING,
    TIMESTAMP,
    Row,
    array_of,
    chosen,
    columns,
    listed,
    micros,
)

BATCHES, SHARE_PARTITIONS, HISTORY, WAITING = VIEWS = ("batches", "share-partitions", "history", "waiting")
OPTIONS: Final = ("path", "view", "groups", "topics")

_KEY: Final = {"group": STRING, "topic": STRING, "topic_id": STRING, "partition": INT}
_STANDS: Final = {
    "state_epoch": INT,
    "leader_epoch": INT,
    "snapshot_epoch": INT,
    "start_offset": BIGINT,
    "delivery_complete_count": INT,
}
Topics: TypeAlias = Mapping[UUID, TopicInfo]
"""The live ones, by id."""
_STATE_LOGS: Final = {"segment": ".", "lmdb": "redo"}
"""The location of an engine's state log, relative to the state's directory."""
_COUNTED: Final = (
    RecordState.AVAILABLE,
    RecordState.ACKNOWLEDGED,
    RecordState.ARCHIVING,
    RecordState.ARCHIVED,
)

SCHEMAS: Final[Mapping[str, StructType]] = {
    BATCHES: columns(
        **_KEY, **_STANDS, first_offset=BIGINT, last_offset=BIGINT, state=STRING, delivery_count=INT,
        parked=BIGINT, created=TIMESTAMP, written=TIMESTAMP,
        problem=STRING,
    ),
    SHARE_PARTITIONS: columns(
        **_KEY, **_STANDS, log_start_offset=BIGINT, log_end_offset=BIGINT, lag=BIGINT,
        **{f"{state.name.lower()}_records": BIGINT for state in _COUNTED},
        highest_delivery_count=INT, updates=INT, waiting_records=BIGINT, next_due=TIMESTAMP,
        parks=BOOLEAN, given_up=BIGINT, created=TIMESTAMP, written=TIMESTAMP,
        problem=STRING,
    ),
    HISTORY: columns(
        **_KEY, step=INT, kind=STRING, number=INT, log_offset=BIGINT, **_STANDS,
        batches=array_of(first_offset=BIGINT, last_offset=BIGINT, state=STRING, delivery_count=INT),
        created=TIMESTAMP, written=TIMESTAMP, is_current=BOOLEAN, problem=STRING,
    ),
    WAITING: columns(
        **_KEY, offset=BIGINT, waits_for=STRING, due=TIMESTAMP, delivery_count=INT, leader_epoch=INT,
        rejected=BOOLEAN,
        expired=BOOLEAN, kept=BOOLEAN, problem=STRING,
    ),
}  # fmt: skip


def view_of(options: Mapping[str, str]) -> str:
    return chosen(options, "view", VIEWS)


def schema(options: Mapping[str, str]) -> StructType:
    return SCHEMAS[view_of(options)]


def reader(options: Mapping[str, str], wanted: StructType) -> FrozenReader:
    return FrozenReader(rows, options, schema(options), wanted)


def rows(data: DataDir, options: Mapping[str, str]) -> Iterator[Row]:
    """All rows, from one snapshot of the state. The snapshot is not held while logs are read, which
    may take long. Raises SourceError."""
    view = view_of(options)
    with data.state().snapshot() as moment:
        # Only now: a frozen reader opened earlier might show log ends that lie before offsets in
        # the state.
        logs = data.logs()
        named = {topic.topic_id: topic for topic in topics(moment)}
        wanted, in_logs = wanted_by(options, named), keeps_control_records(moment)
        ends = LogEnds(logs, moment, named.values())
        found_hints = list(hints(moment, wanted)) if in_logs else []
        entries = [] if in_logs or view == HISTORY else list(from_entries(moment, wanted))
        given_up = dict(moment.scan(GivenUpKey.namespace)) if view == SHARE_PARTITIONS else {}
    if view == HISTORY:
        yield from history_rows(
            control_histories(logs, found_hints, wanted) if in_logs else stored_histories(data, wanted), named
        )
        return
    states = from_logs(logs, found_hints, wanted) if in_logs else entries
    if view == BATCHES:
        yield from batch_rows(states, data, named)
    elif view == WAITING:
        yield from waiting_rows(states, data, named)
    else:
        yield from share_partition_rows(states, LogViews(logs, ends, in_logs), named, data, given_up)


class LogViews:
    """The logs of share-partitions, each read once."""

    def __init__(self, logs: LogReader, ends: LogEnds, has_controls: bool) -> None:
        self._logs, self._ends, self._has_controls = logs, ends, has_controls
        self._known: dict[LogId, LogView | None] = {}

    def get(self, log: LogId) -> LogView | None:
        """None for a deleted topic."""
        if log not in self._known:
            found = self._ends.get(log)
            self._known[log] = (
                None if found is None else LogView(self._logs, log, found, has_controls=self._has_controls)
            )
        return self._known[log]


def wanted_by(options: Mapping[str, str], named: Topics) -> Wanted:
    names = listed(options, "topics")
    topic_ids = (
        None
        if names is None
        else frozenset(topic_id for topic_id, topic in named.items() if topic.name in names)
    )
    return Wanted(listed(options, "groups"), topic_ids)


def _key(group: str, log: LogId, named: Topics) -> Row:
    """The key columns. The name is null if the topic is deleted or being deleted."""
    topic = named.get(log.topic_id)
    return group, None if topic is None else topic.name, str(log.topic_id), log.partition


def _known(number: int, unknown: int) -> int | None:
    return None if number == unknown else number


def _stands(found: SharePartition) -> Row:
    state = found.state
    if state is None:
        return (None,) * len(_STANDS)
    start, done = (
        _known(state.start_offset, UNCHANGED_OFFSET),
        _known(state.delivery_complete_count, UNKNOWN_COUNT),
    )
    return state.state_epoch, state.leader_epoch, state.snapshot_epoch, start, done


def _times(found: SharePartition) -> Row:
    """The times of the snapshot, since updates store none. 0: there was no snapshot."""
    state = found.state
    return (
        (None, None)
        if state is None
        else (micros(state.create_timestamp or None), micros(state.write_timestamp or None))
    )


def batch_rows(states: Iterable[SharePartition], data: DataDir, named: Topics) -> Iterator[Row]:
    """Parked records are read after the snapshot of the state."""
    for found in states:
        head, tail = (*_key(found.group, found.log, named), *_stands(found)), (*_times(found), found.problem)
        for batch, parked in zip(found.batches, parked_of_batches(data, found), strict=True):
            yield (
                *head,
                batch.first_offset,
                batch.last_offset,
                state_name(batch.state),
                batch.delivery_count,
                parked,
                *tail,
            )
        if not found.batches:
            yield *head, *(None,) * 5, *tail


def share_partition_rows(
    states: Iterable[SharePartition],
    views: LogViews,
    named: Topics,
    data: DataDir,
    given_up: Mapping[bytes, bytes],
) -> Iterator[Row]:
    """Parked records and logs are read after the snapshot of the state. `given_up`: its entries of
    GivenUpKey."""
    for found in states:
        log, problem, lag, parked = views.get(found.log), found.problem, None, NOTHING_PARKED
        records, value = None, given_up.get(GivenUpKey(*found.log, found.group).encode())
        try:
            records = None if value is None else GivenUp.decode(value).records
        except ValueError as error:
            problem = problem or f"the count of records that were given up cannot be read: {error}"
        try:
            lag = None if log is None else log.lag_of(found)
            if found.state is not None and found.state.generation:
                with data.state().snapshot() as moment:
                    parked = parked_of_state(moment, found, 0 if log is None else log.bounds.start)
                lag = None if lag is None else lag + parked.number
        except (KeyError, ValueError) as error:
            problem = problem or f"its lag is not known: {error}"
        ends = (None, None) if log is None else log.bounds
        waits = (
            (None, None, None)
            if found.state is None
            else (parked.number, micros(parked.next_due_ms), found.state.generation != NO_GENERATION)
        )
        yield (
            *_key(found.group, found.log, named),
            *_stands(found),
            *ends,
            lag,
            *_counts(found),
            *waits,
            records,
            *_times(found),
            problem,
        )


_WAITS_FOR: Final = {Lane.REDELIVERY: "redelivery", Lane.SCHEDULE: "schedule", Lane.ARCHIVING: "dead letter"}


def waiting_rows(states: Iterable[SharePartition], data: DataDir, named: Topics) -> Iterator[Row]:
    """A share-partition that cannot be read has one row, which says why. One without parked records
    has no row."""
    for found in states:
        key, problem = _key(found.group, found.log, named), found.problem
        try:
            for each in parked_records(data, found):
                due = micros(each.due_ms) if each.lane is not Lane.ARCHIVING else None
                causes = each.rejected, each.expired, each.kept
                yield (
                    *key,
                    each.offset,
                    _WAITS_FOR[each.lane],
                    due,
                    each.delivery_count,
                    each.leader_epoch,
                    *causes,
                    None,
                )
        except ValueError as error:
            problem = problem or f"its parked records cannot be read: {error}"
        if problem is not None:
            yield *key, *(None,) * 8, problem


def _counts(found: SharePartition) -> Row:
    """Records by state, the highest delivery count, and the updates since the snapshot."""
    if found.state is None:
        return (None,) * (len(_COUNTED) + 2)
    records: Counter[int] = Counter()
    for batch in found.batches:
        records[batch.state] += batch.last_offset + 1 - batch.first_offset
    highest = max((batch.delivery_count for batch in found.batches), default=None)
    return *(records[state] for state in _COUNTED), highest, found.state.updates


# --- history ---


def control_histories(
    logs: LogReader, found_hints: Iterable[tuple[LogId, ControlHint]], wanted: Wanted
) -> Histories:
    found: Histories = {}
    for log, _ in found_hints:
        try:
            bounds = logs.bounds(log)
            seen = list(controls(logs, log, bounds.start_offset, bounds.end_offset))
            start = logs.bounds(log).start_offset
        except KeyError:
            continue  # The topic was deleted meanwhile.
        # Retention may have removed a snapshot during the read. Updates to it would then seem to
        # belong to an earlier snapshot.
        by_group = from_controls(each for each in seen if each[0] >= start)
        for group, records in by_group.items():
            if wanted.has(group, log.topic_id):
                found[SharePartitionId(*log, group)] = records
    return found


def stored_histories(data: DataDir, wanted: Wanted) -> Histories:
    """The records of the state's log, if its engine has one, followed by the current entries."""
    found: Histories = {}
    place = _STATE_LOGS.get(data.description.state_engine)
    if place is not None:
        with closing(segment_store.LOG_STORE.open_reader(data.state_path / place)) as log:
            found = from_state_log(log, wanted)
    with data.state().snapshot() as moment:
        add_entries(found, moment, wanted)
    return found


def history_rows(histories: Histories, named: Topics) -> Iterator[Row]:
    for (topic_id, partition, group), records in sorted(histories.items()):
        key = _key(group, LogId(topic_id, partition), named)
        for number, step in enumerate(history(records)):
            yield *key, number, *_step(step)


def _step(step: Step) -> Row:
    message: Any = step.message
    if message is None:
        kind = "deletion" if step.problem is None else "update" if step.number else "snapshot"
        return (
            kind,
            step.number,
            step.log_offset,
            *(None,) * len(_STANDS),
            None,
            None,
            None,
            step.is_current,
            step.problem,
        )
    is_snapshot = isinstance(message, ShareSnapshot)
    return (
        "snapshot" if is_snapshot else "update",
        step.number,
        step.log_offset,
        message.state_epoch if is_snapshot else None,
        _known(message.leader_epoch, UNKNOWN_EPOCH),
        message.snapshot_epoch,
        _known(message.start_offset, UNCHANGED_OFFSET),
        _known(message.delivery_complete_count, UNKNOWN_COUNT),
        [_batch(each) for each in message.state_batches],
        micros(message.create_timestamp) if is_snapshot else None,
        micros(message.write_timestamp) if is_snapshot else None,
        step.is_current,
        step.problem,
    )


def _batch(batch: StateBatchRecord) -> dict[str, object]:
    return {
        "first_offset": batch.first_offset,
        "last_offset": batch.last_offset,
        "state": state_name(batch.delivery_state),
        "delivery_count": batch.delivery_count,
    }
