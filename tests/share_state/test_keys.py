"""Keys of share-partitions, as FindCoordinator uses them."""

from __future__ import annotations

from uuid import UUID

import pytest

from kbroker.errors import ErrorCode, KafkaError
from kbroker.share.persister import TopicPartition
from kbroker.share_state.keys import parse_share_coordinator_key

ONE_TWO = UUID("00000000-0000-0001-0000-000000000002")
COUNTING = UUID("01234567-89ab-cdef-0123-456789abcdef")
ALL_ONES = UUID(int=2**128 - 1)


@pytest.mark.parametrize(
    ("key", "group_id", "topic_id", "partition"),
    [
        ("g1:AAAAAAAAAAEAAAAAAAAAAg:0", "g1", ONE_TWO, 0),
        ("my-share-group:ASNFZ4mrze8BI0VniavN7w:7", "my-share-group", COUNTING, 7),
        ("orders:_____________________w:3", "orders", ALL_ONES, 3),
        ("a:b::ASNFZ4mrze8BI0VniavN7w:-1", "a:b:", COUNTING, -1),
    ],
)
def test_keys(key: str, group_id: str, topic_id: UUID, partition: int) -> None:
    assert parse_share_coordinator_key(key) == (group_id, TopicPartition(topic_id, partition))


@pytest.mark.parametrize(
    "key",
    [
        "",
        "g",
        "g:0",
        ":ASNFZ4mrze8BI0VniavN7w:7",
        "g:short:7",
        "g:a:7",
        "g:ASNFZ4mrze8BI0VniavN7w:x",
        "g:ASNFZ4mrze8BI0VniavN7w:",
    ],
)
def test_malformed_keys(key: str) -> None:
    with pytest.raises(KafkaError) as refused:
        parse_share_coordinator_key(key)
    assert refused.value.code is ErrorCode.invalid_request
