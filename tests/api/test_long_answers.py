"""Answers that are packed in turns, as the server packs them, while other clients change what they
tell."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kio.serial import entity_reader

from kbroker.api import handler_of
from kbroker.api.request import Request
from kbroker.errors import ErrorCode
from kbroker.protocol.long_responses import Packing, is_long
from kbroker.protocol.messages import build, encode_response, request_schema, response_schema
from kbroker.turns import ROWS_A_TURN
from tests.api.conftest import KEYS, Client, Connect
from tests.api.test_transactional_offsets import OK, UNSTABLE, G, commit_plainly, send_offsets
from tests.api.transaction_clients import log_of
from tests.api.transactional_producer import opened

_PARTITIONS = 3 * ROWS_A_TURN


class LongAnswer:
    """Iterating yields where the server gives way to other clients. `entity`: the answer, then."""

    def __init__(self, client: Client, api: str, version: int, **fields: Any) -> None:
        self._client = client
        self._key, self._version = KEYS[api], version
        self._body = build(request_schema(self._key, version), {"timeout": 1000, **fields})
        self.entity: Any = None

    async def turns(self) -> AsyncIterator[None]:
        key, version, client = self._key, self._version, self._client
        answer: Any = handler_of(key)(
            Request(client.broker, client.connection, key, version, "test", self._body)
        )
        if inspect.iscoroutine(answer):
            answer = await answer
        schema = response_schema(key, version)
        if is_long(schema, answer):
            packing = Packing(schema, answer, 64 << 20)
            for _ in packing.turns():
                yield
            packed = b"".join(packing.parts)
        else:
            packed = encode_response(key, version, answer)
        self.entity, _ = entity_reader(schema)(packed, 0)


@pytest.mark.parametrize("named", [True, False], ids=["named", "all"])
@pytest.mark.parametrize("before", [3, None], ids=["replaced", "first"])
@pytest.mark.parametrize("is_commit", [True, False])
async def test_offsets_whose_transaction_ends_within_the_answer(
    connect: Connect, named: bool, before: int | None, is_commit: bool
) -> None:
    """A group that gets the offset of before as a stable one reads what the transaction has
    already consumed once more."""
    async with opened(connect) as (client, producer):
        await client.call(
            "create_partitions", 3, validate_only=False,
            topics=[{"name": "a", "count": _PARTITIONS, "assignments": None}],
        )  # fmt: skip
        if before is not None:
            for index in range(_PARTITIONS):
                await commit_plainly(client, index, before)
        sent = await send_offsets(producer, dict.fromkeys(range(_PARTITIONS), 7))
        assert set(sent.values()) == {OK}
        topics = [{"name": "a", "partition_indexes": range(_PARTITIONS)}] if named else None
        wanted = {"group_id": G, "topics": topics, "member_id": None, "member_epoch": -1}
        answer = LongAnswer(client, "offset_fetch", 9, groups=[wanted], require_stable=True)
        turns = 0
        async for _ in answer.turns():
            if not turns:
                assert (await producer.end(is_commit)).code == OK
            turns += 1
        (group,) = answer.entity.groups
        rows = [row for topic in group.topics for row in topic.partitions]
        if before is None and not named:
            assert rows == []
            return
        codes = [ErrorCode(row.error_code) for row in rows]
        first = codes.count(UNSTABLE)
        assert 0 < first < _PARTITIONS
        assert codes == [UNSTABLE] * first + [OK] * (_PARTITIONS - first)
        after = 7 if is_commit else -1 if before is None else before
        assert {row.committed_offset for row in rows[first:]} == {after}


async def test_a_partition_that_is_named_twice_has_its_producers_twice(connect: Connect) -> None:
    async with connect() as client:
        await client.create_topic("a")
        log = await log_of(client)
        await log.send(1, transactional=False)
        await log.send(2, transactional=False)
        answer = LongAnswer(
            client, "describe_producers", 0, topics=[{"name": "a", "partition_indexes": [0, 0]}]
        )
        async for _ in answer.turns():
            pass
        ((row, again),) = (topic.partitions for topic in answer.entity.topics)
        assert [each.producer_id for each in row.active_producers] == [1, 2]
        assert again == row
