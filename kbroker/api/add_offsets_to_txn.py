"""AddOffsetsToTxn (25), v0-4: a consumer group becomes part of a producer's transaction, before
TxnOffsetCommit (KIP-98).

Clients with transaction version 2 leave this to TxnOffsetCommit (KIP-890).

With an authorizer the transactional id needs WRITE (53), and the group READ (30).
"""

from __future__ import annotations

from kbroker.api.authorization import check, check_group
from kbroker.api.request import Message, Request
from kbroker.api.transactions import known_to
from kbroker.errors import ErrorCode, KafkaError
from kbroker.security.acls import Operation, ResourceType
from kbroker.transactions.coordinator import ProducerEpoch

_FENCED_FROM = 2


async def handle(request: Request) -> Message:
    body = request.body
    if request.connection.rights is not None:
        try:
            check(request, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, body.transactional_id)
            check_group(request, Operation.READ, body.group_id)
        except KafkaError as error:
            return {"error_code": error.code}
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
