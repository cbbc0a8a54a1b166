"""Administration of a share group's offsets (KIP-932, KIP-1226): requests to the persister, and
replies made of its results.

    describe   Persister.read_summary -> one row per share-partition, with its lag
    alter      Initializing, if it was unknown -> Persister.initialize with the group epoch ->
               Initialized
    delete     Deleting -> Persister.delete -> forgotten. Partitions that the persister refused stay
               Deleting, for another attempt

Requests name topics and partitions that may not exist: those get a row with an error, and the other
rows are unaffected. A negative partition number refuses the whole request, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from kbroker.errors import ErrorCode, KafkaError
from kbroker.groups.outcome import Records
from kbroker.groups.share.messages import (
    OffsetsReply,
    PartitionDone,
    PartitionOffset,
    TopicDone,
    TopicOffsets,
    TopicsView,
)
from kbroker.groups.share.state import ShareGroup, TopicPart
from kbroker.share.lag import UNKNOWN, Left, ParkedLeft, Standing, what_is_left, with_parked
from kbroker.share.persister import (
    InitializeRequest,
    Result,
    SummaryResult,
    TopicPartition,
    check_start_offset,
)

# --- describe ---


def to_describe(group_id: str, wanted: Mapping[str, Sequence[int]], topics: TopicsView) -> list[TopicOffsets]:
    """The rows of a reply, still without state. Topics get rows even if the group does not exist.
    Raises UNKNOWN_SERVER_ERROR for requests that Kafka's persister does not accept."""
    rows = [
        TopicOffsets(
            name,
            topic.topic_id if (topic := topics.by_name(name)) else None,
            tuple(map(PartitionOffset, dict.fromkeys(numbers))),
        )
        for name, numbers in wanted.items()
    ]
    for row in rows:
        if row.topic_id is not None:
            _check_named(group_id, [partition.partition_index for partition in row.partitions])
    return rows


def _check_named(group_id: str, numbers: Sequence[int]) -> None:
    for wrong, message in (
        (not group_id, "The group id must not be empty."),
        (not numbers, "There must be a partition."),
        (any(number < 0 for number in numbers), "A partition must not be negative."),
    ):
        if wrong:
            raise KafkaError(ErrorCode.unknown_server_error, message)


class LogRange(NamedTuple):
    """Log start offset and high watermark."""

    start_offset: int
    end_offset: int


def described(
    summary: SummaryResult, log: LogRange | None, stands_from: Callable[[int], Standing]
) -> PartitionOffset:
    """A share-partition's row, without its parked records. `log` None: the partition no longer
    exists. `stands_from`: see lag.py.

    The lag is the number of records from the saved start offset to the end of the log, without
    those that are saved as done. A start offset beyond the end makes it negative. A share-partition
    that the persister refuses gets a row without state.
    """
    number = summary.partition.partition
    if summary.code is not ErrorCode.none:
        return PartitionOffset(number)
    row = PartitionOffset(number, summary.start_offset, summary.leader_epoch)
    if UNKNOWN in (summary.start_offset, summary.delivery_complete_count):
        return row
    if log is None:
        return PartitionOffset(
            number,
            start_offset=0,
            error_code=ErrorCode.unknown_topic_or_partition,
            error_message="The topic was deleted meanwhile.",
        )
    left = what_is_left(summary.start_offset, summary.delivery_complete_count, *log, stands_from)
    first_open = left.first_open
    if first_open == summary.start_offset and left.lag > 0 and summary.delivery_complete_count > 0:
        # If the last consumer stopped, its last write may have finished the records at the start
        # offset that it saved.
        first_open = stands_from(summary.start_offset).first_open
    return row._replace(lag=left.lag, first_open=first_open)


def described_with_parked(row: PartitionOffset, parked: ParkedLeft) -> PartitionOffset:
    """Add parked records to a row that `described` returned; see lag.py."""
    left = with_parked(Left(row.lag, row.first_open), parked, is_known=row.first_open != UNKNOWN)
    return row._replace(lag=left.lag, first_open=left.first_open)


# --- alter ---


def check_alterable(wanted: Mapping[str, Mapping[int, int]], topics: TopicsView) -> None:
    """Raises UNKNOWN_SERVER_ERROR for a negative partition number."""
    known = [topic for name in wanted if (topic := topics.by_name(name)) is not None]
    if any(number < 0 for topic in known for number in wanted[topic.name]):
        raise KafkaError(ErrorCode.unknown_server_error, "A partition must not be negative.")


def to_alter(wanted: Mapping[str, Mapping[int, int]], topics: TopicsView) -> OffsetsReply:
    """The reply if every partition that exists, with a valid start offset, is altered."""
    return OffsetsReply(responses=tuple(_to_alter(name, starts, topics) for name, starts in wanted.items()))


def has_alterable(reply: OffsetsReply) -> bool:
    return any(row.error_code is ErrorCode.none for topic in reply.responses for row in topic.partitions)


def _to_alter(name: str, starts: Mapping[int, int], topics: TopicsView) -> TopicDone:
    topic = topics.by_name(name)
    count = 0 if topic is None else len(topic.partitions)
    rows = tuple(
        _row_to_alter(number, start) if 0 <= number < count else _unknown_partition(number)
        for number, start in starts.items()
    )
    return TopicDone(name, topic.topic_id if topic else None, rows)


def _row_to_alter(number: int, start_offset: int) -> PartitionDone:
    try:
        check_start_offset(start_offset)
    except KafkaError as refusal:
        return PartitionDone(number, refusal.code, refusal.message)
    return PartitionDone(number)


def _unknown_partition(number: int) -> PartitionDone:
    return PartitionDone(
        number, ErrorCode.unknown_topic_or_partition, "This server does not host this topic-partition."
    )


def start_altering(
    group: ShareGroup, wanted: Mapping[str, Mapping[int, int]], reply: OffsetsReply, records: Records
) -> tuple[InitializeRequest, ...]:
    """The requests for the persister, each to be extended by `begin_anew`. Share-partitions new to
    the group are Initializing from now on."""
    requests: list[InitializeRequest] = []
    changed = False
    for topic in reply.responses:
        for row in topic.partitions:
            if row.error_code is ErrorCode.none:
                assert topic.topic_id is not None
                number = row.partition_index
                start_offset = wanted[topic.topic_name][number]
                requests.append(
                    InitializeRequest(TopicPartition(topic.topic_id, number), group.epoch, start_offset)
                )
                if not _has(group.initialized, topic.topic_id, number):
                    changed = True
                    group.initializing.setdefault(topic.topic_id, TopicPart(topic.topic_name)).partitions.add(
                        number
                    )
                    group.deleting.pop(topic.topic_id, None)
    if changed:
        group.put_partitions(records)
    return tuple(requests)


def _has(topics: Mapping[UUID, TopicPart], topic_id: UUID, number: int) -> bool:
    return topic_id in topics and number in topics[topic_id].partitions


def altered(reply: OffsetsReply, results: Iterable[Result]) -> OffsetsReply:
    """The reply with the persister's results. The last result for a share-partition decides."""
    codes = {result.partition: result for result in results}
    return reply._replace(
        responses=tuple(
            topic._replace(partitions=tuple(_altered(topic, codes))) for topic in reply.responses
        ),
    )


def _altered(topic: TopicDone, results: Mapping[TopicPartition, Result]) -> Iterator[PartitionDone]:
    for row in topic.partitions:
        result = (
            results.get(TopicPartition(topic.topic_id, row.partition_index))
            if topic.topic_id is not None
            else None
        )
        yield row if result is None else row._replace(error_code=result.code, error_message=result.message)


# --- delete ---


def start_deleting(
    group: ShareGroup, names: Iterable[str], topics: TopicsView, records: Records
) -> tuple[OffsetsReply, tuple[TopicPartition, ...]]:
    """The reply if everything is deleted, and the share-partitions for the persister to delete.
    They are Deleting from now on."""
    rows: list[TopicDone] = []
    partitions: list[TopicPartition] = []
    for name in dict.fromkeys(names):
        topic = topics.by_name(name)
        found = [] if topic is None else list(_deletable(group, topic.topic_id, len(topic.partitions)))
        if topic is None or not found:
            rows.append(
                TopicDone(
                    name,
                    None,
                    (),
                    ErrorCode.unknown_topic_or_partition,
                    "There is no offset information to delete.",
                )
            )
            continue
        rows.append(TopicDone(name, topic.topic_id))
        partitions += found
        for moved in (group.initialized, group.initializing):
            moved.pop(topic.topic_id, None)
        group.deleting[topic.topic_id] = name
        group.forget_attempts(topic.topic_id)
    if partitions:
        group.must_look_for_partitions = group.must_compare_targets = True
        group.put_partitions(records)
    return OffsetsReply(responses=tuple(rows)), tuple(partitions)


def _deletable(group: ShareGroup, topic_id: UUID, count: int) -> Iterator[TopicPartition]:
    """Partitions that may have state: Initialized and Initializing ones, and all of a topic whose
    deletion the persister refused."""
    parts = [
        moved[topic_id].partitions for moved in (group.initialized, group.initializing) if topic_id in moved
    ]
    numbers = set().union(*parts, range(count) if topic_id in group.deleting else ())
    yield from (TopicPartition(topic_id, number) for number in sorted(numbers))


def deleted(reply: OffsetsReply, results: Sequence[Result]) -> OffsetsReply:
    """The reply with the persister's results: a topic gets the first error of its partitions."""
    failed: dict[UUID, Result] = {}
    for result in results:
        if result.code is not ErrorCode.none:
            failed.setdefault(result.partition.topic_id, result)
    rows = []
    for row in reply.responses:
        error = failed.get(row.topic_id) if row.topic_id is not None else None
        rows.append(
            row if error is None else row._replace(error_code=error.code, error_message=error.message)
        )
    return reply._replace(responses=tuple(rows))
