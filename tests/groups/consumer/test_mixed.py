"""Groups that change from one protocol to the other, and groups with members of both (KIP-848,
online migration)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

import pytest

from kbroker.errors import ErrorCode
from kbroker.formats.share_records import RecordType
from kbroker.formats.state import group_prefix
from kbroker.groups.assignors.spi import ConsumerAssignorMember, PartitionAssignorError
from kbroker.groups.assignors.uniform import UniformAssignor
from kbroker.groups.classic.messages import Leaving, Protocol
from kbroker.groups.consumer.messages import MigrationPolicy
from kbroker.groups.ids import CLASSIC, CONSUMER
from kbroker.groups.outcome import Outcome
from kbroker.protocol.consumer_protocol import read_assignment, read_subscription
from tests.groups.consumer.mixed_world import ClassicClient, World, leave, subscription
from tests.groups.consumer.world import Client, all_of, settle

REBALANCE = ErrorCode.rebalance_in_progress
UNKNOWN = ErrorCode.unknown_member_id
NOT_FOUND = ErrorCode.group_id_not_found
INCONSISTENT = ErrorCode.inconsistent_group_protocol


@pytest.fixture
def world() -> World:
    world = World()
    world.topics.put("t", 4)
    return world


def mixed(world: World) -> tuple[ClassicClient, Client]:
    """A member of each protocol, with one topic."""
    old = ClassicClient(world, "a", "t").enter()
    assert (old.has, world.type()) == (all_of("t", 4), CLASSIC)
    new = Client(world, "n", "t").join()
    for _ in range(3):
        old.beat()
        new.beat()
    assert (len(old.has), len(new.has), old.has & new.has) == (2, 2, set())
    assert world.describe().group_state == "Stable"
    return old, new


class _Moody(UniformAssignor):
    fails = False

    def assign(
        self, members: Mapping[str, ConsumerAssignorMember], partitions: Mapping[UUID, Sequence[int]]
    ) -> Mapping[str, Mapping[UUID, tuple[int, ...]]]:
        if self.fails:
            raise PartitionAssignorError("not today")
        return super().assign(members, partitions)


def test_a_member_that_the_assignor_knows_nothing_for_has_a_session() -> None:
    """Regression: a member that joined then and never returned stayed in the group forever."""
    moody = _Moody()
    world = World({"moody": moody})
    world.topics.put("t", 4)
    first = Client(world, "n", "t").join()
    moody.fails = True
    ClassicClient(world, "a", "t").join(ErrorCode.unknown_server_error)
    assert len(world.describe().members) == 2
    moody.fails = False
    for _ in range(4):
        world.after(10_000)
        first.beat()
    assert [row.member_id for row in world.describe().members] == ["n"]


# --- upgrade ---


def test_a_classic_group_becomes_a_consumer_group_and_its_member_keeps_what_it_has(world: World) -> None:
    old = ClassicClient(world, "a", "t").enter()
    new = Client(world, "n", "t").join()
    assert (world.type(), new.told, new.epoch) == (CONSUMER, set(), 2)
    assert world.current()[old.member_id] == all_of("t", 4)
    assert [each.member_type for each in world.describe().members] == [0, 1]
    assert RecordType.CLASSIC_GROUP_METADATA not in {record_type for record_type, _ in world.records()}
    assert old.heartbeat() is REBALANCE
    old.join()
    assert old.generation == 1  # It has to give up two first.
    old.sync()
    assert len(old.has) == 2
    assert old.heartbeat() is REBALANCE
    old.enter()
    assert (old.generation, old.heartbeat()) == (2, ErrorCode.none)
    assert new.beat().has == all_of("t", 4) - old.has


def test_members_that_wait_in_a_rebalance_are_told_to_join_again(world: World) -> None:
    old = ClassicClient(world, "a", "t").enter()
    second = ClassicClient(world, "b", "t").join(None)
    Client(world, "n", "t").join()
    assert second.answered().joined.error_code is REBALANCE
    second.member_id = second.joined.member_id
    second.enter()
    assert old.heartbeat() is REBALANCE
    old.join(takes_member_id=True)
    assert len(world.describe().members) == 3


@pytest.mark.parametrize("policy", [MigrationPolicy.DISABLED, MigrationPolicy.DOWNGRADE])
def test_no_upgrade_against_the_policy(world: World, policy: MigrationPolicy) -> None:
    world.set(migration_policy=policy)
    old = ClassicClient(world, "a", "t").enter()
    Client(world, "n", "t").join(NOT_FOUND)
    assert (world.type(), old.heartbeat()) == (CLASSIC, ErrorCode.none)
    old.leave()
    Client(world, "n", "t").join()  # Without members any client may join.
    assert world.type() == CONSUMER


def test_groups_that_cannot_be_consumer_groups(world: World) -> None:
    connect = ClassicClient(world, "a", "t").join(protocol_type="connect", protocols=(Protocol("p", b""),))
    Client(world, "n", "t").join(NOT_FOUND)
    connect.leave()
    ClassicClient(world, "b", "t").join(protocols=(Protocol("range", b"nonsense"),))
    Client(world, "n", "t").join(NOT_FOUND)
    assert world.type() == CLASSIC


def test_an_assignor_with_data_of_its_own_is_not_lost(world: World) -> None:
    old = ClassicClient(world, "a", "t").join()
    with_data = subscription((), {})[:2] + b"\0\0\0\0" + b"\0\0\0\1x"
    old.sync(assignments=((old.member_id, with_data),))
    assert read_assignment(with_data).user_data == b"x"
    Client(world, "n", "t").join(NOT_FOUND)


def test_too_many_members_for_a_consumer_group(world: World) -> None:
    world.set(max_size=1)
    ClassicClient(world, "a", "t").enter()
    Client(world, "n", "t").join(ErrorCode.group_max_size_reached)
    assert world.type() == CLASSIC
    world.set(max_size=0)
    Client(world, "n", "t").join(NOT_FOUND)


def test_a_refused_heartbeat_does_not_change_the_group(world: World) -> None:
    old = ClassicClient(world, "a", "t").enter()
    Client(world, "n", "t").join(ErrorCode.invalid_regular_expression, subscribed_topic_regex="(")
    Client(world, "n", "t").beat(UNKNOWN, member_epoch=1)
    assert (world.type(), old.heartbeat()) == (CLASSIC, ErrorCode.none)


def test_an_upgrade_that_could_not_be_saved(world: World) -> None:
    old = ClassicClient(world, "a", "t").enter()
    world.save = lambda outcome: None  # type: ignore[method-assign]
    Client(world, "n", "t").join()
    found = list(world.store.scan(group_prefix("g")))
    outcome = world.all.not_saved("g", found, now_ms=world.now_ms)
    assert (world.type(), outcome.changes) == (CLASSIC, ())
    assert world.groups.next_deadline_ms() is None or not world.groups.expire(world.now_ms + 10**6).changes
    assert old.heartbeat() is ErrorCode.none


# --- members of both ---


def test_what_classic_members_are_told(world: World) -> None:
    old, new = mixed(world)
    third = Client(world, "o", "t").join()
    assert old.heartbeat(old.generation - 1) is ErrorCode.illegal_generation
    assert old.heartbeat() is REBALANCE
    old.sync(REBALANCE)
    old.enter()
    settle([new, third])
    old.beat()
    assert {len(each) for each in (old.has, new.has, third.has)} == {1, 2}
    old.sync(INCONSISTENT, protocol_name="other")
    old.sync(INCONSISTENT, protocol_type="connect")
    stranger = ClassicClient(world, "x", "t")
    stranger.member_id, stranger.generation = "n", new.epoch
    assert stranger.heartbeat() is UNKNOWN  # The member speaks the other protocol.
    stranger.member_id = "nobody"
    assert stranger.heartbeat() is UNKNOWN
    stranger.sync(UNKNOWN)


def test_who_may_join_with_the_classic_protocol(world: World) -> None:
    old, _ = mixed(world)
    other = ClassicClient(world, "b", "t")
    other.join(ErrorCode.member_id_required, takes_member_id=True)
    assert other.joined.member_id
    other.member_id = other.joined.member_id
    other.enter()
    ClassicClient(world, "c", "t").join(INCONSISTENT, protocol_type="connect")
    ClassicClient(world, "c", "t").join(INCONSISTENT, protocols=())
    ClassicClient(world, "c", "t").join(INCONSISTENT, protocols=(Protocol("other", b""),))
    ClassicClient(world, "c", "t").join(ErrorCode.unknown_server_error, protocols=(Protocol("range", b"\0"),))
    ClassicClient(world, "c", "t").join(ErrorCode.invalid_session_timeout, session_timeout_ms=0)
    ClassicClient(world, "c", "t").join(ErrorCode.invalid_request, member_id="c" * 201)
    world.set(max_size=3)
    ClassicClient(world, "c", "t").join(ErrorCode.group_max_size_reached)
    old.enter()
    world.set(migration_policy=MigrationPolicy.DISABLED)
    old.join(INCONSISTENT)


def test_an_eager_member_gives_up_everything_with_each_join(world: World) -> None:
    eager = ClassicClient(world, "a", "t", eager=True).enter()
    Client(world, "n", "t").join()
    assert eager.heartbeat() is REBALANCE
    eager.enter()
    assert (eager.generation, len(eager.has)) == (2, 2)  # At once: it owns nothing while it joins.


def test_a_member_that_does_not_join_again_in_time_is_removed(world: World) -> None:
    old, new = mixed(world)
    third = Client(world, "o", "t").join()
    for _ in range(4):
        assert old.heartbeat() is REBALANCE
        new.beat()
        third.beat()
        world.after(15_000)
    assert old.heartbeat() is UNKNOWN
    settle([new, third])
    assert new.has | third.has == all_of("t", 4)


def test_a_member_that_does_not_ask_for_its_assignment_is_removed(world: World) -> None:
    _, new = mixed(world)
    late = ClassicClient(world, "b", "t").join()
    for _ in range(4):
        assert late.heartbeat() in (ErrorCode.none, REBALANCE)
        new.beat()
        world.after(15_000)
    assert late.heartbeat() is UNKNOWN


def test_the_session_of_a_classic_member_is_its_own(world: World) -> None:
    old, new = mixed(world)
    old.session_timeout_ms = 10_000
    old.enter()
    world.after(9_999)
    old.heartbeat()
    new.beat()
    world.after(10_000)
    assert old.heartbeat() is UNKNOWN


def test_members_come_back_after_a_restart(world: World) -> None:
    old, new = mixed(world)
    world.restart()
    assert old.heartbeat() is ErrorCode.none
    assert new.beat().told is None
    world.after(30_000)  # The classic member's own session timeout.
    assert old.heartbeat() is UNKNOWN


def test_a_classic_member_changes_over(world: World) -> None:
    """A rolling restart: the static member returns with the other protocol without having left."""
    ClassicClient(world, "a", "t", instance="i").enter()
    back = Client(world, "n", "t", instance="i").join()
    assert back.told == all_of("t", 4)
    assert [each.member_type for each in world.describe().members] == [1]
    world.after(44_999)
    assert back.beat().has == all_of("t", 4)


def test_members_of_either_protocol_leave_by_leave_group(world: World) -> None:
    old, new = mixed(world)
    static = Client(world, "s", "t", instance="i").join()
    rows = leave(
        world,
        [Leaving("n"), Leaving("nobody"), Leaving("", "i"), Leaving("other", "i"), Leaving("", "unknown")],
    ).members
    assert [row.error_code for row in rows] == [
        ErrorCode.none,
        UNKNOWN,
        ErrorCode.none,
        ErrorCode.fenced_instance_id,
        UNKNOWN,
    ]
    assert world.type() == CLASSIC
    new.beat(UNKNOWN)  # Not GROUP_ID_NOT_FOUND, which is fatal for clients: it may join again.
    static.beat(UNKNOWN)
    assert old.heartbeat() is REBALANCE  # It has not reached the group epoch yet.
    assert old.enter().has == all_of("t", 4)


def test_a_group_whose_policy_forbids_it_stays_a_consumer_group(world: World) -> None:
    """If all members use the classic protocol, their own heartbeats notice changes."""
    old, new = mixed(world)
    world.set(migration_policy=MigrationPolicy.UPGRADE)
    new.leave()
    assert world.type() == CONSUMER
    old.beat()
    assert old.has == all_of("t", 4)
    world.topics.put("t", 5)
    old.beat()
    assert old.has == all_of("t", 5)


# --- downgrade ---


def test_the_last_member_of_the_new_protocol_leaves(world: World) -> None:
    old, new = mixed(world)
    second = ClassicClient(world, "b", "t").enter()
    new.leave()
    assert world.type() == CLASSIC
    assert [record_type for record_type, _ in world.records()] == [RecordType.CLASSIC_GROUP_METADATA]
    generation = world.all.classic.get("g").generation  # type: ignore[union-attr]
    assert (generation, old.generation) == (3, 2)
    world.all.classic.check_commit(old.committing(), now_ms=world.now_ms)  # It still owns its partitions.
    assert (old.heartbeat(), second.heartbeat()) == (REBALANCE, REBALANCE)
    old.join(None)
    second.join()
    old.answered()
    assert old.generation == second.generation == generation + 1


def test_the_last_member_of_the_new_protocol_is_late(world: World) -> None:
    old, _ = mixed(world)
    for _ in range(3):
        world.after(15_000)
        old.heartbeat()
    assert world.type() == CLASSIC
    world.restart()
    assert world.type() == CLASSIC


def test_a_static_member_comes_back_with_the_classic_protocol(world: World) -> None:
    member = Client(world, "n", "t", instance="i").join()
    back = ClassicClient(world, "a", "t", instance="i").join()
    assert (world.type(), back.generation) == (CLASSIC, member.epoch)
    back.sync()
    assert (back.has, back.heartbeat()) == (all_of("t", 4), ErrorCode.none)
    member.beat(UNKNOWN)


def test_a_static_member_comes_back_with_another_subscription(world: World) -> None:
    world.topics.put("u", 1)
    Client(world, "n", "t", instance="i").join()
    back = ClassicClient(world, "a", "u", instance="i").join()
    assert (world.type(), back.generation) == (CLASSIC, 0)  # As in Kafka: it has to rejoin.
    back.sync(REBALANCE)
    back.enter()
    assert back.has == {("u", 0)}


def test_epochs_of_a_group_that_was_classic_at_once_are_not_good_any_more(world: World) -> None:
    """Without a rebalance all members have their targets. A former owner of a partition must not
    commit for it in the next rebalance either."""
    old = ClassicClient(world, "a", "t").enter()
    Client(world, "n", "t", instance="i").join()
    ClassicClient(world, "b", "t", instance="i").join()
    group = world.all.classic.get("g")
    assert group is not None
    assert (group.state.value, old.generation < group.generation, old.heartbeat()) == (
        "Stable",
        True,
        ErrorCode.illegal_generation,
    )
    ClassicClient(world, "c", "t").join(None)
    assert group.state.value == "PreparingRebalance"
    assert old.heartbeat() is ErrorCode.illegal_generation


def test_a_group_without_members_is_anybodys(world: World) -> None:
    world.set(migration_policy=MigrationPolicy.DISABLED)
    Client(world, "n", "t").join().leave()
    ClassicClient(world, "a", "t").join(UNKNOWN, member_id="somebody")
    assert world.type() == CONSUMER
    ClassicClient(world, "a", "t").enter()
    assert world.type() == CLASSIC


def test_a_join_that_made_the_group_classic_could_not_be_saved(world: World) -> None:
    Client(world, "n", "t").join().leave()
    saved: list[Outcome[object]] = []
    world.save = saved.append  # type: ignore[method-assign,assignment]
    ClassicClient(world, "a", "t").join(None)
    ClassicClient(world, "b", "t").join(None)
    assert world.type() == CLASSIC
    found = list(world.store.scan(group_prefix("g")))
    outcome = world.all.not_saved("g", found, now_ms=world.now_ms)
    assert (world.type(), len(outcome.effects)) == (CONSUMER, 1)  # The waiting member must join again.


# --- subscriptions and assignments of real consumers ---


@pytest.mark.parametrize(
    "data", [b"", b"\0", b"\0\0", b"\xff\xff\0\0", b"\0\1\0\0\0\1\0", b"\0\0\xff\xff\xff\xff"]
)
def test_what_no_consumer_writes(data: bytes) -> None:
    for read in (read_subscription, read_assignment):
        with pytest.raises(ValueError):  # noqa: PT011
            read(data)


def test_a_subscription_of_a_later_version_is_read_as_far_as_it_is_known() -> None:
    data = b"\0\7" + subscription(["t"], {"t": (1,)})[2:] + b"\0\0\0\5" + b"\0\1r" + b"more"
    assert read_subscription(data) == (7, ("t",), {"t": (1,)}, "r")
