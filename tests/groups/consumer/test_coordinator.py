"""Consumer groups of the new protocol: joining, epochs, steps towards a target, leaving, and late
members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

import pytest

from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.share_records import RecordType
from kbroker.formats.state import GroupKey
from kbroker.groups.assignors.spi import ConsumerAssignorMember, PartitionAssignorError
from kbroker.groups.consumer.messages import ConsumerGroupHeartbeatRequest
from kbroker.groups.ids import CONSUMER, SHARE
from kbroker.groups.offsets.messages import Commit, CommitRequest
from tests.groups.consumer.world import Client, World, all_of, settle

FENCED = ErrorCode.fenced_member_epoch
UNKNOWN = ErrorCode.unknown_member_id


@pytest.fixture
def world() -> World:
    world = World()
    world.topics.put("t", 4)
    return world


# --- joining ---


def test_the_first_heartbeat_is_answered_with_the_assignment(world: World) -> None:
    member = Client(world, "m", "t").join()
    assert member.told == all_of("t", 4)
    assert (member.epoch, member.answer.member_id, member.answer.heartbeat_interval.total_seconds()) == (
        2,
        "m",
        5,
    )
    assert world.describe().group_state == "Stable"
    assert world.group_ids.type_of("g") == CONSUMER


def test_a_heartbeat_that_changes_nothing_saves_nothing(world: World) -> None:
    member = Client(world, "m", "t").join()
    request = ConsumerGroupHeartbeatRequest(
        "g", "m", member.epoch, client_id="c", client_host="/h", owned=member.owned()
    )
    outcome = world.groups.heartbeat(request, now_ms=world.now_ms)
    assert (outcome.changes, outcome.group_ids) == ((), ())
    assert outcome.reply is not None
    assert (outcome.reply.member_epoch, outcome.reply.assignment) == (2, None)


def test_the_coordinator_makes_ids_for_members_of_version_0(world: World) -> None:
    member = Client(world, "", "t").join(version=0)
    assert member.member_id == "made-1"
    assert member.beat(version=0).epoch == 2
    Client(world, "", "t").join(ErrorCode.invalid_request, version=1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"owned": None},
        {"owned": {UUID(int=1): (0,)}},
        {"rebalance_timeout_ms": -1},
        {"subscribed_topic_names": None},
        {"instance_id": " "},
        {"rack_id": ""},
    ],
)
def test_what_a_first_heartbeat_must_say(world: World, wrong: dict[str, object]) -> None:
    Client(world, "m", "t").join(ErrorCode.invalid_request, **wrong)
    assert world.group_ids.type_of("g") is None
    assert not world.records()


def test_ids_that_do_not_fit_are_refused(world: World) -> None:
    Client(world, "m" * 201, "t").join(ErrorCode.invalid_request)
    Client(world, "m", "t", group="g" * 256).join(ErrorCode.invalid_request)
    Client(world, "m" * 200, "t", group="g" * 255).join()


def test_an_unknown_assignor_is_refused(world: World) -> None:
    Client(world, "m", "t").join(ErrorCode.unsupported_assignor, server_assignor="nonsense")


def test_groups_of_other_types_and_groups_that_there_are_not(world: World) -> None:
    world.group_ids.claim("share", SHARE)
    Client(world, "m", "t", group="share").join(ErrorCode.group_id_not_found)
    member = Client(world, "m", "t")
    member.epoch = 1
    member.beat(ErrorCode.group_id_not_found)
    member.leave(code=ErrorCode.group_id_not_found)
    assert world.describe("share").error_code is ErrorCode.group_id_not_found
    assert world.describe("").error_code is ErrorCode.invalid_group_id


def test_no_more_members_than_allowed(world: World) -> None:
    world.set(max_size=1)
    member = Client(world, "m", "t").join()
    other = Client(world, "n", "t").join(ErrorCode.group_max_size_reached)
    member.join()
    member.leave()
    other.join()


# --- epochs ---


def test_only_the_members_epoch_or_the_one_before_is_taken(world: World) -> None:
    world.topics.put("u", 1)
    member = Client(world, "m", "t").join()
    member.beat(subscribed_topic_names=("t", "u"))
    assert member.epoch == 3
    for epoch in (4, 1, 2**31 - 1):
        member.beat(FENCED, member_epoch=epoch)
    member.beat(FENCED, member_epoch=2, owned=None)
    member.beat(FENCED, member_epoch=2, owned={world.topics.found["t"].topic_id: (0, 7)})
    assert member.beat(member_epoch=2, owned={}).epoch == 3
    Client(world, "other", "t").beat(UNKNOWN, member_epoch=3)


def test_an_assignment_that_was_lost_is_told_again(world: World) -> None:  # DIF-77
    """The member repeats its request, because the answer was lost."""
    member = Client(world, "m", "t").join()
    epoch, had = member.epoch, member.owned()
    world.topics.put("t", 5)
    assert member.beat().told == all_of("t", 5)
    assert member.beat(member_epoch=epoch, owned=had).told == all_of("t", 5)
    assert member.beat().told is None


def test_who_comes_again_with_epoch_0_is_told_everything(world: World) -> None:
    member = Client(world, "m", "t").join()
    assert member.beat().told is None
    member.join()
    assert (member.epoch, member.told) == (2, all_of("t", 4))
    assert member.beat(rebalance_timeout_ms=60_000, subscribed_topic_names=("t",)).told == all_of("t", 4)


# --- from the current to the target assignment ---


def test_partitions_go_from_one_member_to_another(world: World) -> None:
    old = Client(world, "m", "t", slow=True).join()
    old.give_up()
    new = Client(world, "n", "t").join()
    assert (new.told, new.epoch, world.describe().group_state) == (set(), 3, "Reconciling")
    old.beat()
    kept = old.told
    assert kept is not None
    assert (len(kept), old.epoch) == (2, 2)  # It keeps its epoch until it has given up the rest.
    assert new.beat().told is None
    old.beat(owned=None)
    assert new.beat().told is None  # It did not report that it has given anything up.
    old.give_up()
    assert old.beat().epoch == 3
    assert new.beat().told == all_of("t", 4) - kept
    assert world.describe().group_state == "Stable"


def test_a_target_that_changes_under_way(world: World) -> None:
    old = Client(world, "m", "t", slow=True).join()
    old.give_up()
    Client(world, "n", "t").join()
    old.beat()
    others = [Client(world, name, "t").join() for name in "op"]
    old.give_up()
    assert old.beat().epoch == 2  # It has to give up more for the others, in its present epoch.
    assert len(old.told or ()) == 1
    old.slow = False
    old.give_up()
    second = Client(world, "n", "t")
    second.epoch = 3
    settle([old, second, *others])
    assert {len(each) for each in world.current().values()} == {1}


def test_who_does_not_give_up_in_time_is_removed(world: World) -> None:
    old = Client(world, "m", "t", slow=True).join(rebalance_timeout_ms=10_000)
    old.give_up()
    new = Client(world, "n", "t").join()
    old.beat()
    world.after(9_999)
    old.beat()
    new.beat()
    world.after(1)
    old.beat(UNKNOWN)
    assert new.beat().told == all_of("t", 4)


def test_the_rebalance_timeout_ends_with_the_revocation(world: World) -> None:
    old = Client(world, "m", "t").join(rebalance_timeout_ms=10_000)
    new = Client(world, "n", "t").join()
    old.beat()
    old.beat()
    world.after(20_000)
    settle([old, new])
    assert len(world.current()["m"]) == 2


def test_a_member_that_unsubscribes_gives_up_what_it_has(world: World) -> None:
    world.topics.put("u", 1)
    member = Client(world, "m", "t").join()
    member.beat(subscribed_topic_names=("u",))
    assert (member.told, member.epoch) == (set(), 2)
    member.beat()
    assert (member.told, member.epoch) == ({("u", 0)}, 3)


def test_targets_are_not_made_more_often_than_allowed(world: World) -> None:
    world.set(assignment_interval_ms=1_000)
    first = Client(world, "m", "t").join()
    second = Client(world, "n", "t").join()
    assert (second.told, second.epoch, world.describe().group_state) == (set(), 2, "Assigning")
    world.after(999)
    assert second.beat().epoch == 2
    world.after(1)
    assert second.beat().epoch == 3
    settle([first, second])
    assert {len(each) for each in world.current().values()} == {2}


# --- topics ---


def test_topics_that_grow_come_and_go_are_noticed_by_the_next_heartbeat(world: World) -> None:
    member = Client(world, "m", "t", "later").join()
    world.topics.put("t", 5)
    assert member.beat().told == all_of("t", 5)
    world.topics.put("later", 1)
    assert member.beat().told == all_of("t", 5) | {("later", 0)}
    world.topics.put("other", 1)
    assert member.beat().epoch == 4
    world.topics.remove("t")
    member.has.discard(("t", 0))
    member.has = {("later", 0)}
    assert member.beat().told == {("later", 0)}
    assert member.epoch == 5


def test_a_group_that_waits_for_its_topic_is_a_group(world: World) -> None:
    member = Client(world, "m", "missing").join()
    assert (member.told, member.epoch) == (set(), 2)
    world.restart()
    world.topics.put("missing", 1)
    assert member.beat().told == {("missing", 0)}


# --- assignors ---


def test_the_group_uses_the_assignor_that_most_ask_for(world: World) -> None:
    Client(world, "m", "t").join(server_assignor="range")
    assert world.describe().assignor_name == "range"
    Client(world, "n", "t").join(server_assignor="uniform")
    assert world.describe().assignor_name == "uniform"  # A tie: the broker's first assignor.
    Client(world, "o", "t").join(server_assignor="range")
    assert world.describe().assignor_name == "range"


class _Moody:
    mood = "bad"

    def assign(
        self, members: Mapping[str, ConsumerAssignorMember], partitions: Mapping[UUID, Sequence[int]]
    ) -> Mapping[str, Mapping[UUID, tuple[int, ...]]]:
        if self.mood == "bad":
            raise PartitionAssignorError("not today")
        return {
            member_id: {topic_id: tuple(numbers) for topic_id, numbers in partitions.items()}
            for member_id in members
        }


def test_an_assignor_that_knows_no_assignment() -> None:
    moody = _Moody()
    world = World({"moody": moody})
    world.topics.put("t", 1)
    member = Client(world, "m", "t").join(ErrorCode.unknown_server_error)
    assert "not today" in (member.answer.error_message or "")
    assert world.describe().group_state == "Assigning"
    world.restart()
    moody.mood = "good"
    assert member.join().told == {("t", 0)}


class _Faulty(_Moody):
    """Two breaches of the contract: another exception, and a missing member."""

    def assign(
        self, members: Mapping[str, ConsumerAssignorMember], partitions: Mapping[UUID, Sequence[int]]
    ) -> Mapping[str, Mapping[UUID, tuple[int, ...]]]:
        if self.mood == "raises":
            raise ZeroDivisionError
        return {} if self.mood == "forgets" else super().assign(members, partitions)


@pytest.mark.parametrize("mood", ["raises", "forgets"])
def test_a_faulty_assignor_concerns_its_group_alone(mood: str) -> None:
    """Regression: earlier decisions stayed in memory and were never saved."""
    faulty = _Faulty()
    faulty.mood = mood
    world = World({"faulty": faulty})
    world.topics.put("t", 1)
    member = Client(world, "m", "t").join(ErrorCode.unknown_server_error)
    world.restart()
    assert [row.member_id for row in world.describe().members] == ["m"]
    faulty.mood = "good"
    assert member.join().told == {("t", 0)}


def test_a_partition_that_an_assignor_gives_to_two_is_had_by_one() -> None:
    moody = _Moody()
    moody.mood = "good"
    world = World({"moody": moody})
    world.topics.put("t", 1)
    first, second = Client(world, "m", "t").join(), Client(world, "n", "t").join()
    for member in (first, second, first, second):
        member.beat()
    assert (first.has, second.has) == ({("t", 0)}, set())
    first.leave()
    assert second.beat().told == {("t", 0)}


# --- leaving, and missed deadlines ---


def test_leaving(world: World) -> None:
    first, second = Client(world, "m", "t").join(), Client(world, "n", "t").join()
    settle([first, second])
    assert (first.leave().epoch, first.answer.member_id) == (-1, "m")
    first.leave(code=UNKNOWN)
    assert second.beat().told == all_of("t", 4)
    second.leave()
    assert world.describe().group_state == "Empty"
    assert world.groups.is_empty("g")
    assert not [key for key in world.records() if key[1] is not None]


def test_a_session_is_kept_by_heartbeats_and_ends_without_them(world: World) -> None:
    first, second = Client(world, "m", "t").join(), Client(world, "n", "t").join()
    settle([first, second])
    for _ in range(10):
        world.after(44_999)
        first.beat()
    second.beat(UNKNOWN)
    assert first.beat().has == all_of("t", 4)
    world.after(45_000)
    assert world.describe().group_state == "Empty"
    assert world.groups.next_deadline_ms() is None


def test_a_group_is_deleted_when_it_is_empty(world: World) -> None:
    member = Client(world, "m", "t").join()
    assert world.groups.delete("g").reply is ErrorCode.non_empty_group
    member.leave()
    outcome = world.groups.delete("g")
    world.save(outcome)
    assert outcome.reply is ErrorCode.none
    assert world.groups.delete("g").reply is ErrorCode.group_id_not_found
    assert (world.records(), world.group_ids.type_of("g")) == ({}, None)


# --- offsets ---


def commit(world: World, member_id: str, epoch: int, *partitions: int, version: int = 10) -> ErrorCode:
    topic_id = world.topics.found["t"].topic_id
    offsets = {(topic_id, number): Commit(1) for number in partitions or (0,)}
    try:
        world.groups.check_commit(CommitRequest("g", offsets, member_id, generation=epoch, version=version))
    except KafkaError as refusal:
        return refusal.code
    return ErrorCode.none


def test_who_may_commit(world: World) -> None:
    member = Client(world, "m", "t").join()
    assert commit(world, "m", member.epoch) is ErrorCode.none
    assert commit(world, "m", member.epoch, version=8) is ErrorCode.unsupported_version
    assert commit(world, "m", member.epoch + 1) is ErrorCode.stale_member_epoch
    assert commit(world, "other", member.epoch) is UNKNOWN
    assert commit(world, "", -1) is UNKNOWN
    member.leave()
    assert commit(world, "", -1) is ErrorCode.none


def test_a_late_commit_is_good_for_partitions_that_the_member_has_had_since(world: World) -> None:
    """KIP-1251."""
    first, second = Client(world, "m", "t").join(), Client(world, "n", "t").join()
    settle([first, second])
    (kept, *_), (lost, *_) = (
        [number for _, number in each] for each in (sorted(first.has), sorted(second.has))
    )
    assert first.epoch == 3
    assert commit(world, "m", 2, kept) is ErrorCode.none
    assert commit(world, "m", 1, kept) is ErrorCode.stale_member_epoch
    assert commit(world, "m", 2, kept, lost) is ErrorCode.stale_member_epoch
    world.restart()
    assert commit(world, "m", 2, kept) is ErrorCode.none
    second.leave()
    first.beat()
    assert commit(world, "m", 3, lost) is ErrorCode.stale_member_epoch


def test_who_may_fetch_offsets(world: World) -> None:
    Client(world, "m", "t").join()
    world.groups.check_fetch("g", None, -1)
    world.groups.check_fetch("g", "m", 2)
    with pytest.raises(KafkaError, match="stale_member_epoch"):
        world.groups.check_fetch("g", "m", 1)
    with pytest.raises(KafkaError, match="unknown_member_id"):
        world.groups.check_fetch("g", "n", 2)


def test_what_a_group_subscribes_to(world: World) -> None:
    Client(world, "m", "t").join()
    assert world.groups.subscribed("g")("t")
    assert not world.groups.subscribed("g")("u")


# --- restarts ---


def test_a_restart_changes_nothing_for_members(world: World) -> None:
    first, second = (
        Client(world, "m", "t", slow=True).join(rebalance_timeout_ms=20_000),
        Client(world, "n", "t").join(),
    )
    first.give_up()
    first.beat()
    before = world.describe()
    world.restart()
    assert world.describe() == before
    first.give_up()
    settle([first, second])
    assert len(first.has) == 2


def test_a_revocation_has_its_time_again_after_a_restart(world: World) -> None:
    first = Client(world, "m", "t", slow=True).join(rebalance_timeout_ms=20_000)
    first.give_up()
    second = Client(world, "n", "t").join()
    first.beat()
    world.after(19_999)
    world.restart()
    world.after(19_999)
    first.beat()
    world.after(1)
    assert second.beat().told == all_of("t", 4)


def test_what_could_not_be_saved_did_not_happen(world: World) -> None:
    first = Client(world, "m", "t").join()
    request = ConsumerGroupHeartbeatRequest(
        "g", "n", 0, rebalance_timeout_ms=1, subscribed_topic_names=("t",), owned={}
    )
    outcome = world.groups.heartbeat(request, now_ms=world.now_ms)
    assert outcome.group_ids == ("g",)
    world.groups.not_saved("g", world.store.scan(b"group/"), now_ms=world.now_ms)
    assert [each.member_id for each in world.describe().members] == ["m"]
    assert first.beat().epoch == 2


def test_a_group_that_could_not_be_saved_is_none(world: World) -> None:
    request = ConsumerGroupHeartbeatRequest(
        "g", "n", 0, rebalance_timeout_ms=1, subscribed_topic_names=("t",), owned={}
    )
    world.groups.heartbeat(request, now_ms=world.now_ms)
    world.groups.not_saved("g", (), now_ms=world.now_ms)
    assert world.group_ids.type_of("g") is None
    assert world.groups.expire(world.now_ms + 100_000).changes == ()


def test_statistics(world: World) -> None:
    first, second = Client(world, "m", "t").join(), Client(world, "n", "t").join()
    Client(world, "m", "t", group="other").join().leave()
    settle([first, second])
    numbers = world.groups.statistics()
    assert numbers.groups == {"Stable": 1, "Empty": 1}
    assert (numbers.members, numbers.classic_members, numbers.rebalances) == (2, 0, 4)
    assert [(row.group_id, row.group_state, row.group_type) for row in world.groups.listed()] == [
        ("g", "Stable", "consumer"),
        ("other", "Empty", "consumer"),
    ]


def test_stored_members_with_one_partition_are_damage(world: World) -> None:
    """The result of a state store that loses writes: the start fails with a ValueError."""
    first = Client(world, "m", "t").join()
    before = dict(world.store.scan(GroupKey.namespace))
    settle([first, Client(world, "n", "t").join()])
    current = GroupKey(RecordType.CONSUMER_GROUP_CURRENT_MEMBER, "g", "m").encode()
    world.store.write([(current, before[current])])
    with pytest.raises(ValueError, match=r"belongs to both [mn] and [mn]$"):
        world.restart()
