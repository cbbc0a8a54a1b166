"""Committed offsets: visible once they are saved; removed together with queued ones; expired when
they are old."""

from __future__ import annotations

import pytest

from kbroker.errors import ErrorCode
from kbroker.formats.state import GroupOffsetKey
from kbroker.groups.offsets.committed import OffsetsStatistics
from kbroker.groups.offsets.messages import Commit, OffsetErrors, OffsetsSettings
from kbroker.groups.routing import Groups
from tests.groups.world import NOT_SAVED, OK, G, World

RETENTION_MS = 1000


def stored(world: World) -> int:
    return len(list(world.store.scan(GroupOffsetKey.namespace)))


# --- save, then apply ---


def test_an_offset_is_seen_when_it_is_saved() -> None:
    world = World(patient=True)
    topic = world.topic()
    call = world.commit({(topic, 0): 5})
    assert (world.offsets(), call.reply) == ({}, None)
    world.save()
    assert world.offsets() == {(topic, 0): 5}
    assert world.code(call) is OK


def test_an_offset_that_cannot_be_saved_is_not_there_and_makes_no_group() -> None:
    world = World(patient=True)
    topic = world.topic()
    first = world.commit({(topic, 0): 5})
    second = world.commit({(topic, 1): 6})
    world.fail()
    assert first.reply == second.reply == NOT_SAVED
    assert world.offsets() == {}
    assert world.types() == {}
    world.commit({(topic, 0): 7})
    world.save()
    assert world.offsets() == {(topic, 0): 7}


def test_offsets_that_failed_leave_what_was_committed_before() -> None:
    world = World(patient=True)
    topic = world.topic()
    world.commit({(topic, 0): 5})
    world.save()
    world.commit({(topic, 0): 6})
    world.fail()
    assert world.offsets() == {(topic, 0): 5}
    assert world.types() == {G: ("classic", "Empty")}


def test_offsets_and_their_fields_survive_a_restart() -> None:
    world = World()
    topic = world.topic()
    world.commit({(topic, 0): Commit(5, 3, "five"), (topic, 1): Commit(6)})
    world.commit({(topic, 2): Commit(7, metadata="seven")}, version=2, retention_ms=500)
    before = {number: offset for number, offset in world.groups.offsets.of(G)[topic].items()}
    world.start()
    assert world.groups.offsets.of(G) == {topic: before}
    assert (before[0].leader_epoch, before[0].metadata, before[0].commit_timestamp) == (
        3,
        "five",
        world.now_ms,
    )
    assert (before[1].leader_epoch, before[1].metadata) == (-1, "")
    assert world.types() == {G: ("classic", "Empty")}


# --- metadata ---


@pytest.mark.parametrize(
    ("text", "limit", "code"),
    [
        ("x" * 10, 10, OK),
        ("x" * 11, 10, ErrorCode.offset_metadata_too_large),
        ("é" * 10, 10, OK),
        ("é" * 11, 10, ErrorCode.offset_metadata_too_large),
        ("😀" * 5, 10, OK),
        ("😀" * 5 + "x", 10, ErrorCode.offset_metadata_too_large),
        ("", 0, OK),
        ("x" * 32767, 1 << 20, OK),
        ("x" * 32768, 1 << 20, ErrorCode.offset_metadata_too_large),
        ("é" * 16384, 1 << 20, ErrorCode.offset_metadata_too_large),
    ],
)
def test_metadata_is_measured_in_utf_16_and_must_fit_a_record(text: str, limit: int, code: ErrorCode) -> None:
    """However large offset.metadata.max.bytes is; other partitions of the request are committed."""
    world = World()
    world.offsets_settings = OffsetsSettings(metadata_max_bytes=limit)
    topic = world.topic()
    call = world.commit({(topic, 0): Commit(1, metadata=text), (topic, 1): Commit(2)})
    assert isinstance(call.reply, OffsetErrors)
    assert call.reply.rows == {(topic, 0): code, (topic, 1): OK}
    assert world.offsets() == ({(topic, 0): 1, (topic, 1): 2} if code is OK else {(topic, 1): 2})


# --- queued offsets during removals ---


def test_an_offset_on_its_way_is_deleted_with_the_others() -> None:
    world = World(patient=True)
    topic = world.topic()
    world.commit({(topic, 0): 5})
    world.save()
    world.commit({(topic, 1): 6})
    world.delete_offsets((topic, 0), (topic, 1), (topic, 2))
    world.save_all()
    assert (world.offsets(), stored(world)) == ({}, 0)


def test_a_deleted_group_takes_offsets_with_it_that_are_on_their_way() -> None:
    world = World(patient=True)
    topic = world.topic()
    world.commit({(topic, 0): 5})
    call = world.delete()
    world.save_all()
    assert call.reply is OK
    assert (world.offsets(), stored(world), world.types()) == ({}, 0, {})


def test_a_deleted_topic_takes_offsets_with_it_that_are_on_their_way() -> None:
    world = World(patient=True)
    gone, other = world.topic("gone"), world.topic("other")
    world.commit({(gone, 0): 5, (other, 0): 5})
    world.commit({(gone, 1): 6}, group="another")
    world.topics.remove("gone")
    world.carry_out(world.groups.topic_deleted(gone))
    world.save_all()
    assert world.offsets() == {(other, 0): 5}
    assert world.offsets("another") == {}
    assert stored(world) == 1
    assert set(world.types()) == {G, "another"}, "groups stay"


def test_an_offset_on_its_way_is_not_expired_with_the_old_one() -> None:
    world = World(patient=True)
    topic = world.topic()
    world.commit({(topic, 0): 5})
    world.save()
    world.after(RETENTION_MS)
    world.commit({(topic, 0): 6})
    world.expire()
    world.save_all()
    assert (world.offsets(), stored(world)) == ({(topic, 0): 6}, 1)
    assert world.types() == {G: ("classic", "Empty")}


def test_a_group_whose_first_offset_is_on_its_way_is_not_expired() -> None:
    world = World(patient=True)
    topic = world.topic()
    world.commit({(topic, 0): 5})
    world.expire()
    world.save_all()
    assert world.types() == {G: ("classic", "Empty")}
    assert world.offsets() == {(topic, 0): 5}


def test_a_commit_behind_a_deletion_makes_the_group_anew() -> None:
    world = World(patient=True)
    topic = world.topic()
    world.commit({(topic, 0): 5, (topic, 1): 5})
    world.save()
    world.delete()
    world.commit({(topic, 0): 6})
    world.save_all()
    assert (world.offsets(), stored(world)) == ({(topic, 0): 6}, 1)
    assert world.types() == {G: ("classic", "Empty")}


@pytest.mark.parametrize("behind", [False, True])
def test_a_deletion_that_cannot_be_saved_gives_the_group_back(behind: bool) -> None:
    """Also if a later commit is queued behind it."""
    world = World(patient=True)
    topic = world.topic()
    world.commit({(topic, 0): 5})
    world.save()
    call = world.delete()
    if behind:
        world.commit({(topic, 0): 6})
    world.fail()
    assert call.reply == NOT_SAVED
    assert world.offsets() == {(topic, 0): 5}
    assert world.types() == {G: ("classic", "Empty")}


# --- statistics ---


def test_statistics() -> None:
    world = World(patient=True)
    topic = world.topic()
    count = Groups.statistics
    world.commit({(topic, 0): 5, (topic, 1): 5})
    assert count(world.groups).offsets == OffsetsStatistics(0, 0, 0, 0, 0)
    world.save()
    world.commit({(topic, 0): 6})
    world.commit({(topic, 2): 6}, group="another")
    world.save_all()
    assert count(world.groups).offsets == OffsetsStatistics(
        groups=2, offsets=3, commits=4, expired=0, deleted=0
    )
    world.delete_offsets((topic, 0), (topic, 3))
    world.fail()
    assert count(world.groups).offsets.deleted == 0
    world.delete_offsets((topic, 0), (topic, 3))
    world.save()
    world.after(RETENTION_MS)
    world.expire(G)
    world.save()
    assert count(world.groups).offsets == OffsetsStatistics(
        groups=1, offsets=1, commits=4, expired=1, deleted=1
    )
    assert world.groups.offsets.topic_ids() == {topic}


# --- permission ---


def test_offsets_of_a_group_that_is_not_there() -> None:
    world = World()
    topic = world.topic()
    assert world.offsets("none") == {}
    assert world.code(world.delete_offsets((topic, 0))) is ErrorCode.group_id_not_found
    assert world.code(world.delete_offsets((topic, 0), group="")) is ErrorCode.invalid_group_id
    assert world.code(world.commit({(topic, 0): 1}, group="g" * 256)) is ErrorCode.invalid_group_id
    assert (
        world.code(world.commit({(topic, 0): 1}, generation=0, member_id="m", version=8))
        is ErrorCode.illegal_generation
    )
    assert (
        world.code(world.commit({(topic, 0): 1}, generation=0, member_id="m", version=9))
        is ErrorCode.group_id_not_found
    )
    assert world.types() == {}


def test_offsets_of_subscribed_topics_cannot_be_deleted() -> None:
    for kind in ("classic", "consumer"):
        world = World()
        topic, other = world.topic("orders"), world.topic("other")
        world.commit({(topic, 0): 1, (topic, 1): 1, (other, 0): 1})
        if kind == "classic":
            world.classic_member()
        else:
            world.consumer_beat("m")
        call = world.delete_offsets((topic, 0), (topic, 1), (other, 0))
        assert isinstance(call.reply, OffsetErrors)
        subscribed = ErrorCode.group_subscribed_to_topic
        assert call.reply.rows == {(topic, 0): subscribed, (topic, 1): subscribed, (other, 0): OK}
        assert world.offsets() == {(topic, 0): 1, (topic, 1): 1}
