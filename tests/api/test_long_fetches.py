"""Fetch and ShareFetch of many rows, which pause between them, answer as short ones do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

import pytest
import trio

from kbroker.errors import ErrorCode
from kbroker.turns import ROWS_A_TURN
from tests.api.conftest import Client, Connect
from tests.api.producing import batch, produce
from tests.api.share_consumers import GROUP, Member, acquired, initialize, rows, set_up_group

MANY = 3 * ROWS_A_TURN + 1
NO_ID = UUID(int=0xDEAD)


def asked(topic_id: UUID, indexes: Iterable[int]) -> dict[str, Any]:
    return {
        "topic_id": topic_id,
        "partitions": [
            {"partition": index, "fetch_offset": 0, "partition_max_bytes": 1 << 20} for index in indexes
        ],
    }


async def fetch(client: Client, session_id: int, epoch: int, *topics: Any, forgotten: Any = ()) -> Any:
    return await client.call(
        "fetch", 18, max_wait=0, min_bytes=1, max_bytes=1 << 20, isolation_level=0, session_id=session_id,
        session_epoch=epoch, topics=topics, forgotten_topics_data=forgotten, rack_id="",
    )  # fmt: skip


def listed(answer: Any) -> list[tuple[UUID, int, int]]:
    return [
        (topic.topic_id, row.partition_index, row.error_code)
        for topic in answer.responses
        for row in topic.partitions
    ]


@pytest.mark.parametrize("epoch", [-1, 0], ids=["no session", "a session"])
async def test_rows_of_a_long_fetch(connect: Connect, epoch: int) -> None:
    async with connect() as client:
        topic_id = (await client.create_topic("orders", MANY)).topic_id
        await produce(client, topic_id, batch(b"a"), partition=MANY - 1)
        answer = await fetch(
            client, 0, epoch, asked(topic_id, [*range(MANY), 5, 7]), asked(NO_ID, range(MANY))
        )
        assert bool(answer.session_id) == (epoch == 0)
        assert listed(answer) == [
            *((topic_id, index, 0) for index in range(MANY)),
            *((NO_ID, index, ErrorCode.unknown_topic_id) for index in range(MANY)),
        ]
        assert answer.responses[0].partitions[-1].records


async def test_a_long_session_changes(connect: Connect) -> None:
    async with connect() as client:
        topic_id = (await client.create_topic("orders", MANY)).topic_id
        session = (await fetch(client, 0, 0, asked(topic_id, range(MANY)))).session_id
        await produce(client, topic_id, batch(b"a"), partition=MANY - 1)
        await produce(client, topic_id, batch(b"b"), partition=1)
        forgotten = [{"topic_id": topic_id, "partitions": list(range(MANY - 1))}]
        answer = await fetch(client, session, 1, asked(NO_ID, range(2)), forgotten=forgotten)
        expected = [(NO_ID, each, ErrorCode.unknown_topic_id) for each in range(2)]
        assert listed(answer) == [(topic_id, MANY - 1, 0), *expected]
        answer = await fetch(client, session, 2, asked(topic_id, range(MANY)))
        assert len(listed(answer)) == MANY + 2
        assert client.broker.fetch_sessions.statistics().partitions == MANY + 2


async def test_a_session_that_is_evicted_while_it_begins(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client fetches without one, and nothing of it is kept."""
    async with connect(config={"max.incremental.fetch.session.cache.slots": "1"}) as client:
        sessions = client.broker.fetch_sessions
        update = sessions.update

        def evicted(session: Any, *rows: Any) -> Any:
            for each in update(session, *rows):
                sessions.forget(session)
                yield each

        monkeypatch.setattr(sessions, "update", evicted)
        answer = await fetch(client, 0, 0, asked(NO_ID, range(MANY)))
        assert (answer.session_id, len(listed(answer))) == (0, MANY)
        assert sessions.statistics().bytes == sessions.statistics().sessions == 0


async def test_rows_of_a_long_share_fetch(connect: Connect) -> None:
    async with connect() as client:
        topic_id = (await client.create_topic("orders", MANY)).topic_id
        await set_up_group(client, {"share.auto.offset.reset": "earliest"})
        await initialize(client, topic_id, MANY)
        await produce(client, topic_id, batch(b"a"), partition=MANY - 1)
        member = Member(client, "m")
        everything = [(each, index) for each in (topic_id, NO_ID) for index in range(MANY)]
        with trio.fail_after(60):
            answer = await member.fetch(everything, wait_ms=60_000)
        assert {key for key in rows(answer) if key[0] == NO_ID} == set(everything[MANY:])
        while not acquired(answer):
            answer = await member.fetch(wait_ms=1000)
        assert acquired(answer) == [(0, 0, 1)]
        sessions = client.broker.share_partitions.sessions
        assert sessions.statistics().partitions == 2 * MANY
        await member.fetch(forget=everything[:-1])
        assert sessions.statistics().partitions == 1
        await member.fetch(epoch=-1)
        assert sessions.statistics().partitions == 0


async def test_a_share_session_that_ends_while_it_begins(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect() as client:
        share_partitions = client.broker.share_partitions
        sessions = share_partitions.sessions
        change = sessions._change

        def ended(session: Any, *rows: Any, **more: Any) -> None:
            change(session, *rows, **more)
            share_partitions.close_session(session)

        monkeypatch.setattr(sessions, "_change", ended)
        answer = await Member(client, "m").fetch([(NO_ID, index) for index in range(MANY)])
        assert (answer.error_code, answer.responses) == (0, ())
        assert sessions.statistics().partitions == sessions.statistics().sessions == 0
        assert not sessions.has_group(GROUP)
