"""The share group coordinator, rule by rule: heartbeat checks, epochs, assignment, leaving, expiry,
restart, failed saves."""

from __future__ import annotations

from datetime import timedelta

import pytest

from kbroker.errors import ErrorCode
from kbroker.formats.share_records import (
    RecordType,
    ShareGroupCurrentMember,
    ShareGroupMember,
    ShareGroupMetadata,
    ShareGroupTargetMember,
    ShareGroupTargetMetadata,
)
from kbroker.formats.state import MAX_GROUP_ID_BYTES, group_prefix
from kbroker.groups.share.messages import GroupHeartbeatReply, ShareGroupHeartbeatRequest
from kbroker.share.persister import TopicPartition
from tests.groups.share.world import World, assigned


@pytest.fixture
def world() -> World:
    """One topic "orders" with three partitions."""
    world = World()
    world.topics.put("orders", 3)
    return world


def orders(world: World, *numbers: int) -> set[TopicPartition]:
    topic = world.topics.by_name("orders")
    assert topic is not None
    return {TopicPartition(topic.topic_id, number) for number in numbers}


# --- 5.1: the checks, in order ---


@pytest.mark.parametrize(
    ("number", "request_", "code", "message"),
    [
        (3, ShareGroupHeartbeatRequest("", "", -7), ErrorCode.invalid_request, None),
        (3, ShareGroupHeartbeatRequest("g", "m" * 37, 0, None, ("orders",)), ErrorCode.invalid_request, None),
        (
            6,
            ShareGroupHeartbeatRequest(" ", "m", 0, "", None),
            ErrorCode.invalid_request,
            "GroupId can't be empty.",
        ),
        (
            6,
            ShareGroupHeartbeatRequest("g", "  ", 0, "", None),
            ErrorCode.invalid_request,
            "MemberId can't be empty.",
        ),
        (
            6,
            ShareGroupHeartbeatRequest("g", "m", 0, "", None),
            ErrorCode.invalid_request,
            "RackId can't be empty.",
        ),
        (
            7,
            ShareGroupHeartbeatRequest("g", "m", 0),
            ErrorCode.invalid_request,
            "SubscribedTopicNames must be set in first request.",
        ),
        (
            7,
            ShareGroupHeartbeatRequest("g", "m", 0, None, ()),
            ErrorCode.invalid_request,
            "SubscribedTopicNames must be set in first request.",
        ),
        (8, ShareGroupHeartbeatRequest("g", "m", -2), ErrorCode.invalid_request, "MemberEpoch is invalid."),
        (
            9,
            ShareGroupHeartbeatRequest("none", "m", 1),
            ErrorCode.group_id_not_found,
            "Group none not found.",
        ),
        (
            9,
            ShareGroupHeartbeatRequest("none", "m", -1),
            ErrorCode.group_id_not_found,
            "Group none not found.",
        ),
        (
            9,
            ShareGroupHeartbeatRequest("classic", "m", 0, None, ("orders",)),
            ErrorCode.group_id_not_found,
            "Group classic is not a share group.",
        ),
        (
            10,
            ShareGroupHeartbeatRequest("full", "m", 0, None, ("orders",)),
            ErrorCode.group_max_size_reached,
            "2 members",
        ),
        (10, ShareGroupHeartbeatRequest("full", "kicked", 5), ErrorCode.group_max_size_reached, "2 members"),
        (
            11,
            ShareGroupHeartbeatRequest("full", "stranger", -1),
            ErrorCode.unknown_member_id,
            "Member stranger is not a member of group full.",
        ),
        (
            11,
            ShareGroupHeartbeatRequest("g", "stranger", 2),
            ErrorCode.unknown_member_id,
            "Member stranger is not a member of group g.",
        ),
        (
            12,
            ShareGroupHeartbeatRequest("g", "m1", 4),
            ErrorCode.fenced_member_epoch,
            "greater member epoch (4)",
        ),
        (
            12,
            ShareGroupHeartbeatRequest("g", "m1", 1),
            ErrorCode.fenced_member_epoch,
            "smaller member epoch (1)",
        ),
    ],
)
def test_heartbeat_checks(
    number: int, request_: ShareGroupHeartbeatRequest, code: ErrorCode, message: str | None
) -> None:
    # GRP-1, GRP-4, GRP-6..12, GRP-20, GRP-22
    world = World(max_size=2)
    world.topics.put("orders", 3)
    world.group_ids.claim("classic", "classic")
    world.join("m1", "orders")  # epoch 2
    world.heartbeat("m1", 2, ["orders", "more"])  # epoch 3
    for member in ("a", "b"):
        world.join(member, "orders", group="full")
    before = list(world.store.scan(b""))
    outcome = world.coordinator.heartbeat(request_, now_ms=world.now_ms, topics=world.topics)
    assert (outcome.changes, outcome.effects) == ((), ())
    assert outcome.reply is not None
    # null member id, epoch 0, interval 0, no assignment
    assert outcome.reply == GroupHeartbeatReply(code, outcome.reply.error_message)
    assert outcome.reply.error_message == message or (
        message is not None and message in str(outcome.reply.error_message)
    )
    assert list(world.store.scan(b"")) == before


def test_group_ids_that_no_key_can_hold() -> None:
    reply = World().heartbeat("m", 0, ["orders"], group="é" * (MAX_GROUP_ID_BYTES // 2 + 1))
    assert reply is not None
    assert reply.error_code is ErrorCode.invalid_request


def test_a_lost_reply_does_not_fence(world: World) -> None:  # GRP-12, GRP-13
    """12: the previous epoch is accepted as well, and so is joining again."""
    world.join("m1", "orders")
    world.join("m2", "orders")
    assert world.again("m1").member_epoch == 3
    for epoch in (2, 3):
        reply = world.heartbeat("m1", epoch)
        assert reply is not None
        assert (reply.error_code, reply.member_epoch) == (ErrorCode.none, 3)
    reply = world.heartbeat("m1", 0, ["orders"])
    assert (assigned(reply), world.group_epoch()) == (orders(world, 0, 1), 3)


def test_an_assignment_that_was_lost_is_told_again(world: World) -> None:  # GRP-34, DIF-77
    """The member repeats its request, because the answer was lost: the assignment is resent once,
    also after a restart."""
    world.join("m1", "orders")
    world.join("m2", "orders")
    assert assigned(world.again("m1")) == orders(world, 0, 1)
    world.restart()
    assert assigned(world.heartbeat("m1", 2)) == orders(world, 0, 1)
    assert assigned(world.heartbeat("m1", 3)) is None


def test_odd_topic_names_are_names(world: World) -> None:  # GRP-15, GRP-16
    reply = world.join("m1", "a b", ".*", "__consumer_offsets", "no such topic")
    assert (reply.member_epoch, assigned(reply)) == (2, set())


def test_order_and_repetition_of_topics_are_no_change(world: World) -> None:  # GRP-17
    world.topics.put("more", 1)
    world.join("m1", "orders", "more")
    reply = world.heartbeat("m1", 2, ["more", "orders", "more"])
    assert reply is not None
    assert reply.member_epoch == 2
    assert world.group_epoch() == 2


def test_an_empty_list_unsubscribes(world: World) -> None:  # GRP-18
    world.join("m1", "orders")
    reply = world.heartbeat("m1", 2, [])
    assert reply is not None
    assert (reply.member_epoch, assigned(reply)) == (3, set())


# --- 5.2: leaving and expiry ---


def test_leaving(world: World) -> None:  # GRP-21, GRP-23
    world.join("m1", "orders")
    world.join("m2", "orders")
    world.again("m1")
    assert world.heartbeat("m1", -1, ["ignored"]) == GroupHeartbeatReply(member_id="m1", member_epoch=-1)
    records = world.records()
    assert {member_id for _, member_id in records} == {None, "m2"}
    assert isinstance(metadata := records[RecordType.SHARE_GROUP_METADATA, None], ShareGroupMetadata)
    assert metadata.epoch == 4
    assert isinstance(
        target := records[RecordType.SHARE_GROUP_TARGET_METADATA, None], ShareGroupTargetMetadata
    )
    assert target.assignment_epoch == 3, "not the last member: a new assignment is due"
    assert assigned(world.again("m2")) == orders(world, 0, 1, 2)


def test_the_last_member_leaves(world: World) -> None:  # GRP-14, GRP-23, GRP-44
    world.join("m1", "orders")
    world.heartbeat("m1", -1)
    records = world.records()
    assert records[RecordType.SHARE_GROUP_TARGET_METADATA, None] == ShareGroupTargetMetadata(
        assignment_epoch=3, assignment_timestamp=world.now_ms
    ), "it is the epoch of the group without members"
    assert set(records) == {
        (each, None)
        for each in (
            RecordType.SHARE_GROUP_METADATA,
            RecordType.SHARE_GROUP_TARGET_METADATA,
            RecordType.SHARE_GROUP_PARTITIONS,
        )
    }
    assert world.coordinator.describe("g").group_state == "Empty"
    rejoin = world.join("m1", "orders")
    assert (rejoin.member_epoch, assigned(rejoin)) == (4, orders(world, 0, 1, 2))


def test_sessions_expire_after_the_last_heartbeat(world: World) -> None:  # GRP-24
    assert world.coordinator.next_deadline_ms() is None
    world.join("m1", "orders")
    world.join("m2", "orders")
    assert world.coordinator.next_deadline_ms() == world.now_ms + 45_000
    world.again("m2", after_ms=40_000)
    world.now_ms += 4_999
    assert world.coordinator.expire(world.now_ms).changes == ()
    world.now_ms += 1
    outcome = world.coordinator.expire(world.now_ms)
    assert outcome.group_ids == ("g",)
    world.save(outcome)
    assert [each.member_id for each in world.coordinator.describe("g").members] == ["m2"]
    assert world.group_epoch() == 4
    assert world.coordinator.next_deadline_ms() == world.now_ms + 40_000
    reply = world.heartbeat("m1", 2)
    assert reply is not None
    assert reply.error_code is ErrorCode.unknown_member_id


def test_a_member_that_left_and_joined_again_has_a_new_session(world: World) -> None:
    world.join("m1", "orders")
    world.now_ms += 10_000
    world.heartbeat("m1", -1)
    world.join("m1", "orders")
    world.now_ms += 35_000
    assert world.coordinator.expire(world.now_ms).changes == ()
    world.now_ms += 10_000
    assert world.coordinator.expire(world.now_ms).changes != ()


def test_a_shorter_session_timeout_holds_from_the_next_heartbeat(world: World) -> None:
    world.join("m1", "orders")
    world.settings = World(session_timeout_ms=10_000).settings
    world.again("m1")
    world.now_ms += 10_000
    assert world.coordinator.next_deadline_ms() == world.now_ms
    assert world.coordinator.expire(world.now_ms).changes != ()


# --- 5.3: epochs and assignment ---


# GRP-26, GRP-35, GRP-39, INIT-2, INIT-3
def test_the_first_join_replies_epoch_2_with_the_assignment(world: World) -> None:
    """A.5, better than Kafka: at once instead of with the next heartbeat. The state epoch is the
    group's."""
    reply = world.join("m1", "orders")
    assert reply.member_epoch == 2
    assert reply.heartbeat_interval == timedelta(seconds=5)
    assert assigned(reply) == orders(world, 0, 1, 2)
    assert {(each.state_epoch, each.start_offset) for each in world.asked} == {(2, -1)}
    assert world.now_ms == 1_000_000


def test_member_records_are_written_when_something_changed(world: World) -> None:  # GRP-27
    def written(**changes: str) -> bool:
        world.store.write(
            [(key, None) for key, _ in world.store.scan(group_prefix("g")) if b"\x00\x0a\x00\x02m1" in key]
        )
        world.heartbeat("m1", 2, **changes)  # type: ignore[arg-type]
        return (RecordType.SHARE_GROUP_MEMBER, "m1") in world.records()

    world.join("m1", "orders")
    assert world.records()[RecordType.SHARE_GROUP_MEMBER, "m1"] == ShareGroupMember(
        rack_id=None, client_id="c", client_host="/h", subscribed_topic_names=("orders",)
    )
    assert not written()
    assert written(rack="r")
    assert not written()  # null rack: as before
    assert not written(rack="r")
    assert written(client="other")
    assert world.group_epoch() == 2


def test_a_plain_heartbeat_writes_nothing(world: World) -> None:
    world.join("m1", "orders")
    world.again("m1")
    outcome = world.coordinator.heartbeat(
        ShareGroupHeartbeatRequest("g", "m1", 2, client_id="c", client_host="/h"),
        now_ms=world.now_ms,
        topics=world.topics,
    )
    assert (outcome.changes, outcome.effects, outcome.group_ids) == ((), (), ())
    assert outcome.reply == GroupHeartbeatReply(
        member_id="m1", member_epoch=2, heartbeat_interval=timedelta(seconds=5)
    )


# GRP-33, GRP-34
def test_the_assignment_is_in_the_reply_on_join_on_subscription_and_on_change(world: World) -> None:
    world.join("m1", "orders")
    assert assigned(world.heartbeat("m1", 2)) is None
    assert assigned(world.heartbeat("m1", 2, ["orders"])) == orders(world, 0, 1, 2)
    assert assigned(world.heartbeat("m1", 0, ["orders"])) == orders(world, 0, 1, 2)
    world.join("m2", "orders")
    assert assigned(world.again("m1")) == orders(world, 0, 1)
    assert assigned(world.again("m1")) is None


def test_a_new_epoch_without_a_change_for_the_member(world: World) -> None:  # GRP-28, GRP-34
    """Its epoch rises, but the reply does not repeat its assignment."""
    world.join("m1", "orders")
    world.join("m2", "no such topic")
    reply = world.again("m1")
    assert (reply.member_epoch, assigned(reply)) == (3, None)
    assert world.records()[RecordType.SHARE_GROUP_CURRENT_MEMBER, "m1"] == ShareGroupCurrentMember(
        member_epoch=3,
        previous_member_epoch=2,
        assigned_partitions=world.records()[RecordType.SHARE_GROUP_CURRENT_MEMBER, "m1"].assigned_partitions,  # type: ignore[attr-defined]
    )


def test_who_joins_is_assigned_outside_the_assignment_interval(world: World) -> None:  # GRP-28, GRP-36
    world.join("m1", "orders")
    for number in range(2, 9):
        assert assigned(world.join(f"m{number}", "orders")), "all in the same millisecond"
    assert world.group_epoch() == 9


def test_other_reasons_keep_to_the_assignment_interval(world: World) -> None:  # GRP-31
    world.join("m1", "orders")
    world.join("m2", "orders")
    world.again("m1")
    world.join("m3", "orders")
    world.heartbeat("m3", -1)
    assert world.again("m1", after_ms=999).member_epoch == 4
    assert world.again("m1", after_ms=1).member_epoch == 5


def test_interval_zero_means_always() -> None:  # GRP-31
    world = World(assignment_interval_ms=0)
    world.topics.put("orders", 2)
    world.join("m1", "orders")
    world.join("m2", "orders")
    world.heartbeat("m2", -1)
    reply = world.again("m1", after_ms=0)
    assert (reply.member_epoch, assigned(reply)) == (4, None)


@pytest.mark.parametrize("how", ["created", "grown", "deleted", "recreated"])
def test_changes_of_subscribed_topics_are_noticed(world: World, how: str) -> None:  # GRP-15, GRP-30
    world.join("m1", "orders", "later")
    if how == "created":
        world.topics.put("later", 1)
    elif how == "grown":
        world.topics.put("orders", 4)
    else:
        world.save(world.coordinator.topic_deleted(world.topics.remove("orders")))
        if how == "recreated":
            world.topics.put("orders", 2)
    reply = world.again("m1")
    assert reply.member_epoch == 3
    everything = {
        TopicPartition(topic.topic_id, number)
        for topic in world.topics.found.values()
        for number in topic.partitions
    }
    assert assigned(reply) == everything
    assert world.again("m1").member_epoch == 3
    assert world.coordinator.topic_ids() == {topic.topic_id for topic in world.topics.found.values()}


def test_a_topic_nobody_subscribes_to_changes_nothing(world: World) -> None:
    world.join("m1", "orders")
    world.topics.put("other", 1)
    assert world.again("m1").member_epoch == 2
    assert world.group_epoch() == 2


# --- restart and failed saves ---


def test_a_restart_changes_nothing(world: World) -> None:  # GRP-43
    world.join("m1", "orders")
    world.join("m2", "orders")
    world.again("m1")
    before = world.coordinator.describe("g")
    world.now_ms += 44_000
    world.restart()
    assert world.coordinator.describe("g") == before
    assert world.coordinator.next_deadline_ms() == world.now_ms + 45_000, "sessions start again"
    assert world.group_ids.type_of("g") == "share"
    records = world.records()
    assert world.again("m1") == GroupHeartbeatReply(
        member_id="m1", member_epoch=3, heartbeat_interval=timedelta(seconds=5)
    )
    assert world.records() == records, "nothing to write, nothing to initialise"


def test_a_failed_save_takes_the_group_back(world: World) -> None:
    world.join("m1", "orders")
    before = world.coordinator.describe("g")
    deadline_ms = world.coordinator.next_deadline_ms()
    world.now_ms += 1_000
    lost = world.coordinator.heartbeat(
        ShareGroupHeartbeatRequest("g", "m2", 0, None, ("orders",)), now_ms=world.now_ms, topics=world.topics
    )
    assert world.coordinator.describe("g") != before
    world.fail(lost)
    assert world.coordinator.describe("g") == before
    assert world.coordinator.next_deadline_ms() == deadline_ms, (
        "the session of the remaining member continues"
    )
    assert world.join("m2", "orders").member_epoch == 3


def test_a_failed_save_of_the_first_join_leaves_no_group(world: World) -> None:
    lost = world.coordinator.heartbeat(
        ShareGroupHeartbeatRequest("g", "m1", 0, None, ("orders",)), now_ms=world.now_ms, topics=world.topics
    )
    world.fail(lost)
    assert list(world.coordinator.listed()) == []
    assert world.group_ids.type_of("g") is None
    assert not world.coordinator.is_waiting("g", "m1")
    reply = world.finish("m1")
    assert reply.error_code is ErrorCode.group_id_not_found
    assert world.coordinator.statistics().members == 0


def test_a_failed_save_of_an_expiry_leaves_the_member_another_session(world: World) -> None:
    world.join("m1", "orders")
    world.now_ms += 45_000
    world.fail(world.coordinator.expire(world.now_ms))
    assert world.coordinator.next_deadline_ms() == world.now_ms + 45_000
    assert world.again("m1").member_epoch == 2


def test_statistics(world: World) -> None:
    world.join("m1", "orders")
    world.join("x", "orders", group="h")
    world.heartbeat("x", -1, group="h")
    world.patient = True
    world.topics.put("more", 2)
    world.heartbeat("m2", 0, ["more"])
    found = world.coordinator.statistics()
    assert (found.groups, found.empty_groups, found.members, found.rebalances, found.initializing) == (
        2,
        1,
        2,
        3,
        2,
    )


# --- kbroker.queue.assignment ---


def choose(world: World, assignor: str) -> None:
    """Store the setting, and do nothing else."""
    world.settings = world.settings._replace(assignor=assignor)


def alter(world: World, assignor: str) -> bool:
    """Whether that changed the group."""
    choose(world, assignor)
    outcome = world.coordinator.settings_changed("g", now_ms=world.now_ms, topics=world.topics)
    world.save(outcome)
    return bool(outcome.changes)


def targets(world: World) -> dict[str | None, tuple[int, ...]]:
    """Stored target partitions of "orders" by member."""
    return {
        member_id: value.topic_partitions[0].partitions
        for (record_type, member_id), value in world.records().items()
        if record_type is RecordType.SHARE_GROUP_TARGET_MEMBER
        if isinstance(value, ShareGroupTargetMember)
        if value.topic_partitions
    }


def test_another_assignor_makes_targets_at_once_and_members_have_them_with_their_next_heartbeat(
    world: World,
) -> None:
    world.join("m1", "orders")
    world.join("m2", "orders")
    assert assigned(world.again("m1")) == orders(world, 0, 1)
    before = world.group_epoch()
    assert alter(world, "all")
    assert (world.group_epoch(), targets(world)) == (before + 1, {"m1": (0, 1, 2), "m2": (0, 1, 2)})
    for member in ("m1", "m2"):
        assert assigned(world.again(member, after_ms=0)) == orders(world, 0, 1, 2)
    assert world.coordinator.describe("g").assignor_name == "all"
    assert alter(world, "simple")
    assert sorted(map(len, targets(world).values())) == [1, 2]
    assert world.coordinator.describe("g").assignor_name == "simple"


def test_settings_that_say_nothing_of_the_assignor_change_nothing(world: World) -> None:
    assert not alter(world, "all"), "there is no group"
    world.join("m1", "orders")
    before = list(world.store.scan(b""))
    assert not alter(world, "all"), "it joined with that"
    world.settings = world.settings._replace(heartbeat_interval_ms=7_000)
    assert not world.coordinator.settings_changed("g", now_ms=world.now_ms, topics=world.topics).changes
    world.heartbeat("m1", -1)
    epoch = world.group_epoch()
    assert not alter(world, "simple"), "nobody is there"
    assert world.group_epoch() == epoch
    assert before != list(world.store.scan(b""))
    assert assigned(world.join("m2", "orders")) == orders(world, 0, 1, 2)


@pytest.mark.parametrize("other", ["all", "simple"])
def test_a_restart_between_the_alteration_and_its_targets_is_made_good(world: World, other: str) -> None:
    choose(world, "simple" if other == "all" else "all")
    world.join("m1", "orders")
    world.join("m2", "orders")
    world.again("m1")
    choose(world, other)
    world.restart()
    reply = world.again("m1")
    assert assigned(reply) == orders(world, *range(3 if other == "all" else 2))
    assert world.coordinator.describe("g").assignor_name == other


def test_a_restart_without_an_alteration_makes_no_new_targets(world: World) -> None:
    choose(world, "all")
    for member in ("m1", "m2"):
        world.join(member, "orders")
    world.again("m1")
    epoch, before = world.group_epoch(), targets(world)
    world.restart()
    assert assigned(world.again("m1")) is None
    assert (world.group_epoch(), targets(world)) == (epoch, before)
    assert not alter(world, "all")


def test_targets_that_could_not_be_saved_are_made_again_with_the_next_heartbeat(world: World) -> None:
    for member in ("m1", "m2"):
        world.join(member, "orders")
    world.again("m1")
    epoch = world.group_epoch()
    choose(world, "all")
    world.fail(world.coordinator.settings_changed("g", now_ms=world.now_ms, topics=world.topics))
    assert world.group_epoch() == epoch
    assert assigned(world.again("m1")) == orders(world, 0, 1, 2)
    assert world.group_epoch() == epoch + 1


def test_a_partition_that_is_added_goes_to_all(world: World) -> None:
    choose(world, "all")
    world.join("m1", "orders")
    world.join("m2", "orders")
    world.topics.put("orders", 4)
    for member in ("m1", "m2"):
        world.again(member)
    for member in ("m1", "m2"):
        world.again(member)
    assert targets(world) == {"m1": (0, 1, 2, 3), "m2": (0, 1, 2, 3)}
