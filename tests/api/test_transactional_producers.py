"""InitProducerId, AddPartitionsToTxn and EndTxn of transactional producers, in every state of an
id."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from kbroker.errors import ErrorCode
from kbroker.formats.transactions import MarkerType
from tests.api.conftest import Client, Connect, versions
from tests.api.transactional_producer import (
    LAST_END,
    VERIFY_FROM,
    Ended,
    Producer,
    add,
    add_several,
    committed,
    end,
    ends,
    init,
    markers,
    read,
    store,
)

A, B = ("a", 0), ("a", 1)
NOWHERE = ("nowhere", 0)
EMPTY, ONGOING, COMMITTED, ABORTED = "Empty", "Ongoing", "CompleteCommit", "CompleteAbort"
AT_REST = (EMPTY, COMMITTED, ABORTED)
OK = ErrorCode.none
FENCED, OLD_FENCED = ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch
UNKNOWN_ID, WRONG_STATE = ErrorCode.invalid_producer_id_mapping, ErrorCode.invalid_txn_state
CONCURRENT, ABORTABLE = ErrorCode.concurrent_transactions, ErrorCode.transaction_abortable
FAILED_END = (-1, -1)


@asynccontextmanager
async def opened(
    connect: Connect, state: str = EMPTY, generation: int = 2
) -> AsyncIterator[tuple[Client, Producer]]:
    """A topic with two partitions, and an id in a state."""
    async with connect() as client:
        await client.create_topic("a", 2)
        yield client, await into(state, Producer(client, generation=generation))


async def into(state: str, producer: Producer) -> Producer:
    await producer.init()
    if state != EMPTY:
        await producer.send(A, b"x")
    if state in (COMMITTED, ABORTED):
        await producer.end(state == COMMITTED)
    return producer


def outcome(answer: Any) -> tuple[ErrorCode, int, int]:
    return answer.error_code, answer.producer_id, answer.producer_epoch


# InitProducerId


@pytest.mark.parametrize("version", versions("init_producer_id"))
async def test_an_unknown_id_is_made(connect: Connect, version: int) -> None:
    async with connect() as client:
        first, other = [await init(client, each, version=version) for each in ("t", "u")]
        assert (first.error_code, first.producer_epoch) == (OK, 0)
        assert (other.error_code, other.producer_epoch) == (OK, 0)
        plain = await init(client, None, version=version)
        assert len({first.producer_id, other.producer_id, plain.producer_id}) == 3
        assert min(first.producer_id, other.producer_id) >= 0
        again = await init(client, "t", version=version)
        assert outcome(again) == (OK, first.producer_id, 1)


@pytest.mark.parametrize("version", versions("init_producer_id"))
async def test_refused_before_the_state_is_looked_at(connect: Connect, version: int) -> None:
    limit_ms = 5000
    async with connect(config={"transaction.max.timeout.ms": str(limit_ms)}) as client:
        assert outcome(await init(client, "", version=version, timeout_ms=1000)) == (
            ErrorCode.invalid_request,
            -1,
            -1,
        )
        for timeout_ms in (0, -1, limit_ms + 1, (1 << 31) - 1):
            answer = await init(client, "t", version=version, timeout_ms=timeout_ms)
            assert outcome(answer) == (ErrorCode.invalid_transaction_timeout, -1, -1), timeout_ms
        for timeout_ms in (1, limit_ms):
            assert (await init(client, "t", version=version, timeout_ms=timeout_ms)).error_code == OK
        plain = await init(client, None, version=version, timeout_ms=limit_ms + 1)
        assert plain.error_code == OK, "without a transactional id the time-out says nothing"


@pytest.mark.parametrize("version", [3, 4, 5])
async def test_only_one_of_id_and_epoch(connect: Connect, version: int) -> None:
    async with opened(connect) as (client, producer):
        for own in ((producer.producer_id, -1), (-1, 0)):
            answer = await init(client, "t", version=version, own=own)
            assert outcome(answer) == (ErrorCode.invalid_request, -1, -1)
        assert (await init(client, "t", version=version, own=producer.who)).producer_epoch == 1


@pytest.mark.parametrize("generation", [1, 2])
@pytest.mark.parametrize("version", versions("init_producer_id"))
@pytest.mark.parametrize("state", AT_REST)
async def test_without_an_epoch_the_next_one_is_given(
    connect: Connect, state: str, version: int, generation: int
) -> None:
    async with opened(connect, state, generation) as (client, producer):
        for step in (1, 2):
            answer = await init(client, "t", version=version)
            assert outcome(answer) == (OK, producer.producer_id, producer.epoch + step)
        if version >= 3:
            fenced = FENCED if version >= 4 else OLD_FENCED
            for epoch in (producer.epoch, producer.epoch + 1):
                answer = await init(client, "t", version=version, own=(producer.producer_id, epoch))
                assert outcome(answer) == (fenced, -1, -1), "no epoch before the last increment is known"


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("state", AT_REST)
async def test_with_the_own_epoch(connect: Connect, state: str, version: int) -> None:
    async with opened(connect, state, 1) as (client, producer):
        fenced = FENCED if version >= 4 else OLD_FENCED
        for what in ("first", "repeat", "repeat"):
            answer = await init(client, "t", version=version, own=producer.who)
            assert outcome(answer) == (OK, producer.producer_id, producer.epoch + 1), what
        newest = (producer.producer_id, producer.epoch + 1)
        assert outcome(await init(client, "t", version=version, own=newest)) == (OK, newest[0], newest[1] + 1)
        for epoch in (producer.epoch, newest[1] + 2, 32767):
            answer = await init(client, "t", version=version, own=(producer.producer_id, epoch))
            assert outcome(answer) == (fenced, -1, -1), epoch
        answer = await init(client, "t", version=version, own=(producer.producer_id + 1000, newest[1] + 1))
        assert outcome(answer) == (fenced, -1, -1), "another producer id"


@pytest.mark.parametrize("state", [COMMITTED, ABORTED])
async def test_the_epoch_before_an_end_is_known(connect: Connect, state: str) -> None:
    async with opened(connect, state, 2) as (client, producer):
        answer = await init(client, "t", own=(producer.producer_id, producer.epoch - 1))
        assert outcome(answer) == (OK, *producer.who), "nothing moves"


@pytest.mark.parametrize("version", versions("init_producer_id"))
async def test_an_open_transaction_is_aborted_first(connect: Connect, version: int) -> None:
    async with opened(connect, ONGOING) as (client, producer):
        assert outcome(await init(client, "t", version=version)) == (CONCURRENT, -1, -1)
        answer = await producer.settled(lambda: init(client, "t", version=version))
        assert outcome(answer) == (OK, producer.producer_id, producer.epoch + 2), "the abort took one"
        assert await markers(client, A) == [MarkerType.ABORT]
        assert await committed(client, A) == []
        assert (await producer.send_raw(A, b"y")).error_code == OLD_FENCED
        assert await end(client, "t", producer.who, True) == (FENCED, *FAILED_END)


@pytest.mark.parametrize("version", [3, 4, 5])
async def test_its_own_open_transaction_is_aborted_first(connect: Connect, version: int) -> None:
    async with opened(connect, ONGOING, 1) as (client, producer):

        async def again() -> Any:
            return await init(client, "t", version=version, own=producer.who)

        assert outcome(await again()) == (CONCURRENT, -1, -1)
        answer = await producer.settled(again)
        assert outcome(answer) == (OK, producer.producer_id, producer.epoch + 1), "a repeat by then"


@pytest.mark.parametrize("with_epoch", [False, True])
async def test_an_exhausted_epoch_gets_a_new_id(connect: Connect, with_epoch: bool) -> None:
    async with opened(connect) as (client, producer):
        await store(client, producer_epoch=32765)
    async with connect() as client:
        last = await init(client, "t")
        assert outcome(last) == (OK, producer.producer_id, 32766)
        own = (producer.producer_id, 32766)
        rotated = await init(client, "t", own=own if with_epoch else (-1, -1))
        assert (rotated.error_code, rotated.producer_epoch) == (OK, 0)
        assert rotated.producer_id != producer.producer_id
        if with_epoch:
            assert outcome(await init(client, "t", own=own)) == outcome(rotated), "a repeat"
        answer = await init(client, "t", own=(rotated.producer_id, 0))
        assert outcome(answer) == (OK, rotated.producer_id, 1)


async def test_the_epoch_of_a_fence_does_not_overflow(connect: Connect) -> None:  # KAFKA-19367
    async with opened(connect) as (client, _):
        await store(client, producer_epoch=32765)
    async with connect() as client:
        old = await Producer(client).init()
        assert old.epoch == 32766
        await old.send(A, b"lost")
        assert (await init(client, "t")).error_code == CONCURRENT
        new = await Producer(client).init()
        assert new.producer_id != old.producer_id
        assert new.epoch in (0, 1)
        await new.send(A, b"kept")
        await new.commit()
        assert await committed(client, A) == [b"kept"]
        assert await ends(client, A) == (4, 4)


# AddPartitionsToTxn


@pytest.mark.parametrize("version", versions("add_partitions_to_txn"))
async def test_partitions_are_added(connect: Connect, version: int) -> None:
    async with opened(connect) as (client, producer):
        for logs in ((A,), (A,), (A, B)):
            found = await add(client, "t", producer.who, *logs, version=version)
            assert found == dict.fromkeys(logs, OK)
        for log in (A, B):
            assert (await producer.send_raw(log, b"x", version=11, adding=False)).error_code == OK
        assert (await end(client, "t", producer.who, True, version=4)).code == OK
        assert [await committed(client, log) for log in (A, B)] == [[b"x"], [b"x"]]


@pytest.mark.parametrize("version", versions("add_partitions_to_txn"))
@pytest.mark.parametrize("unknown", [NOWHERE, ("a", 2), ("a", -1)])
async def test_one_unknown_partition_spoils_the_others(  # BASE-64
    connect: Connect, version: int, unknown: tuple[str, int]
) -> None:
    async with opened(connect) as (client, producer):
        found = await add(client, "t", producer.who, A, unknown, B, version=version)
        skipped = ErrorCode.operation_not_attempted
        assert found == {A: skipped, unknown: ErrorCode.unknown_topic_or_partition, B: skipped}
        for log in (A, B):
            verified = await add(client, "t", producer.who, log, version=VERIFY_FROM, verify=True)
            assert verified == {log: ABORTABLE}, "nothing was added"
        assert (await end(client, "t", producer.who, True, version=4)).code == WRONG_STATE


@pytest.mark.parametrize("version", versions("add_partitions_to_txn"))
@pytest.mark.parametrize("state", [EMPTY, ONGOING, COMMITTED, ABORTED])
async def test_adding_by_the_wrong_producer(connect: Connect, state: str, version: int) -> None:
    fenced = FENCED if version >= 2 else OLD_FENCED
    async with opened(connect, state) as (client, producer):
        await producer.client.create_topic("b")
        new = ("b", 0)
        cases = (
            ("t", (producer.producer_id + 1000, producer.epoch), UNKNOWN_ID),
            ("t", (producer.producer_id, producer.epoch + 1), fenced),
            ("t", (producer.producer_id, producer.epoch - 1), fenced),
            ("u", producer.who, UNKNOWN_ID),
            ("", producer.who, ErrorCode.invalid_request),
        )
        for transactional_id, who, code in cases:
            found = await add(client, transactional_id, who, new, B, version=version)
            assert found == {new: code, B: code}, (transactional_id, who)
        verified = await add(client, "t", producer.who, new, version=VERIFY_FROM, verify=True)
        assert verified == {new: ABORTABLE}


@pytest.mark.parametrize("version", range(VERIFY_FROM, versions("add_partitions_to_txn")[-1] + 1))
async def test_several_ids_and_verification(connect: Connect, version: int) -> None:
    async with opened(connect) as (client, first):
        other = await Producer(client, "u").init()
        found = await add_several(
            client, version, ("t", first.who, [A], False), ("u", (other.producer_id, 7), [A, B], False)
        )
        assert found.code == OK
        assert found.rows == {"t": {A: OK}, "u": {A: FENCED, B: FENCED}}
        for _ in range(2):
            found = await add_several(
                client,
                version,
                ("u", other.who, [A], True),
                ("t", first.who, [A, B], True),
                ("v", first.who, [A], True),
            )
            assert found.rows == {"t": {A: OK, B: ABORTABLE}, "u": {A: ABORTABLE}, "v": {A: UNKNOWN_ID}}
        who = (first.producer_id + 1000, first.epoch)
        assert await add(client, "t", who, A, version=version, verify=True) == {A: UNKNOWN_ID}
        who = (first.producer_id, first.epoch + 1)
        assert await add(client, "t", who, A, version=version, verify=True) == {A: FENCED}
        assert (await end(client, "u", other.who, True)).code == WRONG_STATE, "verification adds nothing"


async def test_no_ids_at_all(connect: Connect) -> None:
    async with connect() as client:
        assert await add_several(client, VERIFY_FROM) == (OK, {})


# EndTxn


def the_other_way(is_commit: bool) -> ErrorCode:
    """For the end with the old epoch that contradicts the one before, which was a commit or not. A
    commit after an abort may have raced with the coordinator's abort, and 48 would be fatal."""
    return WRONG_STATE if is_commit else FENCED  # KAFKA-20785


@pytest.mark.parametrize("version", range(LAST_END[2]))
@pytest.mark.parametrize(
    ("state", "is_commit", "code"),
    [
        (EMPTY, True, WRONG_STATE),
        (EMPTY, False, WRONG_STATE),
        (ONGOING, True, OK),
        (ONGOING, False, OK),
        (COMMITTED, True, OK),
        (COMMITTED, False, WRONG_STATE),
        (ABORTED, True, WRONG_STATE),
        (ABORTED, False, OK),
    ],
)
async def test_ends_of_the_first_generation(
    connect: Connect, state: str, is_commit: bool, code: ErrorCode, version: int
) -> None:  # BASE-3, BASE-62
    """The epoch stays, and a repeat of the last end is answered as it was."""
    async with opened(connect, state, 1) as (client, producer):
        for _ in range(2):
            assert await end(client, "t", producer.who, is_commit, version=version) == Ended(code)
        ended = {EMPTY: [], ONGOING: [is_commit], COMMITTED: [True], ABORTED: [False]}[state]
        assert await markers(client, A) == [MarkerType(each) for each in ended]
        assert outcome(await init(client, "t")) == (OK, producer.producer_id, producer.epoch + 1)


@pytest.mark.parametrize("version", versions("end_txn"))
@pytest.mark.parametrize("state", [EMPTY, ONGOING, COMMITTED, ABORTED])
@pytest.mark.parametrize("is_commit", [True, False])
async def test_ends_of_the_wrong_producer(
    connect: Connect, state: str, version: int, is_commit: bool
) -> None:
    fenced = FENCED if version >= 2 else OLD_FENCED
    async with opened(connect) as (client, producer):
        for _ in range(3):
            await producer.init()
        await into(state, producer)
        older = 2 if version >= LAST_END[2] else 1
        cases = (
            ("t", (producer.producer_id + 1000, producer.epoch), UNKNOWN_ID),
            ("t", (producer.producer_id, producer.epoch + 1), fenced),
            ("t", (producer.producer_id, producer.epoch - older), fenced),
            ("u", producer.who, UNKNOWN_ID),
            ("", producer.who, ErrorCode.invalid_request),
        )
        before = await markers(client, A)
        for transactional_id, who, code in cases:
            found = await end(client, transactional_id, who, is_commit, version=version)
            assert found == Ended(code), (transactional_id, who)
        assert await markers(client, A) == before
        if state == ONGOING:
            await producer.commit()


@pytest.mark.parametrize("is_commit", [True, False])
async def test_an_end_of_the_second_generation(connect: Connect, is_commit: bool) -> None:  # BASE-65
    """It raises the epoch; a repeat with the old one receives the new one."""
    async with opened(connect, ONGOING) as (client, producer):
        old = producer.who
        new = Ended(OK, producer.producer_id, producer.epoch + 1)
        for _ in range(3):
            assert await end(client, "t", old, is_commit) == new
            assert await end(client, "t", old, not is_commit) == (the_other_way(is_commit), *FAILED_END)
        assert await markers(client, A) == [MarkerType(is_commit)]
        assert await end(client, "t", old, is_commit, version=4) == Ended(FENCED)
        assert await end(client, "t", old, is_commit, version=1) == Ended(OLD_FENCED)


@pytest.mark.parametrize("generation", [1, 2])
@pytest.mark.parametrize("state", AT_REST)
async def test_ends_without_a_transaction(connect: Connect, state: str, generation: int) -> None:
    """A commit is refused; an abort raises the epoch."""
    async with opened(connect, state, generation) as (client, producer):
        old = producer.who
        before = await markers(client, A)
        assert await end(client, "t", old, True) == (WRONG_STATE, *FAILED_END)
        new = Ended(OK, producer.producer_id, producer.epoch + 1)
        for _ in range(2):
            assert await end(client, "t", old, False) == new, "the second is a repeat"
        assert await end(client, "t", old, True) == (FENCED, *FAILED_END)
        assert await end(client, "t", (new.producer_id, new.epoch), True) == (WRONG_STATE, *FAILED_END)
        assert await end(client, "t", (new.producer_id, new.epoch), False) == Ended(
            OK, producer.producer_id, new.epoch + 1
        )
        assert await markers(client, A) == before


@pytest.mark.parametrize("first", [True, False])
async def test_two_requests_while_a_transaction_ends(connect: Connect, first: bool) -> None:
    """They wait, or get a code after which clients retry; the transaction ends once."""
    async with opened(connect, ONGOING) as (client, producer):
        old, found = producer.who, []

        async def one(is_commit: bool, connection_id: int) -> None:
            found.append((is_commit, await end(client.another(connection_id), "t", old, is_commit)))

        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(one, first, 2)
                nursery.start_soon(one, first, 3)
                nursery.start_soon(one, not first, 4)
        (outcome_of_all,) = await markers(client, A)
        succeeded = Ended(OK, old[0], old[1] + 1)
        assert (bool(outcome_of_all), succeeded) in found
        for is_commit, answered in found:
            is_same = is_commit == bool(outcome_of_all)
            assert answered.code in (CONCURRENT, OK if is_same else the_other_way(not is_commit))
            assert answered.code != OK or answered == succeeded


@pytest.mark.parametrize("is_commit", [True, False])
async def test_an_end_at_the_last_epoch_changes_the_producer_id(connect: Connect, is_commit: bool) -> None:
    async with opened(connect) as (client, producer):
        await store(client, producer_epoch=32765)
    async with connect() as client:
        producer = await Producer(client).init()
        old = producer.who
        assert old[1] == 32766
        await producer.send(A, b"first")
        ended = await producer.end(is_commit)
        assert ended.epoch == 0
        assert ended.producer_id not in (old[0], -1)
        assert await end(client, "t", old, is_commit) == ended, "a repeat"
        assert await end(client, "t", old, not is_commit) == (the_other_way(is_commit), *FAILED_END)
        assert await markers(client, A) == [MarkerType(is_commit)]
        await producer.send(A, b"second")
        await producer.commit()
        assert producer.who == (ended.producer_id, 1)
        assert await committed(client, A) == ([b"first"] if is_commit else []) + [b"second"]
        assert (await read(client, A)).last_stable_offset == 4


async def test_the_first_generation_stays_at_the_last_epoch(connect: Connect) -> None:
    """Its client would not learn of a new producer id."""
    async with opened(connect) as (client, producer):
        await store(client, producer_epoch=32765)
    async with connect() as client:
        producer = await Producer(client, generation=1).init()
        for value in (b"first", b"second"):
            await producer.send(A, value)
            await producer.commit()
        assert producer.epoch == 32766
        assert await committed(client, A) == [b"first", b"second"]
        await producer.init(own=True)
        assert producer.epoch == 0


async def test_both_generations_of_one_id(connect: Connect) -> None:
    async with opened(connect, generation=1) as (client, producer):
        for generation, epoch in ((1, 0), (2, 1), (1, 1), (2, 2), (2, 3)):
            producer.generation = generation
            await producer.send(A, b"%d" % producer.epoch)
            await producer.commit()
            assert producer.epoch == epoch
        assert await committed(client, A) == [b"0", b"0", b"1", b"1", b"2"]
