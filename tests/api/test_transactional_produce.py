"""Produce requests of transactional producers: who may write, and into which transaction."""

from __future__ import annotations

import pytest

from kbroker.errors import ErrorCode
from kbroker.formats.batches import NO_PRODUCER, ProducerInfo
from kbroker.formats.transactions import MarkerType
from tests.api.conftest import Connect, versions
from tests.api.producing import batch
from tests.api.transaction_clients import log_of
from tests.api.transactional_producer import (
    ADDING_FROM,
    LAST_PRODUCE,
    VERIFY_FROM,
    Log,
    Producer,
    aborted,
    add,
    both,
    committed,
    end,
    ends,
    every_batch,
    markers,
    opened,
    produce_rows,
    read,
    transactional_batch,
)

A, B, C = ("a", 0), ("a", 1), ("b", 0)
NOWHERE = ("nowhere", 0)
OK, ABORTABLE = ErrorCode.none, ErrorCode.transaction_abortable
WRONG_STATE, WRONG_ID = ErrorCode.invalid_txn_state, ErrorCode.invalid_producer_id_mapping
OLD_EPOCH, WRONG_SEQUENCE = ErrorCode.invalid_producer_epoch, ErrorCode.out_of_order_sequence_number
NOT_ADDED = "Partition was not added to the transaction"
PRODUCE = versions("produce")
MESSAGE_FROM = 8
ABORTABLE_FROM = 11


async def is_part(producer: Producer, log: Log) -> bool:
    found = await add(
        producer.client, producer.transactional_id, producer.who, log, version=VERIFY_FROM, verify=True
    )
    assert found[log] in (OK, ABORTABLE)
    return bool(found[log] == OK)


@pytest.mark.parametrize("version", PRODUCE)
async def test_the_log_knows_a_producer_that_its_id_has_left(connect: Connect, version: int) -> None:
    """Its epochs were exhausted, and its id has another producer. The log has the newer epoch of
    the last marker, and that is the answer, as in Kafka."""
    former = 1000
    async with opened(connect) as (client, _):
        await (await log_of(client)).end(former, MarkerType.ABORT, epoch=5)
        for epoch, code in ((4, OLD_EPOCH), (5, WRONG_ID), (6, WRONG_ID)):
            data = transactional_batch(ProducerInfo(former, epoch, 0), b"late")
            rows = await produce_rows(client, "t", {A: data}, version=version)
            assert rows[A].error_code == code


@pytest.mark.parametrize("version", PRODUCE)
async def test_a_partition_that_was_not_added(connect: Connect, version: int) -> None:  # BASE-63
    async with opened(connect) as (client, producer):
        await add(client, "t", producer.who, B)
        row = await producer.send_raw(A, b"x", version=version, adding=False)
        if version >= ADDING_FROM:
            assert row.error_code == OK
            assert await is_part(producer, A)
            return
        old = version < ABORTABLE_FROM
        assert (row.error_code, row.base_offset) == (WRONG_STATE if old else ABORTABLE, -1)
        if version >= MESSAGE_FROM:
            assert row.error_message == (NOT_ADDED if old else None)
        assert not await is_part(producer, A)
        assert await ends(client, A) == (0, 0)


@pytest.mark.parametrize("version", PRODUCE)
async def test_a_topic_that_was_recreated(connect: Connect, version: int) -> None:
    """Its new log is no part of the transaction: the records before are gone, and Kafka would
    commit the others. It can be added like any log."""
    async with opened(connect) as (client, producer):
        await producer.add(C)
        assert (await producer.send_raw(C, b"lost", version=version)).error_code == OK
        (row,) = (await client.call("delete_topics", 5, topic_names=["b"])).responses
        assert row.error_code == OK
        await client.create_topic("b")
        row = await producer.send_raw(C, b"x", sequence=0, version=version, adding=False)
        if version < ADDING_FROM:
            assert row.error_code == (WRONG_STATE if version < ABORTABLE_FROM else ABORTABLE)
            assert await ends(client, C) == (0, 0)
            await producer.add(C)
            row = await producer.send_raw(C, b"x", sequence=0, version=version)
        assert (row.error_code, row.base_offset) == (OK, 0)
        assert (await end(client, "t", producer.who, True, version=4)).code == OK
        assert await committed(client, C) == [b"x"]


@pytest.mark.parametrize("version", PRODUCE)
async def test_an_added_partition(connect: Connect, version: int) -> None:
    async with opened(connect) as (client, producer):
        await producer.add(A)
        for offset in range(3):
            row = await producer.send_raw(A, b"x", version=version)
            assert (row.error_code, row.base_offset) == (OK, offset)
        assert await ends(client, A) == (0, 3)
        assert (await end(client, "t", producer.who, True, version=4)).code == OK
        assert await committed(client, A) == [b"x"] * 3
        assert await ends(client, A) == (4, 4)


@pytest.mark.parametrize("version", PRODUCE)
async def test_without_a_transactional_id(connect: Connect, version: int) -> None:  # BASE-25
    async with opened(connect) as (client, producer):
        await producer.add(A)
        data = {A: producer.batch(A, b"x"), B: batch(b"plain")}
        rows = await produce_rows(client, None, data, version=version)
        assert rows[A].error_code == ErrorCode.transactional_id_authorization_failed
        assert rows[B].error_code == OK, "better than Kafka, which refuses the whole request"
        assert await ends(client, A) == (0, 0)


@pytest.mark.parametrize("version", PRODUCE)
@pytest.mark.parametrize("transactional_id", ["u", "unknown"])
async def test_the_id_of_another_producer(connect: Connect, version: int, transactional_id: str) -> None:
    async with opened(connect, "t", "u") as (client, producer, other):
        await other.add(A)
        rows = await produce_rows(client, transactional_id, {A: producer.batch(A, b"x")}, version=version)
        assert rows[A].error_code == WRONG_ID
        assert await ends(client, A) == (0, 0)


@pytest.mark.parametrize("version", PRODUCE)
@pytest.mark.parametrize("step", [-1, 1])
async def test_an_epoch_that_is_not_the_coordinators(connect: Connect, version: int, step: int) -> None:
    async with opened(connect) as (client, producer):
        await producer.init()
        await producer.add(A)
        data = transactional_batch(ProducerInfo(producer.producer_id, producer.epoch + step, 0), b"x")
        rows = await produce_rows(client, "t", {A: data, B: data}, version=version)
        assert {log: row.error_code for log, row in rows.items()} == {A: OLD_EPOCH, B: OLD_EPOCH}
        assert await ends(client, A) == (0, 0)
        assert not await is_part(producer, B)


@both
async def test_a_fenced_producer(connect: Connect, generation: int) -> None:
    """Between two of its batches another one takes the id."""
    async with opened(connect, generation=generation) as (client, old):
        await old.send(A, b"old")
        new = await Producer(client, generation=generation).init()
        for log in (A, B):
            assert (await old.send_raw(log, b"x", adding=False)).error_code == OLD_EPOCH
        await new.send(A, b"new")
        assert (await old.send_raw(A, b"x", adding=False)).error_code == OLD_EPOCH
        await new.commit()
        assert await committed(client, A) == [b"new"]


@pytest.mark.parametrize("version", PRODUCE)
@pytest.mark.parametrize("is_same_id", [True, False])
async def test_two_producers_in_one_request(connect: Connect, version: int, is_same_id: bool) -> None:
    async with opened(connect, "t", "u") as (client, first, other):
        await first.add(A, B)
        await other.add(A, B)
        second = (
            ProducerInfo(first.producer_id, 1, 0)
            if is_same_id
            else ProducerInfo(other.producer_id, other.epoch, 0)
        )
        data = {A: first.batch(A, b"x"), B: transactional_batch(second, b"x")}
        rows = await produce_rows(client, "t", data, version=version)
        assert {log: row.error_code for log, row in rows.items()} == dict.fromkeys((A, B), WRONG_ID)
        assert [await ends(client, log) for log in (A, B)] == [(0, 0)] * 2


async def test_two_producers_spoil_no_plain_batch(connect: Connect) -> None:
    # DIF-18: Kafka refuses the whole request.
    async with opened(connect, "t", "u") as (client, first, other):
        data = {A: first.batch(A, b"x"), B: other.batch(B, b"x"), C: batch(b"plain")}
        rows = await produce_rows(client, "t", data)
        codes = {log: row.error_code for log, row in rows.items()}
        assert codes == {A: WRONG_ID, B: WRONG_ID, C: OK}
        assert [await ends(client, log) for log in data] == [(0, 0), (0, 0), (1, 1)]


@both
async def test_plain_batches_beside_transactional_ones(connect: Connect, generation: int) -> None:
    async with opened(connect, generation=generation) as (client, producer):
        await producer.send(A, b"in")
        data = {
            A: producer.batch(A, b"in"),
            B: batch(b"plain"),
            C: producer.batch(C, b"own", transactional=False),
        }
        rows = await produce_rows(client, "t", data, version=LAST_PRODUCE[generation])
        assert {log: row.error_code for log, row in rows.items()} == dict.fromkeys(data, OK)
        assert not await is_part(producer, B)
        assert not await is_part(producer, C)
        assert [await committed(client, log) for log in data] == [[], [b"plain"], [b"own"]]
        await producer.abort()
        assert [await committed(client, log) for log in data] == [[], [b"plain"], [b"own"]]
        assert [await markers(client, log) for log in data] == [[MarkerType.ABORT], [], []]


@pytest.mark.parametrize("transactional_id", ["t", None])
@both
async def test_a_plain_batch_inside_the_own_transaction(
    connect: Connect, generation: int, transactional_id: str | None
) -> None:
    async with opened(connect, generation=generation) as (client, producer):
        await producer.send(A, b"in")
        plain = {log: producer.batch(log, b"plain", transactional=False) for log in (A, B)}
        rows = await produce_rows(client, transactional_id, plain, version=LAST_PRODUCE[generation])
        assert {log: row.error_code for log, row in rows.items()} == {A: WRONG_STATE, B: OK}
        await producer.commit()
        assert [await committed(client, log) for log in (A, B)] == [[b"in"], [b"plain"]]


@pytest.mark.parametrize("version", PRODUCE)
async def test_a_transactional_batch_without_a_producer(connect: Connect, version: int) -> None:
    """It may be refused, but never opens a transaction that nobody ends."""
    async with opened(connect) as (client, _):
        data = transactional_batch(NO_PRODUCER, b"x")
        await produce_rows(client, "t", {A: data}, version=version)
        stable, high = await ends(client, A)
        assert stable == high


@pytest.mark.parametrize("version", [12, 13])
@pytest.mark.parametrize("is_commit", [True, False])
async def test_a_refused_batch_leaves_its_partition_in_the_transaction(
    connect: Connect, version: int, is_commit: bool
) -> None:
    async with opened(connect) as (client, producer):
        await producer.send(A, b"x")
        refused = await producer.send_raw(B, b"late", sequence=5, version=version)
        assert (refused.error_code, refused.base_offset) == (WRONG_SEQUENCE, -1)
        refused = await producer.send_raw(C, b"x" * 2_000_000, version=version)
        assert refused.error_code == ErrorCode.message_too_large
        for log in (B, C):
            assert await is_part(producer, log)
            assert await ends(client, log) == (0, 0)
        await producer.end(is_commit)
        for log in (B, C):
            (alone,) = await every_batch(client, log)
            assert alone.marker == MarkerType(is_commit)
            assert await ends(client, log) == (1, 1)
            assert aborted(await read(client, log)) == [], "nothing was open there"


@pytest.mark.parametrize("version", [11, 12, 13])
async def test_the_first_sequence_in_a_partition(connect: Connect, version: int) -> None:
    """Only the second generation must begin at 0."""
    async with opened(connect) as (_, producer):
        row = await producer.send_raw(A, b"x", sequence=5, version=version)
        if version < ADDING_FROM:
            assert (row.error_code, row.base_offset) == (OK, 0)
            assert (await producer.send_raw(A, b"x", sequence=6, version=version)).base_offset == 1
            return
        assert row.error_code == WRONG_SEQUENCE
        assert (await producer.send_raw(A, b"x", sequence=0, version=version)).base_offset == 0
        assert (await producer.send_raw(A, b"x", sequence=2, version=version)).error_code == WRONG_SEQUENCE
        assert (await producer.send_raw(A, b"x", sequence=1, version=version)).base_offset == 1


@pytest.mark.parametrize("version", PRODUCE)
async def test_the_first_sequence_of_an_epoch(connect: Connect, version: int) -> None:
    async with opened(connect) as (_, producer):
        await producer.add(A)
        assert (await producer.send_raw(A, b"x", version=version)).error_code == OK
        assert (await end(producer.client, "t", producer.who, True, version=4)).code == OK
        await producer.init()
        assert producer.epoch == 1
        await producer.add(A)
        assert (await producer.send_raw(A, b"x", sequence=1, version=version)).error_code == WRONG_SEQUENCE
        assert (await producer.send_raw(A, b"x", sequence=0, version=version)).error_code == OK


@both
async def test_repeats_are_answered_as_before(connect: Connect, generation: int) -> None:
    async with opened(connect, generation=generation) as (client, producer):
        offsets = [await producer.send(A, b"a%d" % each, b"b") for each in range(3)]
        assert offsets == [0, 2, 4]
        for sequence in (4, 0, 2):
            row = await producer.send_raw(A, b"a%d" % (sequence // 2), b"b", sequence=sequence)
            assert (row.error_code, row.base_offset) == (OK, sequence)
        assert await ends(client, A) == (0, 6)
        await producer.commit()
        assert await committed(client, A) == [b"a0", b"b", b"a1", b"b", b"a2", b"b"]


@pytest.mark.parametrize("version", [11, 12, 13])
async def test_a_late_repeat_of_an_ended_transaction(connect: Connect, version: int) -> None:
    """The marker has a higher epoch; the next transaction does not get the batch."""
    async with opened(connect) as (client, producer):
        late = producer.batch(A, b"once")
        await producer.send(A, b"once")
        await producer.commit()
        for _ in range(2):
            rows = await produce_rows(client, "t", {A: late, B: late}, version=version)
            assert {log: row.error_code for log, row in rows.items()} == {A: OLD_EPOCH, B: OLD_EPOCH}
            await producer.send(C, b"next")
        assert not await is_part(producer, B)
        await producer.commit()
        assert [await committed(client, log) for log in (A, B, C)] == [[b"once"], [], [b"next"] * 2]


@both
async def test_one_unknown_partition_of_a_request(connect: Connect, generation: int) -> None:
    async with opened(connect, generation=generation) as (client, producer):
        if generation == 1:
            await producer.add(A, B)
        unknown = (NOWHERE, ("a", 2))
        data = {log: producer.batch(log, b"x") for log in (A, *unknown, B)}
        rows = await produce_rows(client, "t", data, version=LAST_PRODUCE[generation])
        code = ErrorCode.unknown_topic_or_partition
        assert {log: row.error_code for log, row in rows.items()} == {
            A: OK,
            B: OK,
            **dict.fromkeys(unknown, code),
        }
        await producer.commit()
        assert [await committed(client, log) for log in (A, B)] == [[b"x"], [b"x"]]


async def test_sequences_go_on_over_transactions_of_one_epoch(connect: Connect) -> None:
    async with opened(connect, generation=1) as (client, producer):
        for offset in (0, 2, 4):
            assert await producer.send(A, b"x") == offset
            await producer.commit()
        await producer.add(A)
        for sequence, code in ((4, WRONG_SEQUENCE), (3, OK)):
            assert (await producer.send_raw(A, b"x", sequence=sequence)).error_code == code
        await producer.abort()
        assert await committed(client, A) == [b"x"] * 3
