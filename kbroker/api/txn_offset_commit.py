"""TxnOffsetCommit (28), v0-6: offsets that a consumer group gets when the producer's transaction is
committed (KIP-98, KIP-447); topics by id from v6 (KIP-1319).

Nobody sees them before, apart from consumers that ask for stable offsets and wait. The group must
be part of the transaction; from v5 it is added here (KIP-890). A refused group or member refuses
every partition.

With an authorizer the transactional id needs WRITE (53 in every row), the group READ (30 in every
row), and each topic READ (29 in its rows, whether or not it exists).
"""

from __future__ import annotations

from kbroker.api.offset_topics import TopicRow, commits_of, find_topic, permitted, refused, with_codes
from kbroker.api.request import Message, Request
from kbroker.errors import ErrorCode, KafkaError
from kbroker.groups.offsets.messages import CommitRequest, OffsetErrors
from kbroker.groups.outcome import Outcome
from kbroker.security.acls import Operation, ResourceType
from kbroker.security.rights import Rights
from kbroker.transactions.coordinator import ProducerEpoch

_ABORTABLE_FROM, _ADDS_FROM = 4, 5
_LOADING_FROM = 2
_STALE_FROM = 6


async def handle(request: Request) -> Message:
    # As in Kafka, a topic without partitions has no row in the answer.
    topics = [topic for topic in request.body.topics if topic.partitions]
    rows = [find_topic(request.broker.topics, topic, topic.partitions) for topic in topics]
    if (rights := request.connection.rights) is not None:
        rows = _permitted(request, rights, rows)
    errors = await _committed(request, rows)
    return {"topics": [with_codes(row, errors) for row in rows]}


def _permitted(request: Request, rights: Rights, rows: list[TopicRow]) -> list[TopicRow]:
    body = request.body
    if not rights.allows(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, body.transactional_id):
        return refused(rows, ErrorCode.transactional_id_authorization_failed)
    if not rights.allows(Operation.READ, ResourceType.GROUP, body.group_id):
        return refused(rows, ErrorCode.group_authorization_failed)
    return permitted(rows, rights, Operation.READ)


async def _committed(request: Request, rows: list[TopicRow]) -> OffsetErrors:
    body, broker = request.body, request.broker
    commits = commits_of(rows)
    if not commits:
        return OffsetErrors()
    producer = ProducerEpoch(body.producer_id, body.producer_epoch)
    wanted = CommitRequest(
        group_id=body.group_id,
        offsets=commits,
        member_id=getattr(body, "member_id", ""),
        instance_id=getattr(body, "group_instance_id", None),
        generation=getattr(body, "generation_id", -1),
        knows_stale=request.version >= _STALE_FROM,
    )
    groups, service = broker.consumer_group_service, broker.transactions

    def decide(_: object, now_ms: int) -> Outcome[OffsetErrors]:
        # In this step, so that the offsets are saved before an end of the transaction.
        code = service.verify(body.transactional_id, producer, body.group_id)
        if code is not ErrorCode.none:
            return Outcome(reply=OffsetErrors(_told(request.version, code)))
        return groups.groups.commit_offsets_later(wanted, producer.producer_id, now_ms=now_ms)

    try:
        if not body.group_id:
            return OffsetErrors(ErrorCode.invalid_group_id)
        if request.version >= _ADDS_FROM:
            code = await service.add(body.transactional_id, producer, (), (body.group_id,), version=2)
            if code is not ErrorCode.none:
                return OffsetErrors(_told(request.version, code))
        await service.begun(body.transactional_id)
        return await groups.ask(decide)
    except KafkaError as error:
        return OffsetErrors(_told(request.version, error.code))


def _told(version: int, code: ErrorCode) -> ErrorCode:
    if code is ErrorCode.producer_fenced:
        return ErrorCode.invalid_producer_epoch
    if code is ErrorCode.transaction_abortable and version < _ABORTABLE_FROM:
        return ErrorCode.invalid_txn_state
    if code is ErrorCode.coordinator_load_in_progress and version < _LOADING_FROM:
        return ErrorCode.coordinator_not_available
    return code
