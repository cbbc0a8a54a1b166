"""InitProducerId (22), v0-5: assigns an id to an idempotent producer (KIP-98), always a new one.

A producer id without an epoch, or an epoch without an id, is INVALID_REQUEST (KIP-360; only
transactional producers send them).

Not done: transactions. A transactional id is TRANSACTIONAL_ID_AUTHORIZATION_FAILED, which every
client treats as final, never a retriable code. v6 is not served, as it is unstable in Kafka itself
(KIP-939).
"""

from __future__ import annotations

from kbroker.api.request import Message, Request
from kbroker.errors import ErrorCode, NoSpace, StoreFailed

_NONE = -1


async def handle(request: Request) -> Message:
    body = request.body
    if body.transactional_id is not None:
        code = (
            ErrorCode.transactional_id_authorization_failed
            if body.transactional_id
            else ErrorCode.invalid_request
        )
        return _answer(code, _NONE, _NONE)
    if (getattr(body, "producer_id", _NONE) == _NONE) is not (
        getattr(body, "producer_epoch", _NONE) == _NONE
    ):
        return _answer(ErrorCode.invalid_request, _NONE, _NONE)
    try:
        return _answer(ErrorCode.none, await request.broker.producer_ids.take(), 0)
    except (NoSpace, StoreFailed):
        return _answer(ErrorCode.coordinator_not_available, _NONE, _NONE)


def _answer(code: ErrorCode, producer_id: int, producer_epoch: int) -> Message:
    return {
        "error_code": code,
        "producer_id": producer_id,
        "producer_epoch": producer_epoch,
        "ongoing_txn_producer_id": _NONE,
        "ongoing_txn_producer_epoch": _NONE,
    }
