"""Operations of work queues that move their metrics (test_metrics.py)."""

from __future__ import annotations

import pytest

from kbroker.formats.batches import Record, build_batch
from kbroker.formats.compression import Codec
from kbroker.share.key_order import KeyOrder
from tests.api.share_consumers import ACCEPT, RELEASE, Member, acquired, initialize, set_up_group
from tests.metrics.world import World, total
from tests.odd_batches import odd_batch


async def jobs_that_wait(world: World) -> None:
    """A record that is released, and parked for a second. Its schedule header has no valid time."""
    topic = await world.client.create_topic("later")
    await world.client.append_raw(
        "later", build_batch([Record(0, 1, None, b"x", (("kbroker-delay-ms", b"soon"),))])
    )
    configs = {
        "share.auto.offset.reset": "earliest",
        "kbroker.queue.redelivery.delay.ms": "1100",
        "kbroker.queue.scheduling": "true",
    }
    await set_up_group(world.client, configs, "later")
    await initialize(world.client, topic.topic_id, 1, "later")
    member = Member(world.client.another(1004), "L2", "later")
    key = (topic.topic_id, 0)
    assert acquired(await member.fetch([key], wait_ms=5000)) == [(0, 0, 1)]
    await member.acknowledge({key: [(0, 0, [RELEASE])]})
    samples = await world.scrape()
    labels = (("group", "later"), ("partition", "0"), ("topic", "later"))
    assert samples["kbroker_share_partition_records"][(*labels[:2], ("state", "parked"), labels[2])] == 1
    assert 0 < samples["kbroker_share_partition_next_due_seconds"][labels] <= 1.3
    assert samples["kbroker_share_partition_lag"][labels] == 1
    assert samples["kbroker_share_group_odd_schedules_total"][(labels[0], ("reason", "malformed"))] == 1
    assert acquired(await member.fetch(wait_ms=10_000)) == [(0, 0, 2)]
    assert (await world.scrape())["kbroker_share_partition_delayed_deliveries_total"][labels] == 1
    await member.fetch(acks={key: [(0, 0, [ACCEPT])]}, epoch=-1)


async def jobs_of_one_key(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five of them; no more than two may wait for another one."""
    monkeypatch.setattr(KeyOrder.__init__, "__kwdefaults__", {"look_ahead": 2})
    topic = await world.client.create_topic("keyed")
    await world.client.append_raw("keyed", build_batch([Record(0, 1, b"k", b"x", ())] * 5))
    await set_up_group(
        world.client, {"share.auto.offset.reset": "earliest", "kbroker.queue.ordering": "key"}, "keyed"
    )
    await initialize(world.client, topic.topic_id, 1, "keyed")
    member = Member(world.client.another(1005), "L3", "keyed")
    assert acquired(await member.fetch([(topic.topic_id, 0)], wait_ms=5000)) == [(0, 0, 1)]
    await world.until("kbroker_share_partition_look_ahead_stops_total")
    labels = (("group", "keyed"), ("partition", "0"), ("topic", "keyed"))
    samples = await world.scrape()
    assert samples["kbroker_share_partition_behind_keys"][labels] == 2
    assert samples["kbroker_share_partition_records"][(*labels[:2], ("state", "waiting"), labels[2])] == 2
    await member.fetch(epoch=-1)


async def parts_of_compressed_batches(world: World) -> None:
    """Two of one, then one of another that cannot be decompressed."""
    client = world.client
    topic = await client.create_topic("parts")
    await client.append_raw("parts", build_batch([Record(0, 1, None, b"x", ())] * 3, codec=Codec.LZ4))
    await client.append_raw("parts", odd_batch("no lz4"))
    await set_up_group(client, {"share.auto.offset.reset": "earliest"}, "parts")
    await initialize(client, topic.topic_id, 1, "parts")
    member = Member(client, "M1", "parts")
    for offset in range(4):
        answer = await member.fetch([(topic.topic_id, 0)], max_records=1, wait_ms=5000, share_acquire_mode=1)
        assert acquired(answer) == [(offset, offset, 1)]
    samples = await world.scrape()
    assert [total(samples, f"kbroker_queue_cache_{kind}_total") for kind in ("hits", "misses")] == [2, 2]
    assert samples["kbroker_queue_uncut_batches_total"][(("reason", "payload"),)] == 1
    await member.acknowledge({}, epoch=-1)
