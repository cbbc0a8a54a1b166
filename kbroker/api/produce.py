"""Produce (0), v3-13. One record batch per partition (KIP-98 format); topics by name to v12, by id from v13 (KIP-516).

acks=0: nothing is answered; a refused batch ends the connection, so that the producer notices.
acks=1: answered when the batch is written; acks=all: when it counts (see kbroker/broker/group_commit.py).
Transactional producers get TRANSACTIONAL_ID_AUTHORIZATION_FAILED, which every client takes as final.
The request's timeout is not used: a commit waits for no replicas.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from kbroker.broker.connection import CloseConnection, Later, Raw, Request
from kbroker.broker.topics import Topic
from kbroker.broker.waiting import Pending
from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode, KafkaError
from kbroker.protocol.hot import PRODUCE_TOPIC_IDS, ProduceRow, produce_response

_ALL = -1
_NONE = 0
_ACKS = (_ALL, _NONE, 1)
_NO_TOPIC_ID = UUID(int=0)


def handle(request: Request) -> Later:
    produce = _Produce(request)
    for topic_data in request.body.topic_data:
        produce.append_topic(topic_data)
    return Later(produce.pending, produce.body)


class _Produce:
    """One request; its rows are filled in as batches are refused, written or committed."""

    __slots__ = ("_errors", "_now_ms", "_request", "_topics", "acks", "pending")

    def __init__(self, request: Request) -> None:
        self._request = request
        self._now_ms = wall_clock_ms()
        self._topics: list[tuple[str | UUID, list[ProduceRow]]] = []
        self._errors: list[ErrorCode] = []
        self.acks: int = request.body.acks
        self.pending = Pending()

    def append_topic(self, topic_data: Any) -> None:
        topic, name, missing = self._find(topic_data)
        rows: list[ProduceRow] = []
        self._topics.append((name, rows))
        # The same partition twice: one row, the last (as Kafka).
        for index, records in {data.index: data.records for data in topic_data.partition_data}.items():
            part = _Part(self, topic, rows, index)
            self.pending.parts += 1
            if topic is not None:
                topic.metrics.produce_requests += 1
            try:
                self._check(topic, missing, index)
                assert topic is not None
                partition = topic.partitions[index]
                appended = partition.append(records, self._now_ms, part.done, part.written)
                rows.append(ProduceRow(index, 0, appended.base_offset, appended.log_append_time_ms, partition.log_start_offset))
            except KafkaError as error:
                self.pending.parts -= 1
                rows.append(ProduceRow(index, error.code, error_message=error.message))
                self.failed(topic, error.code, records)

    def _find(self, topic_data: Any) -> tuple[Topic | None, str | UUID, ErrorCode]:
        topics = self._request.broker.topics
        if self._request.version >= PRODUCE_TOPIC_IDS:
            return topics.by_id(topic_data.topic_id), topic_data.topic_id or _NO_TOPIC_ID, ErrorCode.unknown_topic_id
        return topics.by_name(topic_data.name), topic_data.name, ErrorCode.unknown_topic_or_partition

    def _check(self, topic: Topic | None, missing: ErrorCode, index: int) -> None:
        if self.acks not in _ACKS:
            raise KafkaError(ErrorCode.invalid_required_acks)
        if self._request.body.transactional_id is not None:
            raise KafkaError(ErrorCode.transactional_id_authorization_failed, "transactions are not supported")
        if topic is None or (topic.partitions and topic.partitions[0].deleted):
            raise KafkaError(missing)
        if topic.is_internal:
            raise KafkaError(ErrorCode.invalid_topic_exception, f"{topic.name} is an internal topic")
        if not 0 <= index < len(topic.partitions):
            raise KafkaError(ErrorCode.unknown_topic_or_partition)

    def failed(self, topic: Topic | None, code: ErrorCode, records: bytes | None = None) -> None:
        self._errors.append(code)
        if topic is not None:
            topic.metrics.produce_failed(len(records or b"") if code is ErrorCode.message_too_large else 0)

    def body(self) -> Raw | None:
        if self.acks != _NONE:
            return Raw((produce_response(self._request.version, self._topics),), self._errors)
        for name, rows in self._topics:
            for row in rows:
                if row.error_code:
                    raise CloseConnection(f"acks=0 batch for {name}-{row.partition} refused: {row.error_code} {row.error_message or ''}")
        return None


class _Part:
    """What the answer waits for at one partition."""

    __slots__ = ("_at", "_finished", "_index", "_produce", "_rows", "_topic")

    def __init__(self, produce: _Produce, topic: Topic | None, rows: list[ProduceRow], index: int) -> None:
        self._produce = produce
        self._topic = topic
        self._rows = rows
        self._at = len(rows)
        self._index = index
        self._finished = False

    def written(self) -> None:
        if self._produce.acks != _ALL:
            self.done(None)

    def done(self, error: Exception | None) -> None:
        if self._finished:
            return
        self._finished = True
        if error is not None:
            self._rows[self._at] = ProduceRow(self._index, ErrorCode.kafka_storage_error, error_message=str(error))
            self._produce.failed(self._topic, ErrorCode.kafka_storage_error)
        self._produce.pending.part_done()
