"""Single records of a batch (kbroker/formats/batches.py): the same bytes and the same refusals as a
simple implementation with kio's varints."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from kio._kio_native import read_signed_varint, read_signed_varlong
from kio.serial.errors import BufferUnderflow
from kio.serial.writers import write_signed_varint, write_signed_varlong

from kbroker.formats.batches import (
    HEADER,
    HEADER_SIZE,
    BatchHeader,
    ProducerInfo,
    Record,
    build_batch,
    encoded_size,
    iter_records,
    read_header,
    stamp_log_append_time,
)
from kbroker.formats.compression import CorruptPayload

sizes = st.sampled_from([0, 1, 63, 64, 8191, 8192, 70_000]) | st.integers(0, 200)
contents = st.none() | sizes.map(bytes) | st.binary(max_size=40)
headers = st.lists(st.tuples(st.text(max_size=70), contents), max_size=3).map(tuple)
deltas = st.sampled_from([0, 1, 63, 64, 8191, 8192, -1, -64, -65, 2**40, -(2**40)])
records = st.lists(
    st.builds(Record, st.just(0), deltas.map(lambda delta: 2**41 + delta), contents, contents, headers),
    min_size=1,
    max_size=70,
)


def written_by_kio(written: list[Record]) -> bytes:
    """The records of a batch, without its header."""
    body = io.BytesIO()
    for number, record in enumerate(written):
        content = io.BytesIO()
        content.write(b"\0")
        write_signed_varlong(content, record.timestamp_ms - written[0].timestamp_ms)
        write_signed_varint(content, number)
        fields: list[bytes | None] = [record.key, record.value]
        for name, value in record.headers:
            fields += [name.encode(), value]
        for at, field in enumerate(fields):
            if at == 2:
                write_signed_varint(content, len(record.headers))
            write_signed_varint(content, -1 if field is None else len(field))
            content.write(field or b"")
        if not record.headers:
            write_signed_varint(content, 0)
        write_signed_varint(body, len(content.getvalue()))
        body.write(content.getvalue())
    return body.getvalue()


def read_by_kio(batch: bytes) -> Iterator[Record]:
    header = read_header(batch)
    payload = batch[HEADER_SIZE : header.size_bytes]
    at = 0
    try:
        for _ in range(header.record_count):
            record, at = _record(payload, at, header)
            yield record
    except (ValueError, IndexError, BufferUnderflow) as error:
        raise CorruptPayload(f"record at byte {at} cannot be read") from error


def _record(payload: bytes, at: int, header: BatchHeader) -> tuple[Record, int]:
    length, size = read_signed_varint(payload, at)
    at += size
    end = at + length
    if length <= 0 or end > len(payload):
        raise ValueError
    timestamp_delta, size = read_signed_varlong(payload, at + 1)
    at += 1 + size
    offset_delta, size = read_signed_varint(payload, at)
    key, at = _field(payload, at + size)
    value, at = _field(payload, at)
    count, size = read_signed_varint(payload, at)
    at += size
    found = []
    for _ in range(count):
        name, at = _field(payload, at)
        content, at = _field(payload, at)
        found.append(((name or b"").decode(errors="surrogateescape"), content))
    if at != end:
        raise ValueError
    timestamp_ms = (
        header.max_timestamp_ms if header.is_log_append_time else header.base_timestamp_ms + timestamp_delta
    )
    return Record(header.base_offset + offset_delta, timestamp_ms, key, value, tuple(found)), end


def _field(payload: bytes, at: int) -> tuple[bytes | None, int]:
    length, size = read_signed_varint(payload, at)
    at += size
    if length < 0:
        return None, at
    if at + length > len(payload):
        raise ValueError
    return payload[at : at + length], at + length


def told(found: Iterator[Record]) -> tuple[list[Record], str]:
    """The records, and which record was reported as unreadable."""
    read: list[Record] = []
    try:
        read.extend(found)
    except CorruptPayload as error:
        return read, str(error).split(" cannot")[0]
    return read, ""


@given(records)
def test_the_bytes_are_those_of_kios_varints(written: list[Record]) -> None:
    batch = build_batch(
        written, base_offset=5, leader_epoch=3, producer=ProducerInfo(7, 1, 9), attributes=0x20
    )
    body = written_by_kio(written)
    assert batch[HEADER_SIZE:] == body
    times = [record.timestamp_ms for record in written]
    header = (
        5,
        49 + len(body),
        3,
        2,
        crc32c(batch[21:]),
        0x20,
        len(written) - 1,
        times[0],
        max(times),
        7,
        1,
        9,
        len(written),
    )
    assert batch[:HEADER_SIZE] == HEADER.pack(*header)


@given(records)
def test_records_come_back(written: list[Record]) -> None:
    batch = build_batch(written, base_offset=5)
    expected = [record._replace(offset=5 + number) for number, record in enumerate(written)]
    assert (
        list(iter_records(batch))
        == list(iter_records(memoryview(b"x" + batch), 1))
        == list(read_by_kio(batch))
        == expected
    )
    sizes = [
        encoded_size(
            record, timestamp_delta=record.timestamp_ms - written[0].timestamp_ms, offset_delta=number
        )
        for number, record in enumerate(written)
    ]
    assert sum(sizes) == len(batch) - HEADER_SIZE
    appended = bytearray(batch)
    stamp_log_append_time(appended, 77)
    assert list(iter_records(appended)) == [record._replace(timestamp_ms=77) for record in expected]


@given(records, st.data())
def test_damage_is_found_at_the_same_record(written: list[Record], data: st.DataObject) -> None:
    batch = bytearray(build_batch(written))
    end = min(len(batch), HEADER_SIZE + 300)
    for at in data.draw(st.lists(st.integers(HEADER_SIZE, end - 1), min_size=1, max_size=3)):
        batch[at] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0x81, 0xFF, batch[at] ^ 1]))
    cut = bytes(batch[: data.draw(st.integers(HEADER_SIZE, end))])
    for damaged in (bytes(batch), cut):
        assert told(iter_records(damaged)) == told(read_by_kio(damaged))


@pytest.mark.parametrize(
    "body",
    [
        "",
        "00",
        "01",
        "ffffffffff",  # a varint that does not end
        "8080808080800100",
        "feffffff0f",  # of 2 GiB
        "feffffffff0f",
        "0c 00 00 00 01 01 00",
        "0e 00 00 00 01 01 00 00",  # more than its headers
        "0a 00 00 00 01 01",  # less
        "0c 00 00 00 01 01 feffffff0f",  # two billion headers
        "0c 00 00 00 01 01 01",  # less than none
        "0e 00 00 00 feffffff0f 01 00",
        "0e 00 00 00 04 61 62",  # a key beyond the record
        "0c 00 00 808080808000 01 01 00",
        "1e 00 80808080808080808000 00 01 01 00",
        "1e 00 8080808080808080808000 00 01 01 00",
        "14 00 00 00 01 01 02 02 ff 02 78",  # a name that is not UTF-8
        "10 00 00 00 01 01 02 01 01",  # one that is null
    ],
)
@pytest.mark.parametrize("count", [-1, 0, 1, 2, 2**31 - 1])
def test_what_nobody_writes(body: str, count: int) -> None:
    batch = bytearray(build_batch([Record(0, 5, None, None)])[:HEADER_SIZE] + bytes.fromhex(body))
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">i", batch, 57, count)
    assert told(iter_records(batch)) == told(read_by_kio(bytes(batch)))
