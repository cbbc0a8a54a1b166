"""Coordinator keys and their partitions (A.1)."""

from __future__ import annotations

from uuid import UUID

import pytest

from kbroker.coordinator.placement import (
    java_string_hash,
    parse_share_coordinator_key,
    parse_uuid_text,
    partition_for,
    share_coordinator_key,
    uuid_text,
)
from kbroker.errors import ErrorCode, KafkaError
from kbroker.share.persister import TopicPartition

ONE_TWO = UUID("00000000-0000-0001-0000-000000000002")
COUNTING = UUID("01234567-89ab-cdef-0123-456789abcdef")
ALL_ONES = UUID(int=2**128 - 1)


@pytest.mark.parametrize(
    ("group_id", "topic_id", "partition", "key", "java_hash", "placed"),
    [
        ("g1", ONE_TWO, 0, "g1:AAAAAAAAAAEAAAAAAAAAAg:0", 766713480, 30),
        ("g1", ONE_TWO, 1, "g1:AAAAAAAAAAEAAAAAAAAAAg:1", 766713481, 31),
        ("my-share-group", COUNTING, 7, "my-share-group:ASNFZ4mrze8BI0VniavN7w:7", 736190356, 6),
        ("orders", ALL_ONES, 3, "orders:_____________________w:3", -1636851994, 44),
    ],
)
def test_a1_vectors(group_id: str, topic_id: UUID, partition: int, key: str, java_hash: int, placed: int) -> None:
    share_partition = TopicPartition(topic_id, partition)
    assert share_coordinator_key(group_id, share_partition) == key
    assert java_string_hash(key) == java_hash
    assert partition_for(key, 50) == placed
    assert parse_share_coordinator_key(key) == (group_id, share_partition)


@pytest.mark.parametrize(
    ("text", "java_hash"),
    [("", 0), ("a", 97), ("hello", 99162322), ("polygenelubricants", -(2**31)), ("\U0001f600", 0xD83D * 31 + 0xDE00), ("é", 233)],
)
def test_java_string_hash(text: str, java_hash: int) -> None:
    assert java_string_hash(text) == java_hash


def test_the_smallest_hash_is_placed_in_partition_0() -> None:
    assert partition_for("polygenelubricants", 50) == 0


def test_a_group_id_may_contain_colons_and_a_partition_may_be_negative() -> None:
    key = share_coordinator_key("a:b:", TopicPartition(COUNTING, -1))
    assert parse_share_coordinator_key(key) == ("a:b:", TopicPartition(COUNTING, -1))


@pytest.mark.parametrize(
    "key", ["", "g", "g:0", ":ASNFZ4mrze8BI0VniavN7w:7", "g:short:7", "g:ASNFZ4mrze8BI0VniavN7w:x", "g:ASNFZ4mrze8BI0VniavN7w:"]
)
def test_malformed_keys(key: str) -> None:
    with pytest.raises(KafkaError) as refused:
        parse_share_coordinator_key(key)
    assert refused.value.code is ErrorCode.invalid_request


def test_topic_ids_as_text() -> None:
    assert len(uuid_text(COUNTING)) == 22
    assert parse_uuid_text(uuid_text(COUNTING)) == COUNTING
    with pytest.raises(ValueError, match=r"UUID|topic id"):
        parse_uuid_text("a")
