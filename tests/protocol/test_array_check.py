"""Array counts are checked before kio's decoder, which would abort the process, sees them."""

from __future__ import annotations

import dataclasses
import io
import struct
from typing import Any, get_args, get_origin, get_type_hints
from uuid import UUID

import pytest
from kio.serial import entity_writer

from kbroker.api import APIS
from kbroker.protocol.array_check import check_arrays, program_of, run
from kbroker.protocol.messages import (
    build,
    encode,
    milliseconds,
    read_request,
    read_request_head,
    request_schema,
)

EVERY_VERSION = [(api.key, version) for api in APIS.values() for version in range(api.first, api.last + 1)]


def sample(schema: type[Any], count: int) -> dict[str, Any]:
    """Field values with `count` elements in every array, optional ones present when `count` is
    odd."""
    values: dict[str, Any] = {}
    hints = get_type_hints(schema)
    for field in dataclasses.fields(schema):
        values[field.name] = _value(field, hints[field.name], count)
    return values


def _value(field: dataclasses.Field[Any], hint: Any, count: int) -> Any:
    optional = type(None) in get_args(hint)
    if optional and count % 2 == 0:
        return None
    inner = next(each for each in get_args(hint) if each is not type(None)) if optional else hint
    if get_origin(inner) is tuple:
        element = get_args(inner)[0]
        return [_single(field, element, count) for _ in range(count)]
    return _single(field, inner, count)


def _single(field: dataclasses.Field[Any], hint: Any, count: int) -> Any:
    if hasattr(hint, "__flexible__"):
        return sample(hint, count)
    kafka_type = field.metadata["kafka_type"]
    if kafka_type == "string":
        return "x" * (count * 70)
    if kafka_type in ("bytes", "records"):
        return b"\xff" * (count * 200)
    if kafka_type == "uuid":
        return UUID(int=(1 << 128) - 1 - count)
    if kafka_type == "bool":
        return count % 2 == 1
    return 1.5 if kafka_type == "float64" else count % 100


@pytest.mark.parametrize(("api_key", "version"), EVERY_VERSION)
@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_the_program_ends_where_the_message_ends(api_key: int, version: int, count: int) -> None:
    schema = request_schema(api_key, version)
    buffer = io.BytesIO()
    entity_writer(schema)(buffer, build(schema, sample(schema, count)))
    body = buffer.getvalue()
    edits: list[Any] = []
    assert run(program_of(schema), body, 0, edits) == len(body)
    assert not edits


@pytest.mark.parametrize(
    ("version", "body"),
    [
        (1, b"\x7f\xff\xff\xff"),
        (12, b"\xff\xff\xff\xff\x07"),
        (12, b"\x80\x80\x80\x80\x08"),
        (12, b"\x80\x80\x80\x80\x01"),
        (1, struct.pack(">i", 100)),
    ],
)
def test_a_count_that_cannot_be_is_refused(version: int, body: bytes) -> None:
    frame = struct.pack(">hhih", 3, version, 7, -1) + (b"\x00" if version >= 9 else b"") + body
    with pytest.raises(ValueError, match="an array of"):
        read_request(read_request_head(frame), frame)


BELOW_ZERO = (
    b"\xff\xff\xff\xff\x0f",
    b"\x80\x80\x80\x80\x10",
    b"\xff\xff\xff\xff\x7f",
    b"\x81\x80\x80\x80\x08",
)
"""Compact lengths and counts that are negative, or 0, in 32 bits."""


@pytest.mark.parametrize(
    ("version", "count"),
    [(1, b"\xff\xff\xff\xfe"), (4, b"\x80\0\0\0"), *((12, count) for count in BELOW_ZERO)],
)
def test_any_count_below_zero_is_null(version: int, count: bytes) -> None:
    """As in Kafka, which has no other negative number; kio's decoder refuses all except -1."""
    rest = {1: b"", 4: b"\x01", 12: b"\x01\x01\x00"}[version]
    frame = struct.pack(">hhih", 3, version, 7, -1) + (b"\x00" if version >= 9 else b"") + count + rest
    entity = read_request(read_request_head(frame), frame)
    assert entity.topics is None
    assert version == 1 or entity.allow_auto_topic_creation


@pytest.mark.parametrize(
    ("version", "length"),
    [(0, b"\xff\xfe"), (1, b"\x80\0"), *((version, length) for version in (2, 5) for length in BELOW_ZERO)],
)
def test_any_length_below_zero_is_null(version: int, length: bytes) -> None:
    tags = b"\x00" if version >= 2 else b""
    rest = struct.pack(">i", 1000) + (struct.pack(">qh", 5, 3) if version >= 3 else b"")
    frame = struct.pack(">hhih", 22, version, 7, -1) + tags + length + rest + tags
    entity = read_request(read_request_head(frame), frame)
    assert entity.transactional_id is None
    assert entity.transaction_timeout.total_seconds() == 1


@pytest.mark.parametrize(
    ("version", "length"),
    [(0, b"\xff\xff"), (0, b"\xff\xfe"), *((3, length) for length in (b"\x00", *BELOW_ZERO))],
)
def test_null_for_a_text_that_may_not_be_null(version: int, length: bytes) -> None:
    frame = (
        struct.pack(">hhih", 10, version, 7, -1) + (b"\x00" if version >= 3 else b"") + length + b"\x00\x00"
    )
    with pytest.raises(ValueError, match="cannot be parsed"):
        read_request(read_request_head(frame), frame)


@pytest.mark.parametrize("length", [-1, -2, -32768])
def test_a_client_id_of_any_negative_length_is_none(length: int) -> None:
    head = read_request_head(struct.pack(">hhih", 3, 1, 7, length) + b"rest")
    assert (head.client_id, head.end) == (None, 10)


def test_nested_counts_are_refused() -> None:
    schema = request_schema(0, 3)
    body = struct.pack(">hhii", -1, -1, 1000, 1) + struct.pack(">h", 1) + b"t" + struct.pack(">i", 1 << 30)
    with pytest.raises(ValueError, match="an array of"):
        check_arrays(schema, body, 0)


UNKNOWN = b"\xc8\x01\x03abc"
"""Tag 200 with three bytes."""


def topic_row(name: bytes, tags: bytes) -> bytes:
    return b"\x00" * 16 + bytes([len(name) + 1]) + name + tags


def test_unknown_tagged_fields_are_skipped_wherever_they_are() -> None:
    """KIP-482: in the header, in rows, at the end, one or many."""
    many = b"\x81\x01" + b"".join(bytes([0x80 | tag & 0x7F, 1 + (tag >> 7), 0]) for tag in range(129))
    rows = topic_row(b"a", b"\x01" + UNKNOWN) + topic_row(b"b", b"\x00") + topic_row(b"c", many)
    body = b"\x04" + rows + b"\x01\x00" + b"\x02\x32\x00" + UNKNOWN
    frame = struct.pack(">hhih", 3, 12, 7, -1) + b"\x01" + UNKNOWN + body
    entity = read_request(read_request_head(frame), memoryview(frame))
    assert [row.name for row in entity.topics] == ["a", "b", "c"]
    assert (entity.allow_auto_topic_creation, entity.include_topic_authorized_operations) == (True, False)


def test_a_known_tagged_field_beside_an_unknown_one() -> None:
    """Fetch v12 has its cluster id as tag 0."""
    body = (
        struct.pack(">iiiibii", -1, 0, 0, 0, 0, 0, -1)
        + b"\x01\x01\x01"
        + b"\x02"
        + b"\x00\x03\x03id"
        + UNKNOWN
    )
    frame = struct.pack(">hhih", 1, 12, 7, -1) + b"\x00" + body
    assert read_request(read_request_head(frame), frame).cluster_id == "id"


@pytest.mark.parametrize("tags", [b"\x01", b"\x01\x32", b"\x01\x32\x05abc", b"\xff\xff\xff\xff\x0f"])
def test_tags_that_end_beyond_the_frame_are_refused(tags: bytes) -> None:
    for frame in (b"\x00\x01\x01\x00" + tags, tags):
        whole = struct.pack(">hhih", 3, 12, 7, -1) + frame
        with pytest.raises(ValueError, match=r"beyond the frame|ends within"):
            read_request(read_request_head(whole), whole)


def booleans(values: Any, value: bool) -> Any:
    """`values` with this in place of every boolean. `sample` uses booleans for nothing else."""
    if isinstance(values, dict):
        return {name: booleans(each, value) for name, each in values.items()}
    if isinstance(values, list):
        return [booleans(each, value) for each in values]
    return value if isinstance(values, bool) else values


def encoded(api_key: int, version: int, values: Any) -> bytes:
    schema = request_schema(api_key, version)
    buffer = io.BytesIO()
    entity_writer(schema)(buffer, build(schema, values))
    tags = b"\0" if schema.__header_schema__.__version__ >= 2 else b""
    return struct.pack(">hhih", api_key, version, 7, -1) + tags + buffer.getvalue()


@pytest.mark.parametrize("byte", [2, 0x7F, 0xFF])
@pytest.mark.parametrize(("api_key", "version"), EVERY_VERSION)
def test_any_byte_but_zero_is_true(api_key: int, version: int, byte: int) -> None:
    """As in Kafka; kio's decoder refuses all except 0 and 1, which ended the connection."""
    values = sample(request_schema(api_key, version), 1)
    yes, no = (encoded(api_key, version, booleans(values, value)) for value in (True, False))
    assert len(yes) == len(no)
    odd = bytes(byte if a != b else a for a, b in zip(yes, no, strict=True))
    assert read_request(read_request_head(odd), odd) == read_request(read_request_head(yes), yes)


@pytest.mark.parametrize(
    ("api", "version", "body"), [("delete_groups", 1, b"\xff\xff\xff\xff"), ("delete_groups", 2, b"\x00\x00")]
)
def test_null_for_an_array_that_may_not_be_null(api: str, version: int, body: bytes) -> None:
    """The decoder accepts it, and a handler would fail on it."""
    api_key = next(found.key for found in APIS.values() if found.module == api)
    with pytest.raises(ValueError, match="null where an array must be"):
        check_arrays(request_schema(api_key, version), body, 0)


def test_null_for_an_array_that_may_be_null() -> None:
    metadata = next(found.key for found in APIS.values() if found.module == "metadata")
    assert check_arrays(request_schema(metadata, 12), b"\x00\x01\x00\x00", 0) == []


@pytest.mark.parametrize("duration_ms", [(1 << 63) - 1, -(1 << 63), 1 << 61, -1, 0, 86_400_000])
def test_a_duration_that_the_decoder_cannot_hold_is_the_longest(duration_ms: int) -> None:
    values = {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "retention_time": 4,
        "topics": (),
    }
    head = {"request_api_key": 8, "request_api_version": 2, "correlation_id": 1, "client_id": "x"}
    schema = request_schema(8, 2)
    frame = bytearray(encode(build(schema.__header_schema__, head)) + encode(build(schema, values)))
    at = frame.rindex((4).to_bytes(8, "big"))
    frame[at : at + 8] = duration_ms.to_bytes(8, "big", signed=True)
    body = read_request(read_request_head(frame), frame)
    longest_ms = 292_000 * 365 * 86_400_000
    found_ms = milliseconds(body.retention_time)
    assert (
        found_ms == duration_ms
        if abs(duration_ms) < longest_ms
        else abs(found_ms) >= longest_ms and (found_ms > 0) == (duration_ms > 0)
    )
