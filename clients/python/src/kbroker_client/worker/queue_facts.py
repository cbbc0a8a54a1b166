"""What a worker must know of a queue before it starts, read from the broker: whether the queue
exists, how often it delivers a job, and what it can do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import anyio

from .._shared.client.answers import lacking, reason
from .._shared.errors import ErrorCode, KafkaError
from .._shared.protocol.reject_reasons import FEATURE
from ..cluster import Cluster, Topic
from ..connection import Connection
from ..errors import ClientError, QueueMissing

logger = logging.getLogger(__name__)

_GROUP: Final = 32
_BROKER: Final = 4
_GROUP_LIMIT: Final = "share.delivery.count.limit"
_BROKER_LIMIT: Final = "group.share.delivery.count.limit"
_PREFETCH: Final = "kbroker.queue.prefetch"
_SCHEDULING: Final = "kbroker.queue.scheduling"
_RESET: Final = "share.auto.offset.reset"
_DEAD_LETTERS: Final = "errors.deadletterqueue.topic.name"
_ORDERING: Final = "kbroker.queue.ordering"
LOOK_S: Final = 5.0
"""Between looks for a queue that may have been deleted."""
MISSING: Final = (ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_topic_exception)


class SchedulingOff(ClientError):
    """The queue does not delay jobs."""


class Facts(NamedTuple):
    """Of a queue.

    - `delivery_limit`: deliveries before the broker gives a job up; None: it does not say
    - `prefetch`: jobs that a worker holds at a time; 0: no limit
    - `takes_reasons`: the broker stores the reason of a reject with the dead letter
    - `is_plain_group`: a kbroker's share group without what `kbroker queues create` sets
    - `unread`: why the settings could not be read; then nothing is known of them, and none of the
      fields says that something is off
    """

    delivery_limit: int | None
    prefetch: int
    is_scheduling: bool
    is_ordered: bool
    takes_reasons: bool
    is_plain_group: bool
    unread: KafkaError | None


async def look(cluster: Cluster, queue: str, topic: str) -> Facts:
    """Raises QueueMissing, BrokerUnreachable and KafkaError."""
    found = await _find(cluster, queue, topic)
    leader = next((node for node in found.leaders if node >= 0), None)
    if leader is None:
        raise KafkaError(ErrorCode.leader_not_available, f"the queue {queue} has no leader at the moment")
    connection = await cluster.connect_to(leader)
    try:
        group, unread = await _configs(connection, _GROUP, queue)
        limit = group.get(_GROUP_LIMIT)
        if limit is None and unread is None:
            broker, unread_broker = await _configs(connection, _BROKER, str(leader))
            limit = broker.get(_BROKER_LIMIT)
            if unread_broker is not None:
                logger.warning("`retries` is not compared with the broker's limit: %s", unread_broker)
    finally:
        await connection.close()
    takes_reasons = FEATURE in connection.served.features
    return Facts(
        delivery_limit=int(limit) if limit else None,
        prefetch=int(group.get(_PREFETCH) or 0),
        is_scheduling=group.get(_SCHEDULING) == "true",
        is_ordered=group.get(_ORDERING) == "key",
        takes_reasons=takes_reasons,
        is_plain_group=takes_reasons and group.get(_RESET) == "latest" and not group.get(_DEAD_LETTERS),
        unread=unread,
    )


async def warn_of_deletion(
    cluster: Cluster, queue: str, topic: str, has_partitions: Callable[[], bool]
) -> None:
    """Until it is cancelled. A worker whose queue was deleted would look like one without jobs."""
    is_missing = False
    while True:
        await anyio.sleep(LOOK_S)
        if has_partitions():
            is_missing = False
            continue
        try:
            code = (await cluster.refresh([topic])).get(topic)
        except (ClientError, KafkaError) as error:
            logger.debug("queue %s: %s", queue, error)  # The consumer logs that.
            continue
        if code in MISSING and not is_missing:
            logger.warning(
                "queue %s: the topic %s does not exist any more; the worker waits until it does: "
                "kbroker queues create %s --update", queue, topic, topic,
            )  # fmt: skip
        is_missing = code in MISSING


async def check_scheduling(cluster: Cluster, queue: str, topic: str) -> None:
    """Raises SchedulingOff, and as `look`. Also KafkaError if this user may not read whether the
    queue delays jobs, because a queue that does not would deliver them at once."""
    facts = await look(cluster, queue, topic)
    if facts.unread is not None:
        raise facts.unread
    if not facts.is_scheduling:
        raise SchedulingOff(
            f"the queue {queue} does not delay jobs ({_SCHEDULING}): "
            f"kbroker queues create {queue} --scheduling true --update"
        )


def missing(queue: str) -> QueueMissing:
    return QueueMissing(f"the queue {queue} does not exist: kbroker queues create {queue}")


async def _find(cluster: Cluster, queue: str, topic: str) -> Topic:
    refused = (await cluster.refresh([topic])).get(topic)
    found = cluster.topic(topic)
    if found is not None:
        return found
    if refused in MISSING:
        raise missing(topic)
    code = refused or ErrorCode.unknown_server_error
    why = lacking(code, "describe", topic)
    raise KafkaError(code, why or f"the queue {queue} cannot be read")


async def _configs(
    connection: Connection, kind: int, name: str
) -> tuple[Mapping[str, str | None], KafkaError | None]:
    """Empty, with the broker's refusal, if this user may not read them."""
    answer = await connection.call(
        "describe_configs",
        resources=[{"resource_type": kind, "resource_name": name, "configuration_keys": None}],
        include_synonyms=False,
        include_documentation=False,
    )
    (row,) = answer.results
    code = ErrorCode(row.error_code)
    if code is not ErrorCode.none:
        why = reason(code, row.error_message, needs="describe-configs", name=name)
        whose = f"group {name}" if kind == _GROUP else "the broker"
        return {}, KafkaError(code, f"the settings of {whose} cannot be read: {why}")
    return {each.name: each.value for each in row.configs}, None
