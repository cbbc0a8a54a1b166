"""The counts of a queue that the Kafka protocol offers: its jobs, its workers, its dead letters.

report.py adds what only the broker's HTTP endpoint knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from ...errors import ErrorCode, KafkaError
from .. import admin, group_admin
from ..admin import Bounds, Topic, bounds
from ..caller import Caller
from ..group_admin import ShareOffset
from .settings import Queue, look, names


class QueueWorker(NamedTuple):
    """A worker of the queue."""

    member_id: str
    client_id: str
    host: str


class Counts(NamedTuple):
    """- `sent`: all jobs that were ever sent; `unfinished`: those that are not finished
    - `dead_letters`: records in the dead letter topic; None if the topic does not exist
    """

    sent: int
    unfinished: int
    workers: tuple[QueueWorker, ...]
    dead_letters: int | None


class QueueSummary(NamedTuple):
    """A queue in a list. `dead_letter_topic`: None if it has none."""

    name: str
    partitions: int
    unfinished: int
    workers: int
    dead_letters: int | None
    dead_letter_topic: str | None


def count(connection: Caller, queue: Queue, spans: Mapping[int, Bounds]) -> Counts:
    """`spans`: of all partitions. Raises KafkaError."""
    members = group_admin.describe_share_group(connection, queue.name).members
    # Kafka's responses put a slash before an address; kbroker's do not.
    workers = (
        QueueWorker(each.member_id, each.client_id, each.client_host.removeprefix("/")) for each in members
    )
    return Counts(
        sum(span.end_offset for span in spans.values()),
        _unfinished(queue, spans),
        tuple(workers),
        dead_letters(connection, queue),
    )


def summaries(connection: Caller) -> Iterator[QueueSummary]:
    """Of all queues."""
    for name in names(connection):
        if (found := _summary(connection, name)) is not None:
            yield found


def _summary(connection: Caller, name: str) -> QueueSummary | None:
    """None if the queue was deleted meanwhile."""
    queue = look(connection, name)
    if queue.topic is None or not queue.is_whole:
        return None
    try:
        unfinished = unfinished_jobs(connection, queue)
        workers = len(group_admin.describe_share_group(connection, name).members)
    except KafkaError as error:
        if error.code not in (ErrorCode.group_id_not_found, ErrorCode.unknown_topic_or_partition):
            raise
        return None
    letters = dead_letters(connection, queue)
    return QueueSummary(
        name, len(queue.topic.partitions), unfinished, workers, letters, queue.dead_letters or None
    )


def dead_letters(connection: Caller, queue: Queue) -> int | None:
    """None if the topic does not exist."""
    topic = queue.dead_letter_topic
    return None if topic is None else records_in(connection, [topic])[topic.name]


def unfinished_jobs(connection: Caller, queue: Queue) -> int:
    """The exact lag. A partition without share state counts with all its records, and so does one
    whose lag cannot be right: an operator may delete a queue that has no jobs."""
    assert queue.topic is not None
    lags = {row.partition for row in queue.offsets if row.lag is not None and row.lag >= 0}
    return _unfinished(
        queue, {} if lags.issuperset(queue.topic.partitions) else bounds(connection, queue.topic)
    )


def _unfinished(queue: Queue, spans: Mapping[int, Bounds]) -> int:
    """`spans` must have every partition without a lag, and those with a negative one."""
    assert queue.topic is not None
    rows = {row.partition: row for row in queue.offsets}
    return sum(_left(rows.get(number), spans.get(number)) for number in queue.topic.partitions)


def _left(row: ShareOffset | None, span: Bounds | None) -> int:
    """The unfinished jobs of a partition."""
    if row is not None and row.lag is not None and row.lag >= 0:
        return row.lag
    assert span is not None
    # A start offset beyond the log's end gives a negative lag, as in Kafka.
    is_beyond = row is not None and row.start_offset is not None and row.start_offset > span.end_offset
    return 0 if is_beyond else span.end_offset - span.start_offset


def records_in(connection: Caller, topics: Iterable[Topic]) -> dict[str, int]:
    """The number of offsets between the start and end of each topic's logs, by name. A partition
    whose offsets cannot be read adds nothing."""
    found = list(topics)
    wanted = {topic.name: topic.partitions for topic in found}
    starts = admin.find_offsets(connection, wanted, admin.EARLIEST)
    ends = admin.find_offsets(connection, wanted, admin.LATEST)
    counts = dict.fromkeys(wanted, 0)
    for place, end in ends.items():
        start = starts[place]
        if not isinstance(end, KafkaError) and not isinstance(start, KafkaError):
            counts[place[0]] += end - start
    return counts
