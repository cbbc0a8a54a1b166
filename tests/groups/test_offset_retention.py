"""When offsets and groups expire: the start of the retention time for each kind of group, offsets
that stay, and that restarts change nothing."""

from __future__ import annotations

import pytest

from kbroker.groups.classic.messages import Protocol
from kbroker.groups.ids import SHARE
from kbroker.groups.offsets.messages import OffsetsSettings
from tests.groups.world import OK, G, World

RETENTION_MS = 1000
restarts = pytest.mark.parametrize("restart", [False, True])


def pass_time(world: World, milliseconds: int, *, restart: bool = False) -> None:
    world.after(milliseconds)
    if restart:
        world.start()
    world.expire()


@restarts
def test_a_group_of_offsets_alone_counts_from_each_commit(restart: bool) -> None:
    world = World()
    topic = world.topic()
    world.commit({(topic, 0): 1, (topic, 1): 1})
    pass_time(world, 600, restart=restart)
    world.commit({(topic, 1): 2})
    pass_time(world, RETENTION_MS - 601, restart=restart)
    assert world.offsets() == {(topic, 0): 1, (topic, 1): 2}
    pass_time(world, 1, restart=restart)
    assert world.offsets() == {(topic, 1): 2}
    assert world.types() == {G: ("classic", "Empty")}
    pass_time(world, 600, restart=restart)
    assert (world.offsets(), world.types()) == ({}, {}), "the group goes with its last offset"
    assert list(world.store.scan(b"")) == []


@restarts
def test_a_classic_group_counts_from_when_its_last_member_left(restart: bool) -> None:
    """However old its offsets are, and also offsets committed afterwards, as in Kafka."""
    world = World()
    topic = world.topic()
    joined = world.classic_member(topics=())
    world.commit({(topic, 0): 1}, member_id=joined.member_id, generation=joined.generation_id)
    world.after(900)
    world.classic_leave(joined.member_id)
    pass_time(world, 500, restart=restart)
    world.commit({(topic, 1): 2})
    pass_time(world, RETENTION_MS - 501, restart=restart)
    assert world.offsets() == {(topic, 0): 1, (topic, 1): 2}
    pass_time(world, 1, restart=restart)
    assert (world.offsets(), world.types()) == ({}, {})
    assert list(world.store.scan(b"")) == []


@restarts
def test_topics_that_a_stable_group_subscribes_to_stay(restart: bool) -> None:
    world = World()
    orders, other = world.topic("orders"), world.topic("other")
    joined = world.classic_member()
    world.commit({(orders, 0): 1, (other, 0): 1}, member_id=joined.member_id, generation=joined.generation_id)
    pass_time(world, RETENTION_MS, restart=restart)
    assert world.offsets() == {(orders, 0): 1}
    assert world.types() == {G: ("classic", "Stable")}


def test_nothing_is_forgotten_while_a_group_rebalances() -> None:
    world = World()
    other = world.topic("other")
    joined = world.classic_join("m").reply
    world.commit({(other, 0): 1}, group="simple")
    assert world.types()[G] == ("classic", "CompletingRebalance")
    world.classic_sync(joined)
    world.commit({(other, 0): 1}, member_id=joined.member_id, generation=joined.generation_id)
    world.after(RETENTION_MS)
    world.classic_join("another")
    assert world.types()[G] == ("classic", "PreparingRebalance")
    world.expire()
    assert world.offsets() == {(other, 0): 1}
    assert world.offsets("simple") == {}


@pytest.mark.parametrize("kind", ["connect", "nonsense"])
def test_members_of_whom_nobody_knows_what_they_need_keep_all_offsets(kind: str) -> None:
    """They are not consumers, or their subscription cannot be decoded."""
    world = World()
    topic = world.topic()
    protocol_type = "connect" if kind == "connect" else "consumer"
    joined = world.classic_member(protocol_type=protocol_type, protocols=(Protocol("p", b"?"),))
    world.commit({(topic, 0): 1}, member_id=joined.member_id, generation=joined.generation_id)
    pass_time(world, RETENTION_MS)
    assert world.offsets() == {(topic, 0): 1}
    world.classic_leave(joined.member_id)
    pass_time(world, RETENTION_MS)
    assert (world.offsets(), world.types()) == ({}, {})


@restarts
def test_a_consumer_group_counts_from_the_commit(restart: bool) -> None:
    world = World()
    orders, other = world.topic("orders"), world.topic("other")
    joined = world.consumer_beat("m").reply
    assert joined.error_code is OK
    world.commit({(orders, 0): 1, (other, 0): 1}, member_id="m", generation=joined.member_epoch)
    pass_time(world, RETENTION_MS, restart=restart)
    assert world.offsets() == {(orders, 0): 1}, "a topic that it subscribes to stays"
    world.consumer_beat("m", -1)
    world.commit({(orders, 1): 2})
    pass_time(world, RETENTION_MS - 1, restart=restart)
    assert world.offsets() == {(orders, 1): 2}, "the member has left, and the commit was long ago"
    assert world.types() == {G: ("consumer", "Empty")}
    pass_time(world, 1, restart=restart)
    assert (world.offsets(), world.types()) == ({}, {})
    assert list(world.store.scan(b"")) == []


@restarts
def test_a_commit_that_says_how_long_it_is_kept(restart: bool) -> None:
    """OffsetCommit v2 to v4; a later commit overrides it."""
    world = World()
    topic = world.topic()
    world.commit({(topic, 0): 1, (topic, 1): 1}, version=2, retention_ms=100)
    world.commit({(topic, 2): 1}, version=4, retention_ms=5 * RETENTION_MS)
    world.commit({(topic, 1): 2}, version=4)
    pass_time(world, 99, restart=restart)
    assert len(world.offsets()) == 3
    pass_time(world, 1, restart=restart)
    assert world.offsets() == {(topic, 1): 2, (topic, 2): 1}
    pass_time(world, 2 * RETENTION_MS, restart=restart)
    assert world.offsets() == {(topic, 2): 1}
    pass_time(world, 3 * RETENTION_MS, restart=restart)
    assert (world.offsets(), world.types()) == ({}, {})


def test_a_commit_that_is_kept_for_less_stays_while_its_topic_is_subscribed_to() -> None:
    world = World()
    topic = world.topic()
    world.commit({(topic, 0): 1}, version=2, retention_ms=0)
    world.classic_member()
    pass_time(world, RETENTION_MS)
    assert world.offsets() == {(topic, 0): 1}


def test_the_setting_counts_when_it_is_looked_at() -> None:
    world = World()
    topic = world.topic()
    world.commit({(topic, 0): 1})
    world.offsets_settings = OffsetsSettings(retention_ms=50)
    pass_time(world, 49)
    assert world.offsets() == {(topic, 0): 1}
    pass_time(world, 1)
    assert world.offsets() == {}


def test_empty_groups_without_offsets_are_removed() -> None:
    """At the next check, even if they became empty just before it. Groups with members stay."""
    world = World()
    world.topic()
    leaving = world.classic_member()
    world.classic_leave(leaving.member_id)
    world.classic_member(group="stays")
    world.consumer_beat("m", group="consumers")
    world.consumer_beat("m", -1, group="consumers")
    world.consumer_beat("m", group="consumers that stay")
    world.expire()
    assert set(world.types()) == {"stays", "consumers that stay"}
    world.start()
    assert set(world.types()) == {"stays", "consumers that stay"}


def test_a_member_that_was_given_an_id_may_still_come() -> None:
    world = World()
    world.topic()
    told = world.classic_join("m", takes_member_id=True).reply
    world.expire()
    joined = world.classic_join("m", member_id=told.member_id).reply
    assert joined.error_code is OK
    assert world.types() == {G: ("classic", "CompletingRebalance")}


def test_a_group_that_is_gone_or_somebody_elses_is_left_alone() -> None:
    """The broker checks one group after the other. Meanwhile groups may be deleted, and their ids
    reused."""
    world = World()
    world.expire("never there")
    world.commit({(world.topic(), 0): 1})
    world.delete()
    world.group_ids.claim(G, SHARE)
    world.after(RETENTION_MS)
    world.expire(G)
    assert world.group_ids.type_of(G) == SHARE


def test_offsets_of_a_topic_that_was_deleted_while_the_broker_was_down() -> None:
    """The broker reads `topic_ids` at its start. Until then fetches do not see these offsets, and
    old ones would expire."""
    world = World()
    gone, other = world.topic("orders"), world.topic("other")
    world.commit({(gone, 0): 1, (other, 0): 2})
    world.topics.remove("orders")
    again = world.topic("orders")
    world.start()
    assert gone != again
    assert world.groups.offsets.topic_ids() == {gone, other}
    world.carry_out(world.groups.topic_deleted(gone))
    world.start()
    assert world.offsets() == {(other, 0): 2}
