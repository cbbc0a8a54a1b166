"""Fetch: versions, errors, waiting, limits and sessions."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
import trio

from kbroker.api import APIS
from kbroker.broker.connection import PeerGone
from kbroker.errors import ErrorCode
from tests.api.conftest import Connect
from tests.api.producing import batch, fetch, produce, values

FETCH = range(APIS[1].first, APIS[1].last + 1)
NO_ID = UUID(int=0xDEAD)


@pytest.mark.parametrize("version", FETCH)
async def test_every_version_of_fetch(connect: Connect, version: int) -> None:
    async with connect() as client:
        topic = await client.create_topic("orders")
        await produce(client, topic.topic_id, batch(b"a", b"b"))
        await produce(client, topic.topic_id, batch(b"c"))
        answer = await fetch(client, topic.topic_id if version >= 13 else "orders", 1, version=version)
        row = answer.responses[0].partitions[0]
        assert (row.error_code, row.high_watermark, row.last_stable_offset) == (0, 3, 3)
        assert values(row) == [b"a", b"b", b"c"], "whole batches from the one that holds the offset"


async def test_fetch_beyond_the_log_is_answered_at_once(connect: Connect) -> None:  # BASE-44
    async with connect() as client:
        topic = await client.create_topic("orders")
        await produce(client, topic.topic_id, batch(b"a"))
        with trio.fail_after(5):
            for offset in (2, -1):
                row = (await fetch(client, topic.topic_id, offset, wait_ms=60_000)).responses[0].partitions[0]
                assert (row.error_code, row.high_watermark, row.log_start_offset) == (
                    ErrorCode.offset_out_of_range,
                    -1,
                    -1,
                )


async def test_fetch_of_unknown_things(connect: Connect) -> None:
    async with connect() as client:
        topic = await client.create_topic("orders")
        rows: Sequence[tuple[Any, dict[str, int], ErrorCode]] = (
            (NO_ID, {}, ErrorCode.unknown_topic_id),
            ("nowhere", {"version": 12}, ErrorCode.unknown_topic_or_partition),
            (topic.topic_id, {"partition": 9}, ErrorCode.unknown_topic_or_partition),
            (topic.topic_id, {"leader_epoch": 99}, ErrorCode.unknown_leader_epoch),
        )
        with trio.fail_after(5):
            for name, more, code in rows:
                answer = await fetch(client, name, 0, wait_ms=60_000, **more)
                assert answer.responses[0].partitions[0].error_code == code


@pytest.mark.parametrize("version", FETCH)
async def test_an_unknown_isolation_level(connect: Connect, version: int) -> None:  # BASE-46
    """The request is refused if there is anything to read; the session has counted it."""
    error, unknown = ErrorCode.unknown_server_error, ErrorCode.unknown_topic_or_partition
    async with connect() as client:
        topic = await client.create_topic("orders")
        name = topic.topic_id if version >= 13 else "orders"
        answer = await fetch(client, name, 0, version=version, isolation_level=7)
        if version >= 7:
            assert (answer.error_code, answer.session_id) == (error, 0)
        rows = [row for topic in answer.responses for row in topic.partitions]
        assert [(row.error_code, row.high_watermark, row.aborted_transactions) for row in rows] == [
            (error, -1, ())
        ] * (version < 13)
        answer = await fetch(client, name, 0, version=version, isolation_level=7, partition=9)
        assert answer.responses[0].partitions[0].error_code == unknown
        if version >= 7:
            session = (await fetch(client, name, 0, version=version, session_epoch=0)).session_id
            answer = await fetch(
                client, None, 0, version=version, session_id=session, session_epoch=1, isolation_level=7
            )
            assert (answer.error_code, answer.session_id, answer.responses) == (error, session, ())
            assert (
                await fetch(client, None, 0, version=version, session_id=session, session_epoch=2)
            ).error_code == 0


@pytest.mark.parametrize("version", FETCH)
async def test_read_committed_names_no_aborted_transactions(connect: Connect, version: int) -> None:
    """The list is empty where records were read, null where a log refused, and always empty for a
    missing partition."""
    async with connect() as client:
        topic = await client.create_topic("orders")
        name = topic.topic_id if version >= 13 else "orders"
        await produce(client, topic.topic_id, batch(b"a"))
        found = {}
        for level in (0, 1):
            for what, more in {
                "read": {},
                "end": {"offset": 1},
                "outside": {"offset": 7},
                "nothing": {"partition": 9},
            }.items():
                offset = more.pop("offset", 0)
                row = (
                    (await fetch(client, name, offset, version=version, isolation_level=level, **more))
                    .responses[0]
                    .partitions[0]
                )
                found[what, level] = row.aborted_transactions
        expected = {("read", 1): (), ("end", 1): (), ("nothing", 0): (), ("nothing", 1): ()}
        assert found == {key: expected.get(key) for key in found}


async def test_errors_that_do_not_wait(connect: Connect) -> None:  # BASE-45
    """Next to an empty partition, an error of a log is answered at once, a missing partition only
    at the end of the wait."""
    async with connect() as client:
        topic = (await client.create_topic("orders", 2)).topic_id
        await produce(client, topic, batch(b"a"))

        async def fetch_both(wait_ms: int, partition: int = 0, **more: int) -> Any:
            rows = [
                {"partition": index, "current_leader_epoch": -1, "fetch_offset": 0,
                 "last_fetched_epoch": -1, "log_start_offset": -1, "partition_max_bytes": 1 << 20,
                 **(more if index == partition else {})}
                for index in (partition, 1)
            ]  # fmt: skip
            return await client.call(
                "fetch", 18, replica_id=-1, max_wait=wait_ms, min_bytes=1, max_bytes=1 << 20,
                isolation_level=0, session_id=0, session_epoch=-1,
                topics=[{"topic_id": topic, "partitions": rows}], forgotten_topics_data=[], rack_id="",
            )  # fmt: skip

        with trio.fail_after(5):
            for more, code in (
                ({"fetch_offset": 9}, ErrorCode.offset_out_of_range),
                ({"current_leader_epoch": 99}, ErrorCode.unknown_leader_epoch),
                ({"partition_max_bytes": -1}, ErrorCode.unknown_server_error),
            ):
                answer = await fetch_both(60_000, **more)
                assert [row.error_code for row in answer.responses[0].partitions] == [code, 0]
            answers: list[Any] = []

            async def wait() -> None:
                answers.append(await fetch_both(60_000, partition=9))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await trio.testing.wait_all_tasks_blocked()
                assert answers == []
                await produce(client, topic, batch(b"a"), partition=1)
        assert [row.partition_index for row in answers[0].responses[0].partitions] == [1, 9], (
            "missing partitions come last"
        )


async def test_where_the_epoch_fetched_last_ended(connect: Connect) -> None:
    """A client past that offset learns it at once; an epoch that never existed is out of range."""
    async with connect(engine="segment") as client:
        topic = (await client.create_topic("orders")).topic_id
        await client.append("orders", 1, 2)
    async with connect(engine="segment") as client:
        await client.append("orders", 3)

        async def ask(epoch: int, offset: int) -> Any:
            row = {"partition": 0, "current_leader_epoch": -1, "fetch_offset": offset,
                   "last_fetched_epoch": epoch, "log_start_offset": -1,
                   "partition_max_bytes": 1 << 20}  # fmt: skip
            answer = await client.call(
                "fetch", 18, replica_id=-1, max_wait=60_000, min_bytes=1, max_bytes=1 << 20,
                isolation_level=0, session_id=0, session_epoch=-1,
                topics=[{"topic_id": topic, "partitions": [row]}], forgotten_topics_data=[], rack_id="",
            )  # fmt: skip
            found = answer.responses[0].partitions[0]
            return (
                found.error_code,
                (found.diverging_epoch.epoch, found.diverging_epoch.end_offset),
                len(values(found)),
            )

        out_of_range = ErrorCode.offset_out_of_range, (-1, -1), 0
        with trio.fail_after(5):
            assert await ask(0, 2) == (0, (-1, -1), 1)
            assert await ask(0, 3) == (0, (0, 2), 0)
            assert await ask(1, 0) == (0, (-1, -1), 3)
            assert await ask(1, 4) == (0, (1, 3), 0)
            assert await ask(2, 0) == out_of_range
            await client.broker.topics.move_log_start(client.partition("orders"), 1)
            assert await ask(0, 0) == out_of_range


async def test_fetched_rows_that_are_listed_twice_or_taken_apart(connect: Connect) -> None:
    """A partition gets one row, in its first place, by its last listing. Rows of a topic stay
    together only if they were listed together."""
    async with connect() as client:
        one, two = [(await client.create_topic(name, 2)).topic_id for name in ("one", "two")]
        await produce(client, one, batch(b"a"))
        asked = [(one, 0, 7), (two, 0, 0), (one, 1, 0), (one, 0, 0)]
        topics = [
            {"topic_id": topic, "partitions": [
                {"partition": index, "current_leader_epoch": -1, "fetch_offset": offset,
                 "last_fetched_epoch": -1, "log_start_offset": -1, "partition_max_bytes": 1 << 20}
            ]}
            for topic, index, offset in asked
        ]  # fmt: skip
        answer = await client.call(
            "fetch", 18, replica_id=-1, max_wait=0, min_bytes=1, max_bytes=1 << 20, isolation_level=0,
            session_id=0, session_epoch=-1, topics=topics, forgotten_topics_data=[], rack_id="",
        )  # fmt: skip
        rows = [
            (topic.topic_id, row.partition_index, row.error_code)
            for topic in answer.responses
            for row in topic.partitions
        ]
        assert rows == [(one, 0, 0), (two, 0, 0), (one, 1, 0)]
        assert len(answer.responses) == 3


async def test_a_small_limit_still_gives_the_first_batch(connect: Connect) -> None:  # BASE-48
    async with connect() as client:
        topic = await client.create_topic("orders")
        for value in (b"a" * 1000, b"b" * 1000):
            await produce(client, topic.topic_id, batch(value))
        for limits in ({"max_bytes": 1}, {"partition_max_bytes": 1}, {"max_bytes": 0}):
            row = (await fetch(client, topic.topic_id, 0, **limits)).responses[0].partitions[0]
            assert values(row) == [b"a" * 1000]
        for limits in ({"max_bytes": -1}, {"partition_max_bytes": -1}):
            for offset, code in (
                (0, ErrorCode.unknown_server_error),
                (2, ErrorCode.none),
                (3, ErrorCode.offset_out_of_range),
            ):
                row = (await fetch(client, topic.topic_id, offset, **limits)).responses[0].partitions[0]
                assert (row.error_code, values(row)) == (code, [])


async def test_a_waiting_fetch_is_woken_by_a_produce(connect: Connect) -> None:  # BASE-43
    async with connect() as client:
        topic = await client.create_topic("orders")
        answers: list[Any] = []

        async def wait() -> None:
            answers.append(await fetch(client, topic.topic_id, 0, wait_ms=60_000))

        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await trio.testing.wait_all_tasks_blocked()
                assert answers == []
                await produce(client, topic.topic_id, batch(b"a"))
        assert values(answers[0].responses[0].partitions[0]) == [b"a"]


async def test_a_fetch_ends_when_its_peer_hangs_up(connect: Connect) -> None:
    async with connect() as client:
        topic = await client.create_topic("orders")
        with trio.fail_after(10), pytest.RaisesGroup(PeerGone):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: fetch(client, topic.topic_id, 0, wait_ms=60_000))
                await trio.testing.wait_all_tasks_blocked()
                client.connection.hang_up()
        assert len(client.broker.topics.by_name("orders").partitions[0].waiters) == 0  # type: ignore[union-attr]


class TestFetchSessions:
    async def test_only_what_changes_is_answered(self, connect: Connect) -> None:
        async with connect() as client:
            topic = (await client.create_topic("orders")).topic_id
            first = await fetch(client, topic, 0, session_epoch=0)
            assert first.session_id != 0
            assert len(first.responses) == 1
            second = await fetch(client, None, 0, session_id=first.session_id, session_epoch=1)
            assert len(second.responses) == 0
            await produce(client, topic, batch(b"a"))
            third = await fetch(client, None, 0, session_id=first.session_id, session_epoch=2)
            assert values(third.responses[0].partitions[0]) == [b"a"]

    async def test_errors(self, connect: Connect) -> None:  # BASE-47
        async with connect() as client:
            topic = (await client.create_topic("orders")).topic_id
            session = (await fetch(client, topic, 0, session_epoch=0)).session_id
            assert (
                await fetch(client, None, 0, session_id=session, session_epoch=5)
            ).error_code == ErrorCode.invalid_fetch_session_epoch
            assert (
                await fetch(client, None, 0, session_id=session + 1, session_epoch=1)
            ).error_code == ErrorCode.fetch_session_id_not_found
            assert (
                await fetch(client, None, 0, session_id=0, session_epoch=1)
            ).error_code == ErrorCode.fetch_session_id_not_found
            by_name = await fetch(client, "orders", 0, version=12, session_id=session, session_epoch=1)
            assert by_name.error_code == ErrorCode.fetch_session_topic_id_error

    async def test_nothing_is_kept_of_a_partition_that_has_gone(self, connect: Connect) -> None:
        """A dead client leaves its session behind, for days if few new ones are opened."""
        async with connect() as client:
            topic = (await client.create_topic("orders")).topic_id
            session = (await fetch(client, topic, 0, session_epoch=0)).session_id
            partition = weakref.ref(client.partition("orders"))
            await client.call("delete_topics", 6, topics=[{"name": "orders", "topic_id": None}])
            gc.collect()
            assert partition() is None
            (row,) = (await fetch(client, None, 0, session_id=session, session_epoch=1)).responses
            assert row.partitions[0].error_code in (
                ErrorCode.unknown_topic_or_partition,
                ErrorCode.unknown_topic_id,
            )

    async def test_what_is_wanted_and_forgotten_at_once_is_forgotten(self, connect: Connect) -> None:
        async with connect() as client:
            topic = (await client.create_topic("orders")).topic_id
            session = (await fetch(client, None, 0, session_epoch=0)).session_id
            assert session != 0, "a session may begin with nothing"
            for epoch, forgotten, rows in ((1, [topic], 0), (2, [], 1)):
                forgets = [{"topic_id": each, "partitions": (0,)} for each in forgotten]
                row = {"partition": 0, "current_leader_epoch": -1, "fetch_offset": 0,
                       "last_fetched_epoch": -1, "log_start_offset": -1,
                       "partition_max_bytes": 100}  # fmt: skip
                answer = await client.call(
                    "fetch", 18, replica_id=-1, max_wait=0, min_bytes=1, max_bytes=100, isolation_level=0,
                    session_id=session, session_epoch=epoch,
                    topics=[{"topic_id": topic, "partitions": [row]}], forgotten_topics_data=forgets,
                    rack_id="",
                )  # fmt: skip
                assert len(answer.responses) == rows

    async def test_a_final_epoch_ends_the_session(self, connect: Connect) -> None:
        async with connect() as client:
            topic = (await client.create_topic("orders")).topic_id
            session = (await fetch(client, topic, 0, session_epoch=0)).session_id
            assert (await fetch(client, topic, 0, session_id=session, session_epoch=-1)).session_id == 0
            assert (
                await fetch(client, None, 0, session_id=session, session_epoch=1)
            ).error_code == ErrorCode.fetch_session_id_not_found

    async def test_a_full_cache_drops_the_oldest(self, connect: Connect) -> None:
        async with connect(config={"max.incremental.fetch.session.cache.slots": "2"}) as client:
            topic = (await client.create_topic("orders")).topic_id
            ids = [(await fetch(client, topic, 0, session_epoch=0)).session_id for _ in range(3)]
            codes = [
                (await fetch(client, None, 0, session_id=each, session_epoch=1)).error_code for each in ids
            ]
            assert codes == [ErrorCode.fetch_session_id_not_found, 0, 0]

    async def test_it_finds_what_is_there_now(self, connect: Connect) -> None:
        """A topic that is deleted and recreated under its name is another one; its old id stays
        unknown."""
        async with connect() as client:
            old = await client.create_topic("orders")
            await client.append("orders", 1)
            sessions = {12: (await fetch(client, "orders", 0, version=12, session_epoch=0)).session_id}
            sessions[18] = (await fetch(client, old.topic_id, 0, session_epoch=0)).session_id
            found = client.broker.topics.by_name("orders")
            assert found is not None
            await client.broker.topics.delete(found)
            codes = {12: ErrorCode.unknown_topic_or_partition, 18: ErrorCode.unknown_topic_id}
            for version, code in codes.items():
                answer = await fetch(
                    client, None, 0, version=version, session_id=sessions[version], session_epoch=1
                )
                assert answer.responses[0].partitions[0].error_code == code
            await client.create_topic("orders")
            await client.append("orders", 2, 3)
            by_name = await fetch(client, None, 0, version=12, session_id=sessions[12], session_epoch=2)
            assert values(by_name.responses[0].partitions[0]) == [b"x"] * 2
            by_id = await fetch(client, None, 0, session_id=sessions[18], session_epoch=2)
            assert by_id.responses[0].partitions[0].error_code == ErrorCode.unknown_topic_id


async def test_what_comes_while_a_read_is_in_its_thread_is_not_waited_for(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect() as client:
        topic = await client.create_topic("orders")
        await client.append("orders", 1)
        partition = client.partition("orders")
        read_if_warm, read = partition.read_if_warm, partition.read

        async def read_cold(*args: Any, **limits: Any) -> Any:
            views = await read(*args, **limits)
            await client.append("orders", 2)
            return views

        def is_cold(*_: Any) -> None:
            monkeypatch.setattr(partition, "read_if_warm", read_if_warm)

        monkeypatch.setattr(partition, "read_if_warm", is_cold)
        monkeypatch.setattr(partition, "read", read_cold)
        with trio.fail_after(10):
            row = (
                (await fetch(client, topic.topic_id, 0, wait_ms=60_000, min_bytes=100))
                .responses[0]
                .partitions[0]
            )
        assert len(values(row)) == 2
        assert not partition.waiters
