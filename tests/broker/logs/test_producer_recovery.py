"""The state of idempotent producers and the log start over purges, crashes and power cuts: no batch
is stored twice, no client gets a fatal error, and no confirmed record is removed because of state
from before the last start.

A crash is a copy of the directory of a running broker. A power cut is a log that is truncated while
no broker runs, with the state store unchanged: what durability `os` allows.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from kbroker import plugins
from kbroker.broker.broker import Broker, open_broker
from kbroker.broker.commits.group_commit import GroupCommit
from kbroker.broker.logs.partition import Partition
from kbroker.broker.logs.producer_recovery import SNAPSHOT_BYTES
from kbroker.broker.options import Durability, StartOptions
from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode, KafkaError, NoSpace
from kbroker.formats.batches import ProducerInfo, Record, build_batch, stamp
from kbroker.formats.state import (
    LeaderEpochKey,
    LogStart,
    LogStartKey,
    ProducerSnapshot,
    ProducerSnapshotKey,
    parse_key,
)
from kbroker.settings.altering import BrokerConfig
from kbroker.storage.data_dir import DataDirectory
from kbroker.storage.spi import Change, LogId, LogStore, StampedBatch, StateStore
from tests.broker.appending import append
from tests.brokers import DURABLE_ENGINES, require_engine
from tests.metrics.world import blocked

P, Q = 5, 6
_SMALL = {"log.segment.bytes": str(1 << 20)}
"""A crash also copies the preallocated space of a segment."""


@pytest.fixture(params=DURABLE_ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return require_engine(request.param)


NOW_MS = 1_700_000_000_000
LATER_MS = NOW_MS + 8 * 86_400_000
"""Records of this time are in another segment than those of NOW_MS."""


def batch(sequence: int = -1, producer_id: int = -1, *, count: int = 1, timestamp_ms: int = NOW_MS) -> bytes:
    producer = ProducerInfo(producer_id, 0, sequence) if producer_id >= 0 else ProducerInfo()
    return build_batch([Record(0, timestamp_ms, None, b"x" * 50)] * count, producer=producer)


def damaged(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]


class Lives:
    """The lives of one data directory."""

    def __init__(self, home: Path, engine: str) -> None:
        self.data_dir = home / "data"
        self.engine = engine
        self._copies = 0

    @asynccontextmanager
    async def life(
        self, durability: Durability = "disk", config: Mapping[str, str] | None = None
    ) -> AsyncIterator[Partition]:
        async with self.broker(durability, config) as broker:
            topic = broker.topics.by_name("orders") or await broker.topics.create("orders", 1, {})
            yield topic.partitions[0]

    @asynccontextmanager
    async def broker(
        self, durability: Durability = "disk", config: Mapping[str, str] | None = None
    ) -> AsyncIterator[Broker]:
        options = StartOptions(
            data_dir=self.data_dir,
            storage=self.engine,
            state_storage=self.engine,
            config=BrokerConfig({**_SMALL, **(config or {})}),
            durability=durability,
        )
        async with open_broker(options) as broker:
            self.running = broker
            yield broker

    def crash(self) -> None:
        """The next life starts from a copy of the current files."""
        self._copies += 1
        crashed = self.data_dir.with_name(f"crashed-{self._copies}")
        shutil.copytree(self.data_dir, crashed)
        self.data_dir = crashed

    async def purge(self, partition: Partition, offset: int) -> None:
        await self.running.topics.move_log_start(partition, offset)

    def lose(self, log: LogId, end_offset: int) -> None:
        with self._stores() as (log_store, _):
            log_store.truncate(log, end_offset)

    def write(self, log: LogId, offset: int, data: bytes) -> None:
        stamped = bytearray(data)
        stamp(stamped, base_offset=offset, leader_epoch=0)
        with self._stores() as (log_store, _):
            log_store.write([StampedBatch(log, offset, offset, 1, stamped)], now_ms=0)
            log_store.sync()

    def change_state(self, *changes: Change) -> None:
        with self._stores() as (_, state_store):
            state_store.write(changes)
            state_store.sync()

    def state_keys(self) -> list[Any]:
        with self._stores() as (_, state_store):
            return [parse_key(key) for key, _ in state_store.scan(b"")]

    def _stores(self) -> _Stores:
        return _Stores(self.data_dir, self.engine)


class _Stores:
    def __init__(self, data_dir: Path, engine: str) -> None:
        self._directory = DataDirectory.open(data_dir, engine, engine)
        self._log_store = plugins.log_store_factory(engine).open(self._directory.log_path, {}, 0)
        self._state_store = plugins.state_store_factory(engine).open(self._directory.state_path, {}, 0)

    def __enter__(self) -> tuple[LogStore, StateStore]:
        return self._log_store, self._state_store

    def __exit__(self, *_: object) -> None:
        self._log_store.close()
        self._state_store.close()
        self._directory.close()


@pytest.fixture
def lives(tmp_path: Path, engine: str) -> Lives:
    return Lives(tmp_path, engine)


async def fill(partition: Partition, sequences: range, producer_id: int = P) -> None:
    for sequence in sequences:
        await append(partition, batch(sequence, producer_id))


class TestPurges:
    async def test_a_producer_goes_on_after_its_records_were_removed(self, lives: Lives) -> None:
        """A retry of a confirmed batch is not stored again either, although the log no longer has
        it."""
        async with lives.life() as partition:
            await fill(partition, range(3))
        async with lives.life() as partition:
            await fill(partition, range(3, 6))
            await append(partition, batch())
            await lives.purge(partition, 7)
            lives.crash()
        async with lives.life() as partition:
            assert await append(partition, batch(5, P)) == 5, "a repeat"
            assert await append(partition, batch(6, P)) == 7
            with pytest.raises(KafkaError) as refused:
                await append(partition, batch(8, P))
            assert refused.value.code is ErrorCode.out_of_order_sequence_number

    async def test_records_are_removed_before_the_producer_comes_back(self, lives: Lives) -> None:
        async with lives.life() as partition:
            await fill(partition, range(3))
        async with lives.life() as partition:
            await fill(partition, range(3, 6))
            lives.crash()
        async with lives.life() as partition:
            assert partition.producers is None
            await lives.purge(partition, 6)
            lives.crash()
        async with lives.life() as partition:
            assert await append(partition, batch(4, P)) == 4, "a repeat"
            assert await append(partition, batch(6, P)) == 6

    async def test_a_snapshot_below_the_log_start_is_not_believed(self, lives: Lives) -> None:
        """As in directories of earlier versions: the snapshot has sequences up to 2, and 3 to 5 are
        gone."""
        async with lives.life() as partition:
            await fill(partition, range(3))
            log = partition.log
        async with lives.life() as partition:
            await fill(partition, range(3, 6))
            await append(partition, batch())
            lives.crash()
        lives.change_state((LogStartKey(log.topic_id, 0).encode(), LogStart(6).encode()))
        async with lives.life() as partition:
            assert snapshots(lives.running, log) == [], "removed at the start"
            assert await append(partition, batch(6, P)) == 7, "not 45"
            assert await append(partition, batch(6, P)) == 7, "a repeat"

    async def test_a_batch_that_the_log_start_cuts_is_known(self, lives: Lives) -> None:
        """The rest of it is in the log: a retry must not be stored as well."""
        async with lives.life() as partition:
            assert await append(partition, batch(0, P, count=3)) == 0
            log = partition.log
            lives.crash()
        lives.change_state((LogStartKey(log.topic_id, 0).encode(), LogStart(1).encode()))
        async with lives.life() as partition:
            assert await append(partition, batch(0, P, count=3)) == 0, "a repeat"
            assert await append(partition, batch(3, P)) == 3

    @pytest.mark.parametrize("offset", [2, 3])
    async def test_a_snapshot_at_the_log_start_is_exact(self, lives: Lives, offset: int) -> None:
        async with lives.life() as partition:
            await fill(partition, range(3))
            await lives.purge(partition, offset)
        async with lives.life() as partition:
            assert partition.log_start_offset == offset
            assert await append(partition, batch(2, P)) == 2, "a repeat"
            assert await append(partition, batch(3, P)) == 3

    async def test_a_purge_between_two_snapshots_saves_nothing_new(self, lives: Lives) -> None:
        async with lives.life() as partition:
            await fill(partition, range(3))
        async with lives.life() as partition:
            await append(partition, batch())
            before = snapshots(lives.running, partition.log)
            await lives.purge(partition, 2)
            assert snapshots(lives.running, partition.log) == before == [3]

    async def test_a_log_start_that_moves_while_producers_are_read(
        self, lives: Lives, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Q is known from the remaining log; P may have written records that were removed before
        they were read."""
        async with lives.life() as partition:
            await fill(partition, range(3))
            await fill(partition, range(2), Q)
            lives.crash()
        async with lives.life() as partition:
            read_stored = partition.read_stored

            def moved_first(offset: int, **more: int) -> Any:
                partition.log_start_offset = max(partition.log_start_offset, 4)
                return read_stored(offset, **more)

            monkeypatch.setattr(partition, "read_stored", moved_first)
            producers = await partition.load_producers()
            assert [(each.producer_id, len(each.batches)) for each in producers.confirmed()] == [(Q, 1)]


class TestPowerCuts:
    async def test_a_snapshot_beyond_the_end_is_not_believed_later(self, lives: Lives) -> None:
        async with lives.life() as partition:
            await fill(partition, range(4))
            log = partition.log
        lives.lose(log, 2)
        async with lives.life() as partition:
            assert snapshots(lives.running, log) == [], "removed before anything is appended"
            assert await append(partition, batch(2, P)) == 2, "it was lost, so this is no repeat"
            assert await append(partition, batch(0, Q)) == 3
            assert await append(partition, batch(1, Q)) == 4
            lives.crash()
        async with lives.life() as partition:
            assert await append(partition, batch(1, Q)) == 4, (
                "a repeat, which the lost snapshot does not know"
            )
            assert await append(partition, batch(3, P)) == 5, "no repeat, although the lost snapshot says so"

    async def test_a_log_start_beyond_the_end_removes_nothing_later(self, lives: Lives) -> None:
        async with lives.life() as partition:
            for _ in range(7):
                await append(partition, batch())
            await lives.purge(partition, 6)
            log = partition.log
        lives.lose(log, 5)
        async with lives.life() as partition:
            assert (partition.log_start_offset, partition.high_watermark) == (5, 5)
            for offset in range(5, 7):
                assert await append(partition, batch()) == offset
            lives.crash()
        async with lives.life() as partition:
            assert (partition.log_start_offset, partition.high_watermark) == (5, 7)

    async def test_the_log_is_synced_before_its_start(
        self, lives: Lives, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With `os` and a sync interval longer than the test: a start that survives must find its
        records."""
        async with lives.life("os", {"kbroker.sync.interval.ms": "60000"}) as partition:
            for _ in range(3):
                await append(partition, batch())
            done: list[str] = []
            broker = lives.running
            sync, write, state_sync, trim = (
                broker.log_commits._sync,
                broker.state_commits._write,
                broker.state_commits._sync,
                broker.log_store.trim,
            )
            monkeypatch.setattr(broker.log_commits, "_sync", lambda: (sync(), done.append("log synced")))
            monkeypatch.setattr(
                broker.state_commits, "_write", lambda changes: (write(changes), done.append("start written"))
            )
            monkeypatch.setattr(
                broker.state_commits, "_sync", lambda: (state_sync(), done.append("start synced"))
            )
            monkeypatch.setattr(
                broker.log_store, "trim", lambda *log: (trim(*log), done.append("log trimmed"))
            )
            await lives.purge(partition, 2)
            assert done == ["log synced", "start written", "start synced", "log trimmed"]

    async def test_a_snapshot_tells_of_nothing_that_a_power_cut_takes(
        self, lives: Lives, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It replaces a valid one: with `os` the log is synced before it is saved."""
        async with lives.life("os", {"kbroker.sync.interval.ms": "60000"}) as partition:
            await fill(partition, range(3))
            done: list[str] = []
            broker = lives.running
            sync, write = broker.log_commits._sync, broker.state_commits._write
            monkeypatch.setattr(broker.log_commits, "_sync", lambda: (sync(), done.append("log synced")))
            monkeypatch.setattr(
                broker.state_commits, "_write", lambda changes: (write(changes), done.append("saved"))
            )
            await broker.producer_snapshots.save(least_bytes=1)
            assert done == ["log synced", "saved"]

    @pytest.mark.parametrize("durability", ["disk", "os"])
    async def test_producer_ids_are_synced_before_they_are_given(
        self, lives: Lives, durability: Durability, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with lives.broker(durability, {"kbroker.sync.interval.ms": "60000"}) as broker:
            syncs: list[None] = []
            sync = broker.state_commits._sync
            monkeypatch.setattr(broker.state_commits, "_sync", lambda: syncs.append(sync()))
            assert await broker.producer_ids.take() == 0
            assert len(syncs) == 1
            assert await broker.producer_ids.take() == 1
            assert len(syncs) == 1

    async def test_a_leader_epoch_is_on_record_before_it_is_used(self, lives: Lives) -> None:
        async with lives.life() as partition:
            await append(partition, batch())
            log = partition.log
        async with lives.life():
            lives.crash()
        epochs = [key.epoch for key in lives.state_keys() if isinstance(key, LeaderEpochKey)]
        assert epochs == [0, 1], "although nothing was written in the second one"
        async with lives.life() as partition:
            assert [(entry.epoch, entry.start_offset) for entry in partition.epochs.entries] == [
                (0, 0),
                (2, 1),
            ]
            lives.crash()
        lives.lose(log, 0)
        async with lives.life() as partition:
            assert [(entry.epoch, entry.start_offset) for entry in partition.epochs.entries] == [(3, 0)]


def snapshots(broker: Broker, log: LogId) -> list[int]:
    """The offsets of the stored snapshots."""
    prefix = ProducerSnapshotKey(log.topic_id, log.partition, 0).encode()[:-8]
    keys = [parse_key(key) for key, _ in broker.state_store.scan(prefix)]
    return [key.offset for key in keys if isinstance(key, ProducerSnapshotKey)]


@contextmanager
def no_room(commits: GroupCommit[Change]) -> Iterator[None]:
    """A full disk."""

    def refuse(changes: object) -> None:
        raise NoSpace("full")

    commits._write, write = refuse, commits._write
    yield
    commits._write = write


class TestTrouble:
    async def test_a_deletion_that_is_refused_while_producers_are_read(self, lives: Lives) -> None:
        """A full disk refuses it, and the topic stays as it is."""
        async with lives.life() as partition:
            await fill(partition, range(4))
        async with lives.life() as partition:
            await fill(partition, range(4, 8))
            lives.crash()
        async with lives.life() as partition:
            topic = lives.running.topics.by_name("orders")
            assert topic is not None
            lives.running.topics.reserve.give_up()
            with no_room(lives.running.state_commits):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(partition.load_producers)
                    with pytest.raises(NoSpace):
                        await lives.running.topics.delete(topic)
            assert await append(partition, batch(7, P)) == 7, "a repeat"
            assert await append(partition, batch(8, P)) == 8

    async def test_a_topic_that_is_gone_has_no_producers(self, lives: Lives) -> None:
        async with lives.life() as partition:
            await fill(partition, range(4))
            lives.crash()
        async with lives.life() as partition:
            topic = lives.running.topics.by_name("orders")
            assert topic is not None
            await lives.running.topics.delete(topic)
            with pytest.raises(KafkaError) as refused:
                await partition.load_producers()
            assert refused.value.code is ErrorCode.unknown_topic_or_partition
            assert partition.producers is None

    async def test_a_damaged_snapshot_is_a_matter_of_its_partition(
        self, lives: Lives, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The partition uses what the log still contains."""
        async with lives.life() as partition:
            await fill(partition, range(4))
            log = partition.log
        lives.change_state((ProducerSnapshotKey(log.topic_id, 0, 4).encode(), b'{"producers":[[5,'))
        async with lives.life() as partition:
            await append_plain(partition)
            await lives.running.producer_snapshots.save(least_bytes=1)
            lives.crash()
        async with lives.life() as partition:
            await lives.purge(partition, 2)
            assert await append(partition, batch(3, P)) == 3, "a repeat"
        assert "what is stored of its producers as of offset" in caplog.text

    async def test_many_producers_are_encoded_beside_the_loop(
        self, lives: Lives, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Appends during that time are not in the snapshot, as its offset shows."""
        encode, threads = ProducerSnapshot.encode, []
        monkeypatch.setattr(
            ProducerSnapshot,
            "encode",
            lambda self: (threads.append(threading.current_thread()), encode(self))[1],
        )
        async with lives.life() as partition:
            for producer_id in range(600):
                partition.append(batch(0, producer_id), wall_clock_ms(), lambda error: None)
            assert await append(partition, batch(0, 600)) == 600
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(lives.running.producer_snapshots.save, least_bytes=1))
                await trio.testing.wait_all_tasks_blocked()
                assert await append(partition, batch(0, 601)) == 601
            assert snapshots(lives.running, partition.log) == [601]
            lives.crash()
        assert threads[0] is not threading.main_thread()
        async with lives.life() as partition:
            assert await append(partition, batch(0, 600)) == 600, "a repeat"
            assert await append(partition, batch(0, 601)) == 601, "a repeat"

    async def test_producers_are_saved_when_a_full_disk_has_room_again(self, lives: Lives) -> None:
        """Retention continues without them, to free space."""
        async with lives.life() as partition:
            await fill(partition, range(4))
            broker = lives.running
            broker.topics.reserve.give_up()
            with no_room(broker.state_commits):
                await broker.topics.move_log_start(partition, 4, to_free_space=True)
            assert (partition.log_start_offset, snapshots(broker, partition.log)) == (4, [])
            await broker.producer_snapshots.save(least_bytes=SNAPSHOT_BYTES)
            assert snapshots(broker, partition.log) == [4]

    async def test_a_purge_does_not_read_a_large_log(
        self, lives: Lives, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Perhaps no idempotent producer ever wrote to it. The snapshot of every ten minutes does
        not read it either."""
        async with lives.life() as partition:
            await fill(partition, range(4))
            lives.crash()
        monkeypatch.setattr("kbroker.broker.logs.producer_recovery.SNAPSHOT_BYTES", 50)
        async with lives.life() as partition:
            await append_plain(partition)
            await lives.purge(partition, 3)
            await lives.running.producer_snapshots.save(least_bytes=1)
            assert partition.producers is None
            assert await append(partition, batch(3, P)) == 3, "an append waits for it all the same"


class TestReplays:
    @pytest.mark.parametrize("at", [16, 60], ids=["its header", "its payload"])
    async def test_nothing_from_before_a_damaged_batch_is_believed(self, lives: Lives, at: int) -> None:
        """P wrote before the damage and perhaps in it, Q after it."""
        async with lives.life() as partition:
            await fill(partition, range(3))
            log = partition.log
            lives.crash()
        lives.write(log, 3, damaged(batch(3, P), at))
        lives.write(log, 4, batch(0, Q))
        async with lives.life() as partition:
            for _ in range(2):  # The damage is not in the last segment, whose end a start cuts.
                await append_plain(partition, LATER_MS)
            lives.crash()
        async with lives.life() as partition:
            assert partition.high_watermark == 7
            producers = await partition.load_producers()
            assert [each.producer_id for each in producers.confirmed()] == [Q]
            assert await append(partition, batch(9, P)) == 7, "unknown, so it may continue at any sequence"
            assert await append(partition, batch(0, Q)) == 4, "a repeat"

    async def test_what_has_no_producer_is_not_replayed(
        self, lives: Lives, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nor is the log after a clean stop: a topic without idempotent producers may be large."""
        async with lives.life() as partition:
            await fill_plain(partition, 3)
        for end_offset in (4, 5):
            async with lives.life() as partition:
                await fill_plain(partition, 1)
                assert partition.producers is None
                assert partition.high_watermark == end_offset
                lives.crash()
        async with lives.life() as partition:
            reads: list[int] = []
            read_stored = partition.read_stored
            monkeypatch.setattr(
                partition,
                "read_stored",
                lambda offset, **more: (reads.append(offset), read_stored(offset, **more))[1],
            )
            await partition.load_producers()
            assert reads == [3], "what was written since the end in good order"

    async def test_state_is_saved_while_batches_are_under_way(self, lives: Lives) -> None:
        async with lives.life() as partition:
            await fill(partition, range(2))
            with blocked(lives.running.log_commits):
                partition.append(batch(2, P), wall_clock_ms(), lambda _: None)
                producers = await partition.load_producers()
                (known,) = producers.confirmed()
                assert [each.base_offset for each in known.batches] == [0, 1]
                await lives.running.producer_snapshots.save(least_bytes=1)
                assert snapshots(lives.running, partition.log) == [2]

    async def test_producers_expire_without_a_restart(
        self, lives: Lives, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with lives.life(config={"producer.id.expiration.ms": "1000"}) as partition:
            await fill(partition, range(2))
            await lives.running.producer_snapshots.save(least_bytes=1)
            assert partition.statistics().producers == 1
            monkeypatch.setattr("kbroker.broker.logs.producer_snapshots.wall_clock_ms", lambda: 1 << 62)
            await lives.running.producer_snapshots.save(least_bytes=1)
            assert partition.statistics().producers == 0, "although nothing was written since"
            lives.crash()
        async with lives.life() as partition:
            producers = await partition.load_producers()
            assert producers.confirmed() == ()

    async def test_others_do_not_wait_while_producers_are_read(
        self, lives: Lives, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with lives.life() as partition:
            await fill(partition, range(2))
        async with lives.life() as partition:
            may_end = threading.Event()
            read = partition._read_producers
            monkeypatch.setattr(partition, "_read_producers", lambda it: (may_end.wait(), read(it))[1])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(append, partition, batch(2, P))
                await trio.testing.wait_all_tasks_blocked()
                try:
                    assert await append_plain(partition) == 2
                finally:
                    may_end.set()
            assert partition.high_watermark == 4


async def append_plain(partition: Partition, timestamp_ms: int = NOW_MS) -> int:
    """Without loading the producers, unlike a request."""
    done = trio.Event()
    data = batch(timestamp_ms=timestamp_ms)
    appended = partition.append(data, wall_clock_ms(), lambda _: done.set())
    await done.wait()
    return appended.base_offset


async def fill_plain(partition: Partition, count: int) -> None:
    for _ in range(count):
        await append_plain(partition)
