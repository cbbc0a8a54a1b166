"""ShareFetch: odd requests, limits, bytes, sessions that wait or idle, and fenced state."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
import trio

from kbroker.errors import ErrorCode
from kbroker.formats.batches import Record, build_batch
from kbroker.share.persister import TopicPartition
from tests.api.conftest import Client, Connect
from tests.api.share_consumers import (
    ACCEPT,
    GROUP,
    NO_ID,
    RENEW,
    Member,
    acquired,
    batches,
    initialize,
    prepare,
    rows,
    set_up_group,
)
from tests.api.test_damaged_batches import DAMAGES, damaged

NO_LIMITS = {"max_bytes": 0, "min_bytes": 0, "max_records": 0, "wait_ms": 0}
TABLE_OF_ONE = {"group.share.max.share.sessions": "1", "group.share.max.size": "1"}
UNKNOWN_MODE = 5


async def test_without_max_bytes(connect: Connect) -> None:  # RPC-15
    async with connect() as client:
        key = await prepare(client)
        for _ in range(3):
            await client.append_raw("orders", build_batch([Record(0, 1, None, b"x" * 600_000, ())]))
        asked = {
            "group_id": GROUP, "share_session_epoch": 0, "max_wait": 60_000, "min_bytes": 1_000_000,
            "max_records": 500, "batch_size": 500, "share_acquire_mode": 0, "is_renew_ack": False,
            "forgotten_topics_data": (),
            "topics": [{"topic_id": key[0], "partitions": [
                {"partition_index": 0, "acknowledgement_batches": ()}
            ]}],
        }  # fmt: skip
        assert batches(await client.call("share_fetch", 2, member_id="m", max_bytes=1 << 20, **asked)) == [
            (0, 0)
        ]
        assert batches(await client.call("share_fetch", 2, member_id="n", **asked)) == [(1, 1), (2, 2)]


async def test_min_bytes_are_there_when_no_more_fits(connect: Connect) -> None:  # FET-21
    async with connect() as client:
        key = await prepare(client)
        for _ in range(2):
            await client.append_raw("orders", build_batch([Record(0, 1, None, b"x" * 600_000, ())]))
        with trio.fail_after(10):
            answer = await Member(client, "m").fetch(
                [key], min_bytes=1_000_000, max_bytes=1_000_000, wait_ms=60_000
            )
        assert batches(answer) == [(0, 0)]


async def test_max_bytes_below_zero(connect: Connect) -> None:  # RPC-46, FET-7
    async with connect() as client:
        key = await prepare(client)
        await _load(client, key)
        member = Member(client, "m")
        await member.fetch([key])
        with trio.fail_after(10):
            refused = await member.fetch(max_bytes=-1, wait_ms=60_000)
        assert (refused.error_code, rows(refused)[key].error_code, acquired(refused)) == (
            0,
            ErrorCode.unknown_server_error,
            [],
        )
        assert rows(await member.fetch())[key].error_code == 0


async def test_an_unknown_acquire_mode(connect: Connect) -> None:  # RPC-49, RPC-72
    """Acknowledgements are applied and the session counts the request; without partitions to fetch
    the mode is ignored."""
    async with connect() as client:
        key = await prepare(client, 2)
        member = Member(client, "m")
        await member.fetch([key], wait_ms=5000)
        answer = await member.fetch(acks={key: [(1, 1, [ACCEPT])]}, share_acquire_mode=UNKNOWN_MODE)
        assert (answer.error_code, answer.error_message, rows(answer)) == (
            ErrorCode.unknown_server_error,
            None,
            {},
        )
        again = await member.acknowledge({key: [(1, 1, [ACCEPT])]}, epoch=2)
        assert rows(again)[key].error_code == ErrorCode.invalid_record_state, "it was accepted before"
        no_records = await member.fetch(epoch=3, share_acquire_mode=UNKNOWN_MODE, max_records=0)
        assert no_records.error_code == ErrorCode.unknown_server_error
        renewal = await member.fetch(
            epoch=4,
            acks={key: [(0, 0, [RENEW])]},
            share_acquire_mode=UNKNOWN_MODE,
            is_renew_ack=True,
            **NO_LIMITS,  # type: ignore[arg-type]
        )
        assert (renewal.error_code, rows(renewal)[key].acknowledge_error_code) == (0, 0)
        assert (await member.fetch(epoch=-1, share_acquire_mode=UNKNOWN_MODE)).error_code == 0
        assert (await Member(client, "n").fetch(share_acquire_mode=UNKNOWN_MODE)).error_code == 0


async def test_fewer_bytes_than_partitions(connect: Connect) -> None:  # FET-13, FET-14
    async with connect() as client:
        topic_id, _ = await prepare(client, partitions=3)
        keys = [(topic_id, index) for index in range(3)]
        for index in range(3):
            await client.append("orders", 1, partition=index)
        await _load(client, *keys)
        answer = await Member(client, "m").fetch(keys, max_bytes=2)
        assert {key: len(row.acquired_records) for key, row in rows(answer).items()} == dict.fromkeys(keys, 1)


# FET-22, FET-31
async def test_what_cannot_be_read_is_not_waited_for(connect: Connect, tmp_path: Path) -> None:
    async with damaged(connect, tmp_path, "segment", DAMAGES["zeros"], 0) as client:
        await set_up_group(client, {"share.auto.offset.reset": "earliest"})
        keys = [await _subscribed(client, name) for name in ("damaged", "orders")]
        with trio.fail_after(10):
            answer = await Member(client, "m").fetch(keys, min_bytes=1 << 19, wait_ms=60_000)
        assert {key: row.error_code for key, row in rows(answer).items()} == {
            keys[0]: ErrorCode.corrupt_message,
            keys[1]: ErrorCode.none,
        }
        assert acquired(answer) == [(0, 0, 1)]


async def test_older_segments_are_not_waited_for(connect: Connect) -> None:  # FET-22
    async with connect(config={"log.segment.bytes": "1048576"}) as client:
        key = await prepare(client)
        for size in (600_000, 600_000, 1):
            await client.append_raw("orders", build_batch([Record(0, 1, None, b"x" * size, ())]))
        assert len(client.partition("orders").segments()) > 1
        with trio.fail_after(10):
            answer = await Member(client, "m").fetch(
                [key], max_records=1, max_bytes=40_000_000, min_bytes=40_000_000, wait_ms=60_000
            )
        assert acquired(answer) == [(0, 0, 1)]


async def _load(client: Client, *keys: tuple[UUID, int]) -> None:
    for key in keys:
        loaded = client.broker.share_partitions.find_or_load(GROUP, TopicPartition(*key))
        while loaded.engine is None:
            await trio.lowlevel.checkpoint()


async def _subscribed(client: Client, name: str) -> tuple[UUID, int]:
    topic = client.broker.topics.by_name(name)
    assert topic is not None
    await initialize(client, topic.topic_id, 1)
    return topic.topic_id, 0


@pytest.mark.parametrize("listed", [True, False])
async def test_a_full_table_is_told_of_after_max_wait(
    connect: Connect, jump_clock: trio.testing.MockClock, listed: bool
) -> None:
    """SES-19: an immediate answer would make clients retry in a busy loop."""
    async with connect(config=TABLE_OF_ONE) as client:
        key = await prepare(client)
        assert (await Member(client, "m").fetch([key])).error_code == 0
        answers = []

        async def ask() -> None:
            answers.append(
                await Member(client.another(2), "n").fetch([key] if listed else [], wait_ms=60_000)
            )

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            for _ in range(2):
                await trio.testing.wait_all_tasks_blocked()
                assert answers == []
                jump_clock.jump(31)
        assert answers[0].error_code == ErrorCode.share_session_limit_reached


# SES-21
async def test_an_idle_session_is_kept(connect: Connect, jump_clock: trio.testing.MockClock) -> None:
    async with connect(config=TABLE_OF_ONE) as client:
        key = await prepare(client)
        member = Member(client, "m")
        await member.fetch([key])
        jump_clock.jump(30 * 24 * 3600)
        await trio.testing.wait_all_tasks_blocked()
        assert (
            await Member(client.another(2), "n").fetch([key])
        ).error_code == ErrorCode.share_session_limit_reached
        await client.append("orders", 1)
        assert acquired(await member.fetch(wait_ms=5000)) == [(0, 0, 1)]


async def test_what_was_acquired_before_a_fencing_is_available(connect: Connect) -> None:  # FET-32, RPC-57
    async with connect() as client:
        key = await prepare(client, 2)
        member = Member(client, "m")
        assert acquired(await member.fetch([key], wait_ms=5000)) == [(0, 1, 1)]
        anew = {"partition": 0, "state_epoch": 9, "start_offset": 0}
        await client.call(
            "initialize_share_group_state",
            0,
            group_id=GROUP,
            topics=[{"topic_id": key[0], "partitions": [anew]}],
        )
        fenced = await member.acknowledge({key: [(0, 0, [ACCEPT])]})
        assert rows(fenced)[key].error_code == ErrorCode.not_leader_or_follower
        assert client.broker.share_partitions.find(GROUP, TopicPartition(*key)) is None
        assert acquired(await Member(client.another(2), "n").fetch([key], wait_ms=5000)) == [(0, 1, 1)]


async def test_an_unknown_topic_has_no_message(connect: Connect) -> None:  # RPC-34, RPC-35
    async with connect() as client:
        row = rows(await Member(client, "m").fetch([(NO_ID, 0)]))[NO_ID, 0]
        assert (row.error_code, row.error_message) == (ErrorCode.unknown_topic_id, None)
