"""Positions, ranges, losses and the division into Spark partitions; the conventions are those of
Spark's own Kafka source."""

from __future__ import annotations

import json
import pickle
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker_spark.errors import DataLoss, SourceError
from kbroker_spark.offsets import (
    EARLIEST,
    LATEST,
    Bounds,
    Edge,
    Offsets,
    Range,
    Timestamp,
    Timestamps,
    TopicPartition,
    data_loss,
    from_json,
    ranges,
    resolve,
    split,
    to_json,
    without_lost,
)

ID = UUID(int=7)
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
BOUNDS = {A0: Bounds(10, 20), A1: Bounds(0, 5)}


def never(_: TopicPartition, __: int) -> int | None:
    raise AssertionError("no time was given")


def span(first: int, end: int, topic: str = "a", partition: int = 0) -> Range:
    return Range(topic, ID, partition, first, end)


def test_json_is_that_of_sparks_kafka_source() -> None:
    offsets = {B0: 7, TopicPartition("a", 10): 5, TopicPartition("a", 2): -2}
    assert json.dumps(to_json(offsets)) == '{"a": {"2": -2, "10": 5}, "b": {"0": 7}}'
    assert from_json(to_json(offsets)) == offsets


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"a": 1}',
        '{"a": {"x": 1}}',
        '{"a": {"0": "1"}}',
        '{"a": {"-1": 1}}',
        '{"a": {"0": 1.5}}',
        '{"a": {"0": true}}',
    ],
)
def test_other_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_json(json.loads(text))


def test_edges() -> None:
    assert resolve(Edge.EARLIEST, BOUNDS, never, option="startingOffsets") == {A0: 10, A1: 0}
    assert resolve(Edge.LATEST, BOUNDS, never, option="endingOffsets") == {A0: 20, A1: 5}


def test_offsets_are_taken_as_they_are_and_two_numbers_mean_edges() -> None:
    assert resolve(Offsets({A0: 3, A1: LATEST}), BOUNDS, never, option="startingOffsets") == {A0: 3, A1: 5}
    assert resolve(Offsets({A0: EARLIEST, A1: 99}), BOUNDS, never, option="startingOffsets") == {
        A0: 10,
        A1: 99,
    }


def test_json_must_name_all_partitions_and_no_others() -> None:
    with pytest.raises(
        SourceError,
        match=r"^If startingOffsets contains .* all TopicPartitions; use -1 .*: specified a-0, to be read "
        r"a-0, a-1$",
    ):
        resolve(Offsets({A0: 3}), BOUNDS, never, option="startingOffsets")
    with pytest.raises(
        SourceError,
        match=r"^If endingOffsetsByTimestamp .* all TopicPartitions: specified a-0, a-1, b-0, to be read "
        r"a-0, a-1$",
    ):
        resolve(Timestamps({A0: 3, A1: 3, B0: 3}), BOUNDS, never, option="endingOffsetsByTimestamp")


def test_times_ask_for_the_first_record_that_is_not_older() -> None:
    asked = []

    def find(partition: TopicPartition, ms: int) -> int | None:
        asked.append((partition, ms))
        return 12 if partition == A0 else 4

    assert resolve(Timestamp(1000), BOUNDS, find, option="startingTimestamp") == {A0: 12, A1: 4}
    assert resolve(Timestamps({A0: 5, A1: 6}), BOUNDS, find, option="startingOffsetsByTimestamp") == {
        A0: 12,
        A1: 4,
    }
    assert asked == [(A0, 1000), (A1, 1000), (A0, 5), (A1, 6)]


def test_no_record_at_that_time_is_an_error_or_the_end() -> None:
    with pytest.raises(
        SourceError,
        match=r"^No offset matched from request of topic-partition a-0 and timestamp 9: .* earlier time",
    ):
        resolve(Timestamp(9), BOUNDS, lambda *_: None, option="startingTimestamp")
    assert resolve(Timestamp(9), BOUNDS, lambda *_: None, option="startingTimestamp", no_match="latest") == {
        A0: 20,
        A1: 5,
    }


def test_ranges_go_from_starts_to_ends_and_never_backwards() -> None:
    found = ranges({A1: ID, A0: ID}, {A0: 3, A1: 9}, {A0: 8, A1: 5})
    assert found == [span(3, 8), span(9, 9, partition=1)]


@pytest.mark.parametrize(
    ("wanted", "left", "line"),
    [
        (span(10, 20), span(10, 20), None),
        (span(12, 15), span(12, 15), None),
        (span(5, 5), span(5, 5), None),
        (span(99, 99), span(99, 99), None),
        (span(5, 15), span(10, 15), "offsets 5 to 9 of a-0 are gone, its log begins at 10"),
        (span(5, 8), span(8, 8), "offsets 5 to 7 of a-0 are gone, its log begins at 10"),
        (span(15, 25), span(15, 20), "offsets 20 to 24 of a-0 are not there, its log ends at 20"),
        (span(30, 32), span(30, 30), "offsets 30 to 31 of a-0 are not there, its log ends at 20"),
        (span(5, 25), span(10, 20), "offsets 5 to 9 of a-0 are gone, its log begins at 10"),
    ],
)
def test_what_is_lost(wanted: Range, left: Range, line: str | None) -> None:
    assert without_lost(wanted, Bounds(10, 20)) == (left, line)


def test_an_error_of_data_loss_says_what_to_do_and_survives_pickling() -> None:
    error = data_loss("offsets 5 to 9 of a-0 are gone", 10)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.resume) == (DataLoss, str(error), 10)
    assert str(error).startswith("Some data may have been lost: offsets 5 to 9 of a-0 are gone")
    assert "failOnDataLoss to false" in str(error)
    assert "\n" not in str(SourceError("two\n  lines"))


def test_without_limits_a_partition_is_a_task_and_empty_ones_are_none() -> None:
    assert split([span(0, 10), span(5, 5, "b"), span(0, 1, "c")]) == [span(0, 10), span(0, 1, "c")]
    assert split([], min_partitions=4) == []


def test_min_partitions_divides_in_proportion_and_leaves_small_ones_whole() -> None:
    found = split([span(0, 1000), span(0, 10, "b")], min_partitions=4)
    assert found == [span(0, 333), span(333, 666), span(666, 1000), span(0, 10, "b")]
    assert split([span(0, 1000), span(0, 1000, "b")], min_partitions=2) == [span(0, 1000), span(0, 1000, "b")]
    assert split([span(0, 2)], min_partitions=10**12) == [span(0, 1), span(1, 2)]


def test_max_records_is_a_cap() -> None:
    assert split([span(0, 10)], max_records=4) == [span(0, 3), span(3, 6), span(6, 10)]
    assert split([span(0, 10)], max_records=10) == [span(0, 10)]
    assert len(split([span(0, 10)], max_records=5, min_partitions=4)) == 4


@given(
    st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 10**6)), max_size=8),
    st.none() | st.integers(1, 50),
    st.none() | st.integers(1000, 10**6),
)
def test_pieces_are_what_was_divided(
    sizes: list[tuple[int, int]], min_partitions: int | None, max_records: int | None
) -> None:
    whole = [span(first, first + size, partition=number) for number, (first, size) in enumerate(sizes)]
    pieces = split(whole, min_partitions=min_partitions, max_records=max_records)
    assert all(0 < piece.size <= (max_records or piece.size) for piece in pieces)
    for each in whole:
        at = each.first
        for piece in (piece for piece in pieces if piece.partition == each.partition):
            assert piece.first == at
            at = piece.end
        assert at == each.end
