"""Requests as bytes, beside kio's encoder, and batches of acknowledgements."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker_client._shared.protocol.messages import build, encode, request_schema
from kbroker_client._shared.share.reasons import Reason
from kbroker_client.share.wire import (
    AckBatch,
    Limits,
    Partition,
    ack_batches,
    share_acknowledge,
    share_fetch,
    varint,
)

FETCH, ACKNOWLEDGE = 78, 79
ONE, OTHER = uuid.UUID(int=1), uuid.UUID(int=2)
ROWS: Mapping[Partition, Sequence[AckBatch]] = {
    (ONE, 0): [AckBatch(0, 9, b"\x01"), AckBatch(12, 13, b"\x02\x03")],
    (OTHER, 300): [],
    (ONE, 7): [AckBatch(1 << 40, 1 << 40, b"\x00")],
}


def topics(rows: Mapping[Partition, Sequence[AckBatch]]) -> list[dict[str, Any]]:
    found: dict[uuid.UUID, list[dict[str, Any]]] = {}
    for (topic_id, index), batches in rows.items():
        acks = [
            {"first_offset": first, "last_offset": last, "acknowledge_types": list(types)}
            for first, last, types in batches
        ]
        found.setdefault(topic_id, []).append({"partition_index": index, "acknowledgement_batches": acks})
    return [{"topic_id": topic_id, "partitions": partitions} for topic_id, partitions in found.items()]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("group", ["g", "a group with a long name " * 8])
def test_a_share_fetch_is_as_kio_writes_it(version: int, group: str) -> None:
    limits = Limits(500, 17, 18, 1 if version == 2 else 0)
    wanted = build(
        request_schema(FETCH, version),
        {
            "group_id": group, "member_id": "m", "share_session_epoch": 5, "max_wait": 500, "min_bytes": 1,
            "max_bytes": limits.max_bytes, "max_records": 17, "batch_size": 18,
            "share_acquire_mode": limits.acquire_mode, "is_renew_ack": False, "topics": topics(ROWS),
            "forgotten_topics_data": [{"topic_id": OTHER, "partitions": [3, 4]}],
        },
    )  # fmt: skip
    assert share_fetch(version, group, "m", 5, limits, ROWS, [(OTHER, 3), (OTHER, 4)]) == encode(wanted)


@pytest.mark.parametrize("version", [1, 2])
def test_a_share_acknowledge_is_as_kio_writes_it(version: int) -> None:
    wanted = build(
        request_schema(ACKNOWLEDGE, version),
        {
            "group_id": "g", "member_id": "m", "share_session_epoch": -1, "is_renew_ack": version == 2,
            "topics": topics(ROWS),
        },
    )  # fmt: skip
    assert share_acknowledge(version, "g", "m", -1, ROWS, renews=version == 2) == encode(wanted)


def test_reasons_follow_as_a_tagged_field() -> None:
    plain = share_acknowledge(2, "g", "m", 1, ROWS)
    reasons = {(ONE, 0, 13): Reason("ValueError", "no such time", "Traceback …")}
    found = share_acknowledge(2, "g", "m", 1, ROWS, reasons=reasons)
    value = (
        varint(2) + ONE.bytes + (0).to_bytes(4, "big") + (13).to_bytes(8, "big")
        + b"\x0bValueError" + b"\x0dno such time" + b"\x0eTraceback \xe2\x80\xa6" + b"\0"
    )  # fmt: skip
    assert found == plain[:-1] + b"\x01" + varint(10_000) + varint(len(value)) + value


@given(st.dictionaries(st.integers(0, 60), st.integers(0, 4)))
def test_batches_have_each_offset_once_in_order(types: dict[int, int]) -> None:
    found: dict[int, int] = {}
    last = -1
    for batch in ack_batches(types):
        assert last < batch.first <= batch.last
        last = batch.last
        count = batch.last - batch.first + 1
        assert len(batch.types) in (1, count)
        found.update(
            zip(range(batch.first, last + 1), batch.types * (count // len(batch.types)), strict=True)
        )
    assert found == types
