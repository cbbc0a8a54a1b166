"""EndTxn (26), v0-5: commits or aborts a producer's transaction (KIP-98).

Answered when the decision is durable and, as a rule, when all markers are: a consumer with
read_committed sees the records then. From v5 the answer has the producer id and epoch of the next
transaction (KIP-890).

With an authorizer the transactional id needs WRITE (53).
"""

from __future__ import annotations

from kbroker.api.request import Raw, Request
from kbroker.api.transactions import known_to
from kbroker.errors import ErrorCode, KafkaError
from kbroker.protocol.transaction_responses import end_response
from kbroker.security.acls import Operation, ResourceType
from kbroker.transactions.coordinator import NOBODY, ProducerEpoch

_NEXT_EPOCH_FROM = 5
_FENCED_FROM = 2


async def handle(request: Request) -> Raw:
    body, rights = request.body, request.connection.rights
    if rights is not None and not rights.allows(
        Operation.WRITE, ResourceType.TRANSACTIONAL_ID, body.transactional_id
    ):
        return _answer(request.version, ErrorCode.transactional_id_authorization_failed)
    if not body.transactional_id:
        return _answer(request.version, ErrorCode.invalid_request)
    producer = ProducerEpoch(body.producer_id, body.producer_epoch)
    version = 2 if request.version >= _NEXT_EPOCH_FROM else 1
    try:
        code, known = await request.broker.transactions.end(
            body.transactional_id, producer, is_commit=body.committed, version=version
        )
    except KafkaError as error:
        return _answer(request.version, error.code)
    code = known_to(request.version, code, _FENCED_FROM)
    return _answer(request.version, code, known if code is ErrorCode.none and version >= 2 else NOBODY)


def _answer(version: int, code: ErrorCode, producer: ProducerEpoch = NOBODY) -> Raw:
    body = end_response(version, code, producer.producer_id, producer.epoch)
    return Raw((body,), (code,) if code else ())
