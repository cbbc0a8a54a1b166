"""EndTxn (26), v0-5: commits or aborts a producer's transaction (KIP-98).

Answered when the decision is durable and, as a rule, when all markers are: a consumer with
read_committed sees the records then. From v5 the answer has the producer id and epoch of the next
transaction (KIP-890).

With an authorizer the transactional id needs WRITE (53).
"""

from __future__ import annotations

from kbroker.api.request import Message, Request
from kbroker.api.transactions import known_to
from kbroker.errors import ErrorCode, KafkaError
from kbroker.security.acls import Operation, ResourceType
from kbroker.transactions.coordinator import NOBODY, ProducerEpoch

_NEXT_EPOCH_FROM = 5
_FENCED_FROM = 2


async def handle(request: Request) -> Message:
    body, rights = request.body, request.connection.rights
    if rights is not None and not rights.allows(
        Operation.WRITE, ResourceType.TRANSACTIONAL_ID, body.transactional_id
    ):
        return _answer(ErrorCode.transactional_id_authorization_failed)
    if not body.transactional_id:
        return _answer(ErrorCode.invalid_request)
    producer = ProducerEpoch(body.producer_id, body.producer_epoch)
    version = 2 if request.version >= _NEXT_EPOCH_FROM else 1
    try:
        code, known = await request.broker.transactions.end(
            body.transactional_id, producer, is_commit=body.committed, version=version
        )
    except KafkaError as error:
        return _answer(error.code)
    code = known_to(request.version, code, _FENCED_FROM)
    return _answer(code, known if code is ErrorCode.none and version >= 2 else NOBODY)


def _answer(code: ErrorCode, producer: ProducerEpoch = NOBODY) -> Message:
    return {"error_code": code, "producer_id": producer.producer_id, "producer_epoch": producer.epoch}
