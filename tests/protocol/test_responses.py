"""The hand-packed responses, byte for byte against kio's encoder, in every served version."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pytest

from kbroker.api import APIS
from kbroker.protocol.messages import encode_response
from kbroker.protocol.responses import (
    FETCH_FLEXIBLE,
    FETCH_TOPIC_IDS,
    PRODUCE_TOPIC_IDS,
    FetchRow,
    ProduceRow,
    ShareAcknowledgeRow,
    ShareFetchRow,
    fetch_response,
    produce_response,
    share_acknowledge_response,
    share_fetch_response,
    uvarint,
)
from kbroker.share.effects import AcquiredRange

TOPIC_ID = UUID("01234567-89ab-cdef-0123-456789abcdef")
OTHER_ID = UUID("00000000-0000-0001-0000-000000000002")
LONG = "x" * 200
NO_LEADER = {"leader_id": -1, "leader_epoch": -1}


def versions(api_key: int) -> list[int]:
    return list(range(APIS[api_key].first, APIS[api_key].last + 1))


@pytest.mark.parametrize("version", versions(0))
def test_produce(version: int) -> None:
    rows = [
        ProduceRow(0, 0, 1234567890123, -1, 7),
        ProduceRow(3, 87, error_message=None if version < 8 else LONG),
        ProduceRow(2, 0, 5, 1700000000123, 0),
        ProduceRow(4, 32, -1, -1, 3, *((LONG, [(0, "odd"), (300, LONG)]) if version >= 8 else ())),
        ProduceRow(5, 32, -1, -1, 3, *(("none named", []) if version >= 8 else ())),
    ]
    topics = [
        (TOPIC_ID if version >= PRODUCE_TOPIC_IDS else "orders", rows),
        (OTHER_ID if version >= PRODUCE_TOPIC_IDS else LONG, []),
    ]
    expected = {
        "responses": [
            {
                "name": topic,
                "topic_id": topic,
                "partition_responses": [
                    {
                        "index": row.partition,
                        "error_code": row.error_code,
                        "base_offset": row.base_offset,
                        "log_append_time": row.log_append_time_ms,
                        "log_start_offset": row.log_start_offset,
                        "record_errors": [
                            {"batch_index": at, "batch_index_error_message": what}
                            for at, what in row.record_errors
                        ],
                        "error_message": row.error_message,
                    }
                    for row in topic_rows
                ],
            }
            for topic, topic_rows in topics
        ],
    }
    assert produce_response(version, topics) == encode_response(0, version, expected)


def _aborted(found: Sequence[tuple[int, int]] | None) -> list[dict[str, int]] | None:
    return None if found is None else [{"producer_id": pid, "first_offset": first} for pid, first in found]


@pytest.mark.parametrize("version", versions(1))
def test_fetch(version: int) -> None:
    rows = [
        FetchRow(0, 0, 99, 98, 5, [b"abc", memoryview(b"d" * 300)]),
        FetchRow(1, 1),
        FetchRow(2, 0, 10, 10, 0, ()),
        FetchRow(3, 3, aborted=()),
        FetchRow(4, 0, 99, 99, 5, [b"abc"], aborted=()),
        FetchRow(6, 0, 99, 7, 5, [b"abc"], aborted=[(1 << 40, 6)] * 200),
        *([FetchRow(5, 0, 99, 99, 5, diverging=(3, 1 << 40))] if version >= FETCH_FLEXIBLE else []),
    ]
    one, other = (TOPIC_ID.int, OTHER_ID.int) if version >= FETCH_TOPIC_IDS else ("orders", LONG)
    topics = [(one, rows), (other, rows[:1])]
    expected = {
        "error_code": 0 if version < 7 else 71,
        "session_id": 77,
        "responses": [
            {
                "topic": topic,
                "topic_id": UUID(int=topic) if isinstance(topic, int) else None,
                "partitions": [
                    {
                        "partition_index": row.partition,
                        "error_code": row.error_code,
                        "high_watermark": row.high_watermark,
                        "last_stable_offset": row.last_stable_offset,
                        "log_start_offset": row.log_start_offset,
                        "aborted_transactions": _aborted(row.aborted),
                        "records": b"".join(row.records),
                        **(
                            {}
                            if row.diverging is None
                            else {
                                "diverging_epoch": dict(
                                    zip(("epoch", "end_offset"), row.diverging, strict=True)
                                )
                            }
                        ),
                    }
                    for row in topic_rows
                ],
            }
            for topic, topic_rows in topics
        ],
    }
    assert b"".join(fetch_response(version, 71, 77, topics)) == encode_response(1, version, expected)


@pytest.mark.parametrize("version", versions(78))
def test_share_fetch(version: int) -> None:  # RPC-7, RPC-9, RPC-13
    rows = [
        ShareFetchRow(
            0,
            records=[b"abc", memoryview(b"d" * 300)],
            acquired=[AcquiredRange(0, 9, 1), AcquiredRange(12, 12, 3)],
        ),
        ShareFetchRow(1, 3, LONG, 121, "no"),
        ShareFetchRow(200),
    ]
    topics = [(TOPIC_ID, rows), (OTHER_ID, rows[:1])]
    expected = {
        "error_code": 122,
        "error_message": "gone",
        "acquisition_lock_timeout": 30_000,
        "responses": [
            {
                "topic_id": topic,
                "partitions": [
                    {
                        "partition_index": row.partition,
                        "error_code": row.error_code,
                        "error_message": row.error_message,
                        "acknowledge_error_code": row.acknowledge_error_code,
                        "acknowledge_error_message": row.acknowledge_error_message,
                        "current_leader": NO_LEADER,
                        "records": b"".join(row.records),
                        "acquired_records": row.acquired,
                    }
                    for row in topic_rows
                ],
            }
            for topic, topic_rows in topics
        ],
        "node_endpoints": (),
    }
    packed = share_fetch_response(
        version, topics, lock_timeout_ms=30_000, error_code=122, error_message="gone"
    )
    assert b"".join(packed) == encode_response(78, version, expected)


@pytest.mark.parametrize("version", versions(79))
def test_share_acknowledge(version: int) -> None:  # RPC-7, RPC-13
    rows = [ShareAcknowledgeRow(0), ShareAcknowledgeRow(1, 121, LONG)]
    topics = [(TOPIC_ID, rows), (OTHER_ID, rows[:1])]
    expected = {
        "error_code": 0,
        "error_message": None,
        "acquisition_lock_timeout": 15_000,
        "responses": [
            {
                "topic_id": topic,
                "partitions": [
                    {
                        "partition_index": row.partition,
                        "error_code": row.error_code,
                        "error_message": row.error_message,
                        "current_leader": NO_LEADER,
                    }
                    for row in topic_rows
                ],
            }
            for topic, topic_rows in topics
        ],
        "node_endpoints": (),
    }
    assert share_acknowledge_response(version, topics, lock_timeout_ms=15_000) == encode_response(
        79, version, expected
    )


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, b"\x00"),
        (127, b"\x7f"),
        (128, b"\x80\x01"),
        (300, b"\xac\x02"),
        (2**31 - 1, b"\xff\xff\xff\xff\x07"),
    ],
)
def test_uvarint(value: int, encoded: bytes) -> None:
    assert uvarint(value) == encoded
