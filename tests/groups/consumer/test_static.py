"""Static members of consumer groups: they leave for a while, return under another id, and are
fenced."""

from __future__ import annotations

import pytest

from kbroker.errors import ErrorCode
from tests.groups.consumer.world import Client, World, all_of, settle

UNRELEASED = ErrorCode.unreleased_instance_id
FENCED = ErrorCode.fenced_instance_id
UNKNOWN = ErrorCode.unknown_member_id


@pytest.fixture
def world() -> World:
    world = World()
    world.topics.put("t", 4)
    return world


def test_a_member_that_comes_back_has_what_it_had(world: World) -> None:
    first, second = Client(world, "m", "t", instance="i").join(), Client(world, "n", "t").join()
    settle([first, second])
    had, epoch = first.has, first.epoch
    assert first.leave(-2).epoch == -2
    assert world.current()["m"] == had
    assert second.beat().told is None
    back = Client(world, "m2", "t", instance="i").join()
    assert (back.told, back.epoch) == (had, epoch)
    assert set(world.current()) == {"m2", "n"}
    assert not [key for key in world.records() if key[1] == "m"]
    first.beat(FENCED, member_epoch=3)


def test_it_may_come_back_under_its_own_id(world: World) -> None:
    member = Client(world, "m", "t", instance="i").join()
    member.leave(-2)
    assert member.join().told == all_of("t", 4)
    world.restart()
    assert member.beat().epoch == 2


def test_only_who_has_left_can_be_replaced(world: World) -> None:
    member = Client(world, "m", "t", instance="i").join()
    other = Client(world, "m2", "t", instance="i")
    other.join(UNRELEASED)
    member.join(UNRELEASED)
    other.beat(FENCED, member_epoch=2)
    other.leave(-2, FENCED)
    other.leave(-1, FENCED)
    Client(world, "m", "t", instance="unknown").beat(UNKNOWN, member_epoch=2)
    Client(world, "m", "t").leave(-2, ErrorCode.invalid_request)
    member.leave(-1)
    other.join()


def test_who_does_not_come_back_in_time_is_gone(world: World) -> None:
    first, second = Client(world, "m", "t", instance="i").join(), Client(world, "n", "t").join()
    settle([first, second])
    world.after(20_000)
    second.beat()
    first.leave(-2)
    world.after(24_999)
    second.beat()
    assert len(world.current()) == 2
    world.after(1)
    assert second.beat().told == all_of("t", 4)


def test_what_it_is_to_give_up_is_free_when_it_leaves_for_a_while(world: World) -> None:
    first = Client(world, "m", "t", instance="i", slow=True).join()
    first.give_up()
    second = Client(world, "n", "t").join()
    first.beat()
    first.leave(-2)
    assert len(second.beat().has) == 2
    world.after(60_000 - 45_000)  # Its rebalance timeout no longer runs.
    assert len(world.current()) == 2
    back = Client(world, "m2", "t", instance="i").join()
    assert back.has == all_of("t", 4) - second.has


def test_another_subscription_makes_a_new_epoch(world: World) -> None:
    world.topics.put("u", 1)
    member = Client(world, "m", "t", instance="i").join()
    member.leave(-2)
    back = Client(world, "m2", "u", instance="i").join()
    assert (back.told, back.epoch) == ({("u", 0)}, 3)


def test_a_member_that_takes_an_instance_id_later(world: World) -> None:
    member = Client(world, "m", "t").join()
    member.instance = "i"
    member.beat(UNKNOWN)
    assert member.join().epoch == 2
    member.beat()
    member.instance = "j"
    member.join()
    Client(world, "n", "t", instance="i").join()
    assert len(world.describe().members) == 2


def test_the_place_of_one_member_is_taken_by_another_of_the_group(world: World) -> None:
    first, second = Client(world, "m", "t", instance="i").join(), Client(world, "n", "t").join()
    settle([first, second])
    first.leave(-2)
    second.instance = "i"
    second.join()
    assert set(world.current()) == {"n"}
    settle([second])
    assert second.has == all_of("t", 4)
    world.restart()
    assert world.current() == {"n": all_of("t", 4)}
