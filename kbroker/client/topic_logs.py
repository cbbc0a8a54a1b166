"""Topic partitions as logs: read a range of offsets, and append a batch. For tools that look at
every record once.

Use a Kafka client library to produce and consume. This module does what none of them can: it
returns batch headers with the records, and lets the caller choose the producer id and sequence
numbers, so that the broker recognises a repeated append (KIP-98). Prints nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from kbroker.client.admin import EARLIEST, Topic, list_offsets
from kbroker.client.admin import Bounds as Bounds
from kbroker.client.admin import bounds as bounds
from kbroker.client.answers import WRITES_NOWHERE, check, reason
from kbroker.client.rpc import Connection, Entity
from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.batches import BatchHeader, Record, iter_headers, stored_records
from kbroker.formats.compression import CorruptPayload

_FETCH_BYTES = 4 << 20
_MAX_WAIT_MS = 500
_TIMEOUT_MS = 30_000
_BY_ID = 13  # the first version of Fetch, and of Produce, that names topics by id


class LogBatch(NamedTuple):
    """`damage`: why the batch cannot be read to its end; `records` are then those before it. None:
    `records` are complete."""

    header: BatchHeader
    records: list[Record]
    damage: str | None = None


class Damage(NamedTuple):
    """A batch that cannot be read at all, or not to its end."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    reason: str

    def __str__(self) -> str:
        first, last = self.first_offset, self.last_offset
        offsets = f"offset {first}" if first == last else f"offsets {first} to {last}"
        return f"left out unreadable records of {self.topic}-{self.partition}, {offsets}: {self.reason}"


def ignore_damage(damage: Damage) -> None:
    """For callers that need not report damage."""


def read_batches(
    connection: Connection,
    topic: Topic,
    partition: int,
    start: int,
    end: int,
    *,
    fetch_bytes: int = _FETCH_BYTES,
) -> Iterator[LogBatch]:
    """The batches that hold records from `start` up to, but not including, `end`, with only those
    records. Control batches are left out. A `start` below the log start is raised to it.

    `fetch_bytes`: the size of one fetch, which always returns at least one whole batch.

    A batch whose payload contradicts its header does not end the iteration, since any producer can
    write one; it comes with `damage`.

    Raises KafkaError, for instance unknown_topic_id if the topic was recreated meanwhile.
    """
    while start < end:
        row = _fetch(connection, topic, partition, start, fetch_bytes)
        if row.error_code is ErrorCode.offset_out_of_range:
            (earliest,) = list_offsets(connection, topic.name, [partition], EARLIEST).values()
            if earliest <= start:
                return
            start = earliest
            continue
        why = reason(row.error_code, needs="read", name=topic.name)
        check(row.error_code, f"{topic.name}-{partition} at offset {start}: {why}")
        data = bytes(row.records or b"")
        next_offset = start
        for position, header in iter_headers(data):
            if header.base_offset >= end:  # written after the caller looked up the end of the log
                return
            next_offset = max(next_offset, header.last_offset + 1)
            if not header.is_control:
                yield _batch_at(data, position, header, start, end)
        if next_offset == start:
            raise KafkaError(
                ErrorCode.corrupt_message,
                f"{topic.name}-{partition}: there is no whole batch at offset {start}",
            )
        start = next_offset


def committed_batch(connection: Connection, topic: Topic, partition: int, start: int) -> LogBatch | None:
    """The first batch with records from `start` on, with only those; None if there is none, or it
    is a control batch or one of an aborted transaction. Raises KafkaError."""
    row = _fetch(connection, topic, partition, start, 1, read_committed=True)
    why = reason(row.error_code, needs="read", name=topic.name)
    check(row.error_code, f"{topic.name}-{partition} at offset {start}: {why}")
    data = bytes(row.records or b"")
    for position, header in iter_headers(data):
        is_aborted = header.is_transactional and any(
            each.producer_id == header.producer_id and each.first_offset <= header.base_offset
            for each in row.aborted_transactions or ()
        )
        is_read = not (header.is_control or is_aborted)
        return _batch_at(data, position, header, start, header.last_offset + 1) if is_read else None
    return None


def _batch_at(data: bytes, position: int, header: BatchHeader, start: int, end: int) -> LogBatch:
    records: list[Record] = []
    try:
        for record in stored_records(data, position):
            if start <= record.offset < end:
                records.append(record)
    except CorruptPayload as error:
        return LogBatch(header, records, str(error))
    return LogBatch(header, records)


def read_records(
    connection: Connection,
    topic: Topic,
    partition: int,
    start: int,
    end: int,
    on_damage: Callable[[Damage], None] = ignore_damage,
    *,
    fetch_bytes: int = _FETCH_BYTES,
) -> Iterator[Record]:
    """Like read_batches, record by record. Calls `on_damage` for each damaged batch, after its
    readable records."""
    for header, records, damage in read_batches(
        connection, topic, partition, start, end, fetch_bytes=fetch_bytes
    ):
        yield from records
        if damage is not None:
            on_damage(Damage(topic.name, partition, header.base_offset, header.last_offset, damage))


def append(connection: Connection, topic: Topic, partition: int, batch: bytes) -> int:
    """Append one batch with acks=all and return its base offset. Raises KafkaError."""
    row = {"index": partition, "records": batch}
    wanted = {"topic_id": topic.topic_id, "partition_data": [row]}
    answer = connection.call(
        "produce", _BY_ID, transactional_id=None, acks=-1, timeout=_TIMEOUT_MS, topic_data=[wanted]
    )
    result = answer.responses[0].partition_responses[0]
    why = reason(result.error_code, result.error_message, needs="write", name=topic.name)
    check(result.error_code, f"{topic.name}-{partition}: {why}")
    return int(result.base_offset)


def new_producer_id(connection: Connection) -> int:
    answer = connection.call("init_producer_id", transactional_id=None, transaction_timeout=_TIMEOUT_MS)
    is_refused = answer.error_code is ErrorCode.cluster_authorization_failed
    check(answer.error_code, WRITES_NOWHERE if is_refused else None)
    return int(answer.producer_id)


def _fetch(
    connection: Connection,
    topic: Topic,
    partition: int,
    offset: int,
    fetch_bytes: int,
    *,
    read_committed: bool = False,
) -> Entity:
    wanted = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": fetch_bytes}
    answer = connection.call(
        "fetch",
        _BY_ID,
        replica_id=-1,
        max_wait=_MAX_WAIT_MS,
        min_bytes=1,
        max_bytes=fetch_bytes,
        isolation_level=int(read_committed),
        topics=[{"topic_id": topic.topic_id, "partitions": [wanted]}],
        forgotten_topics_data=(),
    )
    check(answer.error_code)
    return answer.responses[0].partitions[0]
