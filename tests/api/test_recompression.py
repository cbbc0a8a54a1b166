"""compression.type: which batches the broker compresses again, and that nothing else of them
changes."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import trio

from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode
from kbroker.formats.batches import (
    HEADER_SIZE,
    BatchHeader,
    ProducerInfo,
    Record,
    build_batch,
    crc_is_valid,
    iter_headers,
    iter_records,
    read_header,
    stored_records,
)
from kbroker.formats.compression import Codec, inflate
from tests.api.conftest import Client, Connect
from tests.api.producing import batch, produce
from tests.framings import READABLE, RECORDS, TWO_LZ4_FRAMES, framed_batch
from tests.odd_batches import odd_batch

TYPES = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
FOREVER = str((1 << 63) - 1)
TEXT = b"".join(b"order %d of customer %d; " % (n, n * n % 1009) for n in range(4000))


def records_at(now_ms: int, count: int = 5) -> list[Record]:
    """With keys, without, tombstones, headers, and times out of order."""
    return [
        Record(
            0,
            now_ms - 1000 + 7 * (n % 3),
            b"key-%d" % n if n % 2 else None,
            None if n == 3 else b"value " * n,
            (("name", b"%d" % n),) if n == 1 else (),
        )
        for n in range(count)
    ]


def stored(client: Client, topic: str) -> list[tuple[BatchHeader, list[Record]]]:
    partition = client.partition(topic)
    found = []
    for view in partition.read_now(0, max_bytes=1 << 30, end_offset=partition.high_watermark):
        for position, header in iter_headers(view):
            assert crc_is_valid(view, position, header)
            found.append((header, list(iter_records(view, position))))
    return found


async def alter(client: Client, topic: str, **configs: str) -> Any:
    rows = [
        {"name": name.replace("_", "."), "config_operation": 0, "value": value}
        for name, value in configs.items()
    ]
    resource = {"resource_type": 2, "resource_name": topic, "configs": rows}
    return (
        await client.call("incremental_alter_configs", 1, resources=[resource], validate_only=False)
    ).responses[0]


@pytest.mark.parametrize("name", TYPES)
async def test_only_the_codec_changes(connect: Connect, every_engine: str, name: str) -> None:
    async with connect(every_engine) as client:
        topic = (await client.create_topic("orders", configs={"compression.type": name})).topic_id
        now_ms, sent = wall_clock_ms(), []
        for number, codec in enumerate(Codec):
            producer = ProducerInfo(100 + number, 0, 0)
            sent.append(build_batch(records_at(now_ms), codec=codec, producer=producer))
            row = await produce(client, topic, sent[-1])
            assert (row.error_code, row.base_offset) == (0, 5 * number)
        for number, (header, records) in enumerate(stored(client, "orders")):
            assert header.codec_id == TYPES[name]
            before = next(iter_headers(sent[number]))[1]
            changed = {"batch_length", "crc", "attributes", "base_offset", "partition_leader_epoch"}
            for field in set(BatchHeader._fields) - changed:
                assert getattr(header, field) == getattr(before, field), field
            assert [each._replace(offset=0) for each in records] == records_at(now_ms)
            assert [each.offset for each in records] == list(range(5 * number, 5 * number + 5))


async def test_a_batch_in_the_wanted_codec_stays_as_it_is(connect: Connect) -> None:
    async with connect() as client:
        topic = (await client.create_topic("orders", configs={"compression.type": "zstd"})).topic_id
        sent = build_batch(records_at(wall_clock_ms()), codec=Codec.ZSTD)
        assert (await produce(client, topic, sent)).error_code == 0
        (view,) = client.partition("orders").read_now(0, max_bytes=1 << 20, end_offset=5)
        assert bytes(view)[17:] == sent[17:]


@pytest.mark.parametrize(
    ("name", "low", "high"), [("gzip", "1", "9"), ("lz4", "1", "12"), ("zstd", "-50", "19")]
)
async def test_levels(connect: Connect, name: str, low: str, high: str) -> None:
    sizes = []
    async with connect() as client:
        for level in (low, high):
            configs = {"compression.type": name, f"compression.{name}.level": level}
            topic = await client.create_topic(f"at{level}", configs=configs)
            assert (await produce(client, topic.topic_id, batch(TEXT))).error_code == 0
            ((header, records),) = stored(client, f"at{level}")
            assert records[0].value == TEXT
            sizes.append(header.size_bytes)
    assert sizes[1] < sizes[0] < len(TEXT)


async def test_the_brokers_default(connect: Connect) -> None:
    async with connect(config={"compression.type": "lz4", "compression.lz4.level": "3"}) as client:
        topic = (await client.create_topic("orders")).topic_id
        assert (await produce(client, topic, batch(TEXT))).error_code == 0
        assert (await alter(client, "orders", compression_type="producer")).error_code == 0
        assert (await produce(client, topic, batch(TEXT))).error_code == 0
        assert [header.codec_id for header, _ in stored(client, "orders")] == [Codec.LZ4, Codec.NONE]


async def test_a_batch_that_becomes_too_large(connect: Connect) -> None:
    """It is refused as in Kafka, which checks its size before and after."""
    async with connect() as client:
        configs = {"compression.type": "uncompressed", "max.message.bytes": "10000"}
        topic = (await client.create_topic("orders", configs=configs)).topic_id
        row = await produce(client, topic, batch(bytes(20_000), codec=Codec.ZSTD))
        assert (row.error_code, row.base_offset) == (ErrorCode.message_too_large, -1)
        assert (await produce(client, topic, batch(bytes(5_000), codec=Codec.ZSTD))).base_offset == 0
        assert client.partition("orders").metrics.failed_produce_requests == 1


async def test_a_payload_that_contradicts_its_header(connect: Connect) -> None:
    async with connect() as client:
        topic = (await client.create_topic("orders", configs={"compression.type": "zstd"})).topic_id
        for kind, code in (
            ("no gzip", ErrorCode.unknown_server_error),
            ("zeros", ErrorCode.invalid_record),
            ("a bomb", ErrorCode.message_too_large),
        ):
            assert (await produce(client, topic, odd_batch(kind, time_ms=wall_clock_ms()))).error_code == code
        assert (await produce(client, topic, batch(b"a"))).base_offset == 0


async def test_the_order_of_an_idempotent_producer(connect: Connect) -> None:
    """Some of its batches have the codec already, and overtake none. A repeat is found."""
    async with connect() as client:
        topic = (await client.create_topic("orders", configs={"compression.type": "gzip"})).topic_id
        rows: dict[int, Any] = {}

        async def send(number: int, codec: Codec) -> None:
            records = [Record(0, wall_clock_ms(), None, b"%d" % number)]
            sent = build_batch(records, codec=codec, producer=ProducerInfo(7, 0, number))
            rows[number] = await produce(client, topic, sent)

        async with trio.open_nursery() as nursery:
            for number, codec in enumerate((Codec.NONE, Codec.GZIP, Codec.LZ4, Codec.GZIP, Codec.NONE)):
                nursery.start_soon(send, number, codec)
                await trio.testing.wait_all_tasks_blocked()
        assert {number: (row.error_code, row.base_offset) for number, row in rows.items()} == {
            number: (0, number) for number in range(5)
        }
        await send(4, Codec.NONE)
        assert (rows[4].error_code, rows[4].base_offset) == (0, 4)
        assert [records[0].value for _, records in stored(client, "orders")] == [
            b"%d" % number for number in range(5)
        ]


@pytest.mark.parametrize(("stamps", "is_keyed"), [*product(("CreateTime", "LogAppendTime"), (False, True))])
async def test_with_other_settings(connect: Connect, stamps: str, is_keyed: bool) -> None:
    configs = {
        "compression.type": "snappy",
        "message.timestamp.type": stamps,
        "cleanup.policy": "compact" if is_keyed else "delete",
    }
    async with connect() as client:
        topic = (await client.create_topic("orders", configs=configs)).topic_id
        row = await produce(client, topic, batch(b"no key"))
        assert row.error_code == (ErrorCode.invalid_record if is_keyed else 0)
        assert len(row.record_errors) == is_keyed
        row = await produce(client, topic, build_batch([Record(0, wall_clock_ms(), b"k", b"v")]))
        assert row.error_code == 0
        header, records = stored(client, "orders")[-1]
        assert (records[0].key, records[0].value) == (b"k", b"v")
        assert header.codec_id == Codec.SNAPPY
        assert header.is_log_append_time == (stamps == "LogAppendTime")


@pytest.mark.parametrize("name", [*READABLE, TWO_LZ4_FRAMES])
@pytest.mark.parametrize("checked", [True, False])
async def test_several_frames_are_stored_as_one(connect: Connect, name: str, checked: bool) -> None:
    """Where payloads are checked: librdkafka reads only the first member of a gzip payload. A
    second lz4 frame is refused, as Kafka reads only the first."""
    async with connect() as client:
        configs = {"kbroker.payload.check": str(checked).lower(), "message.timestamp.after.max.ms": FOREVER}
        topic = (await client.create_topic("orders", configs=configs)).topic_id
        sent = framed_batch(name)
        row = await produce(client, topic, sent)
        if name == TWO_LZ4_FRAMES and checked:
            assert row.error_code == ErrorCode.invalid_record
            return
        assert row.error_code == 0
        (view,) = client.partition("orders").read_now(0, max_bytes=1 << 20, end_offset=RECORDS)
        header = read_header(view)
        assert (bytes(view)[17:] == sent[17:]) == (not checked)
        _, is_one_frame = inflate(Codec(header.codec_id), view[HEADER_SIZE:])
        assert is_one_frame == checked
        if name != TWO_LZ4_FRAMES:
            ((_, records),) = stored(client, "orders")
            assert records == list(stored_records(sent))
