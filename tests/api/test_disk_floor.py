"""Producers leave disk space free, so that a full disk does not stop consumers from acknowledging.
Uses a small tmpfs, so it needs the right to mount one; skipped without it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from kbroker.broker.logs.disk_floor import DiskFloor
from kbroker.errors import ErrorCode
from kbroker.formats.batches import ProducerInfo, Record, build_batch
from tests.api.conftest import Client
from tests.api.dead_letter_queues import until
from tests.api.share_consumers import ACCEPT, Member, acquired, prepare, set_up_group
from tests.api.test_really_full_disk import batch
from tests.api.transactional_producer import init, produce_rows, transactional_batch
from tests.small_disk import broker_on, free_bytes, small_disk

DISK_BYTES = 96 << 20
FLOOR_BYTES = DISK_BYTES // 16
NO_STORE: Any = SimpleNamespace(reusable_bytes=int, least_free_bytes=int)
"""It needs nothing."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        yield disk


async def produce(client: Client, topic: str, records: bytes | None = None) -> ErrorCode:
    rows = [{"index": 0, "records": batch(900_000) if records is None else records}]
    topics = [{"name": topic, "partition_data": rows}]
    answer = await client.call("produce", 9, transactional_id=None, acks=-1, timeout=1000, topic_data=topics)
    (row,) = answer.responses[0].partition_responses
    if row.error_code == ErrorCode.kafka_storage_error:
        assert "kbroker.disk.min.free.bytes" in row.error_message
    return ErrorCode(row.error_code)


@pytest.mark.parametrize("engine", ["segment", "lmdb", "rocksdb"])
async def test_producers_leave_room_for_acknowledgements(disk: Path, engine: str) -> None:
    async with broker_on(disk, engine) as broker:
        client = Client(broker)
        key = await prepare(client)
        await set_up_group(client, {"share.auto.offset.reset": "earliest"})
        with trio.fail_after(60):
            while (code := await produce(client, "orders")) is ErrorCode.none:  # noqa: ASYNC110
                await trio.sleep(0.002)  # Faster than any disk, it would outrun the checks.
        assert code is ErrorCode.kafka_storage_error
        assert free_bytes(disk) > 0
        worker = Member(client, "m1")
        offset = 0
        while offset < 20:
            ((offset, last, _), *_) = acquired(await worker.fetch([key] if not offset else (), wait_ms=5000))
            await worker.acknowledge({key: [(offset, last, [ACCEPT])]})
            offset = last + 1
        names = [{"name": "orders", "topic_id": None}]
        (deleted,) = (await client.call("delete_topics", 6, topics=names)).responses
        assert deleted.error_code is ErrorCode.none
        if engine != "rocksdb":  # Its deletions are writes, and free space much later.
            await client.create_topic("more")
            await until(lambda: not broker.disk_floor.is_short)
            assert await produce(client, "more") is ErrorCode.none


async def test_a_new_producer_begins_with_what_the_floor_refused(tmp_path: Path) -> None:
    """Its next batch may already be in flight when space is free again. If that were accepted, the
    retry of the first one would be a sequence error, which is fatal."""
    async with broker_on(tmp_path, "segment", **{"kbroker.disk.min.free.bytes": "0"}) as broker:
        client = Client(broker)
        await client.create_topic("orders")

        async def send(producer_id: int, sequence: int) -> ErrorCode:
            producer = ProducerInfo(producer_id, 0, sequence)
            records = build_batch([Record(0, 1000, None, b"job", ())], producer=producer)
            return await produce(client, "orders", records)

        assert await send(7, 0) is ErrorCode.none  # the producers are loaded
        broker.disk_floor.is_short = True
        assert await send(7, 1) is ErrorCode.kafka_storage_error
        assert await send(9, 0) is ErrorCode.kafka_storage_error
        assert await send(9, 1) is ErrorCode.kafka_storage_error
        broker.disk_floor.is_short = False
        assert await send(9, 1) is ErrorCode.out_of_order_sequence_number
        assert await send(7, 2) is ErrorCode.out_of_order_sequence_number
        assert [await send(9, sequence) for sequence in (0, 1)] == [ErrorCode.none] * 2
        assert await send(7, 1) is ErrorCode.none


async def test_a_transaction_waits_for_room(tmp_path: Path) -> None:
    """Regression: its records were refused with an error that is fatal for the producer."""
    async with broker_on(tmp_path, "segment", **{"kbroker.disk.min.free.bytes": "0"}) as broker:
        client = Client(broker)
        await client.create_topic("orders")
        given = await init(client, "t")
        records = transactional_batch(ProducerInfo(given.producer_id, given.producer_epoch, 0), b"job")
        codes = []
        for is_short in (True, False):
            broker.disk_floor.is_short = is_short
            (row,) = (await produce_rows(client, "t", {("orders", 0): records})).values()
            codes.append(row.error_code)
        assert codes == [ErrorCode.kafka_storage_error, ErrorCode.none]


class TestLooks:
    def test_near_the_floor_it_looks_often(self, disk: Path) -> None:
        floor = DiskFloor(disk, FLOOR_BYTES, NO_STORE, NO_STORE)
        far_s = floor.look()
        assert not floor.is_short
        (disk / "ballast").write_bytes(bytes(free_bytes(disk) - FLOOR_BYTES - (1 << 20)))
        assert floor.look() < far_s
        assert not floor.is_short
        (disk / "more").write_bytes(bytes(2 << 20))
        floor.look()
        assert floor.is_short
        assert floor.refusal().code is ErrorCode.kafka_storage_error

    def test_of_a_small_disk_it_is_a_part(self, disk: Path) -> None:
        floor = DiskFloor(disk, 1 << 40, NO_STORE, NO_STORE)
        floor.look()
        assert not floor.is_short

    def test_a_disk_that_cannot_say_is_not_short(self, tmp_path: Path) -> None:
        floor = DiskFloor(tmp_path / "missing", FLOOR_BYTES, NO_STORE, NO_STORE)
        floor.is_short = True
        assert floor.look() > 1
        assert not floor.is_short
