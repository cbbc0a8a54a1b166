"""Administration of a share group's offsets: refusals, requests to the persister, and the effect of
its results on the group and the reply."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from uuid import UUID

import pytest

from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.share_records import NamedTopic, RecordType, ShareGroupPartitions
from kbroker.formats.state import GroupKey, parse_key
from kbroker.groups.ids import SHARE
from kbroker.groups.outcome import DeleteShareState
from kbroker.groups.share.messages import (
    OffsetsReply,
    PartitionDone,
    PartitionOffset,
    TopicDone,
    TopicOffsets,
)
from kbroker.groups.share.offsets import LogRange, described, to_describe
from kbroker.share.effects import StateBatch
from kbroker.share.lag import Standing, least_standing, saved_standing, standing_of
from kbroker.share.persister import InitializeRequest, SummaryResult, TopicPartition
from tests.groups.share.world import World, assigned

GONE = ErrorCode.unknown_topic_or_partition
LATE = ErrorCode.coordinator_not_available


@pytest.fixture
def world() -> World:
    world = World()
    world.topics.put("orders", 2)
    return world


@pytest.fixture
def empty(world: World) -> World:
    """A group that had a member: its epoch is 3, and both partitions of "orders" are
    Initialized."""
    world.join("m1", "orders")
    world.heartbeat("m1", -1)
    world.asked.clear()
    return world


def orders(world: World) -> UUID:
    found = world.topics.by_name("orders")
    assert found is not None
    return found.topic_id


def partitions(world: World) -> ShareGroupPartitions:
    record = world.records()[RecordType.SHARE_GROUP_PARTITIONS, None]
    assert isinstance(record, ShareGroupPartitions)
    return record


def initialized(world: World) -> set[int]:
    return {number for topic in partitions(world).initialized_topics for number in topic.partitions}


def codes(reply: OffsetsReply) -> dict[str, dict[int, ErrorCode]]:
    return {
        topic.topic_name: {row.partition_index: row.error_code for row in topic.partitions}
        for topic in reply.responses
    }


# --- describe ---


def test_everything_that_is_initialized_is_described(empty: World) -> None:  # OFF-1
    described_partitions = empty.coordinator.described_partitions
    assert described_partitions("g", empty.topics) == {"orders": [0, 1]}
    assert described_partitions("none", empty.topics) == {}
    empty.topics.remove("orders")
    assert described_partitions("g", empty.topics) == {}, "nobody has told the group yet"


def test_named_topics_are_described_whatever_the_group_is(world: World) -> None:  # OFF-2, OFF-3
    assert to_describe("none", {"orders": [1, 7, 1], "missing": [0]}, world.topics) == [
        TopicOffsets("orders", orders(world), (PartitionOffset(1), PartitionOffset(7))),
        TopicOffsets("missing", None, (PartitionOffset(0),)),
    ]


@pytest.mark.parametrize(("group", "wanted"), [("g", [-1]), ("g", []), ("", [0])])
def test_what_cannot_be_described(world: World, group: str, wanted: list[int]) -> None:  # OFF-6, RPC-63
    with pytest.raises(KafkaError) as refusal:
        to_describe(group, {"orders": wanted}, world.topics)
    assert refusal.value.code is ErrorCode.unknown_server_error
    assert len(to_describe(group, {"missing": wanted}, world.topics)) == 1, "a missing topic is not looked up"
    assert to_describe("", {}, world.topics) == []


P = TopicPartition(UUID(int=1), 3)


def nobody_asks(_: int) -> Standing:
    raise AssertionError("nothing is done behind the start offset, or nothing is left")


@pytest.mark.parametrize(
    ("summary", "end_offset", "row"),
    [
        (
            SummaryResult(P, start_offset=2, delivery_complete_count=0, leader_epoch=5),
            11,
            PartitionOffset(3, 2, 5, 9, first_open=2),
        ),
        (
            SummaryResult(P, start_offset=2, delivery_complete_count=9),
            11,
            PartitionOffset(3, 2, 0, 0, first_open=2),
        ),
        (
            SummaryResult(P, start_offset=5, delivery_complete_count=0),
            2,
            PartitionOffset(3, 5, 0, -3, first_open=5),
        ),
        (SummaryResult(P), 11, PartitionOffset(3)),
        (SummaryResult(P, start_offset=4, delivery_complete_count=-1), 11, PartitionOffset(3, 4)),
        (SummaryResult(P, LATE, start_offset=4, delivery_complete_count=0), 11, PartitionOffset(3)),
    ],
)
# OFF-7, OFF-9, OFF-10, OFF-12
def test_a_row_and_its_lag(summary: SummaryResult, end_offset: int, row: PartitionOffset) -> None:
    assert described(summary, LogRange(0, end_offset), nobody_asks) == row


@pytest.mark.parametrize(("done", "first_open"), [((2, 3), 4), ((4, 5), 2), ((2, 4), 3)])
# OFF-9
def test_the_first_open_offset_is_behind_what_is_saved_as_done(done: Sequence[int], first_open: int) -> None:
    batches = [StateBatch(offset, offset, 2, 1) for offset in done]
    summary = SummaryResult(P, start_offset=2, delivery_complete_count=2)
    assert described(summary, LogRange(0, 11), partial(standing_of, batches)) == PartitionOffset(
        3, 2, 0, 7, first_open=first_open
    )


def test_a_partition_that_goes_while_the_persister_answers() -> None:  # OFF-8
    row = described(
        SummaryResult(P, start_offset=4, delivery_complete_count=0, leader_epoch=5), None, nobody_asks
    )
    assert (row.error_code, row.start_offset, row.leader_epoch, row.lag) == (GONE, 0, 0, -1)
    assert row.error_message is not None
    assert described(SummaryResult(P), None, nobody_asks) == PartitionOffset(3), (
        "what has no start offset needs no end offset"
    )


@pytest.mark.parametrize(
    ("start", "complete"),
    [((1 << 63) - 1, (1 << 31) - 1), ((1 << 63) - 1, 0), (-(1 << 63), 0), (-(1 << 63), -7), (3, -7)],
)
def test_lag_fits_into_64_bits_whatever_is_stored(start: int, complete: int) -> None:
    """From versions that accepted start offsets below -1, and from writes with impossible
    counts."""
    summary = SummaryResult(P, start_offset=start, delivery_complete_count=complete)
    row = described(summary, LogRange(5, 9), lambda offset: Standing(offset, 0))
    assert -(1 << 63) <= row.lag < 1 << 63
    assert row.start_offset == start
    assert row.lag == (-1 if complete < 0 else 4 if start < 0 else row.lag)


@pytest.mark.parametrize(
    ("start", "log_start", "end", "lag"),
    [(0, 5, 5, -2), (0, 5, 9, 2), (4, 5, 9, 2), (5, 5, 9, 2), (0, 9, 9, 0), (7, 5, 9, 1), (0, 0, 9, 6)],
)
def test_lag_is_what_the_log_has(start: int, log_start: int, end: int, lag: int) -> None:  # OFF-12
    """The group has finished 3, 6 and 8. The count includes those below the log's start, which must
    not be subtracted from the log's records. A log that ends before what is finished has lost
    records: the lag shows it."""
    batches = [StateBatch(offset, offset, 2, 1) for offset in (3, 6, 8)]
    summary = SummaryResult(
        P, start_offset=start, delivery_complete_count=sum(batch.first_offset >= start for batch in batches)
    )
    assert described(summary, LogRange(log_start, end), partial(standing_of, batches)).lag == lag


@pytest.mark.parametrize(
    ("finished", "complete", "offset", "standing"),
    [
        ((0, 1, 2, 3, 4), 38, 3, (5, 2 + 33)),  # 33 more are finished, all of them behind 4.
        ((0, 1, 2, 3, 4), 38, 10, (10, 28)),
        ((1, 2, 3, 4), 37, 2, (5, 3 + 32)),  # Perhaps 0 is one of them.
        ((3, 6, 8), 3, 5, (5, 2)),
        ((3, 6, 8), 2, 5, (5, 2)),  # The count is saved a little later.
    ],
)
def test_finished_offsets_that_only_the_count_has(
    finished: Sequence[int], complete: int, offset: int, standing: tuple[int, int]
) -> None:
    """Earlier versions saved markers and aborted records so."""
    batches = [StateBatch(each, each, 2, 1) for each in finished]
    assert saved_standing(batches, 0, complete, offset) == standing


@pytest.mark.parametrize(("complete", "log_start", "done"), [(0, 5, 0), (5, 5, 0), (7, 5, 2), (3, 5, 0)])
def test_what_surely_is_done_where_nobody_can_tell_which(complete: int, log_start: int, done: int) -> None:
    assert least_standing(0, complete, log_start) == (log_start, done)


# --- alter ---


def test_state_begins_anew_at_the_present_epoch(empty: World) -> None:  # OFF-13, OFF-18
    reply = empty.alter({"orders": {0: 7, 1: -1}})
    assert reply == OffsetsReply(
        responses=(TopicDone("orders", orders(empty), (PartitionDone(0), PartitionDone(1))),)
    )
    asked = [
        (request.partition.partition, request.state_epoch, request.start_offset) for request in empty.asked
    ]
    assert asked == [(0, 3, 7), (1, 3, -1)]
    assert empty.group_epoch() == 3


def test_start_offsets_that_can_be_none_are_refused_in_their_rows(empty: World) -> None:  # OFF-18
    lowest = -(1 << 63)
    reply = empty.alter({"orders": {0: lowest, 1: 4}})
    assert codes(reply) == {"orders": {0: ErrorCode.invalid_request, 1: ErrorCode.none}}
    message = reply.responses[0].partitions[0].error_message
    assert message is not None
    assert str(lowest) in message
    assert [(request.partition.partition, request.start_offset) for request in empty.asked] == [(1, 4)]
    assert codes(empty.alter({"orders": {0: -2}, "missing": {0: -2}})) == {
        "orders": {0: ErrorCode.invalid_request},
        "missing": {0: GONE},
    }
    assert len(empty.asked) == 1


def test_what_the_group_did_not_have_becomes_initialized(world: World) -> None:  # OFF-15, OFF-17, GRP-41
    """Creates a group that does not exist, with a record 15 alone."""
    assert codes(world.alter({"orders": {1: 4}})) == {"orders": {1: ErrorCode.none}}
    assert set(world.records()) == {(RecordType.SHARE_GROUP_PARTITIONS, None)}
    assert initialized(world) == {1}
    for _ in ("made", "after a restart"):
        group = world.coordinator.describe("g")
        assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Empty", 1, 1)
        world.restart()
    world.asked.clear()
    joined = world.join("m1", "orders")
    assert joined.member_epoch == 2
    assert len(assigned(joined) or ()) == 2
    assert [(request.partition.partition, request.start_offset) for request in world.asked] == [(0, 0)]


@pytest.mark.parametrize(
    "wanted", [{}, {"missing": {0: 1}}, {"orders": {7: 1}}, {"orders": {}}, {"orders": {0: -2}}]
)
# OFF-15, OFF-16
def test_no_group_is_made_for_nothing(world: World, wanted: dict[str, dict[int, int]]) -> None:
    reply = world.alter(wanted)
    assert reply.error_code is ErrorCode.none
    assert codes(reply) == {
        name: {number: GONE if start >= 0 else ErrorCode.invalid_request for number, start in starts.items()}
        for name, starts in wanted.items()
    }
    assert world.coordinator.describe("g").error_code is ErrorCode.group_id_not_found


def test_rows_that_do_not_exist_stop_no_others(empty: World) -> None:  # OFF-16
    reply = empty.alter({"missing": {0: 1, -1: 1}, "orders": {0: 1, 2: 1}})
    assert codes(reply) == {"missing": {0: GONE, -1: GONE}, "orders": {0: ErrorCode.none, 2: GONE}}
    assert [topic.topic_id for topic in reply.responses] == [None, orders(empty)]
    assert {request.partition.partition for request in empty.asked} == {0}


def test_who_may_not_alter(world: World) -> None:  # OFF-14, OFF-19, RPC-63
    wanted = {"orders": {0: 1}}
    assert world.alter(wanted, "").error_code is ErrorCode.invalid_group_id
    assert world.alter({"orders": {0: 1, -1: 1}}).error_code is ErrorCode.unknown_server_error
    world.group_ids.claim("h", "consumer")
    assert world.alter(wanted, "h").error_code is ErrorCode.group_id_not_found
    world.join("m1", "orders")
    world.asked.clear()
    assert world.alter(wanted).error_code is ErrorCode.non_empty_group
    assert world.alter({}).error_code is ErrorCode.none
    assert world.asked == []


def test_what_the_persister_refuses_is_its_rows_error(empty: World) -> None:
    """A partition that the group had stays Initialized. The next member retries one that it did not
    have."""
    empty.topics.put("orders", 3)
    empty.refuse = {TopicPartition(orders(empty), number): LATE for number in (0, 2)}
    assert codes(empty.alter({"orders": {0: 1, 1: 1, 2: 1}})) == {
        "orders": {0: LATE, 1: ErrorCode.none, 2: LATE}
    }
    assert initialized(empty) == {0, 1}
    assert partitions(empty).initializing_topics == ()
    empty.refuse = {}
    assert len(assigned(empty.join("m2", "orders")) or ()) == 3


def test_an_alteration_cut_off_by_a_crash(world: World) -> None:
    """A partition new to the group is Initializing, and the next member retries it."""
    outcome = world.coordinator.alter_offsets("g", {"orders": {0: 5}}, world.topics)
    world.save(outcome)
    world.pending.clear()
    world.restart()
    assert assigned(world.join("m1", "orders")) is not None
    assert InitializeRequest(TopicPartition(orders(world), 0), 2, -1) in world.asked


def test_a_save_that_fails_takes_a_new_group_back(world: World) -> None:
    world.fail(world.coordinator.alter_offsets("g", {"orders": {0: 5}}, world.topics))
    assert world.group_ids.type_of("g") is None
    assert world.coordinator.describe("g").error_code is ErrorCode.group_id_not_found


# --- delete ---


def test_deleted_offsets_are_deleting_and_then_gone(empty: World) -> None:  # OFF-20, INIT-1
    outcome = empty.coordinator.delete_offsets("g", ["orders"], empty.topics)
    empty.save(outcome)
    assert partitions(empty).initialized_topics == ()
    assert partitions(empty).deleting_topics == (NamedTopic(topic_id=orders(empty), topic_name="orders"),)
    assert outcome.reply is not None
    (effect,) = outcome.effects
    assert effect == DeleteShareState(
        "g", (TopicPartition(orders(empty), 0), TopicPartition(orders(empty), 1))
    )
    done = empty.coordinator.offsets_deleted("g", outcome.reply, empty.results(effect.partitions))
    empty.save(done)
    assert done.reply == OffsetsReply(responses=(TopicDone("orders", orders(empty)),))
    assert partitions(empty).deleting_topics == ()
    assert empty.group_ids.type_of("g") == SHARE, "the group stays"


def test_a_topic_without_state(empty: World) -> None:  # OFF-22
    empty.topics.put("other", 1)
    reply = empty.delete_offsets("missing", "other", "orders", "orders")
    assert [(row.topic_name, row.topic_id, row.error_code) for row in reply.responses] == [
        ("missing", None, GONE),
        ("other", None, GONE),
        ("orders", orders(empty), ErrorCode.none),
    ]
    assert reply.responses[0].error_message == "There is no offset information to delete."
    assert empty.delete_offsets("orders").responses[0].error_code is GONE


def test_who_may_not_delete(world: World) -> None:  # OFF-21, RPC-63
    assert world.delete_offsets("orders", group="").error_code is ErrorCode.invalid_group_id
    assert world.delete_offsets("orders").error_code is ErrorCode.group_id_not_found
    world.group_ids.claim("h", "consumer")
    assert world.delete_offsets("orders", group="h").error_code is ErrorCode.group_id_not_found
    world.join("m1", "orders")
    assert world.delete_offsets("orders").error_code is ErrorCode.non_empty_group
    assert world.delete_offsets() == OffsetsReply()


def test_what_could_not_be_deleted_is_tried_again_with_all_partitions(empty: World) -> None:  # OFF-23
    empty.refuse = {TopicPartition(orders(empty), 1): LATE}
    reply = empty.delete_offsets("orders")
    assert [(row.topic_id, row.error_code) for row in reply.responses] == [(orders(empty), LATE)]
    empty.topics.put("orders", 3)
    empty.restart()
    assert partitions(empty).deleting_topics != ()
    empty.refuse = {}
    assert empty.delete_offsets("orders").responses[0].error_code is ErrorCode.none
    assert {partition.partition for partition in empty.deleted} == {0, 1, 2}
    assert partitions(empty).deleting_topics == ()


def test_what_may_have_state_is_deleted_too(world: World) -> None:  # OFF-20
    """A partition whose initialisation was never answered."""
    world.patient = True
    world.heartbeat("m1", 0, ["orders"])
    world.pending.clear()
    world.restart()
    world.heartbeat("m1", -1)
    assert world.delete_offsets("orders").responses[0].error_code is ErrorCode.none
    assert {partition.partition for partition in world.deleted} == {0, 1}


def test_joining_behind_a_deletion_waits_for_no_old_attempt(world: World) -> None:  # OFF-20, INIT-3
    """An initialization that is never answered, for example because its retry could not be
    saved."""
    world.patient = True
    world.heartbeat("m1", 0, ["orders"])
    world.pending.clear()
    world.heartbeat("m1", -1)
    world.delete_offsets("orders")
    world.patient = False
    assert len(assigned(world.join("m2", "orders")) or ()) == 2


def test_deleted_offsets_begin_as_those_of_a_new_topic(empty: World) -> None:  # OFF-20, INIT-3
    empty.delete_offsets("orders")
    assert len(assigned(empty.join("m2", "orders")) or ()) == 2
    assert {(request.partition.partition, request.start_offset) for request in empty.asked} == {
        (0, -1),
        (1, -1),
    }


def test_the_order_of_a_groups_tombstones(world: World) -> None:  # GRP-42, GRP-23
    """14, 13 and 10 of a member that leaves, and finally 12, 15 and 11 of the group."""
    world.join("m1", "orders")
    member = (
        RecordType.SHARE_GROUP_CURRENT_MEMBER,
        RecordType.SHARE_GROUP_TARGET_MEMBER,
        RecordType.SHARE_GROUP_MEMBER,
    )
    group = (
        RecordType.SHARE_GROUP_TARGET_METADATA,
        RecordType.SHARE_GROUP_PARTITIONS,
        RecordType.SHARE_GROUP_METADATA,
    )
    removed: list[RecordType] = []
    write = world.store.write

    def noted(changes: object) -> None:
        assert isinstance(changes, tuple)
        removed.extend(record_type(key) for key, value in changes if value is None)
        write(changes)

    world.store.write = noted  # type: ignore[method-assign]
    world.heartbeat("m1", -1)
    assert tuple(removed) == member
    assert world.delete() is ErrorCode.none
    assert tuple(removed) == (*member, *group)


def record_type(key: bytes) -> RecordType:
    parsed = parse_key(key)
    assert isinstance(parsed, GroupKey)
    return parsed.record_type
