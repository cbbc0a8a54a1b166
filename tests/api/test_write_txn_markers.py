"""WriteTxnMarkers and DescribeProducers: transactions in the logs, whatever the coordinator
knows."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest

from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode, KafkaError, NoSpace, StoreFailed
from kbroker.formats.state import ProducerSnapshotKey
from kbroker.formats.transactions import MarkerType
from tests.api.conftest import Client, Connect, versions
from tests.api.transaction_clients import HANGING, begin, describe, end, log_of, producers

NONE, UNKNOWN = ErrorCode.none, ErrorCode.unknown_topic_or_partition
FENCED, INVALID = ErrorCode.invalid_producer_epoch, ErrorCode.invalid_request
COORDINATOR_FENCED = ErrorCode.transaction_coordinator_fenced
NO_STORAGE = ErrorCode.kafka_storage_error


def marker(producer_id: int = HANGING, epoch: int = 0, **more: Any) -> dict[str, Any]:
    """ABORT for partition 0 of topic `a`, as the tools write it."""
    topics = more.pop("topics", {"a": [0]})
    return {
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "transaction_result": False,
        "topics": [{"name": name, "partition_indexes": numbers} for name, numbers in topics.items()],
        "coordinator_epoch": 0,
        "transaction_version": 0,
        **more,
    }


async def write(
    client: Client, *markers: dict[str, Any], version: int = 2
) -> dict[tuple[int, str, int], ErrorCode]:
    answer = await client.call("write_txn_markers", version, markers=markers)
    return {
        (row.producer_id, topic.name, each.partition_index): each.error_code
        for row in answer.markers
        for topic in row.topics
        for each in topic.partitions
    }


async def abort(client: Client, epoch: int = 0, **more: Any) -> ErrorCode:
    """Of the hanging transaction."""
    (code,) = (await write(client, marker(epoch=epoch, **more))).values()
    return code


@pytest.mark.parametrize("version", versions("write_txn_markers"))
@pytest.mark.parametrize("commit", [False, True])
async def test_a_hanging_transaction_ends(
    connect: Connect, every_engine: str, version: int, commit: bool
) -> None:
    async with connect(every_engine) as client:
        await client.create_topic("a", 2)
        log = await log_of(client)
        await log.send(HANGING)
        await log.send(1, transactional=False)
        assert log.stable == 0
        (row,) = (await producers(client)).active_producers[:1]
        assert row.current_txn_start_offset == 0
        more = {"coordinator_epoch": max(0, row.coordinator_epoch), "transaction_result": commit}
        found = await write(client, marker(row.producer_id, row.producer_epoch, **more), version=version)
        assert found == {(HANGING, "a", 0): NONE}
        assert (log.stable, log.partition.next_offset) == (3, 3)
        wanted = [] if commit else [(HANGING, 0, 2)]
        assert [(each.producer_id, each.first_offset, each.last_offset) for each in log.aborted()] == wanted


async def test_no_marker_and_no_topic(connect: Connect) -> None:
    async with connect() as client:
        await client.create_topic("a")
        assert (await client.call("write_txn_markers", 2, markers=[])).markers == ()
        answer = await client.call("write_txn_markers", 2, markers=[marker(topics={})])
        assert list(answer.markers) == []


async def test_a_repeat_is_written_and_changes_nothing(connect: Connect) -> None:
    async with connect() as client:
        await client.create_topic("a")
        log = await log_of(client)
        await log.send(HANGING)
        for end_offset in (2, 3, 4):
            assert await abort(client) is NONE
            assert (log.stable, log.partition.next_offset) == (end_offset, end_offset)
        assert len(log.aborted()) == 1
        await log.send(HANGING)
        assert log.stable == 4


async def test_a_repeat_with_version_2(connect: Connect) -> None:
    async with connect() as client:
        await client.create_topic("a")
        log = await log_of(client)
        await log.send(HANGING)
        assert await abort(client, transaction_version=2) is FENCED, "the epoch was not incremented"
        assert log.stable == 0
        for end_offset in (2, 3):
            assert await abort(client, epoch=1, transaction_version=2) is NONE
            assert log.stable == end_offset
        assert await abort(client, epoch=0, transaction_version=2) is FENCED


async def test_old_epochs(connect: Connect) -> None:
    async with connect() as client:
        await client.create_topic("a")
        log = await log_of(client)
        await log.send(HANGING, epoch=5)
        assert await abort(client, epoch=4) is FENCED
        assert (log.stable, log.partition.next_offset) == (0, 1)
        assert await abort(client, epoch=5, coordinator_epoch=7) is NONE
        await log.send(HANGING, epoch=5)
        assert await abort(client, epoch=5, coordinator_epoch=6) is COORDINATOR_FENCED
        assert (log.stable, log.partition.next_offset) == (2, 3)
        assert await abort(client, epoch=6, coordinator_epoch=7) is NONE
        assert log.stable == 4


async def test_rows_are_independent(connect: Connect) -> None:
    async with connect() as client:
        await client.create_topic("a", 2)
        await client.create_topic("b")
        logs = {key: await log_of(client, *key) for key in (("a", 0), ("a", 1), ("b", 0))}
        for log in logs.values():
            await log.send(HANGING, epoch=1)
        found = await write(
            client,
            marker(HANGING, 1, topics={"a": [0, 1, 2, -1], "none": [0]}),
            marker(HANGING + 1, 0, topics={"a": [1]}),
            marker(HANGING, 0, topics={"b": [0]}),
            marker(-1, 0),
            marker(HANGING + 2, -1),
        )
        assert found == {
            (HANGING, "a", 0): NONE,
            (HANGING, "a", 1): NONE,
            (HANGING, "a", 2): UNKNOWN,
            (HANGING, "a", -1): UNKNOWN,
            (HANGING, "none", 0): UNKNOWN,
            (HANGING, "b", 0): FENCED,
            (HANGING + 1, "a", 1): NONE,
            (-1, "a", 0): INVALID,
            (HANGING + 2, "a", 0): INVALID,
        }
        assert [log.stable for log in logs.values()] == [2, 3, 0]


async def test_the_coordinator_still_has_the_transaction(connect: Connect) -> None:
    """It is aborted in this log only; the client continues, and ends the rest."""
    async with connect() as client:
        await client.create_topic("a", 2)
        producer = await begin(client, "t", a=[0, 1])
        logs = [await log_of(client, "a", index) for index in (0, 1)]
        for log in logs:
            await log.send(*producer[:1])
        assert await write(client, marker(*producer)) == {(producer.producer_id, "a", 0): NONE}
        assert [log.stable for log in logs] == [2, 0]
        assert (await describe(client, "t"))[0].topics == (("a", (0, 1)),)
        await end(client, "t", producer, commit=True)
        assert [log.stable for log in logs] == [3, 2]
        assert [len(log.aborted()) for log in logs] == [1, 0]


@pytest.mark.parametrize("error", [NoSpace("the disk is full"), StoreFailed("sync failed")])
async def test_a_marker_that_cannot_be_stored(connect: Connect, error: Exception) -> None:
    def refuse(batches: object) -> NoReturn:
        raise error

    async with connect() as client:
        await client.create_topic("a", 2)
        log = await log_of(client)
        await log.send(HANGING)
        commits: Any = client.broker.log_commits
        commits._write, before = refuse, commits._write
        found = await write(client, marker(topics={"a": [0, 1, 2]}))
        commits._write = before
        assert list(found.values()) == [NO_STORAGE, NO_STORAGE, UNKNOWN]
        assert (log.stable, log.partition.next_offset) == (0, 1)
        again = await abort(client)
        if isinstance(error, NoSpace):
            assert (again, log.stable) == (NONE, 2)
        else:
            assert (again, log.stable) == (NO_STORAGE, 0)


async def test_with_durability_os_the_logs_are_synced_once(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect(durability="os") as client:
        await client.create_topic("a", 2)
        log = await log_of(client)
        await log.send(HANGING)
        flush, flushed = client.broker.log_commits.flush, []

        async def counted() -> None:
            flushed.append(log.partition.high_watermark)
            await flush()

        async def failing() -> None:
            raise StoreFailed("sync failed")

        monkeypatch.setattr(client.broker.log_commits, "flush", counted)
        assert await abort(client, epoch=-1) is INVALID
        assert flushed == []
        assert set((await write(client, marker(topics={"a": [0, 1]}))).values()) == {NONE}
        assert flushed == [2]
        monkeypatch.setattr(client.broker.log_commits, "flush", failing)
        found = await write(client, marker(), marker(topics={"none": [0]}))
        assert list(found.values()) == [NO_STORAGE, UNKNOWN]


@pytest.mark.parametrize("engine", ["segment", "lmdb", "rocksdb"])
async def test_a_marker_in_a_log_without_transactions(connect: Connect, engine: str) -> None:
    """The first transaction after it is found again by the next broker life."""
    async with connect(engine) as client:
        await client.create_topic("a")
        assert await abort(client) is NONE
        producer = await begin(client, "t", a=[0])
        assert await (await log_of(client)).send(producer.producer_id) == 1
    async with connect(engine) as client:
        assert client.partition("a").must_load_transactions
        assert (await log_of(client)).stable == 1
        await end(client, "t", producer, commit=False)
        assert client.partition("a").last_stable_offset == 3


# --- DescribeProducers ---


async def test_producers(connect: Connect, every_engine: str) -> None:
    began_ms = wall_clock_ms()
    async with connect(every_engine) as client:
        await client.create_topic("a")
        assert (await producers(client)).active_producers == ()
        log = await log_of(client)
        await log.send(1, transactional=False)
        await log.send(HANGING, epoch=3)
        await log.send(HANGING, epoch=3)
        await log.send(2, epoch=1)
        await log.end(2, MarkerType.COMMIT, epoch=1, coordinator=8)
        await log.send(3)
        await log.end(3, MarkerType.ABORT, epoch=1, coordinator=9, version=2)
        row = await producers(client)
        assert (row.error_code, row.error_message) == (NONE, None)
        found = {
            each.producer_id: (
                each.producer_epoch,
                each.last_sequence,
                each.coordinator_epoch,
                each.current_txn_start_offset,
            )
            for each in row.active_producers
        }
        assert found == {1: (0, 0, -1, -1), HANGING: (3, 1, -1, 1), 2: (1, 0, 8, -1), 3: (1, -1, 9, -1)}
        assert all(began_ms <= each.last_timestamp <= wall_clock_ms() for each in row.active_producers)


@pytest.mark.parametrize("engine", ["segment", "lmdb", "rocksdb"])
async def test_producers_after_a_restart(connect: Connect, engine: str) -> None:
    async with connect(engine) as client:
        await client.create_topic("a")
        log = await log_of(client)
        await log.send(HANGING, epoch=3)
        await log.send(2)
        await log.end(2, MarkerType.ABORT, coordinator=8)
        before = (await producers(client)).active_producers
    async with connect(engine) as client:
        assert client.partition("a").producers is None
        after = (await producers(client)).active_producers
        assert sorted(map(repr, after)) == sorted(map(repr, before))


async def last_timestamps(client: Client, topic: str = "a") -> dict[int, int]:
    return {
        each.producer_id: each.last_timestamp for each in (await producers(client, topic)).active_producers
    }


async def test_the_last_timestamp_of_a_producer(connect: Connect, every_engine: str) -> None:
    """That of its last batch or marker, as in Kafka, and not the time of the append. A restart
    changes nothing, and neither does the loss of the snapshot."""
    began_ms = wall_clock_ms()
    async with connect(every_engine) as client:
        await client.create_topic("a")
        log = await log_of(client)
        for timestamp_ms in (7000, 4000):
            await log.send(HANGING, timestamp_ms=timestamp_ms)
            assert await last_timestamps(client) == {HANGING: timestamp_ms}
    async with connect(every_engine) as client:
        assert await last_timestamps(client) == {HANGING: 4000}
        partition = client.partition("a")
        snapshots = list(client.broker.state_store.scan(ProducerSnapshotKey(*partition.log, 0).encode()[:-8]))
        assert snapshots
        await client.broker.state_commits.commit([(key, None) for key, _ in snapshots])
        partition.producers = None
        assert await last_timestamps(client) == {HANGING: 4000}
        await abort(client)
        assert began_ms <= (await last_timestamps(client))[HANGING] <= wall_clock_ms()


async def test_the_last_timestamp_where_the_broker_stamps(connect: Connect) -> None:
    began_ms = wall_clock_ms()
    async with connect() as client:
        await client.create_topic("a", configs={"message.timestamp.type": "LogAppendTime"})
        await (await log_of(client)).send(HANGING, timestamp_ms=4000)
        assert began_ms <= (await last_timestamps(client))[HANGING] <= wall_clock_ms()


async def test_producers_of_an_unknown_partition(connect: Connect) -> None:
    async with connect() as client:
        await client.create_topic("a")
        for topic, index in (("a", 1), ("a", -1), ("none", 0)):
            row = await producers(client, topic, index)
            assert (row.error_code, row.active_producers) == (UNKNOWN, ())
        assert (await client.call("describe_producers", 0, topics=[])).topics == ()


async def test_producers_that_cannot_be_read(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail() -> NoReturn:
        raise KafkaError(NO_STORAGE, "damaged")

    async with connect() as client:
        await client.create_topic("a")
        monkeypatch.setattr(client.partition("a"), "load_producers", fail)
        row = await producers(client)
        assert (row.error_code, row.error_message, row.active_producers) == (NO_STORAGE, "damaged", ())
        monkeypatch.setattr(client.partition("a"), "producers", None)
        assert await abort(client) is NO_STORAGE
