"""The hand-written reader of Produce requests returns the same as kio's decoder, or leaves the
request to it."""

from __future__ import annotations

import datetime
import io
import struct
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import entity_writer

from kbroker.protocol.messages import (
    RequestHead,
    _read_with_kio,
    build,
    read_request,
    read_request_head,
    request_schema,
)
from kbroker.protocol.produce_request import PRODUCE, ProduceRequest, read_plain_produce

FLEXIBLE = range(9, 14)


def produce_frame(version: int, fields: dict[str, Any]) -> bytes:
    body = io.BytesIO()
    schema = request_schema(PRODUCE, version)
    entity_writer(schema)(
        body, build(schema, {"transactional_id": None, "timeout": datetime.timedelta(seconds=1), **fields})
    )
    return (
        struct.pack(">hhih", PRODUCE, version, 7, -1)
        + (b"\x00" if version >= FLEXIBLE.start else b"")
        + body.getvalue()
    )


def topics(*sizes: int, records: bytes = b"r" * 200) -> list[dict[str, Any]]:
    """One for each of `sizes`, with as many partitions."""
    return [
        {
            "name": f"topic-{number}" * 20,
            "topic_id": UUID(int=number + 1),
            "partition_data": [{"index": index, "records": records * index or None} for index in range(size)],
        }
        for number, size in enumerate(sizes)
    ]


def rows(request: Any) -> tuple[Any, ...]:
    """What a handler gets from it."""
    return (
        request.acks,
        request.transactional_id,
        [
            (
                getattr(topic, "topic_id", None) or getattr(topic, "name", None) or UUID(int=0),
                [
                    (row.index, None if row.records is None else bytes(row.records))
                    for row in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ],
    )


def with_kio(frame: bytes) -> Any:
    return _read_with_kio(read_request_head(frame), memoryview(frame))


@pytest.mark.parametrize("version", FLEXIBLE)
@pytest.mark.parametrize("sizes", [(), (0,), (1,), (3, 1), (200,)])
@pytest.mark.parametrize("acks", [-1, 0, 1])
def test_it_reads_what_kio_reads(version: int, sizes: tuple[int, ...], acks: int) -> None:
    frame = produce_frame(version, {"acks": acks, "topic_data": topics(*sizes)})
    plain = read_request(read_request_head(frame), frame)
    assert isinstance(plain, ProduceRequest)
    assert rows(plain) == rows(with_kio(frame))


def test_batches_are_slices_of_the_frame() -> None:
    frame = bytearray(produce_frame(9, {"acks": 1, "topic_data": topics(2)}))
    request = read_request(read_request_head(frame), memoryview(frame))
    records = request.topic_data[0].partition_data[1].records
    assert not records.readonly
    records[:2] = b"!!"
    assert b"!!rr" in frame


@pytest.mark.parametrize("version", [3, 8])
def test_older_versions_are_kios(version: int) -> None:
    frame = produce_frame(version, {"acks": 1, "topic_data": topics(2)})
    request = read_request(read_request_head(frame), memoryview(bytearray(frame)))
    assert not isinstance(request, ProduceRequest)
    assert request.topic_data[0].partition_data[1].records == b"r" * 200


@pytest.mark.parametrize("version", FLEXIBLE)
def test_what_is_seldom_sent_is_left_to_kio(version: int) -> None:
    transactional = produce_frame(version, {"acks": -1, "transactional_id": "t", "topic_data": topics(1)})
    assert read_request(read_request_head(transactional), transactional).transactional_id == "t"
    frame = produce_frame(version, {"acks": -1, "topic_data": topics(1)})
    assert frame.endswith(b"\x00\x00\x00")  # the tag sections of partition, topic and request
    tagged = frame[:-1] + b"\x01\x63\x02ab"
    assert read_plain_produce(version, memoryview(tagged), 10, 1000) is None
    assert rows(read_request(read_request_head(tagged), tagged)) == rows(with_kio(frame))


@given(st.data())
def test_damage_is_refused_or_read_as_kio_reads_it(data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(FLEXIBLE))
    frame = bytearray(
        produce_frame(
            version, {"acks": -1, "topic_data": topics(*data.draw(st.lists(st.integers(0, 3), max_size=3)))}
        )
    )
    for _ in range(data.draw(st.integers(0, 4))):
        frame[data.draw(st.integers(10, len(frame) - 1))] = data.draw(st.integers(0, 255))
    whole = bytes(frame[: data.draw(st.integers(10, len(frame)))])
    plain = read_plain_produce(version, memoryview(whole), 10, 1000)
    if plain is not None:
        assert rows(plain) == rows(with_kio(whole))


@pytest.mark.parametrize("version", FLEXIBLE)
def test_a_frame_cut_anywhere_is_not_plain(version: int) -> None:
    frame = produce_frame(version, {"acks": -1, "topic_data": topics(3, 1, records=b"r")})
    for end in range(10, len(frame)):
        cut = frame[:end]
        assert read_plain_produce(version, memoryview(cut), 10, 1000) is None
        with pytest.raises(ValueError, match="body cannot be parsed"):
            read_request(RequestHead(PRODUCE, version, 7, None, 10), cut)
