"""Share-partitions are unloaded when their group's last session has ended and everything is saved,
and when group or topic is deleted."""

from __future__ import annotations

import gc
import weakref

import pytest
import trio

from kbroker.errors import ErrorCode
from kbroker.formats.state import ShareStateKey
from tests.api.conftest import Client, Connect
from tests.api.share_consumers import (
    ACCEPT,
    GROUP,
    Member,
    acquired,
    prepare,
    rows,
    set_up_group,
)


async def settled(client: Client, group_id: str = GROUP) -> int:
    """How many share-partitions are loaded once everything queued is saved."""
    while any(
        engine.statistics().writes_under_way
        for loaded in client.broker.share_partitions.loaded()
        if (engine := loaded.engine)
    ):
        await trio.lowlevel.checkpoint()
    return client.broker.share_partitions.statistics().share_partitions


@pytest.mark.parametrize("ends", ["by leaving", "by its connection"])
async def test_share_partitions_are_unloaded_with_the_last_session_of_their_group(
    connect: Connect, ends: str
) -> None:
    """Once the release of the member's records is saved, so that their delivery counts stay the
    same."""
    async with connect() as client:
        key = await prepare(client, 3)
        one, two = Member(client.another(2), "M1"), Member(client.another(3), "M2")
        assert acquired(await one.fetch([key], wait_ms=5000)) == [(0, 2, 1)]
        await two.fetch([key])
        await two.acknowledge({}, epoch=-1)
        assert await settled(client) == 1, "M1 has a session"
        assert rows(await one.acknowledge({key: [(0, 0, [ACCEPT])]}))[key].error_code == 0
        if ends == "by leaving":
            await one.acknowledge({}, epoch=-1)
        else:
            one.client.disconnect()
        assert client.broker.share_partitions.statistics().share_partitions == 1, "it is not saved yet"
        assert await settled(client) == 0
        assert acquired(await Member(client, "M3").fetch([key], wait_ms=5000)) == [(1, 2, 2)]


async def test_what_could_not_be_saved_is_not_unloaded(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect() as client:
        key = await prepare(client, 3)
        member = Member(client.another(2), "M1")
        assert acquired(await member.fetch([key], wait_ms=5000)) == [(0, 2, 1)]
        with monkeypatch.context() as failing:

            async def fail(group_id: str, requests: object) -> None:
                raise OSError("no way to the persister")

            failing.setattr(client.broker.persister, "write", fail)
            member.client.disconnect()
            assert await settled(client) == 1
        again = Member(client.another(3), "M1")
        assert acquired(await again.fetch([key])) == []
        assert rows(await again.acknowledge({key: [(0, 2, [ACCEPT])]}))[key].error_code == 0, (
            "M1 holds them until its locks end"
        )
        again.client.disconnect()
        assert await settled(client) == 0


async def test_nothing_is_kept_of_deleted_groups_and_topics(connect: Connect) -> None:
    async with connect() as client:
        await client.create_topic("orders")
        for group_id in ("g1", "g2"):
            await set_up_group(client, {"share.auto.offset.reset": "earliest"}, group_id)
        fields = {"member_id": "M1", "rack_id": None}
        topic = client.broker.topics.by_name("orders")
        assert topic is not None
        for group_id in ("g1", "g2"):
            await client.call(
                "share_group_heartbeat",
                1,
                group_id=group_id,
                member_epoch=0,
                subscribed_topic_names=["orders"],
                **fields,
            )
            await Member(client, "M1", group_id).fetch([(topic.topic_id, 0)], wait_ms=100)
        share_partitions = client.broker.share_partitions
        assert share_partitions.statistics().share_partitions == 2
        await client.call(
            "share_group_heartbeat", 1, group_id="g1", member_epoch=-1, subscribed_topic_names=None, **fields
        )
        deleted = await client.call("delete_groups", 2, groups_names=["g1"])
        assert deleted.results[0].error_code == 0
        assert [loaded.key[0] for loaded in share_partitions.loaded()] == ["g2"]
        await client.call("delete_topics", 6, topics=[{"name": "orders", "topic_id": None}])
        assert share_partitions.loaded() == []
        assert list(client.broker.state_store.scan(ShareStateKey.namespace)) == []


async def test_a_fetch_that_waited_for_a_session_that_ended_keeps_nothing_loaded(connect: Connect) -> None:
    async with connect() as client:
        key = await prepare(client)
        opener, waiting = client.another(2), client.another(3)
        await Member(opener, "M1").fetch([key])
        while client.broker.share_partitions.loaded()[0].engine is None:
            await trio.lowlevel.checkpoint()
        later = Member(waiting, "M1")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: later.fetch(epoch=1, wait_ms=60_000))
            await trio.testing.wait_all_tasks_blocked()
            opener.disconnect()
            client.broker.share_partitions.wake_all()
        assert await settled(client) == 0


async def test_an_idle_session_keeps_nothing_of_a_deleted_topic(connect: Connect) -> None:
    """Sessions cache references to share-partitions between fetches; these do not keep the
    share-partitions alive."""
    async with connect() as client:
        key = await prepare(client)
        member = Member(client.another(2), "M1")
        assert acquired(await member.fetch([key])) == []
        assert await settled(client) == 1
        (loaded,) = map(weakref.ref, client.broker.share_partitions.loaded())
        await client.call("delete_topics", 6, topics=[{"name": "orders", "topic_id": None}])
        assert client.broker.share_partitions.loaded() == []
        gc.collect()
        assert loaded() is None
        assert rows(await member.fetch(wait_ms=0))[key].error_code == ErrorCode.unknown_topic_or_partition


async def test_a_session_finds_what_was_loaded_anew(connect: Connect) -> None:
    async with connect() as client:
        key = await prepare(client, 3)
        member = Member(client.another(2), "M1")
        assert acquired(await member.fetch([key], max_records=1, wait_ms=5000)) == [(0, 2, 1)]
        (before,) = client.broker.share_partitions.loaded()
        client.broker.share_partitions.forget(GROUP, [before.key[1]])
        assert acquired(await member.fetch(wait_ms=5000)) == [(0, 2, 1)], "nothing of it was saved"
        (after,) = client.broker.share_partitions.loaded()
        assert after is not before
