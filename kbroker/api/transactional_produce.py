"""The part of Produce that is for requests with a transactional id.

    v3-11    each log of a transactional batch must be part of the transaction already
    v12-13   the logs are added to it here (KIP-890), before the batches are looked at

A batch that had to wait is checked again in the step in which the log takes it: the transaction may
have ended meanwhile, and its logs are synced then.

Codes are Kafka's: NOT_ENOUGH_REPLICAS, which every client tries again, for a coordinator that
cannot answer now, and INVALID_PRODUCER_EPOCH for a fenced producer. Plain batches in such a request
belong to no transaction.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

import trio

from kbroker.api.request import Request
from kbroker.api.transactions import find_partition
from kbroker.broker.logs.partition import Partition
from kbroker.broker.logs.topics import INTERNAL_TOPICS
from kbroker.broker.logs.validation import BadBatch, read_batch
from kbroker.broker.transactions.service import TransactionService
from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.batches import BatchHeader
from kbroker.security.acls import Operation, ResourceType
from kbroker.transactions.coordinator import ProducerEpoch

Batches: TypeAlias = list[tuple[str | UUID, dict[int, bytes | memoryview | None]]]

_ABORTABLE_FROM = 11
_ADDS_FROM = 12
_BUSY: Final = ErrorCode.concurrent_transactions
_RETRY_S, _RETRIES = 0.02, 5
"""Clients send the first batch of a transaction when the markers of the last one may be missing."""
_TRY_AGAIN: Final = (
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
)


class ProduceTransaction(NamedTuple):
    """`refusal`: for all transactional batches of the request."""

    service: TransactionService
    transactional_id: str
    version: int
    refusal: KafkaError | None

    def check(self, partition: Partition, header: BatchHeader) -> None:
        """Raises KafkaError unless the log may take the batch in this step."""
        if not header.is_transactional:
            return
        if not header.has_producer:
            raise BadBatch(ErrorCode.invalid_record, "a transactional batch has a producer id", by_log=False)
        if self.refusal is not None:
            raise _refusal_by(partition, header) or self.refusal
        producer = ProducerEpoch(header.producer_id, header.producer_epoch)
        code = self.service.verify(self.transactional_id, producer, partition)
        if code is not ErrorCode.none:
            raise _refusal_by(partition, header) or _refusal(self.version, code)
        states = partition.producers
        is_first = states is not None and not states.knows(header.producer_id)
        if self.version >= _ADDS_FROM and is_first and header.base_sequence != 0:
            reason = f"the first batch of a producer has sequence 0, not {header.base_sequence}"
            raise BadBatch(ErrorCode.out_of_order_sequence_number, reason)


async def transaction_of(request: Request, topics: Batches) -> ProduceTransaction:
    """The request's transaction, with its logs added if that is the broker's part. A power cut
    takes neither the transaction nor its logs from here on."""
    service, version = request.broker.transactions, request.version
    transactional_id, rights = request.body.transactional_id, request.connection.rights
    producers: set[ProducerEpoch] = set()
    partitions: list[Partition] = []
    for name, batches in topics:
        for index, records in batches.items():
            partition = find_partition(request.broker, name, index)
            if partition is None or partition.topic_name in INTERNAL_TOPICS:
                continue
            if rights is not None and not rights.has(
                Operation.WRITE, ResourceType.TOPIC, partition.topic_name
            ):
                continue  # The row is refused when its batch is appended.
            if (header := _transactional(records)) is not None:
                producers.add(ProducerEpoch(header.producer_id, header.producer_epoch))
                partitions.append(partition)
    refusal: KafkaError | None = None
    if len(producers) > 1:
        refusal = KafkaError(
            ErrorCode.invalid_producer_id_mapping, "transactional batches of several producers"
        )
    elif producers and version >= _ADDS_FROM:
        code = await _added(service, transactional_id, producers.pop(), partitions)
        refusal = None if code is ErrorCode.none else _refusal(version, code)
    if refusal is None and partitions:
        try:
            await service.begun(transactional_id)
        except KafkaError as error:
            refusal = _refusal(version, error.code)
    return ProduceTransaction(service, transactional_id, version, refusal)


async def _added(
    service: TransactionService, transactional_id: str, producer: ProducerEpoch, partitions: list[Partition]
) -> ErrorCode:
    code = _BUSY
    for attempt in range(1 + _RETRIES):
        if attempt:
            await trio.sleep(_RETRY_S)
        try:
            code = await service.add(transactional_id, producer, partitions, (), version=2)
        except KafkaError as error:
            return error.code
        if code is not _BUSY:
            return code
    return code


def _refusal_by(partition: Partition, header: BatchHeader) -> KafkaError | None:
    """As in Kafka, the log comes first: if it knows a newer epoch of the producer, that is the
    answer, although the coordinator may know the id no more."""
    states = partition.producers
    is_fenced = states is not None and states.has_newer_epoch(header)
    return KafkaError(ErrorCode.invalid_producer_epoch) if is_fenced else None


def _refusal(version: int, code: ErrorCode) -> KafkaError:
    if code in _TRY_AGAIN or (code is _BUSY and version < _ADDS_FROM):
        return KafkaError(ErrorCode.not_enough_replicas)
    if code is ErrorCode.producer_fenced:
        return KafkaError(ErrorCode.invalid_producer_epoch)
    if code is ErrorCode.transaction_abortable and version < _ABORTABLE_FROM:
        return KafkaError(ErrorCode.invalid_txn_state, "Partition was not added to the transaction")
    return KafkaError(code)


def is_transactional(topics: Batches) -> bool:
    """Whether a batch of the request belongs to a transaction."""
    return any(_transactional(records) is not None for _, batches in topics for records in batches.values())


def _transactional(records: bytes | memoryview | None) -> BatchHeader | None:
    """The header of a transactional batch. Others, and bad ones, are left to the append."""
    try:
        header = read_batch(records, transactional=True)
    except BadBatch:
        return None
    return header if header.is_transactional and header.has_producer else None
