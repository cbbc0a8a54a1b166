"""DescribeProducers (61), v0 (KIP-664): the idempotent and transactional producers that a log
knows, as of the high watermark, with the first offset of an open transaction.

With an authorizer a topic needs READ (29, whether or not it exists)."""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.api.authorization import check_topic
from kbroker.api.request import Message, Request
from kbroker.api.transactions import find_partition
from kbroker.api.turns import RowTurn
from kbroker.broker.logs.partition import Partition
from kbroker.broker.logs.topics import check_name
from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.state import Producer
from kbroker.protocol.messages import Repeated
from kbroker.security.acls import Operation


async def handle(request: Request) -> Message:
    turn = RowTurn()
    made: dict[tuple[str, int], Repeated] = {}
    topics = []
    for topic in request.body.topics:
        rows: list[Message | Repeated] = []
        for index in topic.partition_indexes:
            await turn.row()
            row = made.get((topic.name, index)) or await _row(request, topic.name, index)
            if not isinstance(row, Repeated) and row["error_code"] is ErrorCode.none:
                row = made[topic.name, index] = Repeated(row)
            rows.append(row)
        topics.append({"name": topic.name, "partitions": rows})
    return {"topics": topics}


async def _row(request: Request, name: str, index: int) -> Message:
    code, message = ErrorCode.none, None
    producers: Sequence[Producer] = ()
    try:
        producers = (await _found(request, name, index).load_producers()).confirmed()
    except KafkaError as error:
        code, message = error.code, error.message
    return {
        "partition_index": index,
        "error_code": code,
        "error_message": message,
        "active_producers": map(_producer, producers),
    }


def _found(request: Request, name: str, index: int) -> Partition:
    check_name(name)
    check_topic(request, Operation.READ, name)
    partition = find_partition(request.broker, name, index)
    if partition is None:
        is_known = request.broker.topics.by_name(name) is not None
        message = None if is_known else f"there is no topic {name}"
        raise KafkaError(ErrorCode.unknown_topic_or_partition, message)
    return partition


def _producer(producer: Producer) -> Message:
    """A marker with a new epoch drops the producer's batches: it has no last sequence then."""
    return {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "last_sequence": producer.batches[-1].last_sequence if producer.batches else -1,
        "last_timestamp": producer.last_timestamp_ms,
        "coordinator_epoch": producer.coordinator_epoch,
        "current_txn_start_offset": producer.open_from,
    }
