"""Stored batches whose payload contradicts their header: no producer can stop look-ups by time, a
queue, or dead letters with them.

Kafka's clients may read a log in any state that an earlier version of the broker left. It may
contain batches that Produce now refuses.
"""

from __future__ import annotations

import logging
from uuid import UUID

import pytest

from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode
from kbroker.share.persister import TopicPartition
from tests.api.conftest import Client, Connect
from tests.api.dead_letter_queues import COPY, all_done, letters_of, offsets_of, prepare_dead_letters
from tests.api.share_consumers import (
    ACCEPT,
    GAP,
    GROUP,
    REJECT,
    Member,
    acquired,
    initialize,
    rows,
    set_up_group,
)
from tests.odd_batches import CLAIMED, ODD_BATCHES, odd_batch

_FIRST_READABLE = {
    "too few records": 0,
    "too many records": 0,
    "a record that is cut off": 0,
    "bytes behind the records": 0,
    "an offset twice": 0,
    "offsets out of order": 2,
    "an offset behind the batch": 0,
    "lz4 with too many records": 0,
    "zstd with too few records": 0,
}
"""Offset delta of the first trustworthy record, if there is one."""


async def look_up(client: Client, topic: str, timestamp_ms: int) -> tuple[ErrorCode, int]:
    asked = [
        {
            "name": topic,
            "partitions": [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp_ms}],
        }
    ]
    answer = await client.call("list_offsets", 7, replica_id=-1, isolation_level=0, topics=asked)
    (row,) = answer.topics[0].partitions
    return row.error_code, row.offset


async def test_look_ups_by_time_leave_them_out(
    connect: Connect, every_engine: str, caplog: pytest.LogCaptureFixture
) -> None:
    """BASE-50, BASE-51: an offset is that of a readable record."""
    async with connect(every_engine) as client:
        for number, kind in enumerate(ODD_BATCHES):
            topic = f"t{number}"
            await client.create_topic(topic)
            await client.append(topic, 1000)
            assert await client.append_raw(topic, odd_batch(kind, time_ms=2000)) == 1
            behind = await client.append(topic, 3000)
            assert behind == 1 + CLAIMED
            found = 1 + _FIRST_READABLE[kind] if kind in _FIRST_READABLE else behind
            assert await look_up(client, topic, 1500) == (ErrorCode.none, found), kind
            assert await look_up(client, topic, 2500) == (ErrorCode.none, behind), kind
            assert await look_up(client, topic, -3) == (ErrorCode.none, behind), kind
    told = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert all("cannot be read at offset 1" in each for each in told)
    assert len(told) == len({each.split()[0] for each in told}), "once for each topic"


async def test_one_that_claims_the_greatest_time(connect: Connect) -> None:
    """BASE-50: then all other batches are searched."""
    async with connect() as client:
        await client.create_topic("a")
        await client.append("a", 1000, 3000, 2000)
        await client.append_raw("a", odd_batch("no gzip", time_ms=9000))
        assert await look_up(client, "a", -3) == (ErrorCode.none, 1)
        assert await look_up(client, "a", 5000) == (ErrorCode.none, -1)


@pytest.mark.parametrize("kind", ODD_BATCHES)
async def test_a_queue_that_begins_by_duration_loads(connect: Connect, kind: str) -> None:
    """LOAD-5: with the first readable record, or the next one produced if there is none yet."""
    async with connect() as client:
        topic = await client.create_topic("orders")
        key = topic.topic_id, 0
        await client.append_raw("orders", odd_batch(kind, time_ms=wall_clock_ms()))
        await client.append("orders", wall_clock_ms())
        await set_up_group(client, {"share.auto.offset.reset": "by_duration:PT1H"})
        await initialize(client, topic.topic_id, 1)
        runs = acquired(await Member(client, "m").fetch([key], wait_ms=5000))
        assert runs[0][0] == _FIRST_READABLE.get(kind, CLAIMED)
        assert runs[-1][1] == CLAIMED


async def test_a_queue_by_duration_behind_nothing_but_one(connect: Connect) -> None:
    async with connect() as client:
        topic = await client.create_topic("orders")
        key = topic.topic_id, 0
        await client.append_raw("orders", odd_batch("no gzip", time_ms=wall_clock_ms()))
        await set_up_group(client, {"share.auto.offset.reset": "by_duration:PT1H"})
        await initialize(client, topic.topic_id, 1)
        answer = await Member(client, "m").fetch([key], wait_ms=100)
        assert rows(answer)[key].error_code == ErrorCode.offset_not_available
        await client.append("orders", wall_clock_ms())
        assert acquired(await Member(client, "n").fetch([key], wait_ms=5000)) == [(CLAIMED, CLAIMED, 1)]


# -- delivered
# --------------------------------------------------------------------------------------------------


async def queue_with(client: Client, kind: str, **configs: str) -> tuple[UUID, int]:
    """Offset 0, an odd batch at 1..3, offset 4; with dead letters."""
    key = await prepare_dead_letters(client, 1, configs={COPY: "true", **configs})
    await client.append_raw("orders", odd_batch(kind))
    await client.append("orders", 1)
    return key


@pytest.mark.usefixtures("without_lingering")
@pytest.mark.parametrize("by_record", [False, True])
@pytest.mark.parametrize("kind", ODD_BATCHES)
async def test_consumers_that_end_over_one(connect: Connect, kind: str, by_record: bool) -> None:
    """FET-31: its offsets are archived like any others, once each, and the records after it are
    delivered, in both modes (KIP-1206)."""
    async with connect() as client:
        key = await queue_with(client, kind, **{"share.delivery.count.limit": "3"})
        given_up = list(range(1, 1 + CLAIMED))
        mode = {"share_acquire_mode": int(by_record), "max_records": 2 if by_record else 500}
        done: set[int] = set()
        for life in range(40):
            victim = Member(client.another(life + 2), f"m{life}")
            runs = acquired(await victim.fetch([key], wait_ms=50, **mode))
            good = {
                offset
                for first, last, _ in runs
                for offset in range(first, last + 1)
                if offset not in given_up
            }
            if good:
                answer = await victim.acknowledge(
                    {key: [(offset, offset, [ACCEPT]) for offset in sorted(good)]}
                )
                assert rows(answer)[key].error_code == 0
            done |= good
            victim.client.disconnect()
            if not runs and done and is_finished(client):
                break
        assert done == {0, 1 + CLAIMED}
        await all_done(client)
        letters = letters_of(client)
        assert sorted(offsets_of(letters)) == given_up
        if kind not in _FIRST_READABLE:
            assert [(letter.key, letter.value) for letter in letters] == [(None, None)] * CLAIMED
        assert is_finished(client)


def is_finished(client: Client) -> bool:
    """All records are, those of the odd batch included; the share-partition may have left memory
    since."""
    (loaded,) = client.broker.share_partitions.loaded() or (None,)
    return loaded is None or (loaded.engine is not None and loaded.engine.start_offset == 2 + CLAIMED)


async def test_gaps_are_taken_for_one(connect: Connect) -> None:
    """ACK-4: how clients acknowledge offsets at which they found no record."""
    async with connect() as client:
        key = await queue_with(client, "no gzip")
        member = Member(client, "m")
        assert acquired(await member.fetch([key], wait_ms=5000)) == [(0, 4, 1)]
        answer = await member.acknowledge({key: [(0, 0, [ACCEPT]), (1, 3, [GAP]), (4, 4, [ACCEPT])]})
        assert rows(answer)[key].error_code == 0
        loaded = client.broker.share_partitions.find(GROUP, TopicPartition(*key))
        assert loaded is not None
        assert loaded.engine is not None
        assert loaded.engine.start_offset == 5


@pytest.mark.usefixtures("without_lingering")
@pytest.mark.parametrize(
    "kind", ["an offset before the batch", "an offset behind the batch", "an offset twice"]
)
async def test_dead_letters_have_no_record_of_another_batch(
    connect: Connect, every_engine: str, kind: str
) -> None:
    """DLQ-24: the offset that a record claims is trusted within its batch only."""
    async with connect(every_engine) as client:
        key = await queue_with(client, kind)
        member = Member(client, "m")
        await member.fetch([key], wait_ms=5000)
        await member.acknowledge({key: [(0, 4, [REJECT])]})
        await all_done(client)
        letters = letters_of(client)
        assert offsets_of(letters) == [0, 1, 2, 3, 4]
        assert [letters[0].value, letters[4].value] == [b"x", b"x"]
