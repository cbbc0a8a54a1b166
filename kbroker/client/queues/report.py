"""The report of a queue at one moment: its jobs, its workers, its dead letters.

The number of unfinished jobs comes over the Kafka protocol. Only the broker's HTTP endpoint knows
which of them workers hold; without its document those fields are None.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from kbroker.client.admin import Bounds, bounds
from kbroker.client.queues.counts import count
from kbroker.client.queues.settings import Queue
from kbroker.client.rpc import Connection
from kbroker.client.topic_logs import ignore_damage, read_records
from kbroker.formats.batches import NO_TIMESTAMP

Document: TypeAlias = Mapping[str, Any]
"""The response of /v1/share-groups/GROUP/inflight."""

_FINAL = frozenset({"acknowledged", "archived"})
_ONE_BATCH_BYTES = 1


class Held(NamedTuple):
    """Jobs side by side in a partition, the last one included."""

    partition: int
    first_offset: int
    last_offset: int


class Worker(NamedTuple):
    """A member of the share group, or a former member that still holds jobs.

    - `in_group` False: it has left; its jobs are redelivered when its connection or locks end.
    - `jobs`: how many it holds; None without the endpoint's document.
    - `left_ms`: time until the first of its locks ends; None if no lock is known.
    - `held`: which jobs it holds, in order; None without the endpoint's document.
    """

    member_id: str
    client_id: str
    host: str
    in_group: bool
    jobs: int | None
    left_ms: int | None
    held: tuple[Held, ...] | None


class QueueReport(NamedTuple):
    """Counts of jobs; times are milliseconds since 1970.

    - `sent`: all jobs that were ever sent; `unfinished`: those that are not finished.
    - `in_flight`, `waiting`, `archiving`, `ready` divide the unfinished ones: held by workers,
      waiting for a due time, waiting for their dead letter, and the rest. None without the
      endpoint's document.
    - `next_due_ms`: the next due time of a parked job; None if there is none in the future.
    - `oldest_ms`: when the oldest unfinished job was sent; None if there is none, or if it cannot
      be read.
    - `dead_letters`: records in the dead letter topic; None if the topic does not exist.
    """

    sent: int
    unfinished: int
    ready: int | None
    in_flight: int | None
    waiting: int | None
    archiving: int | None
    next_due_ms: int | None
    oldest_ms: int | None
    workers: tuple[Worker, ...]
    dead_letters: int | None


def report(connection: Connection, queue: Queue, in_flight: Document | None) -> QueueReport:
    """Raises KafkaError."""
    assert queue.topic is not None
    partitions = (
        []
        if in_flight is None
        else [each for each in in_flight["share_partitions"] if each["topic"] == queue.name]
    )
    resting = [] if in_flight is None else in_flight.get("not_loaded", [])
    spans = bounds(connection, queue.topic)
    counted = count(connection, queue, spans)
    unfinished = counted.unfinished
    counts: Counter[str] | None = None if in_flight is None else _by_state([*partitions, *resting])
    held = None if counts is None else counts["acquired"]
    ready = (
        None
        if counts is None
        else max(0, unfinished - counts["acquired"] - counts["waiting"] - counts["archiving"])
    )
    rows = [Worker(*each, True, None, None, None) for each in counted.workers]
    return QueueReport(
        counted.sent,
        unfinished,
        ready,
        held,
        None if counts is None else counts["waiting"],
        None if counts is None else counts["archiving"],
        _next_due_ms(in_flight, [*partitions, *resting]),
        _oldest_ms(connection, queue, spans, partitions, resting) if unfinished else None,
        tuple(rows if in_flight is None else _with_jobs(rows, partitions)),
        counted.dead_letters,
    )


def _by_state(partitions: Iterable[Document]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for partition in partitions:
        for found in partition.get("ranges", ()):
            counts[found["state"]] += _size(found)
        counts["waiting"] += partition.get("parked", 0)
        in_memory = 0
        for found in _parked_ranges(partition):
            counts[found["state"]] += _size(found)
            counts["waiting"] -= _size(found)
            in_memory += _size(found)
        # Parked records that are due but are in the store only are ready.
        counts["waiting"] -= max(0, partition.get("parked_due", 0) - in_memory)
    return counts


def _size(found: Document) -> int:
    return int(found["last_offset"] - found["first_offset"] + 1)


def _parked_ranges(partition: Document) -> Iterable[Document]:
    """Ranges of parked records that are in memory: held by a member, due, or to become dead
    letters."""
    found: Iterable[Document] = partition.get("parked_ranges", ())
    return found


def _next_due_ms(in_flight: Document | None, partitions: Iterable[Document]) -> int | None:
    now_ms = 0 if in_flight is None else in_flight["now_ms"]
    times = [partition.get("next_due_ms") for partition in partitions]
    return min((due_ms for due_ms in times if due_ms is not None and due_ms > now_ms), default=None)


def _with_jobs(workers: list[Worker], partitions: Iterable[Document]) -> list[Worker]:
    """The workers with the jobs that they hold, and former members that still hold some."""
    found: dict[str, Worker] = {each.member_id: each._replace(jobs=0) for each in workers}
    held: dict[str, list[Held]] = defaultdict(list)
    for number, each in (
        (partition["partition"], found)
        for partition in partitions
        for found in (*partition["ranges"], *_parked_ranges(partition))
        if found["member_id"] is not None
    ):
        member_id = each["member_id"]
        stranger = Worker(
            member_id, each.get("client_id") or "", each.get("client_host") or "", False, 0, None, None
        )
        worker = found.get(member_id, stranger)
        left_ms = min(
            (left for left in (worker.left_ms, each["lock_ms_left"]) if left is not None), default=None
        )
        held[member_id].append(Held(number, each["first_offset"], each["last_offset"]))
        found[member_id] = worker._replace(jobs=(worker.jobs or 0) + _size(each), left_ms=left_ms)
    return [each._replace(held=_joined(held[member_id])) for member_id, each in found.items()]


def _joined(ranges: Iterable[Held]) -> tuple[Held, ...]:
    """In order; ranges that follow one another are one."""
    joined: list[Held] = []
    for each in sorted(ranges):
        before = joined[-1] if joined else None
        if before and (before.partition, before.last_offset + 1) == (each.partition, each.first_offset):
            joined[-1] = before._replace(last_offset=each.last_offset)
        else:
            joined.append(each)
    return tuple(joined)


def _oldest_ms(
    connection: Connection,
    queue: Queue,
    spans: Mapping[int, Bounds],
    partitions: Sequence[Document],
    resting: Sequence[Document],
) -> int | None:
    """The oldest timestamp among the first unfinished jobs of all partitions.

    For a partition that the endpoint's document does not describe, it is that of the record at the
    start offset, which may be finished already. Only that document knows the timestamps of jobs
    that are kept beside the log.
    """
    assert queue.topic is not None
    starts = {row.partition: row.start_offset for row in queue.offsets}
    known = {each["partition"]: _first_unfinished(each) for each in partitions}
    known |= {each["partition"]: int(each["first_parked"]) for each in resting}
    stamps = [each.get("first_parked_sent_ms") for each in (*partitions, *resting)]
    for partition, (start, end) in spans.items():
        first = max(start, known.get(partition, starts.get(partition) or 0))
        records = read_records(
            connection, queue.topic, partition, first, end, ignore_damage, fetch_bytes=_ONE_BATCH_BYTES
        )
        oldest = next(records, None)
        if oldest is not None:
            stamps.append(oldest.timestamp_ms)
    return min((each for each in stamps if each is not None and each != NO_TIMESTAMP), default=None)


def _first_unfinished(partition: Document) -> int:
    first, parked = _first_in_window(partition), partition.get("first_parked")
    return first if parked is None else min(first, int(parked))


def _first_in_window(partition: Document) -> int:
    for found in partition["ranges"]:
        if found["saving"] or found["state"] not in _FINAL:
            return int(found["first_offset"])
    return int(
        partition["ranges"][-1]["last_offset"] + 1 if partition["ranges"] else partition["start_offset"]
    )
