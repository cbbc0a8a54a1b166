"""Produce (0), v3-13. One record batch per partition (KIP-98 format); topics by name to v12, by id
from v13 (KIP-516).

- acks=1 and acks=all: answered when the batch is committed (see group_commit.py): it is
  durable, and readers see it.
- acks=0: no answer. The connection waits for the same moment before it receives the burst after
  the next one (server/peer.py), so a producer cannot send faster than the store commits. A refused
  batch ends the connection, so that the producer notices. A failed write or sync does so with the
  producer's next request.

With an authorizer a topic needs WRITE: without it all rows are 29, whether or not it exists (an
unknown id is 100). A request with transactional batches needs WRITE on its transactional id, and
every row is 53 otherwise.

A refused row does not affect the others, even where Kafka refuses the whole request (a malformed
batch, or a transactional one without a transactional id). Payloads are opened if the topic asks for
it, and some batches wait for a thread (append_queues.py). Requests with a transactional id:
transactional_produce.py.

Not done: the request's timeout, as a commit waits for no replicas.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from uuid import UUID

from kbroker.api.authorization import refusal
from kbroker.api.request import CloseConnection, Later, Raw, Request
from kbroker.api.transactional_produce import Batches, ProduceTransaction, is_transactional, transaction_of
from kbroker.broker.commits.waiting import Pending
from kbroker.broker.logs.partition import Appended, Partition, ProducersNotLoaded
from kbroker.broker.logs.topics import INTERNAL_TOPICS, Topic
from kbroker.broker.logs.validation import BadBatch, MustOpen, read_batch
from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.batches import BatchHeader
from kbroker.formats.compression import Codec
from kbroker.formats.turns import Turn
from kbroker.protocol.responses import PRODUCE_TOPIC_IDS, ProduceRow, produce_response
from kbroker.security.acls import Operation, ResourceType

_NONE = 0
_ACKS = (-1, _NONE, 1)
_NO_TOPIC_ID = UUID(int=0)
_ZSTD_FROM = 7
_WRITE, _TOPIC = Operation.WRITE, ResourceType.TOPIC


def handle(request: Request) -> Later | Awaitable[Later]:
    if request.body.transactional_id is not None:
        return _transactional(request)
    produce = _Produce(request, None)
    for name, batches in _batches_of(request):
        produce.append_topic(name, batches)
    return Later(produce.pending, produce.body, produce.acks == _NONE)


async def _transactional(request: Request) -> Later:
    topics = _batches_of(request)
    rights, transactional_id = request.connection.rights, request.body.transactional_id
    if (
        rights is not None
        and is_transactional(topics)
        and not rights.allows(_WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
    ):
        return _refused(request, topics, refusal(ResourceType.TRANSACTIONAL_ID))
    produce = _Produce(request, await transaction_of(request, topics))
    for name, batches in topics:
        produce.append_topic(name, batches)
    return Later(produce.pending, produce.body, produce.acks == _NONE)


def _refused(request: Request, topics: Batches, error: KafkaError) -> Later:
    """Refuse the whole request."""
    produce = _Produce(request, None)
    for name, batches in topics:
        produce.refuse_topic(name, batches, error)
    return Later(produce.pending, produce.body, produce.acks == _NONE)


def _batches_of(request: Request) -> Batches:
    """The batches by topic and partition. For a partition that is listed twice, the last batch is
    used, as in Kafka."""
    by_id = request.version >= PRODUCE_TOPIC_IDS
    topics: Batches = []
    for topic in request.body.topic_data:
        batches: dict[int, bytes | memoryview | None] = {}
        for data in topic.partition_data:
            batches[data.index] = data.records
        topics.append(((topic.topic_id or _NO_TOPIC_ID) if by_id else topic.name, batches))
    if len(topics) < 2:
        return topics
    merged: dict[str | UUID, dict[int, bytes | memoryview | None]] = {}
    for name, batches in topics:
        merged.setdefault(name, {}).update(batches)
    return list(merged.items())


def _partition_of(topic: Topic | None, index: int) -> Partition | None:
    return topic.partitions[index] if topic is not None and 0 <= index < len(topic.partitions) else None


class _Produce:
    """One request; its rows are filled in as batches are refused, written or committed."""

    __slots__ = (
        "_errors", "_is_odd", "_now_ms", "_reason", "_request", "_rights", "_topics", "_turn", "acks",
        "pending", "transaction",
    )  # fmt: skip

    def __init__(self, request: Request, transaction: ProduceTransaction | None) -> None:
        self._request = request
        self._rights = request.connection.rights
        self._now_ms = wall_clock_ms()
        self._topics: list[tuple[str | UUID, list[ProduceRow]]] = []
        self._errors: list[ErrorCode] = []
        self._reason = ""
        self._turn: Turn | None = None
        self.acks: int = request.body.acks
        self.transaction = transaction
        self._is_odd = self.acks not in _ACKS or transaction is not None or request.version < _ZSTD_FROM
        self.pending = Pending(start=request.broker.log_commits.start)

    @property
    def turn(self) -> Turn:
        """All batches of a request are appended in one turn."""
        if self._turn is None:
            self._turn = Turn()
        return self._turn

    def append_topic(self, name: str | UUID, batches: Mapping[int, bytes | memoryview | None]) -> None:
        if not batches:
            return
        topics, queues = self._request.broker.topics, self._request.broker.append_queues
        topic = topics.by_id(name) if isinstance(name, UUID) else topics.by_name(name)
        if self._rights is not None and (topic is not None or isinstance(name, str)):
            topic_name = topic.name if topic is not None else str(name)
            if not self._rights.allows(_WRITE, _TOPIC, topic_name):
                self.refuse_topic(name, batches, KafkaError(ErrorCode.topic_authorization_failed))
                return
        rows: list[ProduceRow] = []
        self._topics.append((name, rows))
        for index, records in batches.items():
            part = _Part(self, topic, rows, index)
            self.pending.parts += 1
            if topic is not None:
                topic.metrics.produce_requests += 1
            partition = None
            try:
                partition = self._partition(topic, name, index, records)
                appended: Appended | None
                try:
                    if not (partition.topic.rules.check_payload or queues.queues or self.transaction):
                        appended = partition.enqueue(records, self._now_ms, part.done)
                    else:
                        appended = queues.append(partition, records, self._now_ms, part)
                except (ProducersNotLoaded, MustOpen):
                    appended = queues.append(partition, records, self._now_ms, part)
                if appended is None:
                    rows.append(ProduceRow(index, 0))  # until `part` is notified
                else:
                    rows.append(
                        ProduceRow(
                            index,
                            0,
                            appended.base_offset,
                            appended.log_append_time_ms,
                            partition.log_start_offset,
                        )
                    )
            except KafkaError as error:
                self.pending.parts -= 1
                rows.append(self.refused(partition or _partition_of(topic, index), index, error))
                self.failed(topic, error.code, len(records or b""))

    def refuse_topic(
        self, name: str | UUID, batches: Mapping[int, bytes | memoryview | None], error: KafkaError
    ) -> None:
        """Refuse all rows of a topic without looking at them."""
        self._topics.append((name, [self.refused(None, index, error) for index in batches]))
        self._errors += [error.code] * len(batches)

    def _partition(
        self, topic: Topic | None, name: str | UUID, index: int, records: bytes | memoryview | None
    ) -> Partition:
        """Raises KafkaError for everything that Kafka checks before it looks into the log."""
        if topic is None or (topic.partitions and topic.partitions[0].deleted):
            self._check_missing(name)
        elif 0 <= index < len(topic.partitions):
            if self._is_odd:
                self._check_odd(topic.partitions[index], records)
            if topic.name not in INTERNAL_TOPICS:
                partition = topic.partitions[index]
                if self._request.broker.disk_floor.is_short:
                    if records is not None and partition not in self._request.broker.append_queues.queues:
                        partition.note_refused(records, self._now_ms)
                    self._request.broker.disk_floor.refused += 1
                    raise self._request.broker.disk_floor.refusal()
                return partition
            raise KafkaError(ErrorCode.invalid_topic_exception)
        raise KafkaError(
            ErrorCode.unknown_topic_id
            if topic is None and isinstance(name, UUID)
            else ErrorCode.unknown_topic_or_partition
        )

    def _check_missing(self, name: str | UUID) -> None:
        # kbroker has no such topics. As in Kafka, clients must not write to them.
        if name in INTERNAL_TOPICS:
            raise KafkaError(
                ErrorCode.invalid_topic_exception if self.acks in _ACKS else ErrorCode.invalid_required_acks
            )

    def _check_odd(self, partition: Partition, records: bytes | memoryview | None) -> None:
        header = read_batch(records, transactional=self.transaction is not None)
        if self.transaction is not None:
            self.transaction.check(partition, header)
        if header.codec_id == Codec.ZSTD and self._request.version < _ZSTD_FROM:
            raise KafkaError(ErrorCode.unsupported_compression_type)
        if self.acks not in _ACKS:
            raise KafkaError(ErrorCode.invalid_required_acks)

    def refused(self, partition: Partition | None, index: int, error: KafkaError) -> ProduceRow:
        self._reason = str(error)
        if partition is None or not isinstance(error, BadBatch):
            return ProduceRow(index, error.code, error_message=error.message)
        log_start_offset = partition.log_start_offset if error.by_log else -1
        return ProduceRow(index, error.code, -1, -1, log_start_offset, error.message, error.record_errors)

    def failed(self, topic: Topic | None, code: ErrorCode, size_bytes: int = 0) -> None:
        self._errors.append(code)
        if topic is not None:
            topic.metrics.produce_failed(size_bytes if code is ErrorCode.message_too_large else 0)

    def body(self) -> Raw | None:
        if self.acks != _NONE:
            return Raw((produce_response(self._request.version, self._topics),), self._errors)
        for name, rows in self._topics:
            for row in rows:
                if row.error_code:
                    raise CloseConnection(
                        f"acks=0 batch for {name}-{row.partition} refused: "
                        f"{row.error_message or self._reason}"
                    )
        return None


class _Part:
    """One partition's part of the answer."""

    __slots__ = ("_at", "_index", "_produce", "_rows", "_topic")

    def __init__(self, produce: _Produce, topic: Topic | None, rows: list[ProduceRow], index: int) -> None:
        self._produce = produce
        self._topic = topic
        self._rows = rows
        self._at = len(rows)
        self._index = index

    @property
    def transactional(self) -> bool:
        return self._produce.transaction is not None

    @property
    def turn(self) -> Turn:
        return self._produce.turn

    def check(self, partition: Partition, header: BatchHeader) -> None:
        if self._produce.transaction is not None:
            self._produce.transaction.check(partition, header)

    def appended(self, partition: Partition, appended: Appended) -> None:
        self._rows[self._at] = ProduceRow(
            self._index, 0, appended.base_offset, appended.log_append_time_ms, partition.log_start_offset
        )

    def refused(self, partition: Partition, error: KafkaError, size_bytes: int) -> None:
        self._rows[self._at] = self._produce.refused(partition, self._index, error)
        self._produce.failed(self._topic, error.code, size_bytes)
        self._produce.pending.part_done()

    def done(self, error: Exception | None) -> None:
        if error is not None:
            self._rows[self._at] = ProduceRow(
                self._index, ErrorCode.kafka_storage_error, error_message=str(error)
            )
            self._produce.failed(self._topic, ErrorCode.kafka_storage_error)
        self._produce.pending.part_done()
