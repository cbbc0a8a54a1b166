"""Transactions that run out of time, and those that a restart finds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import pytest
import trio

from kbroker.errors import ErrorCode, NoSpace
from kbroker.formats.transactions import MarkerType, TransactionState
from tests.api.conftest import Client, Connect, versions
from tests.api.dead_letter_queues import until
from tests.api.test_full_disk import refusing
from tests.api.transactional_producer import (
    VERIFY_FROM,
    Ended,
    Producer,
    aborted,
    add,
    both,
    committed,
    end,
    ends,
    init,
    markers,
    read,
    store,
)
from tests.broker.transactional_log import Log as BrokerLog

A, B = ("a", 0), ("a", 1)
OK, FENCED = ErrorCode.none, ErrorCode.producer_fenced
OLD_EPOCH, WRONG_STATE = ErrorCode.invalid_producer_epoch, ErrorCode.invalid_txn_state
UNKNOWN_ID = ErrorCode.invalid_producer_id_mapping
FAILED_END = (-1, -1)
TIMEOUT_MS = 1000
"""Long enough for the requests before it on a slow machine; the tests wait for its effect."""
OFTEN = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "10",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "10",
}


@asynccontextmanager
async def opened(connect: Connect, engine: str = "memory", **config: str) -> AsyncIterator[Client]:
    async with connect(engine, {**OFTEN, **config}) as client:
        if client.broker.topics.by_name("a") is None:
            await client.create_topic("a", 2)
        yield client


async def timed_out(client: Client, *, offset: int = 0) -> Any:
    """Waits until the transaction that begins at `offset` has ended."""
    with trio.fail_after(60):
        return await read(client, A, offset, wait_ms=600_000)


async def settled_end(client: Client, who: tuple[int, int], is_commit: bool, version: int) -> Ended:
    for _ in range(500):
        found = await end(client, "t", who, is_commit, version=version)
        if found.code not in (ErrorCode.concurrent_transactions, ErrorCode.coordinator_load_in_progress):
            return found
        await trio.sleep(0.01)
    raise AssertionError("the transaction does not end")


async def the_id_is_at_rest(client: Client, old: tuple[int, int]) -> None:
    """Its last state is stored after the markers are seen; until then a repeat has to wait."""
    assert (await settled_end(client, old, False, 5)).code == OK


# Time-outs


@both
async def test_a_time_out_aborts_and_fences(connect: Connect, generation: int) -> None:
    async with opened(connect) as client:
        producer = await Producer(client, generation=generation, timeout_ms=TIMEOUT_MS).init()
        old = producer.who
        await producer.send(A, b"lost")
        row = await timed_out(client)
        assert aborted(row) == [(old[0], 0)]
        assert (row.last_stable_offset, row.high_watermark) == (2, 2)
        assert await committed(client, A) == []

        await the_id_is_at_rest(client, old)
        assert (await producer.send_raw(A, b"x", adding=False)).error_code == OLD_EPOCH
        assert await add(client, "t", old, A) == {A: FENCED}
        for is_commit in (True, False):
            assert await end(client, "t", old, is_commit, version=4) == Ended(FENCED)
            assert await end(client, "t", old, is_commit, version=1) == Ended(OLD_EPOCH)
        assert await markers(client, A) == [MarkerType.ABORT]

        new = await Producer(client, generation=generation).init()
        assert new.who == (old[0], old[1] + 2), "the abort has taken one"
        await new.send(A, b"kept")
        await new.commit()
        assert await committed(client, A) == [b"kept"]


async def test_the_second_generation_goes_on_after_a_time_out(connect: Connect) -> None:
    """Its abort receives the new epoch; its commit must not look like a success, and 48 would be
    fatal."""  # KAFKA-20785
    async with opened(connect) as client:
        producer = await Producer(client, timeout_ms=TIMEOUT_MS).init()
        old = producer.who
        await producer.send(A, b"lost")
        await timed_out(client)
        await the_id_is_at_rest(client, old)
        assert await end(client, "t", old, True) == (FENCED, *FAILED_END)
        for _ in range(2):
            assert await end(client, "t", old, False) == Ended(OK, old[0], old[1] + 1)
        assert await end(client, "t", old, True) == (FENCED, *FAILED_END)
        await producer.abort()
        assert producer.who == (old[0], old[1] + 1)
        await producer.send(A, b"kept")
        await producer.commit()
        assert await committed(client, A) == [b"kept"]


async def test_the_own_epoch_is_known_after_a_time_out(connect: Connect) -> None:
    async with opened(connect) as client:
        producer = await Producer(client, generation=1, timeout_ms=TIMEOUT_MS).init()
        await producer.send(A, b"lost")
        await timed_out(client)
        old = producer.who
        await producer.init(own=True)
        assert producer.who == (old[0], old[1] + 1)
        await producer.send(A, b"kept")
        await producer.commit()
        assert await committed(client, A) == [b"kept"]


async def test_time_counts_from_the_first_partition(connect: Connect) -> None:
    """Ids without a transaction do not run out of time, and a new time-out replaces the old one."""
    async with opened(connect) as client:
        lasting = await Producer(client, "lasting", timeout_ms=TIMEOUT_MS).init()
        idle = await Producer(client, "idle", timeout_ms=TIMEOUT_MS).init()
        lasting.timeout_ms = 60_000
        await lasting.init()
        await lasting.send(B, b"lasting")
        late = await Producer(client, timeout_ms=TIMEOUT_MS).init()
        await late.send(A, b"lost")
        await timed_out(client)
        for producer in (lasting, idle):
            epoch = producer.epoch
            await producer.send(B, producer.transactional_id.encode())
            await producer.commit()
            assert producer.epoch == epoch + 1
        assert await committed(client, B) == [b"lasting", b"lasting", b"idle"]


async def test_a_partition_without_records_runs_out_of_time(connect: Connect) -> None:
    async with opened(connect) as client:
        producer = await Producer(client, generation=1, timeout_ms=TIMEOUT_MS).init()
        await producer.add(A)
        row = await timed_out(client)
        assert (row.last_stable_offset, aborted(row)) == (1, [])
        await the_id_is_at_rest(client, producer.who)
        assert await add(client, "t", producer.who, A) == {A: FENCED}


async def test_unused_ids_are_forgotten(connect: Connect) -> None:
    """Not one with an open transaction."""
    async with opened(connect, **{"transactional.id.expiration.ms": str(TIMEOUT_MS)}) as client:
        busy = await Producer(client, "busy").init()
        await busy.send(A, b"kept")
        unused = await Producer(client, "unused").init()
        for _ in range(3000):
            found = await add(client, "unused", unused.who, A, version=VERIFY_FROM, verify=True)
            if found[A] == UNKNOWN_ID:
                break
            assert found[A] == ErrorCode.transaction_abortable
            await trio.sleep(0.01)
        assert await add(client, "unused", unused.who, A) == {A: UNKNOWN_ID}
        assert await end(client, "unused", unused.who, False) == (UNKNOWN_ID, *FAILED_END)
        await busy.commit()
        assert await committed(client, A) == [b"kept"]
        answer = await init(client, "unused")
        assert (answer.error_code, answer.producer_epoch) == (OK, 0)
        assert answer.producer_id != unused.producer_id


async def test_unused_ids_are_forgotten_after_a_full_disk(connect: Connect) -> None:
    """All of them, not only the first one whose removal was refused."""
    async with opened(connect, **{"transactional.id.expiration.ms": str(TIMEOUT_MS)}) as client:
        names = ["t1", "t2", "t3"]
        for name in names:
            await Producer(client, name).init()
        coordinator, commits = client.broker.transactions.coordinator, client.broker.state_commits
        with refusing(client, NoSpace("the disk is full")):
            await until(lambda: commits.statistics().refused)
        assert [name for name, _ in coordinator.records()] == names
        await until(lambda: not list(coordinator.records()))
        for name in names:
            answer = await init(client, name)
            assert (answer.error_code, answer.producer_epoch) == (OK, 0)


async def test_a_log_that_cannot_take_a_marker_is_named(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(batches: object) -> NoReturn:
        raise NoSpace("the disk is full")

    async with opened(connect) as client, trio.open_nursery() as nursery:
        producer = await Producer(client).init()
        await producer.send(B, b"kept")
        commits: Any = client.broker.log_commits
        commits._write, before = refuse, commits._write
        nursery.start_soon(producer.commit)
        await until(lambda: "has to wait" in caplog.text)
        commits._write = before
        waits = f"a-1: the end of the transaction of producer {producer.producer_id} has to wait"
        assert f"{waits}: the disk is full" in caplog.text


# Restarts


@both
@pytest.mark.parametrize("is_commit", [True, False])
async def test_an_open_transaction_goes_on(
    connect: Connect, every_engine: str, generation: int, is_commit: bool
) -> None:
    async with opened(connect, every_engine) as client:
        producer = await Producer(client, generation=generation).init()
        await producer.send(A, b"1")
        await producer.send(B, b"2")
    for offset, value in ((1, b"3"), (2, b"4")):
        async with opened(connect, every_engine) as client:
            producer.on(client)
            assert await ends(client, A) == (0, offset)
            assert await committed(client, A) == []
            assert await producer.send(A, value) == offset
    async with opened(connect, every_engine) as client:
        producer.on(client)
        await producer.end(is_commit)
        wanted = [[b"1", b"3", b"4"], [b"2"]] if is_commit else [[], []]
        assert [await committed(client, log) for log in (A, B)] == wanted
        assert [await ends(client, log) for log in (A, B)] == [(4, 4), (2, 2)]
        await producer.send(B, b"5")
        await producer.commit()
        assert await committed(client, B) == [*wanted[1], b"5"]


@both
async def test_an_open_transaction_ends_right_after_a_restart(
    connect: Connect, every_engine: str, generation: int
) -> None:
    """Nothing else has been read or written by then."""
    async with opened(connect, every_engine) as client:
        producer = await Producer(client, generation=generation).init()
        await producer.send(A, b"1")
    async with opened(connect, every_engine) as client:
        producer.on(client)
        await producer.abort()
        assert aborted(await read(client, A)) == [(producer.producer_id, 0)]
        assert await ends(client, A) == (2, 2)


@both
async def test_ended_transactions_stay_ended(connect: Connect, every_engine: str, generation: int) -> None:
    async with opened(connect, every_engine) as client:
        producer = await Producer(client, generation=generation).init()
        await producer.send(A, b"1")
        await producer.commit()
        await producer.send(A, b"2")
        await producer.abort()
        other = await Producer(client, "u", generation=generation).init()
        await other.send(A, b"open")
        await producer.send(A, b"3")
        await producer.commit()
    for _ in range(2):
        async with opened(connect, every_engine) as client:
            row = await read(client, A)
            assert (row.last_stable_offset, row.high_watermark) == (4, 7)
            assert aborted(row) == [(producer.producer_id, 2)]
            assert await committed(client, A) == [b"1"]
            assert await markers(client, A) == [MarkerType.COMMIT, MarkerType.ABORT, MarkerType.COMMIT]
    async with opened(connect, every_engine) as client:
        other.on(client)
        await other.commit()
        assert await committed(client, A) == [b"1", b"open", b"3"]
        assert await ends(client, A) == (8, 8)


async def test_the_state_of_ids_survives(connect: Connect, every_engine: str) -> None:
    async with opened(connect, every_engine) as client:
        first = await Producer(client, "t", generation=1).init()
        await first.send(A, b"1")
        await first.commit()
        second = await Producer(client, "u").init()
        await second.send(B, b"2")
        old = second.who
        ended = await second.abort()
    async with opened(connect, every_engine) as client:
        assert await end(client, "t", first.who, True, version=4) == Ended(OK)
        assert await end(client, "t", first.who, False, version=4) == Ended(WRONG_STATE)
        assert await end(client, "u", old, False) == ended
        assert await end(client, "u", old, True) == (FENCED, *FAILED_END)
        for producer in (first, second):
            producer.on(client)
            epoch = producer.epoch
            await producer.init(own=True)
            assert producer.epoch == epoch + 1
        third = await Producer(client, "v").init()
        assert third.producer_id not in (first.producer_id, second.producer_id)
    async with opened(connect, every_engine) as client:
        answer = await init(client, "t", own=(first.producer_id, first.epoch - 1))
        assert (answer.error_code, answer.producer_epoch) == (OK, first.epoch), "a repeat"


async def test_repeats_after_a_restart(connect: Connect, every_engine: str) -> None:
    async with opened(connect, every_engine) as client:
        producer = await Producer(client).init()
        await producer.send(A, b"1")
        await producer.send(A, b"2")
    async with opened(connect, every_engine) as client:
        producer.on(client)
        for sequence, value in enumerate((b"1", b"2")):
            row = await producer.send_raw(A, value, sequence=sequence)
            assert (row.error_code, row.base_offset) == (OK, sequence)
        await producer.commit()
        assert await committed(client, A) == [b"1", b"2"]


async def test_a_time_out_counts_on_over_a_restart(connect: Connect, every_engine: str) -> None:
    async with opened(connect, every_engine) as client:
        producer = await Producer(client, timeout_ms=TIMEOUT_MS).init()
        await producer.send(A, b"lost")
    async with opened(connect, every_engine) as client:
        assert aborted(await timed_out(client)) == [(producer.producer_id, 0)]
        producer.on(client)
        await the_id_is_at_rest(client, producer.who)
        assert await end(client, "t", producer.who, True) == (FENCED, *FAILED_END)
        await producer.abort()
        assert producer.epoch == 1


@both
@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("is_half_done", [True, False])
async def test_a_start_finishes_what_was_decided(
    connect: Connect, every_engine: str, generation: int, is_commit: bool, is_half_done: bool
) -> None:
    """The last broker stored the decision, and stopped before all markers were written."""
    async with opened(connect, every_engine) as client:
        producer = await Producer(client, generation=generation).init()
        await producer.send(A, b"1")
        await producer.send(B, b"2")
        old = producer.who
        epoch = old[1] + (generation == 2)
        if is_half_done:
            log = BrokerLog(client.partition("a", 1))
            await log.end(old[0], MarkerType(is_commit), epoch=epoch, version=generation)
        decided = TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT
        last = old[1] if generation == 2 else -1
        await store(client, state=decided, producer_epoch=epoch, last_producer_epoch=last)
    async with opened(connect, every_engine) as client:
        with trio.fail_after(60):
            for each in (A, B):
                await read(client, each, wait_ms=600_000)
        wanted = [[b"1"], [b"2"]] if is_commit else [[], []]
        assert [await committed(client, each) for each in (A, B)] == wanted
        for each in (A, B):
            assert set(await markers(client, each)) == {MarkerType(is_commit)}
            stable, high = await ends(client, each)
            assert stable == high
        assert len(await markers(client, A)) == 1
        version = 5 if generation == 2 else 4
        ended = Ended(OK, old[0], epoch) if generation == 2 else Ended(OK)
        assert await settled_end(client, old, is_commit, version) == ended, "a repeat"
        producer.on(client)
        producer.become(old[0], epoch)
        await producer.init()
        await producer.send(A, b"3")
        await producer.commit()
        assert (await committed(client, A))[-1:] == [b"3"]


async def test_a_decision_about_a_topic_that_is_gone(connect: Connect, every_engine: str) -> None:
    async with opened(connect, every_engine) as client:
        await client.create_topic("b")
        producer = await Producer(client).init()
        await producer.send(A, b"1")
        await producer.send(("b", 0), b"2")
        old = producer.who
        await client.call("delete_topics", 6, topics=[{"name": "b", "topic_id": None}])
        await store(
            client,
            state=TransactionState.PREPARE_COMMIT,
            producer_epoch=old[1] + 1,
            last_producer_epoch=old[1],
        )
    async with opened(connect, every_engine) as client:
        assert await settled_end(client, old, True, 5) == Ended(OK, old[0], old[1] + 1)
        assert await committed(client, A) == [b"1"]


# FindCoordinator


@pytest.mark.parametrize("version", versions("find_coordinator"))
async def test_this_broker_coordinates_every_id(connect: Connect, version: int) -> None:
    if version == 0:
        return  # has only groups
    async with connect() as client:
        answer = await client.call(
            "find_coordinator", version, key_type=1, key="t", coordinator_keys=["t", "u"]
        )
        rows = answer.coordinators if version >= 4 else [answer]
        if version >= 4:
            assert [row.key for row in rows] == ["t", "u"]
        broker = client.broker
        for row in rows:
            assert row.error_code == OK
            assert (row.node_id, row.host, row.port) == (broker.node_id, broker.host, broker.port)
