"""DescribeShareGroupOffsets (90), v0-1 (KIP-932; v1 with the lag, KIP-1226): the saved start
offsets of share groups.

Without topics, the answer has every partition that the group has state for; a group that does not
exist has none. A named partition always gets a row: where group, topic or partition do not exist,
start offset and lag are -1 without an error. An empty group id with named topics, a topic without
partitions and a negative partition are -1 for the group, as in Kafka.

The lags of up to ROWS_A_TURN partitions of a group are of one moment.

With an authorizer a group needs DESCRIBE (30 for the group). Topics without DESCRIBE are left out
of all partitions of a group; rows of named ones are 29, whether or not they exist, behind the
others.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from kbroker.api.authorization import allows_on_topic, check_group, refusal, sees_topic
from kbroker.api.request import Message, Request
from kbroker.api.turns import RowTurn
from kbroker.errors import ErrorCode, KafkaError
from kbroker.protocol.long_responses import key_of
from kbroker.protocol.messages import Repeated
from kbroker.security.acls import Operation, ResourceType
from kbroker.turns import ROWS_A_TURN, parts


async def handle(request: Request) -> Message:
    turn = RowTurn()
    made: dict[Hashable, Repeated] = {}
    rows: list[Repeated] = []
    for group in request.body.groups:
        await turn.row()
        key = key_of(group, group.topics)
        if key not in made:
            made[key] = Repeated(await _group(request, group, turn))
        rows.append(made[key])
    return {"groups": rows}


async def _group(request: Request, group: Any, turn: RowTurn) -> Message:
    row: dict[str, Any] = {
        "group_id": group.group_id,
        "topics": (),
        "error_code": ErrorCode.none,
        "error_message": None,
    }
    try:
        check_group(request, Operation.DESCRIBE, group.group_id)
        return row | {"topics": await _topics(request, group, turn)}
    except KafkaError as error:
        return row | {"error_code": error.code, "error_message": error.message}


async def _topics(request: Request, group: Any, turn: RowTurn) -> list[Message]:
    allowed: dict[str, Sequence[int]] = {}
    denied: dict[str, Sequence[int]] = {}
    if group.topics is None:
        coordinator, topics = request.broker.share_group_service.coordinator, request.broker.topics
        for name, partitions in coordinator.described_partitions(group.group_id, topics).items():
            await turn.row()
            if sees_topic(request, name):
                allowed[name] = partitions
    else:
        for topic in group.topics:
            await turn.row()
            is_allowed = allows_on_topic(request, Operation.DESCRIBE, topic.topic_name)
            (allowed if is_allowed else denied)[topic.topic_name] = topic.partitions
    found = await _described(request, group.group_id, allowed, turn)
    return [*found, *(_refused(name, partitions) for name, partitions in denied.items())]


async def _described(
    request: Request, group_id: str, wanted: Mapping[str, Sequence[int]], turn: RowTurn
) -> Iterable[Message]:
    """Raises KafkaError."""
    rows: dict[str, Message] = {}
    for some in _in_turns(wanted):
        await turn.row(sum(map(len, some.values())))
        for topic in await request.broker.share_group_service.describe_offsets(group_id, some):
            name = topic.topic_name
            row = rows.setdefault(name, {"topic_name": name, "topic_id": topic.topic_id, "partitions": []})
            row["partitions"].extend(topic.partitions)
    return rows.values()


def _in_turns(wanted: Mapping[str, Sequence[int]]) -> Iterator[dict[str, Sequence[int]]]:
    """The partitions of topics, as many as one turn handles. Each of a topic's once."""
    some: dict[str, Sequence[int]] = {}
    count = 0
    for name, numbers in wanted.items():
        for part in parts(list(dict.fromkeys(numbers))):
            if some and count + len(part) > ROWS_A_TURN:
                yield some
                some, count = {}, 0
            some[name] = part
            count += len(part) or 1
    if some:
        yield some


def _refused(name: str, partitions: Iterable[int]) -> Message:
    error = refusal(ResourceType.TOPIC)
    rows = (
        {
            "partition_index": index,
            "start_offset": -1,
            "leader_epoch": 0,
            "lag": -1,
            "error_code": error.code,
            "error_message": error.message,
        }
        for index in partitions
    )
    return {"topic_name": name, "topic_id": None, "partitions": rows}
