"""AddOffsetsToTxn (25), v0-4: a consumer group becomes part of a producer's transaction, before
TxnOffsetCommit (KIP-98).

Clients with transaction version 2 leave this to TxnOffsetCommit (KIP-890).
"""

from __future__ import annotations

from kbroker.api.request import Message, Request
from kbroker.api.transactions import known_to
from kbroker.errors import ErrorCode, KafkaError
from kbroker.transactions.coordinator import ProducerEpoch

_FENCED_FROM = 2


async def handle(request: Request) -> Message:
    body = request.body
    if not body.transactional_id:
        return {"error_code": ErrorCode.invalid_request}
    producer = ProducerEpoch(body.producer_id, body.producer_epoch)
    try:
        code = await request.broker.transactions.add(
            body.transactional_id, producer, (), (body.group_id,), version=1
        )
    except KafkaError as error:
        code = error.code
    return {"error_code": known_to(request.version, code, _FENCED_FROM)}
