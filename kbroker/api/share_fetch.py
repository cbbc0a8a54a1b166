"""ShareFetch (78), v1-2 (KIP-932; v2 with acquire modes, KIP-1206, and RENEW, KIP-1222).

Order of a request: check session and epoch, save its acknowledgements, then acquire, waiting up to
MaxWaitMs for records. Acknowledgements come first so that a released record may be delivered in the
same answer. The answer merges both.

Better than Kafka where no client can see a difference:

- an unknown topic id is an error of its row, not of the whole answer
- releases wake waiting fetches
- records of forgotten partitions are released when the session ends, not before: a client may still
  acknowledge a record after it has lost the partition

With an authorizer the group needs READ (30 for the request), and each topic READ: without it its
rows are 29, and no record of it is acquired. The session continues.

A request of many rows gives way to others after each ROWS_A_TURN of them, in every pass over them.
Its acknowledgements are one step (share_acknowledge.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from kbroker.api.request import Raw, Request
from kbroker.api.share_acknowledge import NO_TOPIC_ID, Results, acknowledge, as_partition, check_identity
from kbroker.api.turns import pause
from kbroker.broker.commits.deadlines import now_ms
from kbroker.broker.queues.acquiring import ShareLimits
from kbroker.broker.queues.fetching import ShareFetch
from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.batches import Buffer
from kbroker.protocol.messages import milliseconds
from kbroker.protocol.responses import ShareFetchRow, pack_share_fetch, share_fetch_response
from kbroker.security.acls import Operation, ResourceType
from kbroker.security.rights import Rights
from kbroker.share.persister import TopicPartition
from kbroker.share.session import INITIAL_EPOCH, FetchPlan, SessionPartition
from kbroker.share.share_partition import AcquireMode
from kbroker.turns import ROWS_A_TURN, parts

_TOPIC_REFUSED = int(ErrorCode.topic_authorization_failed)
_MODES = {int(mode): mode for mode in AcquireMode}


async def handle(request: Request) -> Raw:
    body = request.body
    share_partitions = request.broker.share_partitions
    is_renew_ack: bool = getattr(body, "is_renew_ack", False)
    try:
        check_identity(request)
        if is_renew_ack:
            _check_renewal_limits(body)
        listed, acknowledging = await _listed(body.topics)
        plan = await _plan(request, listed, has_acks=bool(acknowledging))
    except KafkaError as error:
        return _refusal(request, error)
    results = await acknowledge(request, acknowledging, is_renew_ack=is_renew_ack) if acknowledging else []
    rows: dict[TopicPartition, ShareFetchRow] = {}
    if plan.is_final:
        share_partitions.close_session(plan.session)
    elif not is_renew_ack and plan.places:
        try:
            limits = _limits(request)
        except KafkaError as error:  # Not earlier: session and client both count this request.
            return _refusal(request, error)
        metering = request.connection.metering
        if metering is not None:
            limits = _with_room(limits, metering.room_bytes(now_ms()))
        if limits.max_records > 0 and limits.max_bytes != 0:
            rights = request.connection.rights
            denied = [] if rights is None else await _denied(request, rights, plan)
            readable = plan if not denied else await _without(plan, denied)
            fetch = ShareFetch(request.broker.share_fetches, request.connection, readable, limits)
            found = await fetch.run() if readable.places else {}
            if metering is not None:
                metering.fetched(_size(found), now_ms())
            for partition in denied:
                found[partition] = ShareFetchRow(partition.partition, _TOPIC_REFUSED)
            rows = await _due_rows(plan, found)
    if plan.is_overtaken:
        return _refusal(
            request, KafkaError(ErrorCode.invalid_share_session_epoch), _lock_duration_ms(request)
        )
    return await _answer(request, rows, results)


def _with_room(limits: ShareLimits, room_bytes: int) -> ShareLimits:
    """No room: nothing may be acquired, since the client must wait and could not acknowledge it."""
    return limits._replace(
        max_bytes=min(limits.max_bytes, room_bytes), min_bytes=min(limits.min_bytes, room_bytes)
    )


def _size(rows: Mapping[TopicPartition, ShareFetchRow]) -> int:
    """The bytes of all records."""
    return sum(len(view) for row in rows.values() for view in row.records)


async def _denied(request: Request, rights: Rights, plan: FetchPlan) -> list[TopicPartition]:
    """The partitions of the session that the client may not read. Unknown topics are not among
    them."""
    denied: list[TopicPartition] = []
    last_id: UUID | None = None
    is_allowed = True
    for count, place in enumerate(plan.places, 1):
        if not count % ROWS_A_TURN:
            await pause()
        topic_id = place.partition.topic_id
        if topic_id is not last_id:
            topic, last_id = request.broker.topics.by_id(topic_id), topic_id
            is_allowed = topic is None or rights.allows(Operation.READ, ResourceType.TOPIC, topic.name)
        if not is_allowed:
            denied.append(place.partition)
    return denied


async def _without(plan: FetchPlan, denied: Sequence[TopicPartition]) -> FetchPlan:
    refused: set[TopicPartition] = set()
    for some in parts(denied):
        refused.update(some)
        await pause()
    places: list[SessionPartition] = []
    for part in parts(plan.places):
        places += [place for place in part if place.partition not in refused]
        await pause()
    return plan._replace(places=tuple(places))


def _refusal(request: Request, error: KafkaError, lock_ms: int = 0) -> Raw:
    packed = share_fetch_response(
        request.version, (), lock_timeout_ms=lock_ms, error_code=error.code, error_message=error.message
    )
    return Raw(packed, (error.code,))


def _lock_duration_ms(request: Request) -> int:
    return request.broker.share_partitions.settings(request.body.group_id).lock_duration_ms


async def _listed(topics: Sequence[Any]) -> tuple[list[TopicPartition], list[Any]]:
    """The partitions of a request's Topics, each once, and the topics with something to
    acknowledge."""
    listed: list[TopicPartition] = []
    acknowledging: list[Any] = []
    count = 0
    for topic in topics:
        topic_id = topic.topic_id or NO_TOPIC_ID
        has_batches = False
        for row in topic.partitions:
            count += 1
            if not count % ROWS_A_TURN:
                await pause()
            listed.append(as_partition((topic_id, row.partition_index)))
            if row.acknowledgement_batches:
                has_batches = True
        if has_batches:
            acknowledging.append(topic)
    return listed if count < 2 else await _each_once(listed), acknowledging


async def _each_once(partitions: list[TopicPartition]) -> list[TopicPartition]:
    if len(partitions) <= ROWS_A_TURN:
        return list(dict.fromkeys(partitions))
    unique: dict[TopicPartition, None] = {}
    for part in parts(partitions):
        unique |= dict.fromkeys(part)
        await pause()
    return list(unique)


async def _forgotten(topics: Sequence[Any]) -> list[TopicPartition]:
    forgotten: list[TopicPartition] = []
    for topic in topics:
        topic_id = topic.topic_id or NO_TOPIC_ID
        for index in topic.partitions:
            forgotten.append(as_partition((topic_id, index)))
            if not len(forgotten) % ROWS_A_TURN:
                await pause()
    return await _each_once(forgotten)


async def _plan(request: Request, listed: Sequence[TopicPartition], *, has_acks: bool) -> FetchPlan:
    body = request.body
    forgotten = await _forgotten(body.forgotten_topics_data) if body.forgotten_topics_data else []
    sessions = request.broker.share_partitions.sessions
    try:
        plan = sessions.fetch(
            body.group_id,
            body.member_id,
            body.share_session_epoch,
            connection_id=request.connection.id,
            add=listed,
            forget=forgotten,
            has_acks=has_acks,
            in_steps=len(listed) + len(forgotten) > ROWS_A_TURN,
        )
        if plan.replaced is not None:
            request.broker.share_partitions.release_session(plan.replaced)
        if plan.to_do is not None:
            for _ in plan.to_do:
                await pause()
            plan = plan._replace(places=tuple(plan.session.fetch_order(plan.epoch)), to_do=None)
        if body.share_session_epoch == INITIAL_EPOCH:
            plan.session.client_id, plan.session.client_host = (
                request.client_id,
                request.connection.client_host,
            )
        return plan
    except KafkaError as error:
        if error.code is ErrorCode.share_session_limit_reached:
            # An instant answer would make the client retry in a busy loop (KAFKA-19231).
            await request.connection.pause(_max_wait_ms(body) / 1000)
        raise


def _check_renewal_limits(body: Any) -> None:
    """A request that renews must not ask for records, whatever the session says."""
    if body.max_bytes or body.min_bytes or body.max_records or milliseconds(body.max_wait):
        raise KafkaError(ErrorCode.invalid_request)


def _max_wait_ms(body: Any) -> int:
    wait_ms = milliseconds(body.max_wait)
    return wait_ms if wait_ms > 0 else 0


def _limits(request: Request) -> ShareLimits:
    body = request.body
    mode = _MODES.get(getattr(body, "share_acquire_mode", 0))
    if mode is None:
        raise KafkaError(ErrorCode.unknown_server_error)
    max_bytes = min(body.max_bytes, request.broker.config["fetch.max.bytes"])
    return ShareLimits(
        _max_wait_ms(body),
        min(body.min_bytes, max_bytes),
        max_bytes,
        body.max_records,
        max(1, body.batch_size),
        mode,
    )


async def _due_rows(
    plan: FetchPlan, rows: dict[TopicPartition, ShareFetchRow]
) -> dict[TopicPartition, ShareFetchRow]:
    """Every row of a new session. Later, rows that have records or an error, are new, or had an
    error before."""
    session, is_new = plan.session, plan.is_new
    session.begin_answer()
    for count, (partition, row) in enumerate(rows.copy().items(), 1):
        if not count % ROWS_A_TURN:
            await pause()
        if not (
            session.answer_row(partition, has_records=bool(row.acquired), has_error=row.error_code != 0)
            or is_new
        ):
            del rows[partition]
    return rows


async def _answer(request: Request, rows: dict[TopicPartition, ShareFetchRow], results: Results) -> Raw:
    for partition, error in results:
        if error is not None:
            row = rows.get(partition) or ShareFetchRow(partition.partition)
            rows[partition] = row._replace(
                acknowledge_error_code=int(error.code), acknowledge_error_message=error.message
            )
        elif partition not in rows:
            rows[partition] = ShareFetchRow(partition.partition)
    topics: dict[int, tuple[UUID, list[ShareFetchRow]]] = {}
    errors: list[int] = []
    for count, ((topic_id, _), row) in enumerate(rows.items(), 1):
        if not count % ROWS_A_TURN:
            await pause()
        if row.error_code:
            errors.append(row.error_code)
        if row.acknowledge_error_code:
            errors.append(row.acknowledge_error_code)
        topics.setdefault(topic_id.int, (topic_id, []))[1].append(row)
    buffers: list[Buffer] = []
    for _ in pack_share_fetch(list(topics.values()), buffers, lock_timeout_ms=_lock_duration_ms(request)):
        await pause()
    return Raw(buffers, errors)
