"""The contents of a data directory, read from disk without a broker: topics, segments, groups,
share state, and their problems.

It uses only the two reader SPIs, so it sees the same on every engine. While a broker runs, the two
stores are read at slightly different moments; a problem that may come from that is checked a second
time before it is reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from uuid import UUID

from kbroker.formats.batches import crc_is_valid, iter_headers
from kbroker.formats.state import (
    GroupKey,
    GroupOffsetKey,
    LogStartKey,
    ShareStateKey,
    StateKey,
    StateValue,
    Topic,
    TopicKey,
    TopicState,
    parse_key,
    share_partition_prefix,
)
from kbroker.inspection.groups import GroupReport, OffsetReport, read_groups, read_offsets
from kbroker.share.effects import StateBatch
from kbroker.share.lag import NOTHING_PARKED, UNKNOWN, saved_standing, what_is_left
from kbroker.share.persister import TopicPartition
from kbroker.share.record_state import RecordState
from kbroker.share_state.loading import ShareState, load
from kbroker.share_state.parked import NO_GENERATION, stored_left, stored_within
from kbroker.storage.spi import LogId, LogReader, SegmentInfo, StateReader

STATE_NAMES: Mapping[int, str] = {state: state.name.lower() for state in RecordState}
_PARKED, _FINISHED = "parked", "finished"
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class LogReport:
    """One topic partition. `start_offset`: as clients see it; after DeleteRecords older bytes may
    be left."""

    topic: str
    topic_id: UUID
    partition: int
    start_offset: int
    end_offset: int
    segments: tuple[SegmentInfo, ...]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def newest_ms(self) -> int:
        """The greatest record timestamp, -1 in an empty log."""
        return max(segment.max_timestamp_ms for segment in self.segments)


@dataclass(frozen=True, slots=True)
class ShareReport:
    """One share-partition as it would be loaded. `records`: numbers of offsets by state, in the
    stored range. If the share-partition parks records, `parked` and `finished` are there in place
    of `archived`: a finished one was accepted after it was parked, or given up. `lag`: None if
    unknown (nothing was acknowledged yet, or the log is missing)."""

    group: str
    topic: str
    partition: int
    start_offset: int
    lag: int | None
    state_epoch: int
    updates: int
    records: Mapping[str, int]
    waiting: int = 0
    """Parked records that the log still has; `next_due_ms`: when the next of them is due."""
    next_due_ms: int | None = None


@dataclass(slots=True)
class Inspection:
    """`problems`: one line each; none means healthy. `bytes_checked` is 0 unless the batches were
    checked."""

    logs: list[LogReport] = field(default_factory=list)
    share_partitions: list[ShareReport] = field(default_factory=list)
    groups: list[GroupReport] = field(default_factory=list)
    offsets: list[OffsetReport] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    bytes_checked: int = 0


def inspect(logs: LogReader, state: StateReader, *, check_batches: bool = False) -> Inspection:
    """Read everything but the records; with `check_batches` those, too, checking offsets and
    CRCs."""
    report = Inspection()
    topics, starts = _read_state(state, report)
    for log in sorted(logs.logs()):
        _add_log(report, logs, state, log, topics.get(log.topic_id), starts)
    _report_missing_logs(report, logs, state, topics)
    with state.snapshot() as moment:
        _add_groups(report, moment, topics)
        _add_share_state(report, moment, topics)
    if check_batches:
        for each in report.logs:
            _check_batches(report, logs, each)
    return report


def _read_state(state: StateReader, report: Inspection) -> tuple[dict[UUID, Topic], dict[LogId, int]]:
    topics: dict[UUID, Topic] = {}
    starts: dict[LogId, int] = {}
    with state.snapshot() as moment:
        for key, value in _entries(moment, TopicKey.namespace, report):
            if isinstance(key, TopicKey) and isinstance(value, Topic):
                topics[key.topic_id] = value
        for key, value in _entries(moment, LogStartKey.namespace, report):
            if isinstance(key, LogStartKey):
                starts[LogId(key.topic_id, key.partition)] = getattr(value, "offset", 0)
    return topics, starts


def _entries(state: StateReader, prefix: bytes, report: Inspection) -> Iterator[tuple[StateKey, StateValue]]:
    for key, value in state.scan(prefix):
        try:
            parsed = parse_key(key)
            if parsed is not None:
                yield parsed, parsed.decode_value(value)
        except ValueError as error:
            report.problems.append(f"state key {key.hex()} cannot be read: {error}")


def _add_log(
    report: Inspection,
    logs: LogReader,
    state: StateReader,
    log: LogId,
    topic: Topic | None,
    starts: Mapping[LogId, int],
) -> None:
    try:
        bounds, segments = logs.bounds(log), tuple(logs.segments(log))
    except KeyError:
        return  # The broker has dropped it since it was listed.
    if topic is None:
        if state.get(TopicKey(log.topic_id).encode()) is None:
            size = sum(segment.size_bytes for segment in segments)
            report.problems.append(f"log {log.topic_id}-{log.partition} ({size} bytes) belongs to no topic")
        return
    if topic.state is TopicState.DELETING:
        report.problems.append(
            f"log of deleted topic {topic.name}-{log.partition} is still there: the next start removes it"
        )
        return
    start = max(bounds.start_offset, starts.get(log, 0))
    report.logs.append(LogReport(topic.name, log.topic_id, log.partition, start, bounds.end_offset, segments))
    if start > bounds.end_offset:
        report.problems.append(
            f"{topic.name}-{log.partition} begins at {start}, after its end at {bounds.end_offset}"
        )


def _report_missing_logs(
    report: Inspection, logs: LogReader, state: StateReader, topics: Mapping[UUID, Topic]
) -> None:
    found = {(each.topic_id, each.partition) for each in report.logs}
    for topic_id, topic in topics.items():
        if topic.state is TopicState.DELETING:
            continue
        missing = [partition for partition in range(topic.partitions) if (topic_id, partition) not in found]
        if not missing:
            continue
        value = state.get(TopicKey(topic_id).encode())
        if value is not None and Topic.decode(value).state is TopicState.LIVE:
            report.problems.append(
                f"topic {topic.name} has no log for partition {', '.join(map(str, missing))}"
            )


def _add_groups(report: Inspection, state: StateReader, topics: Mapping[UUID, Topic]) -> None:
    names = {topic_id: topic.name for topic_id, topic in topics.items()}
    ends = {(each.topic_id, each.partition): each.end_offset for each in report.logs}
    report.offsets = read_offsets(_entries(state, GroupOffsetKey.namespace, report), names, ends)
    report.groups = read_groups(_entries(state, GroupKey.namespace, report), report.offsets, report.problems)


def _add_share_state(report: Inspection, state: StateReader, topics: Mapping[UUID, Topic]) -> None:
    logs = {(each.topic_id, each.partition): each for each in report.logs}
    for topic_id, partition, group in _share_partitions(state, report):
        topic = topics.get(topic_id)
        name = topic.name if topic is not None else str(topic_id)
        where = f"share state of group {group} on {name}-{partition}"
        try:
            loaded = load(state.scan(share_partition_prefix(group, topic_id, partition)))
        except ValueError as error:
            report.problems.append(f"{where} cannot be read: {error}")
            continue
        if loaded is None:
            continue
        log, batches = logs.get((topic_id, partition)), loaded.merged_batches()
        records: Counter[str] = Counter()
        for batch in batches:
            records[STATE_NAMES.get(batch.state, f"state {batch.state}")] += (
                batch.last_offset - batch.first_offset + 1
            )
        where_parked = TopicPartition(topic_id, partition)
        try:
            records = _resolved(records, state, group, where_parked, loaded, batches)
            parked = stored_left(
                state, group, where_parked, loaded.generation, 0 if log is None else log.start_offset
            )
        except ValueError as error:
            report.problems.append(f"{where}: records that wait cannot be read: {error}")
            parked = NOTHING_PARKED
        lag = _lag(loaded, batches, log)
        report.share_partitions.append(
            ShareReport(
                group, name, partition, loaded.start_offset, None if lag is None else lag + parked.number,
                loaded.state_epoch, loaded.updates, dict(records), parked.number, parked.next_due_ms,
            )
        )  # fmt: skip
        if topic is None:
            report.problems.append(f"{where}: there is no such topic")
        elif log is not None and batches and batches[-1].last_offset >= log.end_offset:
            report.problems.append(
                f"{where} continues after the end of the log at {log.end_offset}: the next start cuts it"
            )


def _resolved(
    records: Counter[str],
    state: StateReader,
    group: str,
    partition: TopicPartition,
    stored: ShareState,
    batches: Sequence[StateBatch],
) -> Counter[str]:
    """The place of a record that was parked is archived, whatever became of the record since."""
    archived = STATE_NAMES[RecordState.ARCHIVED]
    if stored.generation == NO_GENERATION or not records[archived]:
        return records
    first, last = batches[0].first_offset, batches[-1].last_offset
    parked = stored_within(state, group, partition, stored.generation, first, last)
    finished = records.pop(archived) - parked
    return records + Counter({_PARKED: parked, _FINISHED: finished})


def _lag(stored: ShareState, batches: Sequence[StateBatch], log: LogReport | None) -> int | None:
    """Unfinished records in the log. Records removed by retention do not count, even if the group
    has not noticed yet."""
    if log is None or stored.start_offset == UNKNOWN or stored.delivery_complete_count < 0:
        return None
    stands_from = partial(saved_standing, batches, stored.start_offset, stored.delivery_complete_count)
    return what_is_left(
        stored.start_offset, stored.delivery_complete_count, log.start_offset, log.end_offset, stands_from
    ).lag


def _share_partitions(state: StateReader, report: Inspection) -> Iterable[tuple[UUID, int, str]]:
    def keys() -> Iterator[tuple[UUID, int, str]]:
        for key, _ in state.scan(ShareStateKey.namespace):
            try:
                parsed = parse_key(key)
            except ValueError as error:
                report.problems.append(f"state key {key.hex()} cannot be read: {error}")
                continue
            if isinstance(parsed, ShareStateKey):
                yield parsed.topic_id, parsed.partition, parsed.group_id

    return [share_partition for share_partition, _ in groupby(keys())]


def _check_batches(report: Inspection, logs: LogReader, log: LogReport) -> None:
    """Read the whole log and check that each batch is complete, has a valid CRC and follows the
    previous one."""
    log_id, name, offset = (
        LogId(log.topic_id, log.partition),
        f"{log.topic}-{log.partition}",
        log.segments[0].base_offset,
    )
    while offset < log.end_offset:
        try:
            views = logs.read(log_id, offset, max_bytes=_READ_BYTES, end_offset=log.end_offset)
        except KeyError:
            return
        if not views:
            report.problems.append(
                f"{name}: nothing can be read at offset {offset}, and the log ends at {log.end_offset}"
            )
            return
        before = offset
        for view in views:
            for position, header in iter_headers(view):
                if not crc_is_valid(view, position, header) or header.last_offset < offset:
                    report.problems.append(f"{name}: the batch at offset {header.base_offset} is damaged")
                    return
                offset = header.last_offset + 1
            report.bytes_checked += len(view)
        if offset == before:
            report.problems.append(f"{name}: no whole batch at offset {offset}")
            return
