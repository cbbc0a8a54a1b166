"""Reasons of rejections become headers of the same dead letter: with every engine and both
persisters, over restarts, and never those of another rejection."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any
from uuid import UUID

import pytest
import trio

from kbroker.broker import configs
from kbroker.broker.queues import dead_letters
from kbroker.broker.queues.dead_letter_writer import DeadLetterWriter
from kbroker.errors import ErrorCode
from kbroker.formats.batches import build_batch
from kbroker.formats.parked_records import RejectionReason
from kbroker.formats.state import ParkedKey, read_entries
from kbroker.share.dead_letter import HEADER_NAMES, REASON_NAMES
from kbroker.share.persister import Result, WriteRequest
from kbroker.share.reasons import Reason
from tests.api.conftest import Client, Connect
from tests.api.dead_letter_queues import (
    ENABLED,
    NAME,
    QUEUE,
    all_done,
    is_done,
    letters_of,
    offsets_of,
    prepare_dead_letters,
    until,
)
from tests.api.share_consumers import (
    ACCEPT,
    FAST,
    GROUP,
    REJECT,
    RELEASE,
    Member,
    acquired,
    initialize,
    prepare,
    rows,
    set_up_group,
)
from tests.api.test_dead_letter_recovery import full
from tests.reject_reasons import reasons_in

pytestmark = pytest.mark.usefixtures("without_lingering")

PERSISTERS = pytest.mark.parametrize("persister", ["default", "control-records"])
ENGINES = pytest.mark.parametrize("engine_name", ["memory", "segment", "lmdb", "rocksdb", "sqlite"])
REASON = Reason("ValueError", "no such size: größe", "Traceback …\nValueError: no such size")
OTHER = Reason("KeyError", "", "")
KEEP_HEADERS = "kbroker.errors.deadletterqueue.keep.headers.enable"
Given = dict[int, Reason]


@pytest.fixture
def no_letters(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Records stay ARCHIVING until this is undone."""

    async def wait(*_: object) -> Any:
        await trio.sleep_forever()

    monkeypatch.setattr(DeadLetterWriter, "find_partition", wait)
    return monkeypatch


def settings(persister: str) -> dict[str, str]:
    return {**FAST, "kbroker.persister": persister}


async def reject(client: Client, key: tuple[UUID, int], given: Given, *offsets: int) -> Member:
    """A member that has fetched all records and rejected these; it still holds the others."""
    member = Member(client, "M1")
    await member.fetch([key], wait_ms=5000)
    assert (await answered(member, key, given, *offsets)) == 0
    return member


async def answered(member: Member, key: tuple[UUID, int], given: Given, *offsets: int) -> int:
    """Reject these offsets; the error code."""
    acks = {key: [(offset, offset, [REJECT]) for offset in offsets]}
    answer = await member.acknowledge(acks, reasons=[(*key, *each) for each in given.items()])
    return int(rows(answer)[key].error_code)


def stored(client: Client) -> dict[int, Reason]:
    """By offset, of all generations."""
    entries = read_entries(client.broker.state_store.scan(ParkedKey.namespace))
    return {
        key.offset: Reason(*value)
        for key, value in entries
        if isinstance(key, ParkedKey) and isinstance(value, RejectionReason)
    }


def by_offset(client: Client) -> dict[int, Reason | None]:
    letters = letters_of(client)
    found = dict(zip(offsets_of(letters), reasons_in(letters), strict=True))
    assert len(found) == len(letters)
    return found


# -- the way of a reason
# --------------------------------------------------------------------------------------------------


@PERSISTERS
@pytest.mark.parametrize("version", [1, 2])
async def test_a_reason_becomes_headers_of_the_dead_letter(
    connect: Connect, persister: str, version: int
) -> None:
    """DLQ-24, RPC-73"""
    async with connect(config=settings(persister)) as client:
        key = await prepare_dead_letters(client, 5)
        member = Member(client, "M1")
        await member.fetch([key], wait_ms=5000)
        acks = {key: [(0, 2, [REJECT]), (3, 4, [ACCEPT, REJECT])]}
        given = {0: REASON, 2: OTHER, 3: REASON, 77: REASON}
        reasons = [(*key, *each) for each in given.items()]
        reasons += [(key[0], 9, 0, OTHER), (UUID(int=5), 0, 0, OTHER), (UUID(int=0), 0, 0, OTHER)]
        answer = await member.acknowledge(acks, version=version, reasons=reasons)
        assert rows(answer)[key].error_code == 0
        await all_done(client)
        letters = dict(zip(offsets_of(letters_of(client)), letters_of(client), strict=True))
        assert by_offset(client) == {0: REASON, 1: None, 2: OTHER, 4: None}
        assert tuple(name for name, _ in letters[0].headers) == HEADER_NAMES + REASON_NAMES
        assert tuple(name for name, _ in letters[2].headers) == (*HEADER_NAMES, REASON_NAMES[0])
        assert dict(letters[0].headers)[REASON_NAMES[1]] == "no such size: größe".encode()
        assert stored(client) == {}


@PERSISTERS
@ENGINES
async def test_a_reason_survives_a_restart(
    connect: Connect, no_letters: pytest.MonkeyPatch, engine_name: str, persister: str
) -> None:
    """Between ARCHIVING and the dead letter. Nothing is left of it afterwards."""
    long = Reason("T" * 90, "m" * 90, "t" * 8012)
    async with connect(engine_name, config=settings(persister)) as client:
        key = await prepare_dead_letters(client, 5)
        await reject(client, key, {0: REASON, 2: OTHER, 3: long}, 0, 1, 2, 3)
        assert stored(client) == {0: REASON, 2: OTHER, 3: long}
    no_letters.undo()
    no_letters.setattr(dead_letters, "LINGER_S", 0.01)
    async with connect(engine_name, config=settings(persister)) as client:
        await until(lambda: len(letters_of(client)) == 4)
        await all_done(client)
        assert by_offset(client) == {0: REASON, 1: None, 2: OTHER, 3: long}
        assert stored(client) == {}


@PERSISTERS
async def test_a_parked_record_is_rejected_for_a_reason(
    connect: Connect, persister: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configs, "PARK_FROM_MS", 100)
    delay = {"kbroker.queue.redelivery.delay.ms": "300", "kbroker.queue.redelivery.jitter": "0"}
    async with connect(config=settings(persister)) as client:
        key = await prepare_dead_letters(client, 3, configs=delay)
        member = Member(client, "M1")
        assert acquired(await member.fetch([key], wait_ms=5000)) == [(0, 2, 1)]
        await member.acknowledge({key: [(0, 2, [RELEASE])]})
        assert acquired(await member.fetch(wait_ms=5000)) == [(0, 2, 2)]
        assert await answered(member, key, {0: REASON, 2: OTHER}, 0, 1) == 0
        await all_done(client)
        assert by_offset(client) == {0: REASON, 1: None}
        assert await answered(member, key, {2: OTHER}, 2) == 0
        await all_done(client)
        assert by_offset(client) == {0: REASON, 1: None, 2: OTHER}
        assert stored(client) == {}


async def test_the_broker_cuts_a_long_reason(connect: Connect) -> None:
    async with connect() as client:
        key = await prepare_dead_letters(client, 1)
        traceback = "".join(f"line {number}\n" for number in range(5000))
        await reject(client, key, {0: Reason("ValueError", "m", traceback)}, 0)
        await all_done(client)
        (found,) = reasons_in(letters_of(client))
        assert found is not None
        assert sum(map(len, found)) == 8192
        assert (found.type, found.message) == ("ValueError", "m")
        assert traceback.endswith(found.traceback)


async def test_the_headers_of_a_dead_letter_that_is_rejected_follow(connect: Connect) -> None:
    """The first headers are of the last time."""
    async with connect() as client:
        key = await prepare_dead_letters(client, 1)
        await client.create_topic("dlq.second", configs=ENABLED)
        second_group = {NAME: "dlq.second", KEEP_HEADERS: "true", "share.auto.offset.reset": "earliest"}
        await set_up_group(client, second_group, "second")
        await reject(client, key, {0: REASON}, 0)
        await all_done(client)
        first = client.broker.topics.by_name(QUEUE)
        assert first is not None
        at = first.topic_id, 0
        await initialize(client, first.topic_id, 1, "second")
        await client.append_raw(QUEUE, build_batch([letters_of(client)[0]]))
        member = Member(client, "M2", "second")
        await member.fetch([at], wait_ms=5000)
        assert await answered(member, at, {0: OTHER}, 0, 1) == 0
        await until(lambda: len(letters_of(client, "dlq.second")) == 2)
        second, third = letters_of(client, "dlq.second")
        assert [name for name, _ in second.headers] == [
            *HEADER_NAMES, REASON_NAMES[0], *HEADER_NAMES, *REASON_NAMES,
        ]  # fmt: skip
        assert reasons_in([second, third]) == [OTHER, None]
        assert [name for name, _ in third.headers] == [*HEADER_NAMES, *HEADER_NAMES, *REASON_NAMES]


# -- which reasons count
# --------------------------------------------------------------------------------------------------


async def test_without_a_dead_letter_queue_nothing_is_stored(connect: Connect) -> None:
    async with connect() as client:
        key = await prepare(client, 2)
        await set_up_group(client, {})
        await reject(client, key, {0: REASON}, 0)
        assert stored(client) == {}
        assert list(client.broker.state_store.scan(ParkedKey.namespace)) == []


@PERSISTERS
async def test_the_reason_of_a_refused_rejection_is_ignored(
    connect: Connect, persister: str, no_letters: pytest.MonkeyPatch
) -> None:
    async with connect(config=settings(persister)) as client:
        key = await prepare_dead_letters(client, 2)
        member = await reject(client, key, {0: REASON}, 0)
        assert await answered(member, key, {0: OTHER, 1: OTHER}, 0, 1) == 121
        other = Member(client.another(2), "M2")
        await other.fetch([key])
        assert await answered(other, key, {0: OTHER, 1: OTHER}, 0, 1) == 121
        assert await answered(other, key, {1: OTHER}, 1) == 121
        assert stored(client) == {0: REASON}


@PERSISTERS
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_rejection_that_was_not_saved_leaves_no_reason(
    connect: Connect, persister: str, is_restarted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record is rejected again, without a reason. With control records the reason was stored
    before the state was refused."""
    async with connect(config=settings(persister)) as client:
        key = await prepare_dead_letters(client, 3)
        member = await reject(client, key, {2: REASON}, 2)
        await all_done(client)
        commits = client.broker.log_commits if persister == "control-records" else client.broker.state_commits
        with full(commits) as refused:
            assert await answered(member, key, {0: REASON, 1: OTHER}, 0, 1) != 0
            assert refused
        if not is_restarted:
            assert await answered(member, key, {1: REASON}, 0, 1) == 0
            await all_done(client)
            assert by_offset(client) == {0: None, 1: REASON, 2: REASON}
            assert stored(client) == {}
            return
        assert stored(client) == ({0: REASON, 1: OTHER} if persister == "control-records" else {})
    async with connect(config=settings(persister)) as client:
        await reject(client, key, {1: REASON}, 0, 1)
        await all_done(client)
        assert by_offset(client) == {0: None, 1: REASON, 2: REASON}
        assert stored(client) == {}


@PERSISTERS
async def test_a_reason_is_removed_with_the_write_that_archives(
    connect: Connect, persister: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first such write fails; the next one removes the reasons as well."""
    async with connect(config=settings(persister)) as client:
        real, writes = client.broker.persister.write, list[tuple[set[int], bool]]()

        async def write(group_id: str, requests: Sequence[WriteRequest]) -> list[Result]:
            (request,) = requests
            removed = {offset for offset, reason in request.reasons if reason is None}
            archives = request.start_offset >= 3 or any(batch.state == 4 for batch in request.batches)
            if removed or archives:
                writes.append((removed, archives))
                if len(writes) == 1:
                    return [Result(request.partition, ErrorCode.coordinator_not_available)]
            return await real(group_id, requests)

        monkeypatch.setattr(client.broker.persister, "write", write)
        key = await prepare_dead_letters(client, 3)
        await reject(client, key, {0: REASON, 1: OTHER}, 0, 1, 2)
        await all_done(client)
        await until(lambda: not stored(client))
        assert by_offset(client) == {0: REASON, 1: OTHER, 2: None}
        assert writes == [({0, 1}, True)] * 2


@PERSISTERS
async def test_reasons_end_with_the_state(
    connect: Connect, persister: str, no_letters: pytest.MonkeyPatch
) -> None:
    """The offsets of the group are altered while its records are ARCHIVING."""
    async with connect(config=settings(persister)) as client:
        key = await prepare_dead_letters(client, 3)
        await reject(client, key, {0: REASON, 1: OTHER}, 0, 1)
        client.disconnect()
        assert stored(client) == {0: REASON, 1: OTHER}
        topics = [{"topic_name": "orders", "partitions": [{"partition_index": 0, "start_offset": 0}]}]
        answer = await client.call("alter_share_group_offsets", 0, group_id=GROUP, topics=topics)
        assert answer.error_code == 0
        assert answer.responses[0].partitions[0].error_code == 0
        member = Member(client.another(2), "M2")
        assert acquired(await member.fetch([key], wait_ms=5000)) == [(0, 2, 1)]
        assert await answered(member, key, {1: REASON}, 0, 1) == 0
        await client.broker.parked_cleaner.work(ParkedKey.namespace)
        assert stored(client) == {1: REASON}
        no_letters.undo()
        no_letters.setattr(dead_letters, "LINGER_S", 0.01)
    async with connect(config=settings(persister)) as client:
        await until(lambda: len(letters_of(client)) == 2)
        assert by_offset(client) == {0: None, 1: REASON}


async def test_reasons_go_with_their_topic(connect: Connect, no_letters: pytest.MonkeyPatch) -> None:
    async with connect() as client:
        key = await prepare_dead_letters(client, 1)
        await reject(client, key, {0: REASON}, 0)
        await client.call("delete_topics", 6, topics=[{"name": "orders", "topic_id": None}])
        await client.broker.parked_cleaner.work(ParkedKey.namespace)
        assert stored(client) == {}


async def test_reasons_stay_until_archived_is_saved(connect: Connect) -> None:
    """The letter is written and ARCHIVED is not saved: the next write saves it, and then the reason
    goes."""
    async with connect(durability="os") as client:
        key = await prepare_dead_letters(client, 1)
        member = Member(client, "M1")
        await member.fetch([key], wait_ms=5000)
        refused: list[list[float]] = []
        append = client.broker.dead_letters._writer.append

        async def then_full(*arguments: Any, **named: Any) -> Any:
            written = await append(*arguments, **named)
            refused.append(stack.enter_context(full(client.broker.state_commits)))
            return written

        client.broker.dead_letters._writer.append = then_full  # type: ignore[method-assign]
        with ExitStack() as stack:
            assert await answered(member, key, {0: REASON}, 0) == 0
            await until(lambda: refused and refused[0])
            assert not is_done(client)
            assert stored(client) == {0: REASON}
        client.broker.dead_letters._writer.append = append  # type: ignore[method-assign]
        await all_done(client)
        assert by_offset(client) == {0: REASON}
        assert stored(client) == {}


async def test_many_reasons(connect: Connect) -> None:
    """More than one read of them, and gaps between."""
    async with connect("segment") as client:
        key = await prepare_dead_letters(client, 1500)
        member = Member(client, "M1")
        await member.fetch([key], wait_ms=5000, max_records=1500)
        given = {offset: Reason("T", str(offset), "") for offset in range(0, 1500, 2)}
        assert await answered(member, key, given, *range(1500)) == 0
        await all_done(client)
        assert by_offset(client) == {offset: given.get(offset) for offset in range(1500)}
        assert stored(client) == {}
