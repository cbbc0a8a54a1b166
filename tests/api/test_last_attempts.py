"""The delivery limit in groups with queue settings: a last attempt goes alone, and a limit that is
lowered holds for records that are waiting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest

from kbroker.share import offers
from kbroker.share.dead_letter import origin_of
from kbroker.share.persister import TopicPartition
from tests.api.conftest import Client, Connect
from tests.api.dead_letter_queues import all_done, letters_of, offsets_of, prepare_dead_letters, until
from tests.api.share_consumers import (
    ACCEPT,
    GROUP,
    RELEASE,
    Member,
    acquired,
    initialize,
    rows,
    set_up_group,
)

pytestmark = pytest.mark.usefixtures("parks_at_once")

LIMIT = "share.delivery.count.limit"
PREFETCH = {"kbroker.queue.prefetch": "10"}
IN_WINDOW = {**PREFETCH, LIMIT: "2"}
PARKED = {
    **IN_WINDOW,
    "kbroker.queue.redelivery.delay.ms": "150",
    "kbroker.queue.redelivery.jitter": "0",
    "kbroker.queue.redelivery.multiplier": "1",
}
ONE_BATCH, TEN_BATCHES = (10,), (1,) * 10


async def next_of(member: Member, *keys: tuple[UUID, int], **more: Any) -> list[tuple[int, int, int]]:
    return acquired(await member.fetch([] if member.epoch else keys, wait_ms=10_000, max_records=10, **more))


@pytest.mark.parametrize("sizes", [ONE_BATCH, TEN_BATCHES], ids=["one batch", "ten batches"])
@pytest.mark.parametrize("settings", [IN_WINDOW, PARKED], ids=["in the window", "parked"])
async def test_a_worker_that_dies_twice_gives_up_one_job(
    connect: Connect, settings: Mapping[str, str], sizes: tuple[int, ...]
) -> None:
    async with connect() as client:
        key = await prepare_dead_letters(client, *sizes, configs=settings)
        for number, expected in enumerate([(0, 9), (0, 0)], 1):
            worker = Member(client.another(number), f"M{number}")
            found = await next_of(worker, key)
            assert (found[0][0], found[-1][1], {count for *_, count in found}) == (*expected, {number})
            worker.client.disconnect()
        await until(lambda: offsets_of(letters_of(client)) == [0])
        worker, done = Member(client.another(3), "M3"), list[int]()
        while len(done) < 9:
            ((first, last, count),) = await next_of(worker, key)
            assert (first, count) == (last, 2)
            await worker.acknowledge({key: [(first, first, [ACCEPT])]})
            done.append(first)
        assert sorted(done) == [*range(1, 10)]
        await all_done(client)
        assert offsets_of(letters_of(client)) == [0]


@pytest.mark.parametrize("settings", [IN_WINDOW, PARKED], ids=["in the window", "parked"])
async def test_over_all_partitions(connect: Connect, settings: Mapping[str, str]) -> None:
    async with connect() as client:
        topic_id, _ = await prepare_dead_letters(client, partitions=3, configs=settings)
        keys = [(topic_id, index) for index in range(3)]
        for index in range(3):
            await client.append("orders", *range(1000, 1003), partition=index)
        await initialize(client, topic_id, 3)
        first = Member(client.another(1), "M1")
        held = 0
        while held < 9:
            found = await next_of(first, *keys)
            held += sum(last - first_offset + 1 for first_offset, last, _ in found)
        first.client.disconnect()
        second = Member(client.another(2), "M2")
        found = await next_of(second, *keys)
        assert [(first_offset == last, count) for first_offset, last, count in found] == [(True, 2)]
        second.client.disconnect()
        await until(lambda: len(letters_of(client)) == 1)
        third, done = Member(client.another(3), "M3"), 0
        while done < 8:
            answer = await third.fetch([] if third.epoch else keys, wait_ms=10_000, max_records=10)
            (row,) = [row for topic in answer.responses for row in topic.partitions if row.acquired_records]
            ((offset, last, count),) = acquired(answer)
            assert (offset, count) == (last, 2)
            await third.acknowledge({(topic_id, row.partition_index): [(offset, offset, [ACCEPT])]})
            done += 1
        await all_done(client)
        assert len(letters_of(client)) == 1


async def test_last_attempts_do_not_starve_other_partitions(connect: Connect) -> None:
    """Twenty parked ones in one partition, ten fresh jobs in the other."""
    async with connect() as client:
        settings = {**PARKED, "kbroker.queue.prefetch": "100"}
        topic_id, _ = await prepare_dead_letters(client, partitions=2, configs=settings)
        one, other = (topic_id, 0), (topic_id, 1)
        await initialize(client, topic_id, 2)
        for _ in range(20):
            await client.append("orders", 1000)
        worker, failed = Member(client, "M1"), 0
        while failed < 20:
            for first, last, count in await next_of(worker, one, other):
                assert count == 1
                failed += last - first + 1
                await worker.acknowledge({one: [(first, last, [RELEASE])]})
        loaded = client.broker.share_partitions.find(GROUP, TopicPartition(*one))
        assert loaded is not None
        await until(lambda: loaded.engine is not None and offers.parked_ready(loaded.engine) == 20)
        for _ in range(10):
            await client.append("orders", 1000, partition=1)
        answers = [await worker.fetch(max_records=3) for _ in range(8)]
        turns = [[index for _, index in rows(answer)] for answer in answers]
        assert turns in ([[0], [1]] * 4, [[1], [0]] * 4)


async def test_a_plain_share_group_is_as_in_kafka(connect: Connect) -> None:
    async with connect() as client:
        key = await prepare_dead_letters(client, 10, configs={LIMIT: "2"})
        for number in (1, 2):
            worker = Member(client.another(number), f"M{number}")
            assert await next_of(worker, key) == [(0, 9, number)]
            worker.client.disconnect()
        await until(lambda: len(offsets_of(letters_of(client))) == 10)


async def _with_counts_1_to_4(client: Client, worker: Member, key: tuple[UUID, int]) -> None:
    """The record at each offset has been delivered so many times, and has returned."""
    for turn in range(4):
        left = 4 - turn
        while left:
            for first, last, count in await next_of(worker, key):
                assert count == turn + 1
                left -= last - first + 1
        await worker.acknowledge({key: [(min(turn + 1, 3), 3, [RELEASE])]})
    await worker.acknowledge({key: [(0, 2, [RELEASE])]})


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("settings", [IN_WINDOW, PARKED], ids=["in the window", "parked"])
async def test_a_lowered_limit(connect: Connect, settings: Mapping[str, str], restarts: bool) -> None:
    """From 5 to 2, with records that were delivered one to four times: one of them is delivered."""
    async with connect("lmdb") as client:
        key = await prepare_dead_letters(client, 4, configs={**settings, LIMIT: "5"})
        worker = Member(client, "M1")
        await _with_counts_1_to_4(client, worker, key)
        await set_up_group(client, {LIMIT: "2"})
        if not restarts:
            await _check_the_lowered_limit(client, key)
    if restarts:
        async with connect("lmdb") as client:
            await _check_the_lowered_limit(client, key)


async def _check_the_lowered_limit(client: Client, key: tuple[UUID, int]) -> None:
    worker = Member(client.another(2), "M2")
    assert await next_of(worker, key) == [(0, 0, 2)]
    await worker.acknowledge({key: [(0, 0, [ACCEPT])]})
    assert acquired(await worker.fetch(wait_ms=500, max_records=10)) == []
    await all_done(client)
    letters = letters_of(client)
    origins = [origin for letter in letters if (origin := origin_of(letter.headers)) is not None]
    assert sorted((each.offset, each.delivery_count) for each in origins) == [(1, 2), (2, 3), (3, 4)]
    assert {each.message for each in origins} == {"Offset delivery count exceeded the threshold."}
    (loaded,) = [each for each in client.broker.share_partitions.loaded() if each.key[0] == GROUP]
    assert loaded.engine is not None
    assert loaded.engine.statistics().exhausted == 3


async def test_a_lowered_limit_without_dead_letters(connect: Connect) -> None:
    async with connect() as client:
        key = await prepare_dead_letters(client, 4, configs={**PREFETCH, LIMIT: "5"})
        await set_up_group(client, {"errors.deadletterqueue.topic.name": ""})
        worker = Member(client, "M1")
        await _with_counts_1_to_4(client, worker, key)
        await set_up_group(client, {LIMIT: "2"})
        assert await next_of(worker, key) == [(0, 0, 2)]
        await worker.acknowledge({key: [(0, 0, [ACCEPT])]})
        assert acquired(await worker.fetch(wait_ms=500, max_records=10)) == []
        (loaded,) = client.broker.share_partitions.loaded()
        assert loaded.engine is not None
        await until(lambda: loaded.engine is not None and loaded.engine.is_settled)
        assert loaded.engine.start_offset == 4
        assert letters_of(client) == []


async def test_a_lowered_limit_in_a_plain_share_group(connect: Connect) -> None:  # THR-9
    """Each waiting record is delivered once more, as in Kafka."""
    async with connect() as client:
        key = await prepare_dead_letters(client, 4, configs={LIMIT: "5"})
        worker = Member(client, "M1")
        await _with_counts_1_to_4(client, worker, key)
        await set_up_group(client, {LIMIT: "2"})
        counts = dict[int, int]()
        while len(counts) < 4:
            for first, last, count in await next_of(worker, key):
                counts.update(dict.fromkeys(range(first, last + 1), count))
        assert counts == {0: 2, 1: 3, 2: 4, 3: 5}
