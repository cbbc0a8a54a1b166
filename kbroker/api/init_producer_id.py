"""InitProducerId (22), v0-5: an id for an idempotent producer (KIP-98); with an id and epoch of its own, the next epoch (KIP-360).

v6 is not served: it is unstable in Kafka itself (KIP-939). There are no transactions: a transactional id is answered with
TRANSACTIONAL_ID_AUTHORIZATION_FAILED, which every client takes as final, never with a retriable code.
"""

from __future__ import annotations

from kbroker.broker.connection import Message, Request
from kbroker.errors import ErrorCode, NoSpace, StoreFailed

_MAX_EPOCH = (1 << 15) - 2


async def handle(request: Request) -> Message:
    body = request.body
    if body.transactional_id is not None:
        code = ErrorCode.transactional_id_authorization_failed if body.transactional_id else ErrorCode.invalid_request
        return _answer(code, -1, -1)
    producer_id: int = getattr(body, "producer_id", -1)
    producer_epoch: int = getattr(body, "producer_epoch", -1)
    try:
        if producer_id >= 0 and 0 <= producer_epoch < _MAX_EPOCH:
            return _answer(ErrorCode.none, producer_id, producer_epoch + 1)
        return _answer(ErrorCode.none, await request.broker.producer_ids.take(), 0)
    except (NoSpace, StoreFailed):
        return _answer(ErrorCode.coordinator_not_available, -1, -1)


def _answer(code: ErrorCode, producer_id: int, producer_epoch: int) -> Message:
    return {
        "error_code": code,
        "producer_id": producer_id,
        "producer_epoch": producer_epoch,
        "ongoing_txn_producer_id": -1,
        "ongoing_txn_producer_epoch": -1,
    }
