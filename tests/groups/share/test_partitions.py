"""How share-partitions of a group are initialised, retried and deleted; describing, listing and
deleting groups."""

from __future__ import annotations

import pytest

from kbroker.errors import ErrorCode
from kbroker.formats.share_records import NamedTopic, NamedTopicPartitions, RecordType, ShareGroupPartitions
from kbroker.formats.state import GroupKey
from kbroker.groups.ids import ListedGroup
from kbroker.groups.outcome import DeleteShareState
from kbroker.groups.share.messages import (
    DescribedAssignment,
    DescribedShareGroup,
    DescribedShareMember,
    DescribedTopicPartitions,
    ShareGroupHeartbeatRequest,
)
from kbroker.share.persister import TopicPartition
from tests.groups.share.world import World, assigned


@pytest.fixture
def world() -> World:
    world = World()
    world.topics.put("orders", 2)
    return world


def partition(world: World, number: int, topic: str = "orders") -> TopicPartition:
    found = world.topics.by_name(topic)
    assert found is not None
    return TopicPartition(found.topic_id, number)


def record(world: World) -> ShareGroupPartitions:
    found = world.records()[RecordType.SHARE_GROUP_PARTITIONS, None]
    assert isinstance(found, ShareGroupPartitions)
    return found


def named(world: World, *numbers: int) -> tuple[NamedTopicPartitions, ...]:
    topic_id = partition(world, 0).topic_id
    return (
        (NamedTopicPartitions(topic_id=topic_id, topic_name="orders", partitions=numbers),) if numbers else ()
    )


def starts(world: World) -> dict[int, int]:
    """Start offsets by partition in the last request to the persister."""
    found = {request.partition.partition: request.start_offset for request in world.asked}
    world.asked.clear()
    return found


# --- 5.4 ---


def test_a_partition_is_initializing_and_then_initialized(world: World) -> None:  # INIT-1, INIT-5, GRP-32
    world.patient = True
    assert world.heartbeat("m1", 0, ["orders"]) is None
    assert record(world) == ShareGroupPartitions(
        initializing_topics=named(world, 0, 1), initialized_topics=(), deleting_topics=()
    )
    assert world.coordinator.is_waiting("g", "m1")
    world.answer()
    assert record(world) == ShareGroupPartitions(
        initializing_topics=(), initialized_topics=named(world, 0, 1), deleting_topics=()
    )
    assert not world.coordinator.is_waiting("g", "m1")
    assert assigned(world.finish("m1")) == {partition(world, 0), partition(world, 1)}


def test_all_who_join_meanwhile_wait_for_one_initialisation(world: World) -> None:  # GRP-35, GRP-37
    world.patient = True
    for number in range(8):
        assert world.heartbeat(f"m{number}", 0, ["orders"]) is None
    assert len(world.pending) == 1
    assert world.heartbeat("elsewhere", 0, ["none"]) is not None, "a member of another topic does not wait"
    assert not world.coordinator.is_waiting("g", "elsewhere")
    world.answer()
    for number in range(8):
        assert not world.coordinator.is_waiting("g", f"m{number}")
        assert assigned(world.finish(f"m{number}")), "everybody has something at once"


def test_a_plain_heartbeat_does_not_wait_for_others(world: World) -> None:
    world.join("m1", "orders")
    world.topics.put("more", 1)
    world.patient = True
    assert world.heartbeat("m2", 0, ["more"]) is None
    world.now_ms += 1_000
    assert world.heartbeat("m1", 2) is not None


def test_the_one_who_notices_a_new_topic_waits_for_it(world: World) -> None:  # GRP-35
    world.join("m1", "orders", "later")
    world.topics.put("later", 1)
    world.patient = True
    assert world.heartbeat("m1", 2) is None
    world.answer()
    assert partition(world, 0, "later") in (assigned(world.finish("m1")) or set())


def test_a_member_that_leaves_while_it_waits(world: World) -> None:
    world.patient = True
    world.heartbeat("m1", 0, ["orders"])
    world.coordinator.heartbeat(
        ShareGroupHeartbeatRequest("g", "m1", -1), now_ms=world.now_ms, topics=world.topics
    )
    world.answer()
    assert world.finish("m1").error_code is ErrorCode.unknown_member_id
    assert record(world).initialized_topics == named(world, 0, 1)


def test_patience_ends_before_the_persister_answers(world: World) -> None:  # GRP-29, GRP-32
    """The member gets the initialised partitions, and the others as soon as they are."""
    world.patient = True
    world.heartbeat("m1", 0, ["orders"])
    reply = world.finish("m1")
    assert (reply.error_code, reply.member_epoch, assigned(reply)) == (ErrorCode.none, 2, set())
    world.answer()
    world.patient = False
    reply = world.again("m1")
    assert (reply.member_epoch, assigned(reply)) == (3, {partition(world, 0), partition(world, 1)})


def test_a_failed_initialisation_is_answered_and_tried_again(world: World) -> None:  # INIT-5, INIT-6
    world.refuse = {partition(world, 1): ErrorCode.coordinator_not_available}
    assert assigned(world.join("m1", "orders")) == {partition(world, 0)}
    assert record(world) == ShareGroupPartitions(
        initializing_topics=(), initialized_topics=named(world, 0), deleting_topics=()
    )
    assert starts(world) == {0: -1, 1: -1}
    world.again("m1")
    assert starts(world) == {1: -1}, "a topic new to the group, though one of its partitions is known by now"
    world.refuse = {}
    reply = world.again("m1")
    assert starts(world) == {1: -1}
    assert assigned(reply) == {partition(world, 0), partition(world, 1)}
    world.again("m1")
    assert starts(world) == {}


def test_new_partitions_of_a_known_topic_begin_at_0(world: World) -> None:  # INIT-3, INIT-4
    world.join("m1", "orders")
    assert starts(world) == {0: -1, 1: -1}
    world.topics.put("orders", 4)
    reply = world.again("m1")
    assert starts(world) == {2: 0, 3: 0}
    assert len(assigned(reply) or ()) == 4
    world.restart()
    world.topics.put("orders", 5)
    world.again("m1")
    assert starts(world) == {4: 0}


def test_partitions_that_come_while_the_topic_is_initialised_begin_at_0_too(world: World) -> None:  # INIT-4
    world.patient = True
    world.heartbeat("m1", 0, ["orders"])
    world.topics.put("orders", 3)
    world.heartbeat("m2", 0, ["orders"])
    world.answer()
    assert starts(world) == {0: -1, 1: -1, 2: 0}


def test_a_stuck_initialisation_is_sent_again_with_the_same_offset(world: World) -> None:  # INIT-7, INIT-8
    """11.2 (10): a retry of a topic new to the group must not begin at 0."""
    world.patient = True
    world.heartbeat("m1", 0, ["orders"])
    world.pending.clear()  # the answer never comes
    world.finish("m1")
    world.now_ms += 29_999
    world.heartbeat("m1", 2)
    assert world.pending == []
    world.now_ms += 1
    world.heartbeat("m1", 2)
    world.answer()
    assert starts(world) == {0: -1, 1: -1}


def test_an_initialisation_interrupted_by_a_crash_is_sent_again_at_once(world: World) -> None:
    world.patient = True
    world.heartbeat("m1", 0, ["orders"])
    world.pending.clear()
    world.restart()
    world.patient = False
    reply = world.heartbeat("m1", 0, ["orders"])
    assert starts(world) == {0: -1, 1: -1}
    assert assigned(reply) == {partition(world, 0), partition(world, 1)}


def test_a_failed_save_does_not_ask_twice(world: World) -> None:
    world.patient = True
    world.heartbeat("m1", 0, ["orders"])
    world.fail(
        world.coordinator.heartbeat(
            ShareGroupHeartbeatRequest("g", "m2", 0, None, ("orders",)),
            now_ms=world.now_ms,
            topics=world.topics,
        )
    )
    assert world.coordinator.is_waiting("g", "m1")
    assert world.heartbeat("m3", 0, ["orders"]) is None
    assert len(world.pending) == 1


def test_a_failed_save_does_not_forget_the_decided_offset(world: World) -> None:
    world.refuse = {partition(world, 1): ErrorCode.coordinator_not_available}
    world.join("m1", "orders")
    starts(world)
    world.fail(
        world.coordinator.heartbeat(
            ShareGroupHeartbeatRequest("g", "m1", -1), now_ms=world.now_ms, topics=world.topics
        )
    )
    world.again("m1")
    assert starts(world) == {1: -1}


def test_initialised_partitions_that_no_target_has_make_a_new_epoch(world: World) -> None:  # GRP-29
    """5.3 (2), as after an offset reset: the record says initialised, and no member has it."""
    world.refuse = {partition(world, 1): ErrorCode.coordinator_not_available}
    world.join("m1", "orders")
    initialized = ShareGroupPartitions(
        initializing_topics=(), initialized_topics=named(world, 0, 1), deleting_topics=()
    )
    world.store.write([(GroupKey(RecordType.SHARE_GROUP_PARTITIONS, "g").encode(), initialized.encode())])
    world.restart()
    reply = world.again("m1")
    assert (reply.member_epoch, assigned(reply)) == (3, {partition(world, 0), partition(world, 1)})
    assert world.again("m1").member_epoch == 3


def test_a_topic_deleted_while_it_is_initialised(world: World) -> None:  # INIT-9
    world.patient = True
    world.heartbeat("m1", 0, ["orders"])
    world.save(world.coordinator.topic_deleted(world.topics.remove("orders")))
    assert not world.coordinator.is_waiting("g", "m1")
    world.answer()
    assert record(world) == ShareGroupPartitions(
        initializing_topics=(), initialized_topics=(), deleting_topics=()
    )
    assert assigned(world.finish("m1")) == set()
    assert world.coordinator.initialized("gone", [], now_ms=0).changes == ()


# --- 5.7, 5.8: describe, list, delete ---


def test_describe(world: World) -> None:  # GRP-44, GRP-51
    world.join("m1", "orders")
    group = world.coordinator.describe("g")
    topic = DescribedTopicPartitions(partition(world, 0).topic_id, "orders", (0, 1))
    assert group == DescribedShareGroup(
        "g",
        group_state="Stable",
        group_epoch=2,
        assignment_epoch=2,
        assignor_name="simple",
        members=(DescribedShareMember("m1", None, 2, "c", "/h", ("orders",), DescribedAssignment((topic,))),),
    )
    world.save(world.coordinator.topic_deleted(world.topics.remove("orders")))
    (member,) = world.coordinator.describe("g").members
    assert member.assignment == DescribedAssignment(()), "a deleted topic has no name"


def test_describe_what_is_no_share_group(world: World) -> None:  # GRP-52, RPC-62
    not_found = DescribedShareGroup("none", ErrorCode.group_id_not_found, "Group none not found.")
    assert world.coordinator.describe("none") == not_found
    assert world.coordinator.describe("") == DescribedShareGroup("", ErrorCode.invalid_group_id)


# GRP-44, GRP-49
def test_list_groups(world: World) -> None:
    world.join("m1", "orders")
    world.join("m1", "orders", group="h")
    world.heartbeat("m1", -1, group="h")
    assert list(world.coordinator.listed()) == [
        ListedGroup("g", "share", "Stable", "share"),
        ListedGroup("h", "share", "Empty", "share"),
    ]


def test_delete_a_group(world: World) -> None:  # OFF-24, OFF-28, RPC-62
    for missing in ("", "none"):
        assert world.delete(missing) is ErrorCode.group_id_not_found
    world.join("m1", "orders")
    assert world.delete() is ErrorCode.non_empty_group
    world.heartbeat("m1", -1)
    assert world.delete() is ErrorCode.none
    assert world.records() == {}
    assert world.group_ids.type_of("g") is None
    assert world.delete() is ErrorCode.group_id_not_found
    assert world.join("m1", "orders").member_epoch == 2


def test_delete_a_group_without_share_state(world: World) -> None:
    world.join("m1", "none")
    world.heartbeat("m1", -1)
    outcome = world.coordinator.delete("g", world.topics)
    assert (outcome.reply, outcome.effects) == (ErrorCode.none, ())
    world.save(outcome)
    assert world.records() == {}


def test_delete_asks_for_everything_that_may_have_state(world: World) -> None:  # INIT-1, OFF-26
    """Initialized, Initializing, and stuck Deleting with all partitions."""
    world.topics.put("new", 1)
    world.join("m1", "orders")
    world.patient = True
    world.heartbeat("m1", 2, ["new"])
    world.heartbeat("m1", -1)
    outcome = world.coordinator.delete("g", world.topics)
    world.save(outcome)
    everything = {partition(world, 0), partition(world, 1), partition(world, 0, "new")}
    (effect,) = outcome.effects
    assert isinstance(effect, DeleteShareState)
    assert set(effect.partitions) == everything
    world.topics.put("orders", 3)
    world.restart()
    (effect,) = world.coordinator.delete("g", world.topics).effects
    assert isinstance(effect, DeleteShareState)
    assert set(effect.partitions) == everything | {partition(world, 2)}


def test_a_persister_failure_keeps_the_group(world: World) -> None:  # INIT-1, OFF-27
    world.join("m1", "orders")
    world.heartbeat("m1", -1)
    world.refuse = {partition(world, 1): ErrorCode.coordinator_not_available}
    assert world.delete() is ErrorCode.coordinator_not_available
    assert record(world) == ShareGroupPartitions(
        initializing_topics=(),
        initialized_topics=(),
        deleting_topics=(NamedTopic(topic_id=partition(world, 0).topic_id, topic_name="orders"),),
    )
    world.restart()
    assert [each.group_state for each in world.coordinator.listed()] == ["Empty"]
    world.refuse = {}
    assert world.delete() is ErrorCode.none
    assert world.records() == {}


def test_a_join_while_the_group_is_being_deleted(world: World) -> None:
    """The group stays, and deleted partitions are initialised again."""
    world.join("m1", "orders")
    world.heartbeat("m1", -1)
    starts(world)
    outcome = world.coordinator.delete("g", world.topics)
    world.save(outcome)
    (effect,) = outcome.effects
    assert isinstance(effect, DeleteShareState)
    assert assigned(world.join("m2", "orders")) == {partition(world, 0), partition(world, 1)}
    assert starts(world) == {0: -1, 1: -1}
    assert record(world).deleting_topics == ()
    outcome = world.coordinator.deleted("g", world.results(effect.partitions))
    world.save(outcome)
    assert outcome.reply is ErrorCode.non_empty_group
    assert record(world).initialized_topics == named(world, 0, 1)
    assert assigned(world.heartbeat("m2", 4, ["orders"])) == {partition(world, 0), partition(world, 1)}
    world.heartbeat("m2", -1)
    assert world.coordinator.deleted("g", []).reply is ErrorCode.non_empty_group, "there is share state again"
    assert world.coordinator.deleted("gone", []).reply is ErrorCode.none
