"""How a broker recovers a data directory: finished deletions, logs without a topic, missing parts,
and the state of producers."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from kbroker import plugins
from kbroker.broker.broker import Broker, open_broker
from kbroker.broker.options import StartOptions
from kbroker.errors import ErrorCode, KafkaError, OperatorError
from kbroker.formats.batches import ProducerInfo, Record, build_batch
from kbroker.formats.share_records import RecordType, ShareGroupMetadata
from kbroker.formats.state import GroupKey, Topic, TopicKey, TopicState
from kbroker.settings.altering import BrokerConfig
from kbroker.storage.data_dir import DataDirectory
from kbroker.storage.spi import LogId, LogSettings, LogStore, StampedBatch, StateStore
from tests.broker.appending import append

DURABLE = ("segment", "lmdb", "rocksdb")
STRAY = LogId(UUID(int=77), 0)


def options(
    tmp_path: Path, engine: str, config: Mapping[str, str] | None = None, **more: object
) -> StartOptions:
    configured = BrokerConfig(config or {})
    return StartOptions(
        data_dir=tmp_path / "data", storage=engine, state_storage=engine, config=configured, **more
    )  # type: ignore[arg-type]


def stores(tmp_path: Path, engine: str) -> tuple[DataDirectory, LogStore, StateStore]:
    directory = DataDirectory.open(tmp_path / "data", engine, engine)
    log_store = plugins.log_store_factory(engine).open(directory.log_path, {}, 0)
    state_store = plugins.state_store_factory(engine).open(directory.state_path, {}, 0)
    return directory, log_store, state_store


def batch(sequence: int, producer_id: int = 5) -> bytes:
    return build_batch(
        [Record(0, 1_700_000_000_000, None, b"x")], producer=ProducerInfo(producer_id, 0, sequence)
    )


async def fill(broker: Broker, name: str = "orders", records: int = 3) -> UUID:
    topic = await broker.topics.create(name, 1, {})
    for index in range(records):
        await append(topic.partitions[0], batch(index))
    return topic.topic_id


@pytest.mark.parametrize("engine", DURABLE)
async def test_the_generation_rises_and_is_the_leader_epoch(tmp_path: Path, engine: str) -> None:
    generations = []
    for life in range(3):
        async with open_broker(options(tmp_path, engine)) as broker:
            generations.append(broker.generation)
            topic = broker.topics.by_name("orders") or await broker.topics.create("orders", 1, {})
            await append(topic.partitions[0], build_batch([Record(0, 1, None, b"x")]))
            partition = topic.partitions[0]
            assert partition.leader_epoch == broker.generation
            assert [entry.start_offset for entry in partition.epochs.entries] == list(range(life + 1))
    assert generations == sorted(set(generations))


@pytest.mark.parametrize("engine", DURABLE)
@pytest.mark.parametrize(
    ("kept_by", "other"),
    [("default", "control-records"), ("control-records", "default"), ("default", "noop")],
)
async def test_the_persister_is_changed_without_groups_only(
    tmp_path: Path, engine: str, kept_by: str, other: str
) -> None:
    def with_persister(name: str) -> StartOptions:
        return options(tmp_path, engine, {"kbroker.persister": name})

    group = GroupKey(RecordType.SHARE_GROUP_METADATA, "workers").encode()
    async with open_broker(with_persister(kept_by)) as broker:
        await broker.state_commits.commit([(group, ShareGroupMetadata(epoch=1, metadata_hash=0).encode())])
    with pytest.raises(OperatorError, match=f"kbroker.persister={kept_by}, and {other} would not find it"):
        async with open_broker(with_persister(other)):
            raise AssertionError("it has started")
    async with open_broker(with_persister(kept_by)) as broker:
        await broker.state_commits.commit([(group, None)])
    async with open_broker(with_persister(other)) as broker:
        await broker.state_commits.commit([(group, ShareGroupMetadata(epoch=1, metadata_hash=0).encode())])
    with pytest.raises(OperatorError, match=f"kbroker.persister={other}, and {kept_by} would not find it"):
        async with open_broker(with_persister(kept_by)):
            raise AssertionError("it has started")


@pytest.mark.parametrize("engine", DURABLE)
async def test_a_deletion_that_was_cut_off_is_finished(tmp_path: Path, engine: str) -> None:
    async with open_broker(options(tmp_path, engine)) as broker:
        topic_id = await fill(broker)
    directory, log_store, state_store = stores(tmp_path, engine)
    state_store.write([(TopicKey(topic_id).encode(), Topic("orders", 1, 1, TopicState.DELETING).encode())])
    state_store.sync()
    log_store.close()
    state_store.close()
    directory.close()
    async with open_broker(options(tmp_path, engine)) as broker:
        assert broker.topics.by_name("orders") is None
        assert list(broker.log_store.logs()) == []
        leftovers = [key for key, _ in broker.state_store.scan(b"") if topic_id.bytes in key]
        assert leftovers == []


@pytest.mark.parametrize("engine", DURABLE)
async def test_logs_without_a_topic(tmp_path: Path, engine: str, caplog: pytest.LogCaptureFixture) -> None:
    async with open_broker(options(tmp_path, engine)) as broker:
        await fill(broker)
    empty = STRAY._replace(partition=1)
    directory, log_store, state_store = stores(tmp_path, engine)
    for log in (STRAY, empty):
        log_store.create(log, LogSettings())
    log_store.write([StampedBatch(STRAY, 0, 0, 1, batch(0))], now_ms=1)
    log_store.sync()
    log_store.close()
    state_store.close()
    directory.close()
    with caplog.at_level(logging.INFO):
        async with open_broker(options(tmp_path, engine)) as broker:
            found = set(broker.log_store.logs())
            assert STRAY in found, "records are never removed unasked"
            assert empty not in found
    (line,) = [
        record
        for record in caplog.records
        if "belongs to no topic and holds records: left alone" in record.message
    ]
    assert line.levelno == logging.ERROR
    assert str(STRAY.topic_id) in line.message


@pytest.mark.parametrize("engine", DURABLE)
async def test_an_empty_state_beside_records_stops_the_start(tmp_path: Path, engine: str) -> None:
    async with open_broker(options(tmp_path, engine)) as broker:
        topic_id = await fill(broker)
    with DataDirectory.open(tmp_path / "data", engine, engine) as directory:
        state_path = directory.state_path
    shutil.rmtree(state_path)
    with pytest.raises(OperatorError, match="--adopt"):
        async with open_broker(options(tmp_path, engine)):
            pass
    async with open_broker(options(tmp_path, engine, adopt=True)) as broker:
        assert len(broker.topics) == 0
        assert LogId(topic_id, 0) in set(broker.log_store.logs())


@pytest.mark.parametrize("engine", DURABLE)
async def test_a_state_without_topics_beside_records_stops_the_start(tmp_path: Path, engine: str) -> None:
    """The result of a state log that was cut near its beginning: there was a broker, but there are
    no topics."""
    async with open_broker(options(tmp_path, engine)) as broker:
        topic_id = await fill(broker)
    directory, log_store, state_store = stores(tmp_path, engine)
    state_store.write([(TopicKey(topic_id).encode(), None)])
    state_store.sync()
    log_store.close()
    state_store.close()
    directory.close()
    for _ in range(2):
        with pytest.raises(OperatorError, match=r"no topic in the state, but 1 logs hold records.*--adopt"):
            async with open_broker(options(tmp_path, engine)):
                pass
    async with open_broker(options(tmp_path, engine, adopt=True)) as broker:
        assert LogId(topic_id, 0) in set(broker.log_store.logs())


async def test_no_topics_and_no_records_is_no_reason_to_stop(tmp_path: Path) -> None:
    async with open_broker(options(tmp_path, "segment")) as broker:
        topic_id = await fill(broker)
        topic = broker.topics.by_id(topic_id)
        assert topic is not None
        await broker.topics.delete(topic)
    async with open_broker(options(tmp_path, "segment")) as broker:
        assert len(broker.topics) == 0


@pytest.mark.parametrize("engine", DURABLE)
@pytest.mark.parametrize("durability", ["disk", "os"])
async def test_a_topic_is_synced_before_it_is_answered(
    tmp_path: Path, engine: str, durability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `os` as well: a power cut that lost it would leave a log with records and no topic. The
    sync interval is longer than the test."""
    config = BrokerConfig({"kbroker.sync.interval.ms": "60000"})
    async with open_broker(
        replace(options(tmp_path, engine), config=config, durability=durability)
    ) as broker:  # type: ignore[arg-type]
        syncs: list[None] = []
        sync = broker.state_commits._sync
        monkeypatch.setattr(broker.state_commits, "_sync", lambda: syncs.append(sync()))
        topic = await broker.topics.create("orders", 2, {})
        assert len(syncs) == 1
        await broker.topics.grow(topic, 3)
        assert len(syncs) == 2


@pytest.mark.parametrize("engine", DURABLE)
async def test_a_topic_whose_log_is_gone_stops_the_start(tmp_path: Path, engine: str) -> None:
    async with open_broker(options(tmp_path, engine)) as broker:
        topic_id = await fill(broker)
    directory, log_store, state_store = stores(tmp_path, engine)
    log_store.drop(LogId(topic_id, 0))
    log_store.close()
    state_store.close()
    directory.close()
    with pytest.raises(OperatorError, match="topic orders has no log for partition 0"):
        async with open_broker(options(tmp_path, engine)):
            pass
    async with open_broker(options(tmp_path, engine, adopt=True)) as broker:
        topic = broker.topics.by_name("orders")
        assert topic is not None
        assert topic.partitions[0].high_watermark == 0


@pytest.mark.parametrize("engine", DURABLE)
async def test_producers_are_remembered(tmp_path: Path, engine: str) -> None:
    async with open_broker(options(tmp_path, engine)) as broker:
        await fill(broker, records=3)
    async with open_broker(options(tmp_path, engine)) as broker:
        topic = broker.topics.by_name("orders")
        assert topic is not None
        assert await append(topic.partitions[0], batch(1)) == 1, "a repeat from before the restart"
        with pytest.raises(KafkaError) as refused:
            await append(topic.partitions[0], batch(7))
        assert refused.value.code is ErrorCode.out_of_order_sequence_number
        assert await append(topic.partitions[0], batch(3)) == 3


async def test_producers_are_replayed_from_the_log_after_a_crash(tmp_path: Path) -> None:
    """A copy of the directory of a running broker is the same as after kill -9: it has no snapshot
    of the producers."""
    async with open_broker(options(tmp_path, "segment")) as broker:
        await fill(broker, records=4)
        shutil.copytree(tmp_path / "data", tmp_path / "crashed" / "data")
    async with open_broker(options(tmp_path / "crashed", "segment")) as broker:
        topic = broker.topics.by_name("orders")
        assert topic is not None
        assert await append(topic.partitions[0], batch(0)) == 0, "four batches back: remembered"
        assert await append(topic.partitions[0], batch(4)) == 4


@pytest.mark.parametrize("engine", DURABLE)
async def test_segments_keep_their_size_after_a_restart(tmp_path: Path, engine: str) -> None:
    async with open_broker(options(tmp_path, engine)) as broker:
        await broker.topics.create("orders", 1, {"internal.segment.bytes": "300"})
    async with open_broker(options(tmp_path, engine)) as broker:
        topic = broker.topics.by_name("orders")
        assert topic is not None
        for index in range(6):
            await append(topic.partitions[0], batch(index))
        assert len(topic.partitions[0].segments()) > 1


@pytest.mark.parametrize("engine", DURABLE)
async def test_producer_ids_are_given_once(tmp_path: Path, engine: str) -> None:
    given: list[int] = []
    for _ in range(3):
        async with open_broker(options(tmp_path, engine)) as broker:
            given += [await broker.producer_ids.take() for _ in range(3)]
    assert len(set(given)) == len(given)
