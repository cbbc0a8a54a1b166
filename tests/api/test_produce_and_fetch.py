"""Produce and Fetch in every version: what is stored is what is read; refusals; sessions;
waiting."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
import trio

from kbroker.api import APIS
from kbroker.api.request import CloseConnection
from kbroker.broker.connection import PeerGone
from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode
from kbroker.formats.batches import ProducerInfo, Record, build_batch, iter_headers, iter_records
from kbroker.formats.compression import Codec
from tests.api.conftest import Client, Connect

PRODUCE = range(APIS[0].first, APIS[0].last + 1)
FETCH = range(APIS[1].first, APIS[1].last + 1)
NO_ID = UUID(int=0xDEAD)


def batch(*values: bytes, codec: Codec = Codec.NONE) -> bytes:
    now_ms = wall_clock_ms()
    return build_batch((Record(0, now_ms, None, value) for value in values), codec=codec)


async def produce(
    client: Client,
    topic: Any,
    records: bytes | None,
    *,
    version: int = 13,
    partition: int = 0,
    acks: int = -1,
) -> Any:
    by_id = version >= 13
    data = {
        "name": topic,
        "topic_id": topic if by_id else None,
        "partition_data": [{"index": partition, "records": records}],
    }
    answer = await client.call("produce", version, transactional_id=None, acks=acks, topic_data=[data])
    return None if answer is None else answer.responses[0].partition_responses[0]


async def fetch(
    client: Client,
    topic: Any,
    offset: int,
    *,
    version: int = 18,
    wait_ms: int = 0,
    min_bytes: int = 1,
    partition: int = 0,
    **more: Any,
) -> Any:
    row = {
        "partition": partition,
        "current_leader_epoch": more.pop("leader_epoch", -1),
        "fetch_offset": offset,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": more.pop("partition_max_bytes", 1 << 20),
    }
    topics = [{"topic": topic, "topic_id": topic, "partitions": [row]}] if topic is not None else []
    fields = {
        "replica_id": -1,
        "max_bytes": 1 << 20,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "rack_id": "",
        **more,
    }
    return await client.call(
        "fetch",
        version,
        max_wait=wait_ms,
        min_bytes=min_bytes,
        topics=topics,
        forgotten_topics_data=[],
        **fields,
    )


def values(row: Any) -> list[bytes | None]:
    data = row.records or b""
    return [record.value for position, _ in iter_headers(data) for record in iter_records(data, position)]


@pytest.mark.parametrize("version", PRODUCE)
async def test_every_version_of_produce(connect: Connect, version: int) -> None:
    async with connect() as client:
        topic = await client.create_topic("orders")
        name = topic.topic_id if version >= 13 else "orders"
        first = await produce(client, name, batch(b"a", b"b"), version=version)
        second = await produce(client, name, batch(b"c"), version=version)
        assert (first.error_code, first.base_offset, second.base_offset) == (0, 0, 2)


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


@pytest.mark.parametrize("codec", list(Codec))
async def test_codecs_pass_through_untouched(connect: Connect, every_engine: str, codec: Codec) -> None:
    async with connect(engine=every_engine) as client:
        topic = await client.create_topic("orders")
        sent = batch(b"x" * 100, b"y" * 100, codec=codec)
        await produce(client, topic.topic_id, sent)
    async with connect(engine=every_engine) as client:
        row = (await fetch(client, topic.topic_id, 0)).responses[0].partitions[0]
        assert row.records[16:] == sent[16:], "all but the base offset and the leader epoch"


async def refused(client: Client, topic: Any, records: bytes | None, **more: Any) -> ErrorCode:
    return (await produce(client, topic, records, **more)).error_code


async def test_produce_refusals(connect: Connect) -> None:  # BASE-27, BASE-28, BASE-32
    async with connect() as client:
        topic = (await client.create_topic("orders")).topic_id
        assert await refused(client, NO_ID, batch(b"a")) == ErrorCode.unknown_topic_id
        assert (
            await refused(client, "nowhere", batch(b"a"), version=12) == ErrorCode.unknown_topic_or_partition
        )
        assert await refused(client, topic, batch(b"a"), partition=1) == ErrorCode.unknown_topic_or_partition
        assert await refused(client, topic, batch(b"a"), partition=-1) == ErrorCode.unknown_topic_or_partition
        assert await refused(client, topic, batch(b"a"), acks=2) == ErrorCode.invalid_required_acks
        assert await refused(client, topic, None) == ErrorCode.invalid_record
        assert await refused(client, topic, b"") == ErrorCode.invalid_record
        assert await refused(client, topic, batch(b"a" * 2_000_000)) == ErrorCode.message_too_large
        assert client.broker.topics.by_id(topic).partitions[0].next_offset == 0  # type: ignore[union-attr]


async def test_one_bad_partition_does_not_spoil_the_others(connect: Connect) -> None:
    async with connect() as client:
        topic = await client.create_topic("orders", 2)
        rows = [{"index": 0, "records": b"junk" * 20}, {"index": 1, "records": batch(b"a")}]
        data = [{"topic_id": topic.topic_id, "partition_data": rows}]
        answer = await client.call("produce", 13, transactional_id=None, acks=-1, topic_data=data)
        codes = [row.error_code for row in answer.responses[0].partition_responses]
        assert codes[0] != 0
        assert codes[1] == 0


async def test_an_idempotent_producer_after_a_restart(connect: Connect, every_engine: str) -> None:
    """Its partitions read first what they remember of it. Rows of one request do not depend on each
    other."""

    def request(sequence: int, *, acks: int = -1) -> dict[str, Any]:
        now_ms = wall_clock_ms()
        known, refused, unknown = (
            build_batch([Record(0, now_ms, None, b"x")], producer=ProducerInfo(producer_id, 0, first))
            for producer_id, first in ((5, sequence), (5, sequence + 7), (9, sequence))
        )
        records = (known, refused, batch(b"plain"), unknown)
        rows = [{"index": index, "records": each} for index, each in enumerate(records)]
        return {
            "transactional_id": None,
            "acks": acks,
            "topic_data": [{"topic_id": topic_id, "partition_data": rows}],
        }

    async with connect(every_engine) as client:
        topic_id = (await client.create_topic("orders", 4)).topic_id
        for partition in range(2):
            for sequence in range(3):
                data = build_batch([Record(0, 1, None, b"x")], producer=ProducerInfo(5, 0, sequence))
                await client.append_raw("orders", data, partition)
    async with connect(every_engine) as client:
        for acks in (1, -1):
            answer = await client.call("produce", 13, **request(3, acks=acks))
            rows = answer.responses[0].partition_responses
            code = ErrorCode.out_of_order_sequence_number
            assert [(row.index, row.error_code) for row in rows] == [(0, 0), (1, code), (2, 0), (3, 0)]
            assert [row.base_offset for row in rows] == [3, -1, acks == -1, 0], (
                "the second time these are repeats"
            )
        assert [client.partition("orders", index).high_watermark for index in range(4)] == [4, 3, 2, 1]


async def test_what_is_listed_twice_counts_once(connect: Connect) -> None:  # BASE-31
    """Topics are put together, of a partition the last batch is taken, and a topic without batches
    is not answered for."""
    async with connect() as client:
        topic, other = await client.create_topic("orders", 2), await client.create_topic("other")
        for version in (12, 13):
            rows = [
                {"topic_id": topic.topic_id, "name": "orders", "partition_data": [
                    {"index": 0, "records": batch(b"lost")}
                ]},
                {"topic_id": other.topic_id, "name": "other", "partition_data": []},
                {"topic_id": topic.topic_id, "name": "orders", "partition_data": [
                    {"index": 1, "records": batch(b"a")}, {"index": 0, "records": batch(b"b", b"c")}
                ]},
            ]  # fmt: skip
            answer = await client.call("produce", version, transactional_id=None, acks=-1, topic_data=rows)
            (answered,) = answer.responses
            assert sorted((row.index, row.error_code) for row in answered.partition_responses) == [
                (0, 0),
                (1, 0),
            ]
        assert [client.partition("orders", index).high_watermark for index in range(2)] == [4, 2]


async def test_what_is_refused_first(connect: Connect) -> None:  # BASE-28, BASE-30
    """Odd acks only concern batches that are batches, in partitions that there are; internal topics
    are there in any case."""
    async with connect() as client:
        await client.create_topic("orders")
        cases = (
            ("orders", 0, batch(b"a"), ErrorCode.invalid_required_acks),
            ("orders", 0, b"", ErrorCode.invalid_record),
            ("orders", 0, bytes(61), ErrorCode.corrupt_message),
            ("orders", 1, batch(b"a"), ErrorCode.unknown_topic_or_partition),
            ("nowhere", 0, b"", ErrorCode.unknown_topic_or_partition),
            ("__consumer_offsets", 0, batch(b"a"), ErrorCode.invalid_required_acks),
        )
        for name, partition, records, code in cases:
            assert await refused(client, name, records, partition=partition, acks=2, version=12) == code, name
        assert (
            await refused(client, "__consumer_offsets", batch(b"a"), version=12)
            == ErrorCode.invalid_topic_exception
        )


@pytest.mark.parametrize("version", [3, 6, 7])
async def test_zstd_in_old_versions(connect: Connect, version: int) -> None:
    """Clients that know only those cannot read it."""
    async with connect() as client:
        await client.create_topic("orders")
        codec = await refused(client, "orders", batch(b"a", codec=Codec.ZSTD), version=version)
        assert codec == (ErrorCode.none if version >= 7 else ErrorCode.unsupported_compression_type)
        assert (
            await refused(client, "orders", batch(b"a", codec=Codec.LZ4), version=version) == ErrorCode.none
        )


@pytest.mark.parametrize("version", range(5, 14))
async def test_a_refused_row(connect: Connect, version: int) -> None:  # BASE-22, BASE-33
    """The log's start where the log refused it; a message, and which records, only where single
    records are at fault."""
    async with connect() as client:
        topic = (
            (await client.create_topic("orders")).topic_id
            if version >= 13
            else (await client.create_topic("orders")).name
        )
        await client.append("orders", 1, 2, 3)
        await client.broker.topics.move_log_start(client.partition("orders"), 2)
        late = build_batch([Record(0, each, None, b"x") for each in (1, wall_clock_ms() + 4_000_000)])
        row = await produce(client, topic, late, version=version)
        assert (row.error_code, row.log_start_offset, row.base_offset) == (ErrorCode.invalid_timestamp, 2, -1)
        if version >= 8:
            assert row.error_message.startswith("One or more records have been rejected")
            assert [error.batch_index for error in row.record_errors] == [1]
        for records, start in (
            (b"\0\0\0\0\0\0\0\1" + late[8:], 2),
            (late + late, -1),
            (late[:-1], -1),
            (late[:-1] + b"?", -1),
        ):
            row = await produce(client, topic, records, version=version)
            assert (row.log_start_offset, row.base_offset) == (start, -1)
            assert row.error_code in (ErrorCode.invalid_record, ErrorCode.corrupt_message)
            assert version < 8 or (row.error_message, row.record_errors) == (None, ())


async def test_transactional_requests_are_fatal(connect: Connect) -> None:
    async with connect() as client:
        topic = await client.create_topic("orders")
        data = [{"topic_id": topic.topic_id, "partition_data": [{"index": 0, "records": batch(b"a")}]}]
        answer = await client.call("produce", 13, transactional_id="t", acks=-1, topic_data=data)
        assert (
            answer.responses[0].partition_responses[0].error_code
            == ErrorCode.transactional_id_authorization_failed
        )
        answer = await client.call(
            "init_producer_id",
            5,
            transactional_id="t",
            transaction_timeout=1000,
            producer_id=-1,
            producer_epoch=-1,
        )
        assert answer.error_code == ErrorCode.transactional_id_authorization_failed


# BASE-29
async def test_acks_0_answers_nothing_and_ends_the_connection_on_an_error(connect: Connect) -> None:
    async with connect() as client:
        topic = await client.create_topic("orders")
        assert await produce(client, topic.topic_id, batch(b"a"), acks=0) is None
        assert (await produce(client, topic.topic_id, batch(b"b"))).base_offset == 1
        with pytest.raises(CloseConnection):
            await produce(client, topic.topic_id, b"junk", acks=0)


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
    """Refuses the request, where there is anything to read; the session has counted it."""
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
    """An empty list where records were looked for, null where a log refused; for what there is not
    an empty one in any case."""
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
    """Beside an empty partition: what the log refuses is answered at once, what there is not only
    when the time is over."""
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
            "what there is not comes last"
        )


async def test_where_the_epoch_fetched_last_ended(connect: Connect) -> None:
    """Told to who has gone beyond, at once; an epoch that never was is out of range."""
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
    """The last row of a partition counts, in the first one's place; rows of a topic are together
    where they were asked so."""
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
        """A client that has died leaves its session behind, for days where few come."""
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
        """A topic that is deleted and made again under its name is another one; its old id stays
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
