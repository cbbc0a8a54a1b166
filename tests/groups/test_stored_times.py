"""Stored times of groups and offsets while the wall clock steps forward and back: the wall clock's
time is stored, no recent commit expires, and nothing is kept forever because the clock was ahead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kbroker.formats.group_records import (
    ClassicGroupMetadata,
    ConsumerGroupTargetMetadata,
    ExpiringGroupOffset,
    GroupOffset,
)
from kbroker.formats.share_records import Message, ShareGroupTargetMetadata
from kbroker.formats.state import GroupKey, GroupOffsetKey, parse_key
from kbroker.groups.share.coordinator import ShareGroupCoordinator
from kbroker.groups.stored_times import NEVER_MS, StoredTimes
from tests.groups.share.world import World as ShareWorld
from tests.groups.world import World

RETENTION_MS = 1000
DAY_MS = 24 * 3_600_000
steps = pytest.mark.parametrize("step_ms", [DAY_MS, -DAY_MS, 0], ids=["forward", "back", "none"])


def stored(world: World | ShareWorld, kind: type[Message]) -> list[Any]:
    found = []
    for key, value in world.store.scan(b""):
        parsed = parse_key(key)
        if isinstance(parsed, GroupKey | GroupOffsetKey):
            record = parsed.decode_value(value)
            found += [record] if isinstance(record, kind) else []
    return found


def later(world: World, milliseconds: int) -> None:
    world.after(milliseconds)
    world.expire()


# --- stored times ---


@steps
def test_commits_are_stored_with_the_wall_clocks_time(step_ms: int) -> None:
    world = World()
    topic = world.topic()
    world.step_clock(step_ms)
    world.after(7)
    wall_ms = world.now_ms + step_ms
    world.commit({(topic, 0): 1})
    world.commit({(topic, 1): 1}, version=2, retention_ms=50)
    assert [each.commit_timestamp for each in stored(world, GroupOffset)] == [wall_ms]
    (expiring,) = stored(world, ExpiringGroupOffset)
    assert (expiring.commit_timestamp, expiring.expire_timestamp) == (wall_ms, wall_ms + 50)


@steps
def test_groups_are_stored_with_the_wall_clocks_time(step_ms: int) -> None:
    world = World()
    world.topic()
    world.step_clock(step_ms)
    world.after(7)
    began_ms = world.now_ms + step_ms
    joined = world.classic_member(group="classic")
    world.consumer_beat("m", group="consumer")
    (generation,) = stored(world, ClassicGroupMetadata)
    (targets,) = stored(world, ConsumerGroupTargetMetadata)
    assert (generation.current_state_timestamp, targets.assignment_timestamp) == (began_ms, began_ms)
    world.after(5)
    world.classic_leave(joined.member_id, "classic")
    (emptied,) = stored(world, ClassicGroupMetadata)
    assert (emptied.current_state_timestamp, emptied.members) == (began_ms + 5, ())


@steps
def test_share_groups_are_stored_with_the_wall_clocks_time(step_ms: int) -> None:
    world = ShareWorld()
    world.topics.put("orders", 1)
    times = StoredTimes(world.now_ms)
    world.coordinator = ShareGroupCoordinator(lambda _: world.settings, times=times)
    times.ahead_ms = step_ms
    world.join("m", "orders")
    (targets,) = stored(world, ShareGroupTargetMetadata)
    assert targets.assignment_timestamp == world.now_ms + step_ms


def test_never_is_never_on_both_clocks() -> None:
    times = StoredTimes(5)
    times.ahead_ms = DAY_MS
    assert times.to_store(NEVER_MS) == times.loaded(NEVER_MS, 7) == NEVER_MS


# --- expiry ---


@steps
def test_an_age_within_a_broker_life_is_the_session_clocks(step_ms: int) -> None:
    world = World()
    topic = world.topic()
    world.commit({(topic, 0): 1})
    world.commit({(topic, 1): 1}, version=2, retention_ms=RETENTION_MS)
    world.step_clock(step_ms)
    later(world, RETENTION_MS - 1)
    assert world.offsets() == {(topic, 0): 1, (topic, 1): 1}
    later(world, 1)
    assert (world.offsets(), world.types()) == ({}, {})


@steps
def test_so_is_the_time_for_which_a_classic_group_is_empty(step_ms: int) -> None:
    world = World()
    topic = world.topic()
    joined = world.classic_member(topics=())
    world.commit({(topic, 0): 1}, member_id=joined.member_id, generation=joined.generation_id)
    world.after(10 * RETENTION_MS)
    world.classic_leave(joined.member_id)
    world.step_clock(step_ms)
    later(world, RETENTION_MS - 1)
    assert world.offsets() == {(topic, 0): 1}
    later(world, 1)
    assert (world.offsets(), world.types()) == ({}, {})


def commit_alone(world: World, topic: Any) -> None:
    world.commit({(topic, 0): 1})


def commit_for_a_time(world: World, topic: Any) -> None:
    world.commit({(topic, 0): 1}, version=2, retention_ms=RETENTION_MS)


def commit_and_leave(world: World, topic: Any) -> None:
    joined = world.classic_member(topics=())
    world.commit({(topic, 0): 1}, member_id=joined.member_id, generation=joined.generation_id)
    world.classic_leave(joined.member_id)


commits = pytest.mark.parametrize("commit", [commit_alone, commit_for_a_time, commit_and_leave])
Commit = Callable[[World, Any], None]


@commits
@pytest.mark.parametrize("wrong_ms", [DAY_MS, -DAY_MS], ids=["ahead", "behind"])
def test_a_commit_behind_a_correction_is_as_old_as_it_is_after_a_restart(
    commit: Commit, wrong_ms: int
) -> None:
    """The clock was wrong when the broker started, or the machine slept for a day (behind)."""
    world = World()
    topic = world.topic()
    world.step_clock(-wrong_ms)
    commit(world, topic)
    world.start()
    later(world, RETENTION_MS - 1)
    assert world.offsets() == {(topic, 0): 1}
    later(world, 1)
    assert (world.offsets(), world.types()) == ({}, {})


@commits
def test_a_commit_of_a_clock_that_was_ahead_is_not_kept_for_ever(commit: Commit) -> None:
    """A time in the future becomes the time of the start."""
    world = World()
    topic = world.topic()
    world.step_clock(365 * DAY_MS)
    commit(world, topic)
    world.step_clock(-365 * DAY_MS)
    world.start()
    later(world, RETENTION_MS - 1)
    assert world.offsets() == {(topic, 0): 1}
    later(world, 1)
    assert (world.offsets(), world.types()) == ({}, {})


@commits
def test_a_start_with_a_clock_that_is_ahead_does_no_harm_once_it_is_right(commit: Commit) -> None:
    world = World()
    topic = world.topic()
    world.after(10)
    commit(world, topic)
    world.step_clock(DAY_MS)
    world.start()
    world.step_clock(-DAY_MS)
    later(world, RETENTION_MS - 1)
    assert world.offsets() == {(topic, 0): 1}
    later(world, 1)
    assert (world.offsets(), world.types()) == ({}, {})


@commits
def test_a_start_with_a_clock_that_is_behind_does_no_harm_once_it_is_right(commit: Commit) -> None:
    world = World()
    topic = world.topic()
    commit(world, topic)
    world.step_clock(-DAY_MS)
    world.start()
    world.step_clock(DAY_MS)
    later(world, RETENTION_MS - 1)
    assert world.offsets() == {(topic, 0): 1}
    later(world, 1)
    assert (world.offsets(), world.types()) == ({}, {})


@commits
def test_what_is_old_by_the_wall_clock_goes_after_a_restart(commit: Commit) -> None:
    """The broker was down for so long, or asleep: the offsets were not used meanwhile."""
    world = World()
    topic = world.topic()
    commit(world, topic)
    world.step_clock(RETENTION_MS)
    world.start()
    world.expire()
    assert (world.offsets(), world.types()) == ({}, {})


@steps
def test_targets_are_made_no_more_often_than_is_set_across_a_step(step_ms: int) -> None:
    world = ShareWorld(assignment_interval_ms=1000)
    world.topics.put("orders", 1)
    times = StoredTimes(world.now_ms)
    world.coordinator = ShareGroupCoordinator(lambda _: world.settings, times=times)
    times.ahead_ms = step_ms
    world.join("m", "orders")
    restarted_ms = world.now_ms + step_ms
    world.now_ms = restarted_ms
    world.coordinator = ShareGroupCoordinator(lambda _: world.settings, times=StoredTimes(restarted_ms))
    world.coordinator.load(world.store.scan(GroupKey.namespace), now_ms=restarted_ms)
    (group,) = world.coordinator._groups.values()
    assert group.assignment_ms == restarted_ms
