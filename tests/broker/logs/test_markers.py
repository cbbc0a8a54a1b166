"""Transactions in a log: their markers, the last stable offset, and both across restarts, crashes
and damage, on every engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kbroker.broker.commits.waiting import Waiter
from kbroker.broker.logs.partition import ProducersNotLoaded
from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.batches import ProducerInfo, read_header
from kbroker.formats.transactions import AbortedKey, AbortedTransaction, Marker, MarkerType
from tests.broker.logs.test_producer_recovery import Lives, batch, damaged
from tests.broker.transactional_log import Log
from tests.brokers import DURABLE_ENGINES, require_engine

P, Q = 5, 6
ABORT, COMMIT = MarkerType.ABORT, MarkerType.COMMIT


@pytest.fixture(params=DURABLE_ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return require_engine(request.param)


@asynccontextmanager
async def opened(lives: Lives) -> AsyncIterator[Log]:
    async with lives.life() as partition:
        await partition.load_producers()
        yield Log(partition)


async def test_a_marker_ends_a_transaction(tmp_path: Path, engine: str) -> None:
    async with opened(Lives(tmp_path, engine)) as log:
        assert (await log.send(P), log.stable) == (0, 0)
        assert (await log.send(Q), log.stable) == (1, 0)
        assert (await log.end(P, COMMIT), log.stable) == (2, 1)
        assert (await log.end(Q, ABORT), log.stable) == (3, 4)
        assert log.aborted() == [AbortedTransaction(Q, 1, 3, 4)]


async def test_a_marker_is_as_in_kafka(tmp_path: Path) -> None:
    """78 bytes, attributes 0x30, no sequence, one record."""
    async with opened(Lives(tmp_path, "segment")) as log:
        await log.send(P)
        offset = await log.end(P, COMMIT, epoch=1, coordinator=7, version=2)
        (view,) = await log.partition.read(offset, max_bytes=1, end_offset=offset + 1)
        header = read_header(view)
        assert (len(view), header.attributes, header.record_count) == (78, 0x30, 1)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (P, 1, -1)
        assert Marker.from_batch(view, 0) == Marker(COMMIT, 7)


async def test_a_marker_wakes_waiting_readers(tmp_path: Path) -> None:
    async with opened(Lives(tmp_path, "segment")) as log:
        await log.send(P)
        waiter = Waiter()
        log.partition.waiters.add(waiter)
        await log.end(P, COMMIT)
        assert waiter.woken


async def test_a_transaction_is_open_until_its_marker_is_durable(tmp_path: Path) -> None:
    async with opened(Lives(tmp_path, "segment")) as log:
        await log.send(P)
        seen = []
        log.partition.append_marker(
            COMMIT, ProducerInfo(P, 0, -1), coordinator_epoch=0, version=1, now_ms=1, on_done=seen.append
        )
        assert log.stable == 0
        await log.send(Q, transactional=False)
        assert (seen, log.stable) == ([None], 3)


async def test_a_plain_batch_of_the_producer_is_refused_meanwhile(tmp_path: Path) -> None:
    async with opened(Lives(tmp_path, "segment")) as log:
        await log.send(P)
        with pytest.raises(KafkaError) as caught:
            await log.send(P, transactional=False)
        assert caught.value.code is ErrorCode.invalid_txn_state
        await log.send(Q, transactional=False)
        await log.end(P, COMMIT)
        await log.send(P, transactional=False)


@pytest.mark.parametrize(
    ("epoch", "version", "code"),
    [
        (2, 1, ErrorCode.invalid_producer_epoch),
        (2, 2, ErrorCode.invalid_producer_epoch),
        (3, 1, None),
        (3, 2, ErrorCode.invalid_producer_epoch),
        (4, 1, None),
        (4, 2, None),
    ],
)
async def test_a_late_marker_is_refused(
    tmp_path: Path, epoch: int, version: int, code: ErrorCode | None
) -> None:
    async with opened(Lives(tmp_path, "segment")) as log:
        await log.send(P, epoch=3)
        if code is None:
            await log.end(P, COMMIT, epoch=epoch, version=version)
            await log.end(P, COMMIT, epoch=epoch, version=version)  # A repeat changes nothing.
            assert (log.stable, log.aborted()) == (3, [])
        else:
            with pytest.raises(KafkaError) as caught:
                await log.end(P, COMMIT, epoch=epoch, version=version)
            assert (caught.value.code, log.stable) == (code, 0)


async def test_an_old_coordinator_is_refused(tmp_path: Path) -> None:
    async with opened(Lives(tmp_path, "segment")) as log:
        await log.send(P)
        await log.end(P, COMMIT, coordinator=4)
        await log.send(P)
        with pytest.raises(KafkaError) as caught:
            await log.end(P, ABORT, coordinator=3)
        assert caught.value.code is ErrorCode.transaction_coordinator_fenced
        await log.end(P, COMMIT, coordinator=4)


async def test_a_new_epoch_begins_at_sequence_0(tmp_path: Path) -> None:
    async with opened(Lives(tmp_path, "segment")) as log:
        await log.send(P)
        await log.send(P)
        await log.end(P, COMMIT, epoch=1, version=2)
        for epoch, sequence, code in [
            (1, 2, ErrorCode.out_of_order_sequence_number),
            (0, 1, ErrorCode.invalid_producer_epoch),
        ]:
            with pytest.raises(KafkaError) as caught:
                await log.send(P, epoch=epoch, sequence=sequence)
            assert caught.value.code is code
        await log.send(P, epoch=1)


async def test_producers_must_be_loaded_first(tmp_path: Path) -> None:
    lives = Lives(tmp_path, "segment")
    async with lives.life() as partition:
        assert partition.producers is not None
    async with lives.life() as partition:
        with pytest.raises(ProducersNotLoaded):
            await Log(partition).end(P, COMMIT)


@pytest.mark.parametrize("is_crash", [False, True])
async def test_transactions_survive_a_restart(tmp_path: Path, engine: str, is_crash: bool) -> None:
    lives = Lives(tmp_path, engine)
    async with opened(lives) as log:
        await log.send(P)
        await log.send(Q)
        await log.end(P, ABORT, epoch=1, coordinator=2, version=2)
        await log.send(P, epoch=1)
        if is_crash:
            lives.crash()
    for _ in range(2):
        async with opened(lives) as log:
            assert log.stable == 1
            assert log.aborted() == [AbortedTransaction(P, 0, 2, 1)]
            assert log.partition.producers is not None
            assert [log.partition.producers.has_open(each) for each in (P, Q, 99)] == [True, True, False]
    async with opened(lives) as log:
        with pytest.raises(KafkaError):
            await log.end(P, COMMIT, epoch=1, coordinator=1, version=1)
        await log.end(P, COMMIT, epoch=2, coordinator=3, version=2)
        await log.end(Q, ABORT)
        assert log.stable == 6
        assert log.aborted() == [AbortedTransaction(P, 0, 2, 1), AbortedTransaction(Q, 1, 5, 6)]


async def test_a_purge_forgets_aborted_transactions(tmp_path: Path, engine: str) -> None:
    lives = Lives(tmp_path, engine)
    async with opened(lives) as log:
        for _ in range(3):
            await log.send(P)
            await log.end(P, ABORT)
        await log.send(P)
        await lives.running.producer_snapshots.save(least_bytes=1)
        assert len(stored_aborted(lives)) == 3
        await lives.purge(log.partition, 3)
        assert log.stable == 6
        await log.send(Q)
        await lives.running.producer_snapshots.save(least_bytes=1)
        assert [each.last_offset for each in log.aborted()] == [3, 5]
        assert stored_aborted(lives) == [3, 5]
    async with opened(lives) as log:
        assert [each.last_offset for each in log.aborted()] == [3, 5]


async def test_a_purge_may_pass_an_open_transaction(tmp_path: Path, engine: str) -> None:
    lives = Lives(tmp_path, engine)
    async with opened(lives) as log:
        await log.send(P)
        await log.send(P)
        await lives.purge(log.partition, 1)
        assert log.stable == 1
        await lives.purge(log.partition, 2)
        assert log.stable == 2
    async with opened(lives) as log:
        assert log.stable == 2
        await log.end(P, ABORT)
        assert log.stable == 3


async def test_a_power_cut_may_take_a_marker(tmp_path: Path, engine: str) -> None:
    """The aborted transaction was stored, but its marker is gone: it is open again."""
    lives = Lives(tmp_path, engine)
    async with opened(lives) as log:
        await log.send(P)
        await log.end(P, ABORT)
        lives.crash()
    lives.lose(log.partition.log, 1)
    async with opened(lives) as log:
        assert (log.stable, log.aborted()) == (0, [])
        await log.end(P, COMMIT)
        assert (log.stable, log.aborted()) == (2, [])
    async with opened(lives) as log:
        assert (log.stable, log.aborted()) == (2, [])


def stored_aborted(lives: Lives) -> list[int]:
    keys = (key for key, _ in lives.running.state_store.scan(AbortedKey.namespace))
    return [AbortedKey.parse(key[len(AbortedKey.namespace) :]).last_offset for key in keys]


@pytest.mark.parametrize("damages", [1, 2])
async def test_damage_forgets_no_transaction(tmp_path: Path, engine: str, damages: int) -> None:
    """One that is open stays open, and one that was aborted is known and stored."""
    if engine == "segment":
        damages = 1  # After a second crash it cuts off its log at the damage.
    lives = Lives(tmp_path, engine)
    markers = []
    async with opened(lives) as log:
        await log.send(P)
        lives.crash()
    for _ in range(damages):
        async with opened(lives) as log:
            await log.send(Q)
            markers.append(await log.end(Q, ABORT))
            lives.crash()
        end = markers[-1] + 1
        lives.write(log.partition.log, end, damaged(batch(0, 99), 70))
    for _ in range(2):
        async with opened(lives) as log:
            assert log.stable == 0
            assert [each.last_offset for each in log.aborted()] == markers
    async with opened(lives) as log:
        markers.append(await log.end(P, ABORT, epoch=1))
        assert log.stable == markers[-1] + 1
    async with opened(lives) as log:
        assert [each.last_offset for each in log.aborted()] == markers
        assert [each.producer_id for each in log.aborted()] == [*[Q] * damages, P]


async def test_a_damaged_entry_does_not_stop_the_broker(tmp_path: Path) -> None:
    lives = Lives(tmp_path, "segment")
    async with opened(lives) as log:
        await log.send(P)
        await log.end(P, ABORT)
        await lives.running.producer_snapshots.save(least_bytes=1)
        key = AbortedKey(*log.partition.log, 1).encode()
        await lives.running.state_commits.commit([(key, b"damaged")])
    async with lives.life() as partition:
        with pytest.raises(KafkaError) as caught:
            await partition.load_producers()
        assert caught.value.code is ErrorCode.kafka_storage_error
