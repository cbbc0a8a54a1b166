"""Topics with cleanup.policy=compact: what a pass leaves, what producers may send, what is
refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import trio

from kbroker.broker.broker import Broker
from kbroker.broker.compaction import log_pass
from kbroker.broker.logs.retention import apply_retention
from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.batches import (
    ProducerInfo,
    Record,
    build_batch,
    iter_headers,
    iter_records,
)
from kbroker.formats.compression import Codec
from kbroker.formats.state import Cleaned, CleanedKey
from kbroker.storage.data_dir import COMPACTION_FORMAT
from tests.api.conftest import Client, Connect
from tests.api.producing import fetch, produce
from tests.api.test_delete_records import delete
from tests.odd_batches import with_header

SMALL = {"cleanup.policy": "compact", "internal.segment.bytes": "300", "min.cleanable.dirty.ratio": "0"}


def keyed(*pairs: tuple[str | None, str | None], **options: Any) -> bytes:
    now_ms = wall_clock_ms()
    return build_batch(
        (
            Record(
                0, now_ms, None if key is None else key.encode(), None if value is None else value.encode()
            )
            for key, value in pairs
        ),
        **options,
    )


async def topic_of(client: Client, **more: str) -> Any:
    return (await client.create_topic("a", configs={**SMALL, **more})).topic_id


async def append(client: Client, topic: Any, batch: bytes) -> int:
    row = await produce(client, topic, batch)
    assert row.error_code == 0, row
    offset: int = row.base_offset
    return offset


async def stored(client: Client, topic: Any) -> Mapping[int, tuple[str, str | None]]:
    """By offset, key and value of all records that a consumer reads from the beginning."""
    found: dict[int, tuple[str, str | None]] = {}
    offset = 0
    while offset < client.partition("a").high_watermark:
        row = await read(client, topic, offset)
        assert row.error_code == 0
        assert row.records, f"a consumer does not get beyond offset {offset}"
        for position, header in iter_headers(row.records):
            for record in iter_records(row.records, position):
                assert record.key is not None
                value = None if record.value is None else record.value.decode()
                found[record.offset] = record.key.decode(), value
            offset = header.last_offset + 1
    return found


async def read(client: Client, topic: Any, offset: int) -> Any:
    return (await fetch(client, topic, offset)).responses[0].partitions[0]


async def compact(client: Client) -> None:
    await client.broker.log_cleaner.clean_all()


async def fill(client: Client, topic: Any, batches: int = 20, **options: Any) -> dict[str, str]:
    """Batches over five keys; returns what each key has at the end."""
    latest = {}
    for number in range(batches):
        pairs = [(f"k{(number + each) % 5}", f"{number}-{each}") for each in range(3)]
        await append(client, topic, keyed(*pairs, **options))
        latest.update(pairs)
    return latest


def cleaned_to(broker: Broker, client: Client) -> int:
    value = broker.state_store.get(CleanedKey(*client.partition("a").log).encode())
    return 0 if value is None else Cleaned.decode(value).offset


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
async def test_the_latest_of_each_key_stays_also_after_a_restart(
    connect: Connect, every_engine: str, codec: Codec
) -> None:
    async with connect(every_engine) as client:
        topic = await topic_of(client)
        latest = await fill(client, topic, codec=codec)
        before = await stored(client, topic)
        tail = client.partition("a").segments()[-1].base_offset
        await compact(client)
        after = await stored(client, topic)
        assert dict(after.values()) == latest
        assert after.items() <= before.items(), "records stay at their offsets"
        below = [key for offset, (key, _) in after.items() if offset < tail]
        assert len(below) == len(set(below)), "one record a key in closed segments"
        assert {offset for offset in before if offset >= tail} <= after.keys(), "the active one is whole"
        assert cleaned_to(client.broker, client) == tail
        assert client.broker.directory.description.format_version == COMPACTION_FORMAT
        counted = client.broker.log_cleaner.statistics()
        assert (counted.passes, counted.uncleanable) == (1, 0)
        assert counted.removed_records == len(before) - len(after)
        assert client.partition("a").log_start_offset == 0
        await compact(client)
        assert client.broker.log_cleaner.statistics().passes == 1, "nothing is new"
    if every_engine != "memory":
        async with connect(every_engine) as client:
            assert await stored(client, topic) == after
            await append(client, topic, keyed(("k0", "new")))
            assert (await stored(client, topic))[60] == ("k0", "new")


async def test_tombstones_go_after_their_retention(connect: Connect) -> None:
    async with connect() as client:
        topic = await topic_of(client, **{"delete.retention.ms": "0", "internal.segment.bytes": "150"})
        await append(client, topic, keyed(("a", "1"), ("b", "1")))
        await append(client, topic, keyed(("a", None)))
        for number in range(6):
            await append(client, topic, keyed(("c", f"{number}")))
        await compact(client)
        assert ("a", None) in (await stored(client, topic)).values(), "readers see it at least once"
        await trio.sleep(0.002)
        for number in range(6):
            await append(client, topic, keyed(("c", f"{number}")))
        await compact(client)
        assert {key for key, _ in (await stored(client, topic)).values()} == {"b", "c"}


async def test_an_idempotent_producer_goes_on_after_its_records_are_gone(connect: Connect) -> None:
    async with connect("segment") as client:
        topic = await topic_of(client)
        row = await client.call("init_producer_id", 4, transactional_id=None, transaction_timeout=0,
                                producer_id=-1, producer_epoch=-1)  # fmt: skip
        info = ProducerInfo(row.producer_id, row.producer_epoch, 0)
        await append(client, topic, keyed(("k0", "first"), ("k1", "first"), producer=info))
        await fill(client, topic)
        await compact(client)
        assert "first" not in {value for _, value in (await stored(client, topic)).values()}
    async with connect("segment") as client:
        wrong = await produce(client, topic, keyed(("k0", "x"), producer=replace(info, base_sequence=7)))
        assert wrong.error_code == ErrorCode.out_of_order_sequence_number
        await append(client, topic, keyed(("k0", "next"), producer=replace(info, base_sequence=2)))


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("size", [1, 100_000])
async def test_a_record_without_key_is_refused_by_name(  # BASE-34
    connect: Connect, codec: Codec, size: int
) -> None:
    async with connect() as client:
        topic = await topic_of(client)
        value = "v" * size
        batch = keyed(("k", value), (None, value), (None, value), ("", value), (None, value), (None, value),
                      codec=codec)  # fmt: skip
        row = await produce(client, topic, batch)
        assert row.error_code == ErrorCode.invalid_record
        what = "Compacted topic cannot accept message without key in topic partition a-0."
        found = [(each.batch_index, each.batch_index_error_message) for each in row.record_errors]
        assert found == [(place, what) for place in (1, 2, 4, 5)]
        shown = ", ".join(f"RecordError(batchIndex={place}, message='{what}')" for place in (1, 2, 4))
        assert row.error_message == (
            "One or more records have been rejected due to 4 record errors in total, and only showing the "
            f"first three errors at most: [{shown}]"
        )
        assert client.partition("a").high_watermark == 0


async def test_a_record_without_key_at_a_wrong_time_lacks_its_key(connect: Connect) -> None:
    """Kafka's error of a record with both faults."""
    async with connect() as client:
        topic = await topic_of(client)
        batch = build_batch([Record(0, wall_clock_ms() + 10**8, None, b"v")])
        assert (await produce(client, topic, batch)).error_code == ErrorCode.invalid_record


async def test_the_maximum_lag_goes_by_the_first_batch_of_a_segment(connect: Connect) -> None:
    """However new the rest of the segment is."""
    async with connect() as client:
        configs = {"min.cleanable.dirty.ratio": "1", "max.compaction.lag.ms": "3600000"}
        topic = await topic_of(client, **configs)
        now_ms = wall_clock_ms()
        for age_ms in (3_700_000, 200_000):
            await append(client, topic, build_batch([Record(0, now_ms - age_ms, b"k", b"v" * 60)]))
        await append(client, topic, keyed(("next segment", "v" * 150)))
        assert len(client.partition("a").segments()) == 2
        await compact(client)
        assert list(await stored(client, topic)) == [1, 2]


async def test_a_log_is_cleaned_again_while_others_are_due(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New logs, whose dirty part is larger, hold it up for log.cleaner.backoff.ms only."""
    async with connect() as client:
        topics = {
            name: (await client.create_topic(name, configs=SMALL)).topic_id for name in ("a", "b")
        }  # fmt: skip
        for topic in topics.values():
            await fill(client, topic)
        cleaner, order = client.broker.log_cleaner, list[str]()
        real = cleaner._clean

        async def clean(chosen: Any) -> None:
            order.append(chosen.partition.topic_name)
            await real(chosen)
            if len(order) < 4:
                await fill(client, topics[order[-1]])
                await trio.sleep(0.02)

        monkeypatch.setattr(cleaner, "_clean", clean)
        client.broker.config.set_dynamic({"log.cleaner.backoff.ms": "1"}, {})
        with trio.fail_after(30):
            await compact(client)
        assert min(order.count("a"), order.count("b")) >= 2


async def test_a_topic_that_becomes_compacted_loses_records_without_key(connect: Connect) -> None:
    async with connect() as client:
        topic = await topic_of(client, **{"cleanup.policy": "delete"})
        await append(client, topic, keyed((None, "1"), ("a", "2")))
        await fill(client, topic)
        found = client.broker.topics.by_name("a")
        assert found is not None
        await client.broker.topics.set_configs(found, SMALL)
        await compact(client)
        assert (await stored(client, topic))[1] == ("a", "2")
        assert (await produce(client, topic, keyed((None, "x")))).error_code == ErrorCode.invalid_record
        await client.broker.topics.set_configs(found, {**SMALL, "cleanup.policy": "delete"})
        await append(client, topic, keyed((None, "x")))


async def test_what_cannot_compact_refuses_the_policy(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect(config={"kbroker.persister": "control-records"}) as client:
        with pytest.raises(KafkaError, match="control-records") as caught:
            await client.broker.topics.create("b", 1, SMALL)
        assert caught.value.code is ErrorCode.invalid_config
    async with connect() as client:
        monkeypatch.setattr(type(client.broker.log_store), "replaces", False)
        with pytest.raises(KafkaError, match="choose another at start"):
            await client.broker.topics.create("b", 1, SMALL)
        created = await client.broker.topics.create("b", 1, {})
        with pytest.raises(KafkaError, match="choose another at start"):
            await client.broker.topics.set_configs(created, {"cleanup.policy": "compact,delete"})


async def test_delete_records_needs_the_policy_delete(connect: Connect) -> None:  # BASE-57
    async with connect() as client:
        topic = await topic_of(client)
        await fill(client, topic)
        assert await delete(client, 5) == (ErrorCode.policy_violation, -1)
        found = client.broker.topics.by_name("a")
        assert found is not None
        await client.broker.topics.set_configs(found, {**SMALL, "cleanup.policy": "compact,delete"})
        assert await delete(client, 5) == (ErrorCode.none, 5)
        await compact(client)
        assert min(await stored_from(client, topic, 5)) >= 5


async def stored_from(client: Client, topic: Any, offset: int) -> list[int]:
    row = await read(client, topic, offset)
    return [
        record.offset
        for position, _ in iter_headers(row.records)
        for record in iter_records(row.records, position)
        if record.offset >= offset
    ]


@pytest.mark.parametrize(("policy", "goes"), [("compact", False), ("compact,delete", True), ("", False)])
async def test_retention_needs_the_policy_delete(connect: Connect, policy: str, goes: bool) -> None:
    async with connect() as client:
        topic = await topic_of(client, **{"cleanup.policy": policy, "retention.bytes": "1"})
        await append(client, topic, keyed(("a", "1")))
        await fill(client, topic)
        found = client.broker.topics.by_name("a")
        assert found is not None
        assert await apply_retention(client.broker.topics, client.partition("a"), found.config) == goes


async def test_a_damaged_batch_stops_the_passes_over_its_log(connect: Connect) -> None:
    async with connect() as client:
        topic = await topic_of(client)
        await client.append_raw("a", with_header(keyed(("k0", "1")), record_count=2, last_offset_delta=1))
        await fill(client, topic)
        sizes = client.partition("a").segments()
        await compact(client)
        assert client.broker.log_cleaner.statistics().uncleanable == 1
        assert client.partition("a").segments() == sizes
        await compact(client)
        assert client.broker.log_cleaner.statistics().passes == 0


async def test_a_topic_may_be_deleted_during_a_pass(
    connect: Connect, every_engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_pass, "STEP_BYTES", 1)
    async with connect(every_engine) as client, trio.open_nursery() as nursery:
        topic = await topic_of(client)
        await fill(client, topic)
        log = client.partition("a").log
        nursery.start_soon(compact, client)
        await trio.sleep(0.01)
        found = client.broker.topics.by_name("a")
        assert found is not None
        await client.broker.topics.delete(found)
        assert client.broker.state_store.get(CleanedKey(*log).encode()) is None
