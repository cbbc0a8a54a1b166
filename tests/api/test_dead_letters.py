"""Dead letters end to end: their causes, their topic, and the conditions under which there are
none."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio

from kbroker.broker.queues import dead_letters
from kbroker.clock import wall_clock_ms
from kbroker.share.dead_letter import HEADER_NAMES, headers_of, origin_of
from kbroker.share.persister import TopicPartition
from tests.api.conftest import Client, Connect
from tests.api.dead_letter_queues import (
    ENABLED,
    NAME,
    QUEUE,
    all_done,
    counters_of,
    is_done,
    letters_of,
    offsets_of,
    prepare_dead_letters,
    reject,
    set_up_broker,
    set_up_topic,
    until,
)
from tests.api.share_consumers import (
    ACCEPT,
    FAST,
    GAP,
    GROUP,
    REJECT,
    RELEASE,
    Member,
    acquired,
    rows,
    set_up_group,
)

pytestmark = pytest.mark.usefixtures("without_lingering")

CREATE = "errors.deadletterqueue.auto.create.topics.enable"
PREFIX = "errors.deadletterqueue.topic.name.prefix"
KEEP_HEADERS = "kbroker.errors.deadletterqueue.keep.headers.enable"
KEEP_TIMESTAMP = "kbroker.errors.deadletterqueue.keep.timestamp.enable"


def start_offset(client: Client) -> int:
    (loaded,) = client.broker.share_partitions.loaded()
    assert loaded.engine is not None
    return loaded.engine.start_offset


# -- what gives one
# --------------------------------------------------------------------------------------------------


async def test_a_rejected_record_goes_to_the_queue(connect: Connect, every_engine: str) -> None:
    """DLQ-10, DLQ-13, DLQ-14, DLQ-18, DLQ-23, DLQ-24, DLQ-25: six headers and nothing else; the
    queue delivers the records after it."""
    async with connect(engine=every_engine) as client:
        key = await prepare_dead_letters(client, 5)
        before_ms = wall_clock_ms()
        member = await reject(client, key, 0, 3)
        await all_done(client)
        first, second = letters_of(client)
        assert [(name, value) for name, value in first.headers] == list(
            zip(
                HEADER_NAMES, (b"orders", b"0", b"0", b"g1", b"1", b"Offset rejected by client."), strict=True
            )
        )
        assert (first.key, first.value, offsets_of([first, second])) == (None, None, [0, 3])
        assert before_ms <= first.timestamp_ms <= wall_clock_ms()
        assert start_offset(client) == 1, "record 0 is done with"
        assert (
            rows(await member.acknowledge({key: [(1, 2, [ACCEPT]), (4, 4, [ACCEPT])]}))[key].error_code == 0
        )
        assert start_offset(client) == 5
        assert acquired(await member.fetch()) == []
        found = counters_of(client)
        assert (
            found.records,
            found.produce_requests,
            found.failed_requests,
            found.refused,
            found.without_copy,
        ) == (2, 1, 0, 0, 0)


async def test_the_answer_does_not_wait_for_the_dead_letter(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DLQ-13, DLQ-18, DLQ-19: ARCHIVING is saved, then the client gets its response; the dead
    letter wakes a fetch that waits for room."""
    async with connect() as client:
        configs = {"share.partition.max.record.locks": "100"}
        key = await prepare_dead_letters(client, *[10] * 11, configs=configs)
        appended, go = client.partition(QUEUE).append, trio.Event()
        waiting: list[Any] = []
        monkeypatch.setattr(
            client.partition(QUEUE), "append", lambda *arguments, **named: waiting.append((arguments, named))
        )
        member = await reject(client, key, *range(10))
        await until(lambda: waiting)
        (loaded,) = client.broker.share_partitions.loaded()
        assert loaded.engine is not None
        assert (loaded.engine.statistics().archiving, loaded.engine.start_offset) == (10, 0)
        found: list[Any] = []

        async def fetch() -> None:
            found.append(await member.fetch(wait_ms=60_000))
            go.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fetch)
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert not found, "100 records are in flight"
            appended(*waiting[0][0], **waiting[0][1])
            with trio.fail_after(10):
                await go.wait()
        assert acquired(found[0]) == [(100, 109, 1)]
        assert offsets_of(letters_of(client)) == list(range(10))


async def test_letters_that_wait_for_room_hold_no_other_jobs_after_a_reload(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As before it: their records do not count as undecided."""
    monkeypatch.setattr(dead_letters, "ROOM_RETRY_S", 0.01)
    async with connect() as client:
        monkeypatch.setattr(client.broker.disk_floor, "letter_room", lambda *, last_half: 0)
        configs = {"share.partition.max.record.locks": "100", "kbroker.share.in.flight.limit": "undecided"}
        key = await prepare_dead_letters(client, *[10] * 20, configs=configs)
        member = await reject(client, key, *range(100))
        assert acquired(await member.fetch(wait_ms=20_000)) == [(100, 199, 1)]
        client.broker.share_partitions.forget(GROUP, [TopicPartition(*key)])
        assert acquired(await Member(client, "M2").fetch([key], wait_ms=20_000)) == [(100, 199, 1)]
        assert not letters_of(client)


@pytest.mark.parametrize("how", ["release", "session", "timeout"])
async def test_the_delivery_limit_gives_one(connect: Connect, how: str) -> None:
    """DLQ-11: whichever event makes the record available after its last allowed delivery; REC-7."""
    async with connect(config=FAST) as client:
        key = await prepare_dead_letters(client, 2, configs={"share.delivery.count.limit": "2"})
        member = Member(client.another(2), "M1")
        assert acquired(await member.fetch([key], wait_ms=5000)) == [(0, 1, 1)]
        await member.acknowledge({key: [(0, 0, [RELEASE]), (1, 1, [ACCEPT])]})
        assert letters_of(client) == []
        assert acquired(await member.fetch(wait_ms=5000)) == [(0, 0, 2)]
        if how == "release":
            await member.acknowledge({key: [(0, 0, [RELEASE])]})
        elif how == "session":
            member.client.disconnect()
        await until(lambda: letters_of(client) and is_done(client))
        (letter,) = letters_of(client)
        origin = origin_of(letter.headers)
        assert origin is not None
        assert (origin.offset, origin.delivery_count) == (0, 2)
        assert origin.message == "Offset delivery count exceeded the threshold."


async def test_what_gives_none(connect: Connect) -> None:
    """DLQ-12, LSO-8, ACK-2: a gap, and a log start that moves past records that are held or
    available."""
    async with connect() as client:
        key = await prepare_dead_letters(client, 6, configs={"share.delivery.count.limit": "2"})
        member = Member(client, "M1")
        await member.fetch([key], wait_ms=5000)
        await member.acknowledge({key: [(0, 0, [GAP]), (1, 1, [RELEASE])]})
        answer = await client.call(
            "delete_records",
            2,
            topics=[{"name": "orders", "partitions": [{"partition_index": 0, "offset": 4}]}],
        )
        assert answer.topics[0].partitions[0].error_code == 0
        assert acquired(await member.fetch()) == []
        assert rows(await member.acknowledge({key: [(4, 5, [REJECT])]}))[key].error_code == 0
        await all_done(client)
        assert offsets_of(letters_of(client)) == [4, 5]
        assert start_offset(client) == 6


async def test_dead_letters_are_switched_on_and_off_with_the_next_transition(connect: Connect) -> None:
    """DLQ-1"""
    async with connect() as client:
        key = await prepare_dead_letters(client, 4, configs={NAME: ""})
        member = await reject(client, key, 0)
        assert start_offset(client) == 1, "archived at once"
        await set_up_group(client, {NAME: QUEUE})
        await member.acknowledge({key: [(1, 1, [REJECT])]})
        await all_done(client)
        await set_up_group(client, {NAME: ""})
        await member.acknowledge({key: [(2, 2, [REJECT])]})
        assert start_offset(client) == 3
        assert offsets_of(letters_of(client)) == [1]


async def test_which_partition(connect: Connect) -> None:
    """DLQ-22"""
    async with connect() as client:
        topic_id, _ = await prepare_dead_letters(client, 1, partitions=5, queue_partitions=3)
        for index in range(1, 5):
            await client.append("orders", 1, partition=index)
        keys = [(topic_id, index) for index in range(5)]
        member = Member(client, "M1")
        await member.fetch(keys, wait_ms=5000)
        await until(lambda: all(each.engine for each in client.broker.share_partitions.loaded()))
        await member.fetch()
        await member.acknowledge({key: [(0, 0, [REJECT])] for key in keys})
        await all_done(client)
        sources = [
            [
                origin.partition
                for record in letters_of(client, QUEUE, index)
                if (origin := origin_of(record.headers))
            ]
            for index in range(3)
        ]
        assert [sorted(each) for each in sources] == [[0, 3], [1, 4], [2]]


# -- what it takes
# --------------------------------------------------------------------------------------------------


async def rejected_for(client: Client, caplog: pytest.LogCaptureFixture) -> str:
    """Reject one record and return the log line that says why there is no dead letter."""
    with caplog.at_level(logging.WARNING):
        found = client.broker.topics.by_name("orders")
        assert found is not None
        await reject(client, (found.topic_id, 0), 0)
        await all_done(client)
    assert start_offset(client) == 1, "the queue keeps working"
    assert counters_of(client).refused == 1
    assert counters_of(client).records == 0
    (line,) = [
        record.getMessage() for record in caplog.records if "without a dead letter" in record.getMessage()
    ]
    return line.partition("without a dead letter: ")[2]


REFUSALS = [
    ({}, None, {}, f"there is no topic {QUEUE}, and {CREATE} is false"),
    (
        {CREATE: "true", PREFIX: "dead-"},
        None,
        {},
        f"there is no topic {QUEUE}, and only topics whose names begin with dead- are made",
    ),
    ({PREFIX: "dead-"}, None, {}, f"there is no topic {QUEUE}, and {CREATE} is false"),
    ({CREATE: "true"}, {}, {}, f"topic {QUEUE} does not have errors.deadletterqueue.group.enable=true"),
    (
        {CREATE: "true", PREFIX: ""},
        None,
        {NAME: "no such name"},
        "topic no such name cannot be made: Topic name is invalid",
    ),
    ({}, ENABLED, {NAME: "orders"}, "topic orders does not have errors.deadletterqueue.group.enable=true"),
]


@pytest.mark.parametrize(("broker", "queue", "group", "reason"), REFUSALS)
async def test_wrong_settings_archive_without_a_dead_letter(
    connect: Connect,
    caplog: pytest.LogCaptureFixture,
    broker: dict[str, str],
    queue: dict[str, str] | None,
    group: dict[str, str],
    reason: str,
) -> None:
    """DLQ-3, DLQ-4, DLQ-7, DLQ-8, DLQ-15, DLQ-2: in this order, and each is reported."""
    async with connect() as client:
        await prepare_dead_letters(client, 2, queue=queue, configs=group)
        await set_up_broker(client, broker)
        assert (await rejected_for(client, caplog)).startswith(reason)


async def test_a_queue_of_its_own_gets_no_second_record(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """DLQ-31: the record is already in the queue; a consumer that rejects everything would fill the
    topic endlessly."""
    async with connect() as client:
        await prepare_dead_letters(client, 2, configs={NAME: "orders"})
        await set_up_topic(client, "orders", ENABLED)
        assert (
            await rejected_for(client, caplog)
            == "topic orders is the queue itself: its records are there already"
        )
        assert client.partition("orders").high_watermark == 2


async def test_the_topic_is_made(connect: Connect) -> None:
    """DLQ-4, DLQ-5, DLQ-6, DLQ-9: with the cluster's number of partitions, once for all groups that
    need it at the same time."""
    async with connect(
        config={"num.partitions": "3", "log.message.timestamp.type": "LogAppendTime"}
    ) as client:
        topic_id, _ = await prepare_dead_letters(client, 1, partitions=2, queue=None)
        await client.append("orders", 1, partition=1)
        await set_up_broker(client, {CREATE: "true"})
        member = Member(client, "M1")
        keys = [(topic_id, 0), (topic_id, 1)]
        await member.fetch(keys, wait_ms=5000)
        await until(lambda: all(each.engine for each in client.broker.share_partitions.loaded()))
        await member.fetch()
        await member.acknowledge({key: [(0, 0, [REJECT])] for key in keys})
        await all_done(client)
        queue = client.broker.topics.by_name(QUEUE)
        assert queue is not None
        assert queue.configs == {**ENABLED, "message.timestamp.type": "CreateTime"}
        assert [len(letters_of(client, QUEUE, index)) for index in range(3)] == [1, 1, 0]
        assert counters_of(client).refused == 0


async def test_log_lines_are_few(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    async with connect() as client:
        key = await prepare_dead_letters(client, 5, queue=None)
        member = await reject(client, key, 0)
        await all_done(client)
        for offset in range(1, 5):
            await member.acknowledge({key: [(offset, offset, [REJECT])]})
            await all_done(client)
        assert counters_of(client).refused == 5
        assert sum("without a dead letter" in record.getMessage() for record in caplog.records) == 1


async def test_a_dead_letter_in_a_group_of_its_own(connect: Connect) -> None:
    """Dead letters are records: a group may read them, reject one, and have its own dead letter
    queue."""
    async with connect() as client:
        key = await prepare_dead_letters(client, 1, configs={KEEP_HEADERS: "true"})
        await reject(client, key, 0)
        await all_done(client)
        queue = client.broker.topics.by_name(QUEUE)
        assert queue is not None
        await client.create_topic("dlq.dlq", configs=ENABLED)
        await set_up_group(
            client, {"share.auto.offset.reset": "earliest", NAME: "dlq.dlq", KEEP_HEADERS: "true"}, "g2"
        )
        rows_ = [{"partition": 0, "state_epoch": 0, "start_offset": -1}]
        await client.call(
            "initialize_share_group_state",
            0,
            group_id="g2",
            topics=[{"topic_id": queue.topic_id, "partitions": rows_}],
        )
        member = Member(client, "M2", "g2")
        await member.fetch([(queue.topic_id, 0)], wait_ms=5000)
        await member.acknowledge({(queue.topic_id, 0): [(0, 0, [REJECT])]})
        await until(lambda: counters_of(client, "g2").records)
        (letter,) = letters_of(client, "dlq.dlq")
        assert letter.headers[6:] == letters_of(client)[0].headers
        origin = origin_of(letter.headers)
        assert origin is not None
        assert (origin.topic, origin.group_id) == (QUEUE, "g2")
        assert letter.headers[:6] == headers_of(origin)
        assert set(client.broker.dead_letters.statistics().groups) == {GROUP, "g2"}
