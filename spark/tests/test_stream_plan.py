"""Offsets of a stream: the checkpoint's content, the available records, and lost ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from uuid import UUID

import pytest

from kbroker_spark.errors import SourceError
from kbroker_spark.limits import Span
from kbroker_spark.offsets import Bounds, Range, TopicPartition
from kbroker_spark.stream_plan import LogState, Picture, StreamOffset, available, offset_at, ranges

A = UUID("01234567-89ab-4def-8123-456789abcdef")
B = UUID("fedcba98-7654-4210-8fed-cba987654321")
MARK = "t#ASNFZ4mrTe-BI0VniavN7w"


def tp(partition: int, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, partition)


def at(*offsets: int, ids: Mapping[str, UUID] | None = None) -> StreamOffset:
    """A stream's offset in the first partitions of topic t, which is A by default."""
    return StreamOffset(
        {tp(number): offset for number, offset in enumerate(offsets)}, {"t": A} if ids is None else ids
    )


def disk(*bounds: tuple[int, int], topic_id: UUID = A) -> Picture:
    return {tp(number): LogState(topic_id, Bounds(*each)) for number, each in enumerate(bounds)}


# --- checkpoints ---


def test_a_checkpoint_has_the_shape_of_sparks_kafka_source() -> None:
    offset = StreamOffset({tp(10): 1, tp(9): 23, tp(0, "s"): 5}, {"t": A})
    assert json.dumps(offset.to_json()) == f'{{"s": {{"0": 5}}, "t": {{"9": 23, "10": 1}}, "{MARK}": {{}}}}'
    assert StreamOffset.from_json(offset.to_json()) == offset


def test_a_checkpoint_of_sparks_kafka_source_is_taken_as_it_is() -> None:
    offset = StreamOffset.from_json({"t": {"0": 23}})
    assert offset == at(23, ids={})
    assert available(offset, disk((0, 30))).spans == {tp(0): Span(23, 30)}
    assert ranges(offset, at(30), disk((0, 30))) == ([Range("t", A, 0, 23, 30)], [])


def test_ids_of_topics_without_partitions_are_not_kept() -> None:
    assert StreamOffset({}, {"t": A}).to_json() == {}


@pytest.mark.parametrize(
    "value", [{"t": 5}, {"t": {"zero": 5}}, {"t": {"0": "5"}}, {"t#short": {}}, {"logOffset": 3}]
)
def test_another_sources_checkpoint_is_refused(value: dict[str, object]) -> None:
    with pytest.raises(SourceError, match="its own checkpointLocation"):
        StreamOffset.from_json(value)


def test_a_place_is_the_same_unless_offsets_or_known_topics_differ() -> None:
    assert at(5).same_place(at(5))
    assert at(5, ids={}).same_place(at(5))
    assert not at(5).same_place(at(6))
    assert not at(5).same_place(at(5, ids={"t": B}))


def test_an_offset_knows_the_topics_it_is_of() -> None:
    assert offset_at({tp(0): 7}, disk((0, 9), (0, 9))) == at(7)


# --- available records ---


def test_reading_goes_on_at_the_checkpoint() -> None:
    found = available(at(5, 9), disk((0, 12), (9, 9)))
    assert (found.spans, found.losses) == ({tp(0): Span(5, 12), tp(1): Span(9, 9)}, [])


def test_new_partitions_and_new_topics_begin_with_the_earliest() -> None:
    picture = {**disk((0, 12), (0, 4)), tp(0, "new"): LogState(B, Bounds(0, 7))}
    found = available(at(5), picture)
    assert found.spans == {tp(0): Span(5, 12), tp(1): Span(0, 4), tp(0, "new"): Span(0, 7)}
    assert found.losses == []


def test_a_new_partition_that_has_lost_records_already() -> None:
    found = available(at(5), disk((0, 12), (3, 4)))
    assert found.spans[tp(1)] == Span(3, 4)
    assert found.losses == ["partition t-1 is new, and its offsets below 3 are already gone"]


def test_offsets_below_the_log_start_are_lost() -> None:
    found = available(at(5), disk((8, 12)))
    assert found.spans == {tp(0): Span(8, 12)}
    assert found.losses == ["offsets 5 to 7 of t-0 are gone, its log begins at 8"]


def test_offsets_beyond_the_end_are_lost_and_the_stream_goes_back() -> None:
    found = available(at(20), disk((8, 12)))
    assert found.spans == {tp(0): Span(12, 12)}
    assert found.losses == ["offset 20 of t-0 was to be read next, but its log ends at 12"]


def test_a_recreated_topic_is_another_one() -> None:
    found = available(at(5, 6), disk((0, 50), (0, 3), topic_id=B))
    assert found.spans == {tp(0): Span(0, 50), tp(1): Span(0, 3)}
    assert found.losses == ["topic t was deleted and recreated"]


def test_a_deleted_topic_and_a_missing_partition() -> None:
    assert available(at(5, 6), {}).losses == [
        "topic t is gone: it was deleted, or is no longer subscribed to"
    ]
    assert available(at(5, 6), disk((0, 9))).losses == ["partition t-1 is gone"]


def test_with_a_target_nothing_is_seen_that_came_later() -> None:
    target = {**disk((0, 10)), tp(0, "other"): LogState(A, Bounds(0, 5))}
    now = {**disk((0, 50), (0, 8)), tp(0, "other"): LogState(B, Bounds(0, 9))}
    found = available(at(5), now, target)
    assert found.spans == {tp(0): Span(5, 10)}


def test_a_stream_that_is_beyond_its_target_stays_where_it_is() -> None:
    assert available(at(15), disk((0, 50)), disk((0, 10))).spans == {tp(0): Span(15, 15)}


# --- the range of a batch ---


def test_a_batch_reads_from_its_start_to_its_end() -> None:
    planned, losses = ranges(at(5, 7), at(9, 7), disk((0, 50), (0, 50)))
    assert (planned, losses) == ([Range("t", A, 0, 5, 9)], [])


def test_a_batch_reads_new_partitions_from_the_earliest() -> None:
    assert ranges(at(5), at(5, 4), disk((0, 50), (0, 50))) == ([Range("t", A, 1, 0, 4)], [])


def test_a_batch_reads_a_recreated_topic_from_its_earliest() -> None:
    assert ranges(at(5), at(5, ids={"t": B}), disk((2, 50), topic_id=B)) == ([Range("t", B, 0, 2, 5)], [])


def test_a_batch_without_offsets_needs_nothing_of_the_disk() -> None:
    assert ranges(at(5), at(5), {}) == ([], [])


def test_a_first_batch_that_is_planned_again_after_its_start_moved_on_reads_nothing() -> None:
    assert ranges(at(30), at(20), disk((0, 50))) == ([], [])


@pytest.mark.parametrize(
    ("picture", "planned", "loss"),
    [
        (disk((7, 50)), [Range("t", A, 0, 7, 9)], "offsets 5 to 6 of t-0 are gone, its log begins at 7"),
        (disk((20, 50)), [], "offsets 5 to 19 of t-0 are gone, its log begins at 20"),
        (disk((0, 8)), [Range("t", A, 0, 5, 8)], "offsets 8 to 8 of t-0 are not there, its log ends at 8"),
        (disk((0, 50), topic_id=B), [], "t-0 is gone: its offsets below 9 were to be read"),
        ({}, [], "t-0 is gone: its offsets below 9 were to be read"),
    ],
)
def test_what_was_lost_between_plan_and_batch(picture: Picture, planned: list[Range], loss: str) -> None:
    assert ranges(at(5), at(9), picture) == (planned, [loss])
