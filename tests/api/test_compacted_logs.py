"""Plain readers of a compacted log: Fetch, ListOffsets, DeleteRecords, and producers and
transactions that a start reads from it."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode
from kbroker.formats.batches import ProducerInfo, iter_headers
from kbroker.formats.compacted_batches import DELETE_HORIZON
from kbroker.formats.state import ProducerSnapshotKey
from kbroker.formats.transactions import MarkerType
from kbroker.inspection.topics import inspect
from kbroker.metrics_export import share_numbers
from tests.api.compacted_logs import COMPACTED, compact, compacted_topic, keyed, layout, put, put_sparse
from tests.api.conftest import Client, Connect
from tests.api.producing import fetch
from tests.api.share_consumers import sent
from tests.api.test_fetch import FETCH
from tests.api.test_list_offsets import EARLIEST, LATEST, MAX_TIMESTAMP, offset
from tests.broker.transactional_log import Log

LEFT = [0, 2, 3, 8, 10, 12, 13, 14]


async def offsets_from(client: Client, key: Any, start: int, **more: Any) -> list[int]:
    """As a consumer reads: its position moves behind each batch."""
    found, position = list[int](), start
    while position < client.partition("orders").high_watermark:
        answer = await fetch(client, key[0], position, **more)
        row = answer.responses[0].partitions[0]
        assert row.error_code == 0
        found += [each for each in sent(answer) if each >= position]
        headers = [header for _, header in iter_headers(row.records)]
        assert headers[0].last_offset >= position, "a reader comes forward"
        position = headers[-1].last_offset + 1
    return found


@pytest.mark.parametrize("size", [1, 150, 1 << 20])
async def test_every_offset_may_be_fetched(connect: Connect, every_engine: str, size: int) -> None:
    async with connect(every_engine) as client:
        key = await compacted_topic(client)
        await put_sparse(client)
        for start in range(15):
            expected = [each for each in LEFT if each >= start]
            assert await offsets_from(client, key, start, partition_max_bytes=size) == expected


@pytest.mark.parametrize("version", FETCH)
async def test_every_version_fetches_from_a_hole(connect: Connect, version: int) -> None:
    async with connect() as client:
        key = await compacted_topic(client)
        await put_sparse(client)
        answer = await fetch(client, key[0] if version >= 13 else "orders", 5, version=version)
        row = answer.responses[0].partitions[0]
        assert (row.error_code, row.high_watermark, row.log_start_offset if version >= 5 else 0) == (0, 15, 0)
        assert sent_of(row) == [(8, 8), (9, 11), (12, 13), (14, 14)]


def sent_of(row: Any) -> list[tuple[int, int]]:
    return [(header.base_offset, header.last_offset) for _, header in iter_headers(row.records)]


async def test_batches_without_records_are_sent(connect: Connect, every_engine: str) -> None:
    """A consumer that stands on one comes to its end."""
    async with connect(every_engine) as client:
        key = await compacted_topic(client)
        for producer in range(3):
            await put(client, keyed("a", "a", producer=ProducerInfo(producer, 0, 0)))
        await put(client, keyed("a"), keyed("z"))
        await compact(client)
        assert layout(client) == [(0, 1, []), (2, 3, []), (4, 5, []), (6, 6, [6]), (7, 7, [7])]
        for start in range(8):
            assert await offsets_from(client, key, start, partition_max_bytes=1) == [
                each for each in (6, 7) if each >= start
            ]


async def test_offsets_by_time(connect: Connect, every_engine: str) -> None:
    """Only records that are there are found; a delete horizon is no time of a record."""
    async with connect(every_engine) as client:
        await compacted_topic(client)
        now = wall_clock_ms()
        await put(client, keyed("a", "b", "c", at_ms=now))
        await put(client, keyed("newest", producer=ProducerInfo(1, 0, 0), at_ms=now + 900))
        await put(client, keyed("b", "t", value=None, at_ms=now + 100))
        await put(client, keyed("newest", at_ms=now + 200))
        await put(client, keyed("z", at_ms=now + 150))
        await compact(client)
        assert layout(client) == [
            (0, 2, [0, 2]), (3, 3, []), (4, 5, [4, 5]), (6, 6, [6]), (7, 7, [7]),
        ]  # fmt: skip
        views = client.partition("orders").read_now(4, max_bytes=1, end_offset=8)
        assert next(iter_headers(views[0]))[1].attributes & DELETE_HORIZON
        ok = ErrorCode.none
        for at_ms, expected in ((0, 0), (1, 2), (3, 4), (101, 5), (102, 6)):
            code, found, _ = await offset(client, now + at_ms, topic="orders")
            assert (code, found) == (ok, expected)
        assert await offset(client, now + 101, topic="orders") == (ok, 5, now + 101)
        assert await offset(client, now + 300, topic="orders") == (ok, -1, -1)
        assert await offset(client, MAX_TIMESTAMP, topic="orders") == (ok, 6, now + 200)
        assert (await offset(client, EARLIEST, topic="orders"))[1] == 0
        assert (await offset(client, LATEST, topic="orders"))[1] == 8
        assert await share_numbers._read_timestamp(client.partition("orders"), 3) == now + 100


@pytest.mark.parametrize(("policy", "code"), [("compact", 44), ("compact,delete", 0)])
async def test_delete_records(connect: Connect, policy: str, code: int) -> None:
    async with connect() as client:
        await compacted_topic(client, {"cleanup.policy": policy})
        await put_sparse(client)
        rows = [{"partition_index": 0, "offset": 6}]
        answer = await client.call("delete_records", 2, topics=[{"name": "orders", "partitions": rows}])
        (row,) = answer.topics[0].partitions
        assert row.error_code == code
        start = 6 if code == 0 else 0
        assert client.partition("orders").log_start_offset == start
        assert (await offset(client, EARLIEST, topic="orders"))[1] == start


async def test_an_inspection_finds_no_damage(connect: Connect, every_engine: str) -> None:
    async with connect(every_engine) as client:
        await compacted_topic(client)
        await put_sparse(client)
        for producer in range(2):
            await put(client, keyed("a", "a", producer=ProducerInfo(producer, 0, 0)))
        await put(client, keyed("a"), keyed("z"))
        await compact(client)
        assert sum(not offsets for _, _, offsets in layout(client)) == 2
        report = inspect(client.broker.log_store, client.broker.state_store, check_batches=True)
        assert report.problems == []
        assert report.bytes_checked > 0


async def forget_snapshots(client: Client) -> None:
    """What a broker that was killed would not have saved."""
    log = client.partition("orders").log
    prefix = ProducerSnapshotKey(log.topic_id, log.partition, 0).encode()[:-8]
    found = [key for key, _ in client.broker.state_store.scan(prefix)]
    await client.broker.state_commits.commit([(key, None) for key in found])
    await client.partition("orders").load_producers()


@pytest.mark.parametrize("engine", ["segment", "lmdb", "rocksdb"])
async def test_a_producer_goes_on_after_a_kill(connect: Connect, engine: str) -> None:
    async with connect(engine) as client:
        await compacted_topic(client)
        await put(
            client,
            keyed("a", "b", "c", producer=ProducerInfo(1, 0, 0)),
            keyed("a", producer=ProducerInfo(2, 0, 0)),
            keyed("b", "a", producer=ProducerInfo(1, 0, 3)),
            keyed("a", producer=ProducerInfo(2, 0, 1)),
            keyed("a", "c", "b"),
            keyed("z"),
        )
        await compact(client)
        assert layout(client) == [(4, 5, []), (6, 6, []), (7, 9, [7, 8, 9]), (10, 10, [10])]
    async with connect(engine) as client:
        await forget_snapshots(client)
        states = client.partition("orders").producers
        assert states is not None
        assert {each.producer_id: each.batches[-1].last_sequence for each in states.confirmed()} == {
            1: 4,
            2: 1,
        }
        await put(
            client, keyed("d", producer=ProducerInfo(1, 0, 5)), keyed("e", producer=ProducerInfo(2, 0, 2))
        )


@pytest.mark.parametrize("engine", ["segment", "lmdb", "rocksdb"])
async def test_transactions_after_a_kill(connect: Connect, engine: str) -> None:
    """Batches and markers that compaction has emptied begin no transaction."""
    async with connect(engine) as client:
        await client.create_topic("orders", 1, {**COMPACTED, "delete.retention.ms": "0"})
        await client.partition("orders").load_producers()
        log = Log(client.partition("orders"))
        client.partition("orders").has_transactions = True
        for producer_id, kind in ((1, MarkerType.ABORT), (2, MarkerType.COMMIT), (3, MarkerType.ABORT)):
            await log.send(producer_id)
            await log.end(producer_id, kind)
        await put(client, keyed("a"), keyed("b"))
        for _ in range(3):
            await put(client, keyed("b"))
            await compact(client)
            await trio.sleep(0.01)  # The delete horizons pass.
        end_offset = client.partition("orders").high_watermark
        assert client.partition("orders").last_stable_offset == end_offset
    async with connect(engine) as client:
        client.partition("orders").has_transactions = True
        await forget_snapshots(client)
        assert client.partition("orders").last_stable_offset == end_offset
        states = client.partition("orders").producers
        assert states is not None
        assert not any(each.open_from >= 0 for each in states.confirmed())
        log = Log(client.partition("orders"))
        await log.send(1, sequence=1)


async def test_an_emptied_marker_is_replayed(connect: Connect) -> None:
    """A producer that has written markers only, and of its last one the header is left."""
    async with connect("lmdb") as client:
        await client.create_topic("orders", 1, {**COMPACTED, "delete.retention.ms": "0"})
        await client.partition("orders").load_producers()
        client.partition("orders").has_transactions = True
        await Log(client.partition("orders")).end(9, MarkerType.COMMIT, epoch=4)
        for _ in range(3):
            await put(client, keyed("b"), keyed("b"))
            await compact(client)
            await trio.sleep(0.01)  # The delete horizon passes.
        assert layout(client)[0] == (0, 0, [])
    async with connect("lmdb") as client:
        client.partition("orders").has_transactions = True
        await forget_snapshots(client)
        states = client.partition("orders").producers
        assert states is not None
        assert [(each.producer_id, each.producer_epoch) for each in states.confirmed()] == [(9, 4)]
