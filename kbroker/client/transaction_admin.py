"""Requests about transactions: list and describe transactional ids and the producers of logs,
fence a producer, and end a hanging transaction.

Plain functions over a Connection, as in group_admin.py. An error of the whole response is raised as
KafkaError; errors of single rows are returned.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from kio.serial.readers import (
    read_compact_array_length,
    read_compact_string,
    read_int16,
    read_int32,
    read_int64,
)

from kbroker.client.answers import check, reason
from kbroker.client.group_admin import TopicPartition, by_topic
from kbroker.client.rpc import Connection, Entity
from kbroker.errors import ErrorCode, KafkaError

OPEN_STATES: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")
"""The id has a transaction that has not ended, or not in all of its logs."""
OUTCOMES: Final[Mapping[str, str]] = {
    "PrepareCommit": "committed",
    "CompleteCommit": "committed",
    "PrepareAbort": "aborted",
    "CompleteAbort": "aborted",
}
"""The decision about an id's last transaction, by state."""

_PARTITIONS_AT_ONCE: Final = 500
_THROTTLE_TIME_BYTES: Final = 4
_LAST_WITHOUT_TWO_PHASES: Final = 5
"""The last version of InitProducerId without KIP-939."""
_NO_START: Final = -1
_RETRIED: Final = (ErrorCode.concurrent_transactions, ErrorCode.coordinator_load_in_progress)
_RETRY_S: Final = 0.1
_PATIENCE_S: Final = 30.0


class ListedTransaction(NamedTuple):
    transactional_id: str
    producer_id: int
    state: str


class Transaction(NamedTuple):
    """A transactional id. `started_ms`: the beginning of its last transaction; None if there was
    none. `partitions`: those of the transaction that are not ended yet, by topic."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int | None
    partitions: Mapping[str, tuple[int, ...]]

    @property
    def is_open(self) -> bool:
        return self.state in OPEN_STATES

    def has(self, place: TopicPartition) -> bool:
        """Whether the open transaction includes this partition."""
        return self.is_open and place.partition in self.partitions.get(place.topic, ())


class ProducerDescription(NamedTuple):
    """A producer that a log knows. None: `last_sequence` after a marker alone, `coordinator_epoch`
    before the first marker, `open_from` without an open transaction."""

    producer_id: int
    producer_epoch: int
    last_sequence: int | None
    last_timestamp_ms: int
    coordinator_epoch: int | None
    open_from: int | None


class Fenced(NamedTuple):
    """The epoch that fences the last producer of an id. `outcome`: "committed" or "aborted" if a
    transaction had to end before that."""

    producer_id: int
    producer_epoch: int
    outcome: str | None


def list_transactions(
    connection: Connection,
    states: Sequence[str] = (),
    producer_ids: Collection[int] = (),
    longer_than_ms: int | None = None,
    pattern: str | None = None,
) -> list[ListedTransaction]:
    """The transactional ids that match all of these, sorted; by default all. Raises KafkaError, for
    instance if the broker does not know a filter."""
    answer = connection.call(
        "list_transactions",
        state_filters=tuple(states),
        producer_id_filters=tuple(producer_ids),
        duration_filter=-1 if longer_than_ms is None else longer_than_ms,
        transactional_id_pattern=pattern,
    )
    if answer.error_code is ErrorCode.invalid_regular_expression:
        raise KafkaError(answer.error_code, f"{pattern!r} is not a regular expression of RE2")
    check(answer.error_code, f"transactions: {reason(answer.error_code)}")
    if answer.unknown_state_filters:
        unknown = ", ".join(answer.unknown_state_filters)
        raise KafkaError(
            ErrorCode.invalid_request, f"the broker knows no transaction state {unknown}: leave it out"
        )
    return sorted(
        ListedTransaction(row.transactional_id, row.producer_id, row.transaction_state)
        for row in answer.transaction_states
    )


def describe_transactions(
    connection: Connection, transactional_ids: Sequence[str]
) -> list[Transaction | KafkaError]:
    """One result for each id, in order; transactional_id_not_found for an unknown one."""
    version = connection.common_version("describe_transactions", at_most=0)
    body = connection.call_raw("describe_transactions", version, transactional_ids=tuple(transactional_ids))
    found = dict(_read_transactions(_Reader(body, _THROTTLE_TIME_BYTES)))
    return [found[each] for each in transactional_ids]


class _Reader:
    """Reads a response of DescribeTransactions: kio cannot decode a row without a start time."""

    def __init__(self, body: bytes, position: int) -> None:
        self._body = body
        self._position = position

    def _read(self, reader: Callable[..., tuple[Entity, int]]) -> Entity:
        value, size = reader(self._body, self._position)
        self._position += size
        return value

    def text(self) -> str:
        return str(self._read(read_compact_string))

    def int16(self) -> int:
        return int(self._read(read_int16))

    def int32(self) -> int:
        return int(self._read(read_int32))

    def int64(self) -> int:
        return int(self._read(read_int64))

    def count(self) -> int:
        return int(self._read(read_compact_array_length))

    def no_tags(self) -> None:
        """Version 0 has no tagged field."""
        self._position += 1


def _read_transactions(reader: _Reader) -> Iterator[tuple[str, Transaction | KafkaError]]:
    for _ in range(reader.count()):
        code = ErrorCode(reader.int16())
        transactional_id, state = reader.text(), reader.text()
        timeout_ms, started_ms = reader.int32(), reader.int64()
        producer_id, epoch = reader.int64(), reader.int16()
        partitions = dict(_read_topic(reader) for _ in range(reader.count()))
        reader.no_tags()
        if code is not ErrorCode.none:
            yield transactional_id, KafkaError(code, _why_not(transactional_id, code))
            continue
        began_ms = None if started_ms == _NO_START else started_ms
        yield (
            transactional_id,
            Transaction(transactional_id, state, producer_id, epoch, timeout_ms, began_ms, partitions),
        )


def _read_topic(reader: _Reader) -> tuple[str, tuple[int, ...]]:
    name = reader.text()
    partitions = tuple(sorted(reader.int32() for _ in range(reader.count())))
    reader.no_tags()
    return name, partitions


def _why_not(transactional_id: str, code: ErrorCode) -> str:
    if code is ErrorCode.transactional_id_not_found:
        return f"there is no transactional id {transactional_id}"
    why = reason(code, needs="describe", name=transactional_id)
    return f"transactional id {transactional_id}: {why}"


def describe_producers(
    connection: Connection, places: Iterable[TopicPartition]
) -> dict[TopicPartition, tuple[ProducerDescription, ...] | KafkaError]:
    """The producers that each log knows, sorted by id. Sends a request for every few hundred
    logs."""
    every = list(places)
    found: dict[TopicPartition, tuple[ProducerDescription, ...] | KafkaError] = {}
    for first in range(0, len(every), _PARTITIONS_AT_ONCE):
        wanted = by_topic(every[first : first + _PARTITIONS_AT_ONCE])
        rows = [{"name": topic, "partition_indexes": tuple(numbers)} for topic, numbers in wanted.items()]
        answer = connection.call("describe_producers", topics=rows)
        found |= {
            TopicPartition(topic.name, row.partition_index): _producers(topic.name, row)
            for topic in answer.topics
            for row in topic.partitions
        }
    return found


def _producers(topic: str, row: Entity) -> tuple[ProducerDescription, ...] | KafkaError:
    if row.error_code is ErrorCode.unknown_topic_or_partition:
        return KafkaError(row.error_code, f"there is no partition {row.partition_index} of topic {topic}")
    if row.error_code is not ErrorCode.none:
        why = reason(row.error_code, row.error_message, needs="read", name=topic)
        return KafkaError(row.error_code, f"producers of {topic}-{row.partition_index}: {why}")
    return tuple(sorted(map(_producer, row.active_producers)))


def _producer(row: Entity) -> ProducerDescription:
    return ProducerDescription(
        row.producer_id,
        row.producer_epoch,
        _if_any(row.last_sequence),
        row.last_timestamp,
        _if_any(row.coordinator_epoch),
        _if_any(row.current_txn_start_offset),
    )


def _if_any(number: int) -> int | None:
    return None if number < 0 else number


def fence(connection: Connection, transactional_id: str, timeout_ms: int) -> Fenced:
    """Take the next epoch of an id, as Kafka's Admin.fenceProducers does. The broker aborts an open
    transaction first, or completes the end that was decided; this waits for it.

    `timeout_ms`: the time-out of the id's transactions from now on. Creates the id if it does not
    exist. Raises KafkaError; concurrent_transactions if the end takes too long."""
    version = connection.common_version("init_producer_id", at_most=_LAST_WITHOUT_TWO_PHASES)
    outcome = None
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        answer = connection.call(
            "init_producer_id", version, transactional_id=transactional_id, transaction_timeout=timeout_ms
        )
        if answer.error_code not in _RETRIED or time.monotonic() > deadline:
            why = reason(answer.error_code, needs="write", name=transactional_id)
            check(answer.error_code, f"transactional id {transactional_id}: {why}")
            return Fenced(answer.producer_id, answer.producer_epoch, outcome)
        (now,) = describe_transactions(connection, [transactional_id])
        if isinstance(now, Transaction):
            outcome = OUTCOMES.get(now.state, outcome)
        time.sleep(_RETRY_S)


def abort_in_log(connection: Connection, place: TopicPartition, producer: ProducerDescription) -> None:
    """End a producer's transaction in one log with an abort marker, as Kafka's
    Admin.abortTransaction does. The coordinator is not involved. Raises KafkaError."""
    marker = {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "transaction_result": False,
        "topics": [{"name": place.topic, "partition_indexes": (place.partition,)}],
        "coordinator_epoch": producer.coordinator_epoch or 0,
    }
    answer = connection.call("write_txn_markers", markers=[marker])
    for each in answer.markers:
        for topic in each.topics:
            for row in topic.partitions:
                why = reason(row.error_code, getattr(row, "error_message", None), needs="alter")
                check(row.error_code, f"{place}: {why}")
