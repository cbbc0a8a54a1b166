"""InitProducerId (22), v0-5: assigns an id to an idempotent producer (KIP-98), always a new one.

A transactional producer gets the id and the next epoch of its transactional id, which fences the
producer before it; from v3 it may name what it has (KIP-360). A transaction of that producer is
aborted, and the answer is CONCURRENT_TRANSACTIONS: clients ask again.

With an authorizer a transactional id needs WRITE (53). Without one the client needs
IDEMPOTENT_WRITE on the cluster, or WRITE on any topic (31).

A producer id without an epoch, or an epoch without an id, is INVALID_REQUEST. v6 is not served, as
it is unstable in Kafka itself (KIP-939).
"""

from __future__ import annotations

from kbroker.api.authorization import allows
from kbroker.api.request import Message, Request
from kbroker.api.transactions import known_to
from kbroker.errors import ErrorCode, KafkaError, NoSpace, StoreFailed
from kbroker.formats.transactions import MAX_TRANSACTIONAL_ID_BYTES
from kbroker.security.acls import CLUSTER_NAME, Operation, ResourceType
from kbroker.transactions.coordinator import NOBODY, ProducerEpoch

_FENCED_FROM = 4


async def handle(request: Request) -> Message:
    body = request.body
    if (refused := _denied(request)) is not None:
        return _answer(refused)
    expected = ProducerEpoch(
        getattr(body, "producer_id", NOBODY.producer_id), getattr(body, "producer_epoch", NOBODY.epoch)
    )
    if (expected.producer_id == NOBODY.producer_id) is not (expected.epoch == NOBODY.epoch):
        return _answer(ErrorCode.invalid_request)
    if body.transactional_id is not None:
        return await _transactional(request, expected)
    try:
        return _answer(ErrorCode.none, ProducerEpoch(await request.broker.producer_ids.take(), 0))
    except (NoSpace, StoreFailed):
        return _answer(ErrorCode.coordinator_not_available)


def _denied(request: Request) -> ErrorCode | None:
    transactional_id, rights = request.body.transactional_id, request.connection.rights
    if transactional_id is not None:
        is_allowed = allows(request, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
        return None if is_allowed else ErrorCode.transactional_id_authorization_failed
    if (
        rights is None
        or rights.has(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME)
        or rights.allows_any_topic(Operation.WRITE)
        or rights.allows(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME)
    ):
        return None
    return ErrorCode.cluster_authorization_failed


async def _transactional(request: Request, expected: ProducerEpoch) -> Message:
    transactional_id = request.body.transactional_id
    if not 0 < len(transactional_id.encode()) <= MAX_TRANSACTIONAL_ID_BYTES:
        return _answer(ErrorCode.invalid_request)
    timeout_ms = round(request.body.transaction_timeout.total_seconds() * 1000)
    try:
        code, producer = await request.broker.transactions.init(transactional_id, timeout_ms, expected)
    except KafkaError as error:
        return _answer(error.code)
    code = known_to(request.version, code, _FENCED_FROM)
    return _answer(code, producer if code is ErrorCode.none else NOBODY)


def _answer(code: ErrorCode, producer: ProducerEpoch = NOBODY) -> Message:
    return {
        "error_code": code,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch,
        "ongoing_txn_producer_id": NOBODY.producer_id,
        "ongoing_txn_producer_epoch": NOBODY.epoch,
    }
