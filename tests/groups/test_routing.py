"""Which part handles each request, one namespace of ids for all types, and the state of groups
after a failed save."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.share_records import RecordType
from kbroker.formats.state import GroupKey, group_prefix, parse_key
from kbroker.groups.classic import messages as classic
from kbroker.groups.ids import CLASSIC, CONSUMER, SHARE
from kbroker.groups.outcome import Outcome
from kbroker.groups.share.coordinator import ShareGroupCoordinator
from kbroker.groups.share.messages import ShareGroupHeartbeatRequest, ShareGroupSettings
from tests.groups.world import NOT_SAVED, OK, G, World

EMPTY_CLASSIC, STABLE = ("classic", "Empty"), ("classic", "Stable")


def stored_types(world: World) -> set[RecordType]:
    return {
        key.record_type
        for each, _ in world.store.scan(GroupKey.namespace)
        if isinstance(key := parse_key(each), GroupKey)
    }


def is_stored(world: World, kind: str) -> bool:
    wanted = RecordType.CLASSIC_GROUP_METADATA if kind == CLASSIC else RecordType.CONSUMER_GROUP_METADATA
    return wanted in stored_types(world)


def saved_world(kind: str | None, *, members: bool = True, offsets: bool = True) -> World:
    """A patient world, with a saved group of this type."""
    world = World()
    topic = world.topic()
    member: dict[str, Any] = {}
    if kind == CLASSIC:
        joined = world.classic_member()
        member = {"member_id": joined.member_id, "generation": joined.generation_id}
        if not members:
            world.classic_leave(joined.member_id)
    elif kind == CONSUMER:
        member = {"member_id": "m", "generation": world.consumer_beat("m").reply.member_epoch}
        if not members:
            world.consumer_beat("m", -1)
    if offsets:
        assert world.code(world.commit({(topic, 0): 1}, **(member if members else {}))) is OK
    world.patient = True
    return world


# --- routing ---


def test_a_share_groups_id_is_nobody_elses() -> None:
    """Kafka's codes for requests of another protocol."""
    world = World()
    topic = world.topic()
    world.group_ids.claim(G, SHARE)
    assert world.classic_join("m").reply.error_code is ErrorCode.inconsistent_group_protocol
    assert (
        world.classic_sync(classic.JoinReply(OK, generation_id=1, member_id="m")).reply.error_code
        is ErrorCode.unknown_member_id
    )
    beat = world.carry_out(
        world.groups.classic_heartbeat(classic.HeartbeatRequest(G, "m", None, 1), now_ms=world.now_ms)
    )
    assert beat.reply.error_code is ErrorCode.unknown_member_id
    assert world.classic_leave("m").reply.members[0].error_code is ErrorCode.unknown_member_id
    assert world.consumer_beat("m").reply.error_code is ErrorCode.group_id_not_found
    assert world.code(world.commit({(topic, 0): 1})) is ErrorCode.group_id_not_found
    assert world.code(world.delete_offsets((topic, 0))) is ErrorCode.group_id_not_found
    assert world.groups.fetch_offsets(G, None, -1) == {}
    assert world.delete().reply is ErrorCode.group_id_not_found
    assert world.types() == {}
    assert world.group_ids.type_of(G) == SHARE


def test_each_type_of_group_has_its_own_state_and_deletion() -> None:
    world = World()
    topic = world.topic()
    world.classic_member(group="classic")
    world.consumer_beat("m", group="consumer")
    world.commit({(topic, 0): 1}, group="simple")
    assert {group: kind for group, (kind, _) in world.types().items()} == {
        "classic": CLASSIC,
        "consumer": CONSUMER,
        "simple": CLASSIC,
    }
    assert set(world.groups.group_ids()) == set(world.types())
    assert world.delete("classic").reply is world.delete("consumer").reply is ErrorCode.non_empty_group
    assert world.delete("simple").reply is OK
    assert world.delete("simple").reply is ErrorCode.group_id_not_found
    assert set(world.types()) == {"classic", "consumer"}


def test_members_of_either_protocol_commit_by_their_own_rules() -> None:
    world = World()
    topic = world.topic()
    row = {(topic, 0): 1}
    joined = world.classic_member(group="classic")
    assert world.code(world.commit(row, "classic")) is ErrorCode.unknown_member_id
    assert (
        world.code(world.commit(row, "classic", member_id=joined.member_id, generation=7))
        is ErrorCode.illegal_generation
    )
    assert world.code(world.commit(row, "classic", member_id=joined.member_id, generation=1)) is OK
    epoch = world.consumer_beat("m", group="consumer").reply.member_epoch
    assert world.code(world.commit(row, "consumer")) is ErrorCode.unknown_member_id
    assert (
        world.code(world.commit(row, "consumer", member_id="m", generation=epoch + 1))
        is ErrorCode.stale_member_epoch
    )
    assert world.code(world.commit(row, "consumer", member_id="m", generation=epoch)) is OK
    assert world.groups.fetch_offsets("consumer", "m", epoch) == world.groups.fetch_offsets(
        "consumer", None, -1
    )
    with pytest.raises(KafkaError) as refusal:
        world.groups.fetch_offsets("consumer", "m", epoch + 1)
    assert refusal.value.code is ErrorCode.stale_member_epoch
    assert len(world.groups.fetch_offsets("classic", "nobody", 99)) == 1, "classic groups do not look"


def test_an_empty_consumer_group_becomes_a_classic_one_and_the_other_way_round() -> None:
    """It keeps its offsets; members of the other protocol must join as new ones."""
    world = World()
    topic = world.topic()
    world.consumer_beat("m")
    world.consumer_beat("m", -1)
    world.commit({(topic, 0): 1})
    assert world.classic_join("m", member_id="unknown").reply.error_code is ErrorCode.unknown_member_id
    assert world.types()[G][0] == CONSUMER
    joined = world.classic_member()
    assert world.types() == {G: STABLE}
    assert not is_stored(world, CONSUMER)
    world.classic_leave(joined.member_id)
    world.consumer_beat("m")
    assert world.types()[G][0] == CONSUMER
    assert not is_stored(world, CLASSIC)
    assert world.offsets() == {(topic, 0): 1}


# --- failed saves ---


@pytest.mark.parametrize("kind", [CLASSIC, CONSUMER])
def test_a_deletion_that_cannot_be_saved(kind: str) -> None:
    """The store has a group, memory none: the group is restored, with its offsets."""
    world = saved_world(kind, members=False)
    before, offsets = world.types(), world.offsets()
    call = world.delete()
    assert world.types() == {}
    assert world.group_ids.type_of(G) is None
    world.fail()
    assert call.reply == NOT_SAVED
    assert (world.types(), world.offsets()) == (before, offsets)
    assert world.group_ids.type_of(G) == kind
    world.delete()
    world.save_all()
    assert (world.types(), list(world.store.scan(b""))) == ({}, [])


@pytest.mark.parametrize("kind", [CLASSIC, CONSUMER])
def test_a_retention_that_cannot_be_saved(kind: str) -> None:
    world = saved_world(kind, members=False)
    before, offsets = world.types(), world.offsets()
    world.after(5000)
    world.expire()
    assert world.types() == {}
    world.fail()
    assert (world.types(), world.offsets()) == (before, offsets)
    world.expire()
    world.save_all()
    assert (world.types(), world.offsets(), list(world.store.scan(b""))) == ({}, {}, [])


@pytest.mark.parametrize("offsets", [False, True])
def test_a_new_group_of_either_protocol_that_cannot_be_saved(offsets: bool) -> None:
    """The store has nothing, or only offsets. A classic group stays as in memory, a consumer group
    is dropped."""
    world = saved_world(None, offsets=offsets)
    joined = world.classic_join("m").reply
    call = world.classic_sync(joined)
    world.fail()
    assert call.reply == NOT_SAVED
    assert world.types() == {G: ("classic", "PreparingRebalance")}, "its member joins again"
    world = saved_world(None, offsets=offsets)
    world.consumer_beat("m")
    assert world.types()[G][0] == CONSUMER
    world.fail()
    assert world.types() == ({G: EMPTY_CLASSIC} if offsets else {})
    assert world.group_ids.type_of(G) == (CLASSIC if offsets else None)
    assert len(world.offsets()) == offsets


@pytest.mark.parametrize("members", [False, True])
def test_an_upgrade_that_cannot_be_saved(members: bool) -> None:
    """Memory has a consumer group, the store a classic one."""
    world = saved_world(CLASSIC, members=members)
    offsets = world.offsets()
    call = world.consumer_beat("new")
    assert world.types()[G][0] == CONSUMER
    world.fail()
    assert call.reply == NOT_SAVED
    assert world.types() == {G: STABLE if members else EMPTY_CLASSIC}
    assert world.groups.consumer.get(G) is None
    assert world.offsets() == offsets
    if members:
        assert world.groups.classic.next_deadline_ms() is not None, "its sessions continue"


def test_an_empty_consumer_group_that_cannot_be_made_classic() -> None:
    """Memory has a classic group, the store a consumer group. Waiting members are refused."""
    world = saved_world(CONSUMER, members=False)
    world.classic_settings = classic.ClassicGroupSettings(initial_rebalance_delay_ms=3000)
    call = world.classic_join("m")
    assert world.types() == {G: ("classic", "PreparingRebalance")}
    world.fail()
    assert call.reply == NOT_SAVED
    assert world.types() == {G: (CONSUMER, "Empty")}
    assert world.groups.classic.get(G) is None
    world.after(100_000)
    assert world.types() == {G: (CONSUMER, "Empty")}, "no timer of it is left"


def test_a_downgrade_that_cannot_be_saved() -> None:
    """The last member of the new protocol leaves a group with a member of the classic one."""
    world = saved_world(CLASSIC)
    world.consumer_beat("new")
    world.save_all()
    assert world.types()[G][0] == CONSUMER
    world.consumer_beat("new", -1)
    assert world.types()[G][0] == CLASSIC
    world.fail()
    assert world.types()[G][0] == CONSUMER
    group = world.groups.consumer.get(G)
    assert group is not None
    assert "new" in group.members
    assert len(world.offsets()) == 1


@pytest.mark.parametrize("kind", [CLASSIC, CONSUMER])
def test_a_member_that_leaves_and_that_cannot_be_saved(kind: str) -> None:
    """The group is of the stored type. A classic group continues from memory, a consumer group from
    the store."""
    world = saved_world(kind)
    if kind == CLASSIC:
        group = world.groups.classic.get(G)
        assert group is not None
        world.classic_leave(next(iter(group.members)))
        world.fail()
        assert world.types() == {G: EMPTY_CLASSIC}
    else:
        world.consumer_beat("m", -1)
        world.fail()
        assert world.types()[G] != (CONSUMER, "Empty")
    assert len(world.offsets()) == 1


def test_a_group_that_another_took_over_behind_a_deletion_that_fails() -> None:
    world = saved_world(CLASSIC, members=False)
    world.delete()
    world.consumer_beat("new")
    assert world.types()[G][0] == CONSUMER
    world.fail()
    assert world.types() == {G: EMPTY_CLASSIC}
    assert world.groups.consumer.get(G) is None
    assert len(world.offsets()) == 1


@pytest.mark.parametrize("kind", [CLASSIC, CONSUMER])
def test_a_share_group_that_took_an_id_over_behind_a_deletion_that_fails(kind: str) -> None:
    """Regression: the id was claimed twice, which ended the broker. The same failure refuses the
    share group, which is then dropped."""
    world = saved_world(kind, members=False)
    shares = ShareGroupCoordinator(lambda _: ShareGroupSettings(), world.group_ids)
    world.delete()
    request = ShareGroupHeartbeatRequest(G, "share-member", 0, None, ("orders",), "c", "/h")
    assert shares.heartbeat(request, now_ms=world.now_ms, topics=world.topics).reply is None
    assert world.group_ids.type_of(G) == SHARE
    world.fail()
    shares.not_saved(G, world.store.scan(group_prefix(G)), now_ms=world.now_ms)
    assert world.types() == {G: (kind, "Empty")}
    assert list(shares.listed()) == []
    assert world.group_ids.type_of(G) == kind
    world.start()
    assert world.types() == {G: (kind, "Empty")}


# --- loading ---


@pytest.mark.parametrize("kind", [None, CLASSIC, CONSUMER])
@pytest.mark.parametrize("members", [False, True])
def test_groups_come_back_as_they_were_saved(kind: str | None, members: bool) -> None:
    world = saved_world(kind, members=members)
    before, offsets = world.types(), world.offsets()
    world.start()
    assert (world.types(), world.offsets()) == (before, offsets)
    assert world.group_ids.type_of(G) == (kind or CLASSIC)


def test_nothing_to_expire_is_nothing_to_save() -> None:
    world = saved_world(CLASSIC)
    assert world.groups.expire(world.now_ms) == Outcome()
    deadline_ms = world.groups.next_deadline_ms()
    assert deadline_ms is not None
    assert deadline_ms > world.now_ms
