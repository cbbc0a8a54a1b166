"""A step of test_metrics.py: a group that keeps the order of keys."""

from __future__ import annotations

import pytest

from kbroker.records import Record, build_batch
from kbroker.share.key_order import KeyOrder
from tests.api.share_consumers import Member, acquired, initialize, set_up_group
from tests.metrics_world import World


async def jobs_of_one_key(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five of them, and no more than two may wait for another one."""
    monkeypatch.setattr(KeyOrder.__init__, "__kwdefaults__", {"look_ahead": 2})
    topic = await world.client.create_topic("keyed")
    await world.client.append_raw("keyed", build_batch([Record(0, 1, b"k", b"x", ())] * 5))
    await set_up_group(world.client, {"share.auto.offset.reset": "earliest", "kbroker.queue.ordering": "key"}, "keyed")
    await initialize(world.client, topic.topic_id, 1, "keyed")
    member = Member(world.client.another(1005), "L3", "keyed")
    assert acquired(await member.fetch([(topic.topic_id, 0)], wait_ms=5000)) == [(0, 0, 1)]
    await world.until("kbroker_share_partition_look_ahead_stops_total")
    labels = (("group", "keyed"), ("partition", "0"), ("topic", "keyed"))
    samples = await world.scrape()
    assert samples["kbroker_share_partition_behind_keys"][labels] == 2
    assert samples["kbroker_share_partition_records"][(*labels[:2], ("state", "waiting"), labels[2])] == 2
    await member.fetch(epoch=-1)
