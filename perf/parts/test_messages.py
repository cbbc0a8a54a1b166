"""Decodes requests and encodes responses of the most frequent messages: kio's schemas compared with
hand-written code.

- *decode*: from the frame to the entity. `read_request`, which checks the lengths of arrays before
  kio uses them, is compared with kio's reader alone.
- *encode*: a response, by hand-written code (protocol/responses.py), and with kio from the mappings
  that all other handlers return. Both must give the same bytes, which is checked before the timing.
- *frames*: splits the bytes of a socket into requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import pytest
from kio.serial import entity_reader

from kbroker.formats.batches import Buffer
from kbroker.protocol.frames import FrameReader
from kbroker.protocol.messages import encode_response, read_request, read_request_head, request_schema
from kbroker.protocol.responses import (
    FetchRow,
    ProduceRow,
    ShareAcknowledgeRow,
    ShareFetchRow,
    fetch_response,
    produce_response,
    share_acknowledge_response,
    share_fetch_response,
)
from kbroker.share.effects import AcquiredRange
from perf.parts.material import KIB, MIB, TOPIC_ID, batch_of, frame_of
from perf.parts.part import Part

_PRODUCE, _FETCH, _SHARE_FETCH, _SHARE_ACKNOWLEDGE = (0, 12), (1, 17), (78, 2), (79, 2)
_NO_LEADER = {"leader_id": -1, "leader_epoch": -1}


def produce(size: int, partitions: int) -> dict[str, Any]:
    rows = [{"index": index, "records": batch_of(size)} for index in range(partitions)]
    return {
        "transactional_id": None,
        "acks": -1,
        "timeout": 30_000,
        "topic_data": [{"name": "orders", "partition_data": rows}],
    }


def fetch(partitions: int) -> dict[str, Any]:
    offsets = {
        "current_leader_epoch": 1,
        "fetch_offset": 7,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": MIB,
    }
    rows = [{"partition": index, **offsets} for index in range(partitions)]
    topics = [{"topic_id": TOPIC_ID, "partitions": rows}] if rows else []
    session = {
        "session_id": 7,
        "session_epoch": 9,
        "forgotten_topics_data": [],
        "rack_id": "",
        "isolation_level": 0,
    }
    return {"max_wait": 500, "min_bytes": 1, "max_bytes": 50 * MIB, "topics": topics, **session}


def acknowledgements(batches: int) -> list[dict[str, Any]]:
    rows = [
        {"first_offset": 2 * at, "last_offset": 2 * at, "acknowledge_types": [1]} for at in range(batches)
    ]
    return [{"topic_id": TOPIC_ID, "partitions": [{"partition_index": 0, "acknowledgement_batches": rows}]}]


def share_fetch(batches: int) -> dict[str, Any]:
    limits = {
        "max_wait": 500,
        "min_bytes": 1,
        "max_bytes": 50 * MIB,
        "max_records": 500,
        "batch_size": 500,
        "share_acquire_mode": 0,
    }
    return {**share_acknowledge(batches), **limits, "forgotten_topics_data": []}


def share_acknowledge(batches: int) -> dict[str, Any]:
    topics = acknowledgements(batches)
    return {
        "group_id": "workers",
        "member_id": str(TOPIC_ID),
        "share_session_epoch": 3,
        "is_renew_ack": False,
        "topics": topics,
    }


_REQUESTS: dict[str, tuple[tuple[int, int], Callable[[], dict[str, Any]]]] = {
    "Produce, 1 KiB": (_PRODUCE, lambda: produce(KIB, 1)),
    "Produce, 6 x 16 KiB": (_PRODUCE, lambda: produce(16 * KIB, 6)),
    "Produce, 1 MiB": (_PRODUCE, lambda: produce(MIB, 1)),
    "Fetch of a session": (_FETCH, lambda: fetch(0)),
    "Fetch, 50 partitions": (_FETCH, lambda: fetch(50)),
    "ShareFetch, no acknowledgements": (_SHARE_FETCH, lambda: share_fetch(0)),
    "ShareFetch, 1 acknowledgement": (_SHARE_FETCH, lambda: share_fetch(1)),
    "ShareFetch, 500 acknowledgements": (_SHARE_FETCH, lambda: share_fetch(500)),
    "ShareAcknowledge, 1": (_SHARE_ACKNOWLEDGE, lambda: share_acknowledge(1)),
    "ShareAcknowledge, 500": (_SHARE_ACKNOWLEDGE, lambda: share_acknowledge(500)),
}


@pytest.mark.parametrize("request_name", _REQUESTS)
@pytest.mark.parametrize("way", ["read_request", "kio alone"])
def test_decode(part: Part, request_name: str, way: str) -> None:
    key, message = _REQUESTS[request_name]
    frame = memoryview(frame_of(key, message())).toreadonly()
    reader = cast(Any, entity_reader(request_schema(*key)))
    body_at = read_request_head(frame).end + 1

    def whole() -> object:
        return read_request(read_request_head(frame), frame)

    def alone() -> object:
        return reader(frame, body_at)[0]

    assert whole() == alone()
    part.repeat(
        whole if way == "read_request" else alone,
        thing="request",
        size=len(frame),
        group=f"decode: {request_name}",
        name=way,
    )


def produced(partitions: int) -> tuple[Callable[[], list[Buffer]], Mapping[str, Any]]:
    rows = [ProduceRow(index, 0, 1 << 40, -1, 7) for index in range(partitions)]
    offsets = {"error_code": 0, "base_offset": 1 << 40, "log_append_time": -1, "log_start_offset": 7}
    by_kio = [{"index": row.partition, **offsets, "record_errors": (), "error_message": None} for row in rows]
    return lambda: [produce_response(_PRODUCE[1], [("orders", rows)])], {
        "responses": [{"name": "orders", "partition_responses": by_kio}]
    }


def fetched(partitions: int, size: int) -> tuple[Callable[[], list[Buffer]], Mapping[str, Any]]:
    data = memoryview(bytes(size))
    rows = [FetchRow(index, 0, 1 << 40, 1 << 40, 7, [data]) for index in range(partitions)]
    offsets = {"high_watermark": 1 << 40, "last_stable_offset": 1 << 40, "log_start_offset": 7}
    by_kio = [
        {
            "partition_index": row.partition,
            "error_code": 0,
            **offsets,
            "aborted_transactions": None,
            "records": bytes(data),
        }
        for row in rows
    ]
    message = {"error_code": 0, "session_id": 7, "responses": [{"topic_id": TOPIC_ID, "partitions": by_kio}]}
    return lambda: fetch_response(_FETCH[1], 0, 7, [(TOPIC_ID.int, rows)]), message


def share_fetched(ranges: int, size: int) -> tuple[Callable[[], list[Buffer]], Mapping[str, Any]]:
    data = memoryview(bytes(size))
    acquired = [AcquiredRange(2 * at, 2 * at, 1) for at in range(ranges)]
    row = ShareFetchRow(0, records=[data], acquired=acquired)
    by_kio = {
        "partition_index": 0, "error_code": 0, "error_message": None, "acknowledge_error_code": 0,
        "acknowledge_error_message": None,
        "current_leader": _NO_LEADER, "records": bytes(data),
        "acquired_records": [each._asdict() for each in acquired],
    }  # fmt: skip
    head = {"error_code": 0, "error_message": None, "acquisition_lock_timeout": 30_000, "node_endpoints": ()}
    message = {**head, "responses": [{"topic_id": TOPIC_ID, "partitions": [by_kio]}]}
    return lambda: share_fetch_response(_SHARE_FETCH[1], [(TOPIC_ID, [row])], lock_timeout_ms=30_000), message


def share_acknowledged() -> tuple[Callable[[], list[Buffer]], Mapping[str, Any]]:
    by_kio = {"partition_index": 0, "error_code": 0, "error_message": None, "current_leader": _NO_LEADER}
    head = {"error_code": 0, "error_message": None, "acquisition_lock_timeout": 30_000, "node_endpoints": ()}
    message = {**head, "responses": [{"topic_id": TOPIC_ID, "partitions": [by_kio]}]}
    row = ShareAcknowledgeRow(0)
    return lambda: [
        share_acknowledge_response(_SHARE_ACKNOWLEDGE[1], [(TOPIC_ID, [row])], lock_timeout_ms=30_000)
    ], message


_RESPONSES: dict[
    str, tuple[tuple[int, int], Callable[[], tuple[Callable[[], Sequence[Buffer]], Mapping[str, Any]]]]
] = {
    "Produce, 1 partition": (_PRODUCE, lambda: produced(1)),
    "Produce, 50 partitions": (_PRODUCE, lambda: produced(50)),
    "Fetch, 16 KiB": (_FETCH, lambda: fetched(1, 16 * KIB)),
    "Fetch, 6 x 64 KiB": (_FETCH, lambda: fetched(6, 64 * KIB)),
    "Fetch, 1 MiB": (_FETCH, lambda: fetched(1, MIB)),
    "ShareFetch, 1 range": (_SHARE_FETCH, lambda: share_fetched(1, 16 * KIB)),
    "ShareFetch, 50 ranges": (_SHARE_FETCH, lambda: share_fetched(50, 16 * KIB)),
    "ShareFetch, 500 ranges": (_SHARE_FETCH, lambda: share_fetched(500, 16 * KIB)),
    "ShareAcknowledge": (_SHARE_ACKNOWLEDGE, share_acknowledged),
}


@pytest.mark.parametrize("response_name", _RESPONSES)
@pytest.mark.parametrize("way", ["by hand", "kio"])
def test_encode(part: Part, response_name: str, way: str) -> None:
    key, make = _RESPONSES[response_name]
    by_hand, message = make()
    by_kio = encode_response(*key, message)
    assert b"".join(by_hand()) == by_kio
    work = by_hand if way == "by hand" else lambda: encode_response(*key, message)
    part.repeat(work, thing="response", size=len(by_kio), group=f"encode: {response_name}", name=way)


@pytest.mark.parametrize(("size", "count"), [(200, 100), (KIB, 100), (MIB, 1)])
@pytest.mark.parametrize("way", ["whole", "cut"])
def test_frames(part: Part, size: int, count: int, way: str) -> None:
    """The bytes in one piece, as after one recv, or in two, of which the first ends within a
    frame."""
    data = memoryview((size.to_bytes(4, "big") + bytes(size)) * count)
    pieces = [data] if way == "whole" else [data[: len(data) // 2 + 1], data[len(data) // 2 + 1 :]]
    reader = FrameReader(2 * MIB)

    def cut() -> int:
        return sum(1 for piece in pieces for _ in reader.feed(piece))

    assert cut() == count
    part.repeat(
        cut, things=count, thing="frame", size=len(data), group=f"frames: {count} of {size} bytes", name=way
    )
