"""Transactions after an unclean end. With durability `os` a power cut may have taken a part of an
open transaction, so the next start aborts all of them. Real cuts: tests/powercut."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from kbroker import plugins
from kbroker.broker.options import Durability
from kbroker.errors import ErrorCode
from kbroker.formats.state import GENERATION, Generation
from kbroker.formats.transactions import TransactionKey
from kbroker.storage.data_dir import DESCRIPTION, FIRST_FORMAT, TRANSACTIONS_FORMAT
from tests.api.conftest import Client, Connect
from tests.api.test_transactional_offsets import offsets, send_offsets
from tests.api.transactional_producer import Producer, committed, end, ends, init, markers

A, B = ("a", 0), ("b", 0)
ENGINES = pytest.mark.parametrize("engine", ["segment", "lmdb", "rocksdb"])


async def begin(client: Client, transactional_id: str) -> Producer:
    producer = await Producer(client, transactional_id).init()
    await producer.send(A, transactional_id.encode())
    return producer


def forget_the_clean_end(home: Path, engine: str, *lost: str) -> None:
    """As after a power cut that took these ids' records of the state store."""
    store = plugins.state_store_factory(engine).open(home / f"state-{engine}", {}, 0)
    try:
        value = store.get(GENERATION.encode())
        assert value is not None
        number = Generation.decode(value).number
        assert Generation.decode(value) == Generation(number), "it had ended cleanly"
        changes = [(TransactionKey(each).encode(), None) for each in lost]
        store.write([(GENERATION.encode(), Generation(number, unsynced=True).encode()), *changes])
        store.sync()
    finally:
        store.close()


async def until_recovered(client: Client) -> None:
    with trio.fail_after(30):
        while not client.broker.transactions.is_ready:
            assert (await init(client, "t")).error_code == ErrorCode.coordinator_load_in_progress
            await trio.sleep(0.01)


async def until_ended(client: Client) -> None:
    """The aborts are decided when recovery is done, and end soon."""
    with trio.fail_after(30):
        while client.broker.transactions.coordinator.unfinished():
            await trio.testing.wait_all_tasks_blocked(0.01)


@ENGINES
@pytest.mark.parametrize("durability", ["os", "disk"])
async def test_open_transactions_are_aborted(
    connect: Connect, engine: str, durability: Durability, tmp_path: Path
) -> None:
    """Also if the next broker has durability `disk`."""
    async with connect(engine, durability="os") as client:
        await client.create_topic("a")
        await client.create_topic("b")
        done = await begin(client, "done")
        await done.commit()
        known, lost = await begin(client, "known"), await begin(client, "lost")
        await lost.send(B, b"lost")
        assert (await send_offsets(known, {0: 5}))[0] == ErrorCode.none
        assert (await send_offsets(lost, {0: 6}, "other"))[0] == ErrorCode.none
    forget_the_clean_end(tmp_path / engine, engine, "lost")
    async with connect(engine, durability=durability) as client:
        await until_recovered(client)
        await until_ended(client)
        assert await committed(client, A) == [b"done"]
        for log in (A, B):
            stable, high_watermark = await ends(client, log)
            assert stable == high_watermark, f"nothing holds back readers of {log}"
        assert len(await markers(client, A)) == 3
        assert await offsets(client, 0, stable=True) == {0: -1}
        assert await offsets(client, 0, stable=True, group="other") == {0: -1}
        assert len(client.broker.consumer_group_service.groups.offsets.pending) == 0
        known.on(client)
        assert (await end(client, "known", known.who, True)).code == ErrorCode.producer_fenced
        await (await begin(client, "known")).commit()
        assert await committed(client, A) == [b"done", b"known"]


@pytest.mark.parametrize("durability", ["os", "disk"])
async def test_a_clean_end_aborts_nothing(connect: Connect, durability: Durability) -> None:
    async with connect("segment", durability=durability) as client:
        await client.create_topic("a")
        producer = await begin(client, "t")
    async with connect("segment", durability=durability) as client:
        assert client.broker.transactions.is_ready
        producer.on(client)
        assert (await producer.commit()).code == ErrorCode.none
        assert await committed(client, A) == [b"t"]


async def test_the_format_rises_with_the_first_transactional_id(connect: Connect, tmp_path: Path) -> None:
    def version() -> int:
        return int(json.loads((tmp_path / "segment" / DESCRIPTION).read_bytes())["format_version"])

    async with connect("segment") as client:
        answer = await client.call(
            "init_producer_id",
            4,
            transactional_id=None,
            transaction_timeout=1000,
            producer_id=-1,
            producer_epoch=-1,
        )
        assert answer.error_code == ErrorCode.none
        assert version() == FIRST_FORMAT
        await Producer(client).init()
        assert version() == TRANSACTIONS_FORMAT
    async with connect("segment"):
        assert version() == TRANSACTIONS_FORMAT
