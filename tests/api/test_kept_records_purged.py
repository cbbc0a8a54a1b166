"""DeleteRecords during writes of the share-partition: records kept beside the log do not reappear,
not even after a kill -9 right after the response."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
import trio.testing

from kbroker.share import log_start
from kbroker.share.persister import Result, TopicPartition, WriteRequest
from tests.api.conftest import Client, Connect
from tests.api.share_consumers import GROUP, RELEASE, Member
from tests.api.test_kept_records import (
    DELAY_MS,
    LONG_LOCKS,
    MONTH_MS,
    SCHEDULING,
    begin,
    delete_before,
    fill,
    keeps,
    kept,
    look,
    one,
    schedule,
    take,
)
from tests.api.test_parked_records import engine_of
from tests.api.test_queue_retention import removed
from tests.api.test_work_queue import lag

pytestmark = pytest.mark.usefixtures("parks_at_once")


@pytest.mark.parametrize("others", [False, True])
async def test_released_while_it_is_purged(
    connect: Connect, every_engine: str, monkeypatch: pytest.MonkeyPatch, others: bool
) -> None:
    """The worker's acknowledgement parks the record again, after the purge has begun. `others`: the
    purge has another record to remove, and its write ends after that of the acknowledgement."""
    async with connect(every_engine, LONG_LOCKS) as client:
        key = await begin(client, {"kbroker.queue.redelivery.delay.ms": str(DELAY_MS), **SCHEDULING})
        job = await schedule(client, MONTH_MS) if others else None
        await fill(client, first=5)
        worker, rest = Member(client, "m1"), Member(client.another(2), "m2")
        await one(worker, key)
        await take(rest, key)
        start = await look(client)
        assert kept(client, key) == [0, *([] if job is None else [job])]
        write, releasing, may_go = client.broker.persister.write, trio.Event(), trio.Event()

        turns = trio.Lock()

        async def late(group_id: str, requests: Sequence[WriteRequest]) -> list[Result]:
            async with turns:
                if not releasing.is_set():
                    releasing.set()
                    await may_go.wait()
                return list(await write(group_id, requests))

        left: list[int] = []

        async def purge() -> None:
            await delete_before(client, start)
            left.append(await keeps(client, key))

        monkeypatch.setattr(client.broker.persister, "write", late)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.acknowledge, {key: [(0, 0, [RELEASE])]})
            await releasing.wait()
            nursery.start_soon(purge)
            await trio.testing.wait_all_tasks_blocked(0.1)
            may_go.set()
        assert left == [0]
        assert (await lag(client), removed(client)) == (0, 1 + others)


async def test_another_write_takes_the_removal_along(
    connect: Connect, every_engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The purge then has nothing to save, and waits for that write."""
    async with connect(every_engine, LONG_LOCKS) as client:
        key = await begin(client, {"kbroker.queue.redelivery.delay.ms": str(DELAY_MS)})
        await fill(client)
        worker, rest = Member(client, "m1"), Member(client.another(2), "m2")
        await one(worker, key)
        await take(rest, key)
        start = await look(client)
        engine, groups = engine_of(client, key), client.broker.share_partitions
        loaded = groups.find(GROUP, TopicPartition(*key))
        assert loaded is not None
        removal_may_go, left = trio.Event(), list[int]()
        write = client.broker.persister.write

        async def late(group_id: str, requests: Sequence[WriteRequest]) -> list[Result]:
            await removal_may_go.wait()
            return list(await write(group_id, requests))

        async def purge() -> None:
            await delete_before(client, start)
            left.append(await keeps(client, key))

        monkeypatch.setattr(client.broker.persister, "write", late)
        groups.saving.save_later(loaded, log_start.purge(engine, start))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(purge)
            await trio.testing.wait_all_tasks_blocked(0.1)
            removal_may_go.set()
        assert left == [0]


async def test_a_purge_of_a_share_partition_that_leaves_the_memory_meanwhile(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write that it waited for will not happen. The client retries."""
    async with connect("segment", LONG_LOCKS) as client:
        key = await begin(client, {"kbroker.queue.redelivery.delay.ms": str(DELAY_MS)})
        await fill(client)
        worker, rest = Member(client, "m1"), Member(client.another(2), "m2")
        await one(worker, key)
        await take(rest, key)
        start = await look(client)
        groups = client.broker.share_partitions
        loaded = groups.find(GROUP, TopicPartition(*key))
        assert loaded is not None
        write, may_go = client.broker.persister.write, trio.Event()

        async def late(group_id: str, requests: Sequence[WriteRequest]) -> list[Result]:
            await may_go.wait()
            return list(await write(group_id, requests))

        with monkeypatch.context() as patched:
            patched.setattr(client.broker.persister, "write", late)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(worker.acknowledge, {key: [(0, 0, [RELEASE])]})
                await trio.testing.wait_all_tasks_blocked(0.05)
                with trio.fail_after(10):
                    async with trio.open_nursery() as purging:
                        purging.start_soon(delete_before_is_refused, client, start)
                        await trio.testing.wait_all_tasks_blocked(0.05)
                        groups.forget(GROUP, [TopicPartition(*key)])
                may_go.set()
        await delete_before(client, start)
        assert await keeps(client, key) == 0


async def delete_before_is_refused(client: Client, offset: int) -> None:
    with pytest.raises(AssertionError):
        await delete_before(client, offset)
