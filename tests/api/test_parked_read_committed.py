"""Parked records of aborted transactions, in a group that is switched to read_committed after they
were parked: no member gets them, from the log nor from copies beside it. Rules ISO-2 and ISO-6."""

from __future__ import annotations

from uuid import UUID

import pytest
import trio

from kbroker.clock import wall_clock_ms
from kbroker.formats.batches import (
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    ProducerInfo,
    Record,
    build_batch,
    crc_is_valid,
    read_header,
)
from kbroker.formats.kept_copies import copy_of, is_aborted_copy, without_mark
from kbroker.formats.transactions import MarkerType
from kbroker.share.persister import TopicPartition
from tests.api.conftest import Client, Connect
from tests.api.dead_letter_queues import until
from tests.api.share_consumers import ACCEPT, GROUP, RELEASE, Member, acquired, sent, set_up_group
from tests.api.test_kept_records import SCHEDULING, SEGMENT, begin, fill, look
from tests.api.test_parked_records import engine_of, parked
from tests.api.test_work_queue import FAST, lag
from tests.broker.transactional_log import Log

pytestmark = pytest.mark.usefixtures("parks_at_once", "queues_are_left_alone")

ABORT, COMMIT = MarkerType.ABORT, MarkerType.COMMIT
ABORTED, COMMITTED, PLAIN = range(3)
SWITCH = {"share.isolation.level": "read_committed"}
DELAY = {"kbroker.queue.redelivery.delay.ms": "1500", "kbroker.queue.redelivery.jitter": "0"}
DELAY_MS = 1500


async def log_of(client: Client) -> Log:
    partition = client.partition("orders")
    partition.has_transactions = True  # As AddPartitionsToTxn does before the first batch.
    await partition.load_producers()
    return Log(partition)


async def append(log: Log, producer_id: int | None, due_ms: int | None) -> int:
    headers = () if due_ms is None else (("kbroker-deliver-at", str(due_ms).encode()),)
    return await log.send(
        7 if producer_id is None else producer_id, transactional=producer_id is not None, headers=headers
    )


async def park(client: Client, key: tuple[UUID, int], *, scheduled: bool) -> list[int]:
    """A job each of two producers and of none; all three are parked."""
    due_ms = wall_clock_ms() + DELAY_MS if scheduled else None
    log = await log_of(client)
    offsets = [await append(log, producer_id, due_ms) for producer_id in (5, 6, None)]
    member = Member(client, "m1")
    if scheduled:
        assert acquired(await member.fetch([key], wait_ms=100)) == []
    else:
        taken: list[int] = []
        answer = await member.fetch([key], wait_ms=5000)
        while runs := acquired(answer):
            taken += [offset for first, last, _ in runs for offset in range(first, last + 1)]
            answer = await member.fetch(acks={key: [(first, last, [RELEASE]) for first, last, _ in runs]})
        assert taken == offsets
    await until(lambda: parked(client, key) == 3)
    await log.end(5, ABORT)
    await log.end(6, COMMIT)
    await member.fetch(epoch=-1)
    return offsets


async def take_all(client: Client, key: tuple[UUID, int], member_id: str) -> list[int]:
    """All that a member gets until nothing is left."""
    member, taken = Member(client.another(9), member_id), list[int]()
    with trio.fail_after(60):
        while await lag(client):
            answer = await member.fetch([key] if member.epoch == 0 else (), wait_ms=500)
            assert sorted(sent(answer)) == sorted(
                offset for first, last, _ in acquired(answer) for offset in range(first, last + 1)
            )
            taken += sent(answer)
            if acquired(answer):
                await member.acknowledge(
                    {key: [(first, last, [ACCEPT]) for first, last, _ in acquired(answer)]}
                )
    return sorted(taken)


@pytest.mark.parametrize("persister", ["default", "control-records"])
@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("is_switched", [False, True])
async def test_parked_in_the_log(
    connect: Connect, every_engine: str, persister: str, scheduled: bool, is_switched: bool
) -> None:
    """Also over a restart, after which no member has read the log."""
    config = {**FAST, "kbroker.persister": persister}
    async with connect(every_engine, config) as client:
        key = await begin(client, SCHEDULING if scheduled else DELAY, {})
        offsets = await park(client, key, scheduled=scheduled)
        if is_switched:
            await set_up_group(client, SWITCH)
    async with connect(every_engine, config) as client:
        client.partition("orders").has_transactions = True
        taken = await take_all(client, key, "m2")
        assert taken == (offsets[COMMITTED:] if is_switched else offsets)
        assert parked(client, key) == 0


@pytest.mark.parametrize("persister", ["default", "control-records"])
@pytest.mark.parametrize("is_switched", [False, True])
async def test_kept_beside_the_log(
    connect: Connect, every_engine: str, persister: str, is_switched: bool
) -> None:
    """The log has lost the records, the marker, and what the broker knew of the transaction."""
    config = {**FAST, "kbroker.persister": persister}
    async with connect(every_engine, config) as client:
        key = await begin(client, DELAY, SEGMENT)
        offsets = await park(client, key, scheduled=False)
        await fill(client, first=5)
        member, others = Member(client, "m1"), 0
        with trio.fail_after(60):
            while others < 200:
                answer = await member.fetch([key] if member.epoch == 0 else (), wait_ms=500)
                runs = [each for each in acquired(answer) if each[0] > offsets[-1]]
                others += sum(last + 1 - first for first, last, _ in runs)
                back = [each for each in acquired(answer) if each[0] <= offsets[-1]]
                acks = [(first, last, [ACCEPT]) for first, last, _ in runs]
                acks += [(first, last, [RELEASE]) for first, last, _ in back]
                if acks:
                    await member.acknowledge({key: sorted(acks)})
        assert await look(client, 3) > 100
        assert await lag(client) == 3
        await member.fetch(epoch=-1)
    async with connect(every_engine, config) as client:
        if is_switched:
            await set_up_group(client, SWITCH)
        client.partition("orders").has_transactions = True
        taken = await take_all(client, key, "m2")
        assert taken == (offsets[COMMITTED:] if is_switched else offsets)


async def test_behind_an_open_transaction_it_waits(connect: Connect) -> None:
    async with connect(config=FAST) as client:
        key = await begin(client, DELAY, {})
        log = await log_of(client)
        open_from = await append(log, 5, None)
        member = Member(client, "m1")
        assert acquired(await member.fetch([key], wait_ms=5000)) == [(open_from, open_from, 1)]
        await member.fetch(acks={key: [(open_from, open_from, [RELEASE])]})
        await set_up_group(client, SWITCH)
        engine = engine_of(client, key)
        await until(lambda: engine.parking is not None and engine.parking.ready == 1)
        assert acquired(await member.fetch()) == []
        await log.end(5, COMMIT)
        assert acquired(await member.fetch(wait_ms=5000)) == [(open_from, open_from, 2)]
        assert client.broker.share_partitions.find(GROUP, TopicPartition(*key)) is not None


@pytest.mark.parametrize("attributes", [0, TRANSACTIONAL, TRANSACTIONAL | LOG_APPEND_TIME])
@pytest.mark.parametrize("is_aborted", [False, True])
def test_a_copy_and_its_mark(attributes: int, is_aborted: bool) -> None:
    record = Record(7, 1000, b"k", b"v", (("h", b"x"),))
    producer = ProducerInfo(5, 2, 9) if attributes else ProducerInfo()
    stored = build_batch([record], base_offset=7, leader_epoch=3, producer=producer, attributes=attributes)
    copy = copy_of(record, read_header(stored), is_aborted=is_aborted)
    assert is_aborted_copy(copy) == is_aborted
    assert crc_is_valid(copy, 0, read_header(copy))
    assert without_mark(copy) == stored
