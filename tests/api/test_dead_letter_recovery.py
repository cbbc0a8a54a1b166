"""Dead letters that cannot be written at once: full and failed disks, restarts, and deletions
meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NoReturn

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kbroker.broker.commits.group_commit import GroupCommit
from kbroker.broker.queues import dead_letter_counters, dead_letters
from kbroker.broker.queues.dead_letter_writer import DeadLetterWriter
from kbroker.broker.queues.dead_letters import FIRST_RETRY_S, LAST_RETRY_S
from kbroker.errors import NoSpace
from kbroker.formats.state import DeadLetterCursor, DeadLetterKey, read_entries
from kbroker.share import archiving
from kbroker.share.dead_letter import origin_of
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
    pass_time,
    prepare_dead_letters,
    reject,
    until,
)
from tests.api.share_consumers import FAST, GROUP, REJECT, RELEASE, Member, acquired, set_up_group

pytestmark = pytest.mark.usefixtures("without_lingering")


@contextmanager
def full(commits: GroupCommit[Any]) -> Iterator[list[float]]:
    """A store without space for the duration; yields the times at which it refused a write."""
    write, refused = commits._write, []

    def refuse(_: object) -> NoReturn:
        refused.append(trio.current_time())
        raise NoSpace("the disk is full")

    commits._write = refuse
    try:
        yield refused
    finally:
        commits._write = write


def cursors_of(client: Client) -> list[DeadLetterCursor]:
    return [
        value
        for _, value in read_entries(client.broker.state_store.scan(DeadLetterKey.namespace))
        if isinstance(value, DeadLetterCursor)
    ]


def archiving_now(client: Client) -> int:
    return sum(
        loaded.engine.statistics().archiving
        for loaded in client.broker.share_partitions.loaded()
        if loaded.engine is not None
    )


# -- the disk
# --------------------------------------------------------------------------------------------------


async def test_a_full_disk_is_waited_for(
    connect: Connect, jump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """DLQ-21, DLQ-15: 1 s to 30 s between two attempts, without a limit; the queue continues after
    the record."""
    async with connect(durability="os") as client:
        key = await prepare_dead_letters(client, 3)
        with full(client.broker.log_commits) as refused, caplog.at_level(logging.WARNING):
            await reject(client, key, 0)
            await pass_time(client, jump_clock, 250)
        gaps = [round(after - before) for before, after in pairwise(refused)]
        assert gaps[:6] == [FIRST_RETRY_S, 2, 4, 8, 16, LAST_RETRY_S]
        assert gaps.count(LAST_RETRY_S) > 4
        assert min(gaps[5:]) == LAST_RETRY_S, "more only where the clock jumps over a thread's work"
        assert (archiving_now(client), counters_of(client).failed_requests, letters_of(client)) == (
            1,
            len(refused),
            [],
        )
        lines = [record.getMessage() for record in caplog.records if "have to wait" in record.getMessage()]
        assert 2 < len(lines) < 6, "one a minute"
        assert "the next try is in 1 s: the disk is full" in lines[0]
        await pass_time(client, jump_clock, LAST_RETRY_S + 1)
        assert (offsets_of(letters_of(client)), archiving_now(client)) == ([0], 0)


async def test_what_waits_does_not_hide_what_is_given_up(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """DLQ-15: the log reports both kinds, although they follow each other closely."""
    async with connect(durability="os") as client:
        key = await prepare_dead_letters(client, 3)
        with full(client.broker.log_commits) as refused:
            await reject(client, key, 0)
            await until(lambda: refused)
            await set_up_group(client, {NAME: ""})
        await all_done(client)
        waits, given_up = [
            record.getMessage() for record in caplog.records if record.name == dead_letter_counters.__name__
        ]
        assert waits.startswith(
            "dead letters of share-partition g1:orders-0 have to wait, the next try is in 1 s: the disk is "
            "full"
        )
        assert given_up.startswith(
            "share-partition g1:orders-0: 1 records (1 of the group so far) are archived without a dead "
            "letter: "
        )


async def test_archiving_that_was_not_saved_is_saved_first(connect: Connect, jump_clock: MockClock) -> None:
    """DLQ-17: a lock expired at the limit while the state store is full. The dead letter waits
    until ARCHIVING is saved: otherwise it could be written twice."""
    async with connect(durability="os", config=FAST) as client:
        key = await prepare_dead_letters(client, 1, configs={"share.delivery.count.limit": "2"})
        member = Member(client, "M1")
        await member.fetch([key], wait_ms=5000)
        await member.acknowledge({key: [(0, 0, [RELEASE])]})
        assert acquired(await member.fetch(wait_ms=5000)) == [(0, 0, 2)]
        with full(client.broker.state_commits) as refused:
            await pass_time(client, jump_clock, 100)
        assert len(refused) > 5
        assert (archiving_now(client), letters_of(client)) == (1, [])
        await pass_time(client, jump_clock, LAST_RETRY_S + 1)
        assert (offsets_of(letters_of(client)), archiving_now(client)) == ([0], 0)


async def test_archived_that_was_not_saved_is_saved_later(
    connect: Connect, jump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DLQ-16: the cursor stays until then, so that a crash does no harm."""
    async with connect(durability="os") as client:
        key = await prepare_dead_letters(client, 2)
        write, failing = client.broker.persister.write, True

        async def no_archived(group_id: str, requests: Any) -> Any:
            if failing and any(
                request.start_offset or any(batch.state == 4 for batch in request.batches)
                for request in requests
            ):
                return []
            return await write(group_id, requests)

        monkeypatch.setattr(client.broker.persister, "write", no_archived)
        await reject(client, key, 0)
        await pass_time(client, jump_clock, 100)
        assert (offsets_of(letters_of(client)), archiving_now(client)) == ([0], 0)
        (loaded,) = client.broker.share_partitions.loaded()
        assert loaded.engine is not None
        assert (loaded.engine.start_offset, archiving.has_archiving(loaded.engine)) == (1, True), (
            "it is archived"
        )
        assert len(cursors_of(client)) == 1
        failing = False
        await pass_time(client, jump_clock, LAST_RETRY_S + 1)
        assert not archiving.has_archiving(loaded.engine)
        assert cursors_of(client) == []
        assert offsets_of(letters_of(client)) == [0]


async def test_a_cursor_that_cannot_be_saved_holds_the_dead_letter_back(
    connect: Connect, jump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another persister, ARCHIVING may be saved although the cursor cannot be."""
    async with connect(durability="os") as client:
        key = await prepare_dead_letters(client, 2)
        submit, refuse = client.broker.state_commits.submit, True

        def no_cursors(items: Any, on_done: Any, *more: Any, **options: Any) -> None:
            if refuse and any(name.startswith(DeadLetterKey.namespace) for name, _ in items):
                trio.lowlevel.current_trio_token().run_sync_soon(on_done, NoSpace("the disk is full"))
            else:
                submit(items, on_done, *more, **options)

        monkeypatch.setattr(client.broker.state_commits, "submit", no_cursors)
        await reject(client, key, 0)
        await pass_time(client, jump_clock, 100)
        assert (letters_of(client), archiving_now(client)) == ([], 1)
        refuse = False
        await pass_time(client, jump_clock, LAST_RETRY_S + 1)
        assert (offsets_of(letters_of(client)), archiving_now(client), cursors_of(client)) == ([0], 0, [])


async def test_a_bug_concerns_one_queue(
    connect: Connect, jump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(durability="os") as client:
        key = await prepare_dead_letters(client, 2)
        with monkeypatch.context() as broken:
            broken.setattr(client.partition(QUEUE), "append", None)
            await reject(client, key, 0)
            await pass_time(client, jump_clock, 3)
        assert "TypeError" in caplog.text
        await pass_time(client, jump_clock, LAST_RETRY_S)
        assert offsets_of(letters_of(client)) == [0]


# -- restarts
# --------------------------------------------------------------------------------------------------


async def stopped_with_one_archiving(client: Client, *, queue: dict[str, str] | None = ENABLED) -> None:
    """Record 0 rejected after one delivery and record 1 released after the last, with no dead
    letter written: the log is full."""
    key = await prepare_dead_letters(client, 3, queue=queue, configs={"share.delivery.count.limit": "2"})
    client.broker.log_commits._write = refuse_everything
    member = await reject(client, key, 0)
    await member.acknowledge({key: [(1, 1, [RELEASE])]})
    assert acquired(await member.fetch(wait_ms=5000)) == [(1, 1, 2)]
    await member.acknowledge({key: [(1, 1, [RELEASE])]})
    await until(lambda: archiving_now(client) == 2)


def refuse_everything(_: object) -> NoReturn:
    raise NoSpace("the disk is full")


async def test_a_restart_goes_on_without_a_client(connect: Connect, every_engine: str) -> None:
    """DLQ-20, LOAD-17: the delivery count determines the reason; afterwards the share-partition is
    unloaded."""
    async with connect(engine=every_engine) as client:
        await stopped_with_one_archiving(client)
        assert len(cursors_of(client)) == 1
    async with connect(engine=every_engine) as client:
        await until(lambda: client.broker.dead_letters.statistics().share_partitions == 0)
        origins = [origin_of(each.headers) for each in letters_of(client)]
        assert [(each.offset, each.delivery_count, each.message) for each in origins if each is not None] == [
            (0, 1, "Offset rejected by client."),
            (1, 2, "Offset delivery count exceeded the threshold."),
        ]
        assert client.broker.share_partitions.statistics().share_partitions == 0
        await client.broker.state_commits.commit([])
        assert cursors_of(client) == []
    async with connect(engine=every_engine) as client:
        found = client.broker.topics.by_name("orders")
        assert found is not None
        assert acquired(await Member(client, "M2").fetch([(found.topic_id, 0)], wait_ms=5000)) == [(2, 2, 1)]
        assert len(letters_of(client)) == 2


async def test_a_restart_without_dead_letters_archives_them(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """DLQ-20: they were disabled meanwhile. Kafka runs the second phase as well, which fails
    without a topic name."""
    async with connect() as client:
        await stopped_with_one_archiving(client)
        await set_up_group(client, {NAME: ""})
    async with connect() as client:
        await until(lambda: client.broker.dead_letters.statistics().share_partitions == 0)
        assert letters_of(client) == []
        assert counters_of(client).refused == 2
        assert "errors.deadletterqueue.topic.name is empty" in caplog.text


async def test_a_group_that_was_deleted_just_before_a_crash_has_none(connect: Connect) -> None:
    """Its state was deleted, its cursor was not."""
    async with connect() as client:
        await stopped_with_one_archiving(client)
        found = client.broker.topics.by_name("orders")
        assert found is not None
        topics = [{"topic_id": found.topic_id, "partitions": [{"partition": 0}]}]
        await client.call("delete_share_group_state", 0, group_id=GROUP, topics=topics)
    async with connect() as client:
        assert len(cursors_of(client)) == 1
        await until(lambda: not client.broker.dead_letters.statistics().share_partitions)
        await client.broker.state_commits.commit([])
        assert (cursors_of(client), letters_of(client)) == ([], [])


async def test_a_cursor_behind_the_logs_end_is_replaced(connect: Connect) -> None:
    """With durability os a power cut may remove dead letters and leave the cursor."""
    async with connect() as client:
        await stopped_with_one_archiving(client)
        log = client.partition(QUEUE).log
        found = client.broker.topics.by_name("orders")
        assert found is not None
        key = DeadLetterKey(found.topic_id, 0, GROUP)
        client.broker.state_store.write(
            [(key.encode(), DeadLetterCursor(log.topic_id, QUEUE, 0, 1000).encode())]
        )
    async with connect() as client:
        appended, cursors = client.partition(QUEUE).append, []

        def note_cursor(*arguments: Any, **named: Any) -> Any:
            cursors.extend(cursors_of(client))
            return appended(*arguments, **named)

        client.partition(QUEUE).append = note_cursor  # type: ignore[method-assign]
        await until(lambda: client.broker.dead_letters.statistics().share_partitions == 0)
        assert [cursor.offset for cursor in cursors] == [0]
        assert len(letters_of(client)) == 2


# -- what goes away meanwhile
# ------------------------------------------------------------------------------------------


async def delete_topic(client: Client, name: str) -> None:
    (row,) = (await client.call("delete_topics", 6, topics=[{"name": name, "topic_id": None}])).responses
    assert row.error_code == 0


async def test_the_queue_is_deleted_and_made_again(connect: Connect) -> None:
    """The cursor names a deleted topic: the remaining dead letters go to the new one."""
    async with connect() as client:
        await stopped_with_one_archiving(client)
    async with connect() as client:
        with full(client.broker.log_commits) as refused:
            await until(lambda: refused)
            await delete_topic(client, QUEUE)
            await client.create_topic(QUEUE, configs=ENABLED)
        await until(lambda: client.broker.dead_letters.statistics().share_partitions == 0)
        assert offsets_of(letters_of(client)) == [0, 1]


async def test_the_source_is_deleted(connect: Connect) -> None:
    async with connect() as client:
        await stopped_with_one_archiving(client)
        await delete_topic(client, "orders")
        assert client.broker.dead_letters.statistics().share_partitions == 0
        assert cursors_of(client) == []
    async with connect() as client:
        assert (cursors_of(client), letters_of(client)) == ([], [])


async def test_the_group_is_deleted(connect: Connect) -> None:
    async with connect() as client:
        await stopped_with_one_archiving(client)
        heartbeat = {
            "group_id": GROUP,
            "member_id": "M9",
            "rack_id": None,
            "subscribed_topic_names": ["orders"],
        }
        await client.call("share_group_heartbeat", 1, member_epoch=0, **heartbeat)
        await client.call("share_group_heartbeat", 1, member_epoch=-1, **heartbeat)
        (row,) = (await client.call("delete_groups", 2, groups_names=[GROUP])).results
        assert row.error_code == 0
        await client.broker.state_commits.commit([])
        assert cursors_of(client) == []
        found = client.broker.dead_letters.statistics()
        assert (found.share_partitions, found.groups) == (0, {})


async def test_a_deleted_groups_counters_do_not_come_back(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if it is deleted while a dead letter is being appended."""
    async with connect() as client:
        append, ended = DeadLetterWriter.append, trio.Event()

        async def deleted_meanwhile(*arguments: Any, **others: Any) -> Any:
            client.broker.share_partitions.forget_group(GROUP)
            ended.set()
            return await append(*arguments, **others)

        monkeypatch.setattr(DeadLetterWriter, "append", deleted_meanwhile)
        await reject(client, await prepare_dead_letters(client, 1), 0)
        await ended.wait()
        await until(lambda: letters_of(client))
        await wait_all_tasks_blocked()
        assert client.broker.dead_letters.statistics() == (0, {}, {})


async def test_the_log_start_moves_past_them(connect: Connect) -> None:
    """DLQ-12, LSO-8: ARCHIVING records are removed with it, and the queue keeps working."""
    async with connect() as client:
        await stopped_with_one_archiving(client)
        await client.call(
            "delete_records",
            2,
            topics=[{"name": "orders", "partitions": [{"partition_index": 0, "offset": 2}]}],
        )
        found = client.broker.topics.by_name("orders")
        assert found is not None
        member = Member(client, "M2")
        await member.fetch([(found.topic_id, 0)])
        assert archiving_now(client) == 0
    async with connect() as client:
        await until(lambda: not client.broker.dead_letters.statistics().share_partitions)
        await client.broker.state_commits.commit([])
        assert (cursors_of(client), letters_of(client)) == ([], [])


async def test_a_share_partition_that_is_fenced_is_loaded_again(connect: Connect) -> None:
    """The share-partition's state has another owner now, as after AlterShareGroupOffsets: none of
    its records is ARCHIVING."""
    async with connect() as client:
        await stopped_with_one_archiving(client)
        found = client.broker.topics.by_name("orders")
        assert found is not None
        rows_ = [{"partition": 0, "state_epoch": 5, "start_offset": 0}]
        await client.call(
            "initialize_share_group_state",
            0,
            group_id=GROUP,
            topics=[{"topic_id": found.topic_id, "partitions": rows_}],
        )
        client.broker.share_partitions.forget(GROUP, [TopicPartition(found.topic_id, 0)])
        with full(client.broker.log_commits):
            await until(lambda: not client.broker.dead_letters.statistics().share_partitions)
        await client.broker.state_commits.commit([])
        assert (cursors_of(client), letters_of(client)) == ([], [])


async def test_a_cursor_is_moved_up_where_it_lags(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that is never idle would have to be searched from its beginning after a crash."""
    monkeypatch.setattr(dead_letters, "CURSOR_LAG", 3)
    monkeypatch.setattr(dead_letters, "LINGER_S", 1000)
    async with connect() as client:
        key = await prepare_dead_letters(client, 8)
        member = Member(client, "M1")
        await member.fetch([key], wait_ms=5000)
        seen = []
        for offset in range(8):
            await member.acknowledge({key: [(offset, offset, [REJECT])]})
            await until(lambda: is_done(client))
            seen += [cursor.offset for cursor in cursors_of(client)]
        assert seen == [0, 0, 0, 3, 3, 3, 6, 6]
        assert offsets_of(letters_of(client)) == list(range(8))


async def test_a_cursor_goes_when_nothing_needs_it(
    connect: Connect, jump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "LINGER_S", 1.0)
    async with connect(durability="os") as client:
        key = await prepare_dead_letters(client, 3)
        member = await reject(client, key, 0)
        await pass_time(client, jump_clock, 0.5)
        assert [cursor.offset for cursor in cursors_of(client)] == [0]
        await member.acknowledge({key: [(1, 1, [REJECT])]})
        await pass_time(client, jump_clock, 0.9)
        assert [cursor.offset for cursor in cursors_of(client)] == [0]
        await pass_time(client, jump_clock, 0.3)
        assert cursors_of(client) == []
        await member.acknowledge({key: [(2, 2, [REJECT])]})
        await pass_time(client, jump_clock, 0.1)
        assert [cursor.offset for cursor in cursors_of(client)] == [2]
