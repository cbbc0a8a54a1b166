"""Long requests and responses are decoded and encoded in turns, to what they are at once."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from kio.serial import entity_reader

from kbroker.api import APIS
from kbroker.api.bounds import BOUNDS
from kbroker.protocol import long_requests, long_responses
from kbroker.protocol.array_check import TooManyRows
from kbroker.protocol.long_requests import DECODED_ROWS_A_TURN, LongRequest
from kbroker.protocol.long_responses import Packing, ResponseTooLarge, each_once, is_long, key_of
from kbroker.protocol.messages import (
    Repeated,
    build,
    encode,
    encode_response,
    read_request,
    read_request_head,
    request_schema,
    response_schema,
)
from kbroker.turns import ROWS_A_TURN
from tests.protocol.test_array_check import EVERY_VERSION, sample

ANY_ROWS = 1 << 30
DESCRIBE_GROUPS, METADATA, PRODUCE = 15, 3, 0
LIST_TRANSACTIONS, HEARTBEAT = 66, response_schema(68, 1)
_HAND_WRITTEN = {PRODUCE, 1, 78, 79}
"""Their responses are not packed here."""


def frame_of(api_key: int, version: int, message: Any, more: bytes = b"") -> bytes:
    schema = request_schema(api_key, version)
    tags = b"\x00" if schema.__header_schema__.__version__ >= 2 else b""
    return struct.pack(">hhih", api_key, version, 7, -1) + tags + encode(build(schema, message)) + more


def decoded(frame: bytes, most_rows: int = ANY_ROWS) -> tuple[Any, int]:
    """The body, and the number of turns."""
    request = LongRequest(read_request_head(frame), frame, most_rows)
    turns = sum(1 for _ in request.turns())
    return request.body, turns


@pytest.mark.parametrize("few", [1, 3, DECODED_ROWS_A_TURN])
@pytest.mark.parametrize(("api_key", "version"), EVERY_VERSION)
def test_a_request_decoded_in_turns(
    monkeypatch: pytest.MonkeyPatch, api_key: int, version: int, few: int
) -> None:
    monkeypatch.setattr(long_requests, "DECODED_ROWS_A_TURN", few)
    schema = request_schema(api_key, version)
    for count in (0, 1, 2, 3):
        frame = frame_of(api_key, version, sample(schema, count))
        begin = len(frame) - len(encode(build(schema, sample(schema, count))))
        assert decoded(frame)[0] == entity_reader(schema)(frame, begin)[0]


def metadata(names: int, version: int = 12) -> bytes:
    topics = [{"topic_id": None, "name": f"topic-{number}"} for number in range(names)]
    return frame_of(
        METADATA,
        version,
        {
            "topics": topics,
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
            "include_cluster_authorized_operations": False,
        },
    )


@pytest.mark.parametrize("version", [4, 12])
def test_no_turn_decodes_more_rows_than_it_may(version: int) -> None:
    frame = metadata(5 * DECODED_ROWS_A_TURN, version)
    body, turns = decoded(frame)
    assert len(body.topics) == 5 * DECODED_ROWS_A_TURN
    assert turns == 5


def test_texts_and_numbers_are_decoded_in_turns() -> None:
    names = [f"group-{number}" for number in range(3 * DECODED_ROWS_A_TURN)]
    for version in (0, 5):
        frame = frame_of(15, version, {"groups": names, "include_authorized_operations": True})
        body, turns = decoded(frame)
        assert turns == 6, "three that check, and three that decode"
        assert body == read_request(read_request_head(frame), frame)
    topics = [{"name": "t", "partition_indexes": list(range(2 * DECODED_ROWS_A_TURN))}]
    frame = frame_of(61, 0, {"topics": topics})
    assert decoded(frame)[0] == read_request(read_request_head(frame), frame)


def test_rows_of_rows_are_decoded_in_turns() -> None:
    rows = [{"partition_index": number, "timestamp": -1} for number in range(3 * DECODED_ROWS_A_TURN)]
    topics = [{"name": "one", "partitions": rows}, {"name": "two", "partitions": rows[:10]}]
    frame = frame_of(2, 7, {"replica_id": -1, "isolation_level": 0, "topics": topics})
    body, turns = decoded(frame)
    assert turns == 3
    assert body == read_request(read_request_head(frame), frame)


def test_what_the_decoder_would_refuse_is_replaced_in_long_requests() -> None:
    """An unknown tagged field in each row is cut out."""
    count = 2 * DECODED_ROWS_A_TURN
    row = bytes(16) + b"\x02t" + b"\x01\x07\x02xy"
    body = b"\x81\x20" + row * count + b"\x01\x00\x00"
    frame = struct.pack(">hhih", METADATA, 12, 7, -1) + b"\x00" + body
    at_once = read_request(read_request_head(frame), frame)
    assert len(at_once.topics) == count == 4096
    assert decoded(frame)[0] == at_once


def test_the_bound_is_checked_before_the_rows_are_decoded() -> None:
    frame = metadata(1000)
    head = read_request_head(frame)
    with pytest.raises(TooManyRows):
        read_request(head, frame, 999)
    assert len(read_request(head, frame, 1000).topics) == 1000
    with pytest.raises(TooManyRows):
        next(LongRequest(head, frame, 999).turns())


@pytest.mark.parametrize("version", [8, 9, 13])
def test_batches_are_counted(version: int) -> None:
    rows = [{"index": number, "records": b"x"} for number in range(100)]
    topics = [{"name": "t", "topic_id": None, "partition_data": rows}] * 3
    frame = frame_of(
        PRODUCE, version, {"transactional_id": None, "acks": 1, "timeout": 1, "topic_data": topics}
    )
    head = read_request_head(frame)
    assert len(read_request(head, frame, 303).topic_data) == 3
    with pytest.raises(TooManyRows):
        read_request(head, frame, 302)


def packed(schema: Any, message: Any, most_bytes: int = ANY_ROWS) -> tuple[bytes, list[int], int]:
    packing = Packing(schema, message, most_bytes)
    turns = sum(1 for _ in packing.turns())
    return b"".join(packing.parts), packing.errors, turns


def lazy(value: Any) -> Any:
    """The same message with iterators for its arrays of rows, at each level."""
    if isinstance(value, dict):
        return {name: lazy(each) for name, each in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return (lazy(each) for each in value)
    return value


@pytest.mark.parametrize("short", [0, 64])
@pytest.mark.parametrize("make", [lazy, lambda message: message], ids=["iterators", "lists"])
@pytest.mark.parametrize(
    ("api_key", "version"), [each for each in EVERY_VERSION if each[0] not in _HAND_WRITTEN]
)
def test_a_response_packed_in_turns(
    monkeypatch: pytest.MonkeyPatch, api_key: int, version: int, make: Any, short: int
) -> None:
    monkeypatch.setattr(long_responses, "_SHORT", short)
    schema = response_schema(api_key, version)
    if any("tag" in field.metadata for field in schema.__dataclass_fields__.values()):
        return  # ApiVersions: it is never long.
    for count in (0, 1, 2, 3):
        message = sample(schema, count)
        assert packed(schema, make(message))[0] == encode_response(api_key, version, message)


def group(group_id: str, members: int, member_bytes: int) -> dict[str, Any]:
    member = {
        "member_id": "m", "group_instance_id": None, "client_id": "c", "client_host": "h",
        "member_metadata": bytes(member_bytes), "member_assignment": b"",
    }  # fmt: skip
    return {
        "error_code": 0, "error_message": None, "group_id": group_id, "group_state": "Stable",
        "protocol_type": "consumer", "protocol_data": "range", "members": [member] * members,
    }  # fmt: skip


SCHEMA = response_schema(DESCRIBE_GROUPS, 5)


def test_the_first_row_may_have_any_size_and_no_further_one() -> None:
    large, small = group("large", 100, 1000), group("small", 0, 0)
    assert len(packed(SCHEMA, {"groups": iter([large])}, 1000)[0]) > 100_000
    with pytest.raises(ResponseTooLarge) as refused:
        packed(SCHEMA, {"groups": iter([large, small])}, 1000)
    assert refused.value.rows == 2
    with pytest.raises(ResponseTooLarge):
        packed(SCHEMA, {"groups": iter([small, large])}, 50_000)
    assert packed(SCHEMA, {"groups": iter([small, large])}, 200_000)[0]


def test_a_large_payload_is_not_encoded_to_find_its_size() -> None:
    """Of a further row, only its size is looked at."""
    packing = Packing(SCHEMA, {"groups": [group("a", 1, 10), group("b", 1, 1 << 20)]}, 1 << 19)
    with pytest.raises(ResponseTooLarge):
        list(packing.turns())
    assert packing.size_bytes < 1000


def test_what_is_named_again_is_built_and_encoded_once() -> None:
    built: list[str] = []

    def make(name: str) -> dict[str, Any]:
        built.append(name)
        return group(name, 10, 1000)

    names = ["a", "b", "a", "c"] + ["a"] * 50
    rows = each_once(names, make)
    packing = Packing(SCHEMA, {"groups": rows}, ANY_ROWS)
    list(packing.turns())
    assert built == ["a", "b", "c"]
    assert b"".join(packing.parts) == encode_response(
        DESCRIBE_GROUPS, 5, {"groups": [group(name, 10, 1000) for name in names]}
    )
    assert len({id(part) for part in packing.parts if len(part) > 10_000}) <= 3
    with pytest.raises(ResponseTooLarge):
        packed(SCHEMA, {"groups": each_once(names, make)}, 400_000)


def test_names_are_counted_in_turns() -> None:
    """Before the first row is built. Hashing a quarter of a million of them takes a tenth of a
    second, and longer if they have rows."""
    names = [str(number) for number in range(40 * ROWS_A_TURN)]
    packing = Packing(SCHEMA, {"groups": each_once(names, lambda name: group(name, 0, 0))}, ANY_ROWS)
    before_the_first = 0
    for _ in packing.turns():
        if packing.size_bytes > 10:
            break
        before_the_first += 1
    assert before_the_first >= 2


def test_small_rows_that_repeat_make_few_parts() -> None:
    names = ["a"] * 5000
    packing = Packing(SCHEMA, {"groups": each_once(names, lambda name: group(name, 0, 0))}, ANY_ROWS)
    list(packing.turns())
    assert sum(map(len, packing.parts)) > 100_000
    assert len(packing.parts) <= 4
    assert b"".join(packing.parts) == encode_response(
        DESCRIBE_GROUPS, 5, {"groups": [group(name, 0, 0) for name in names]}
    )


def test_a_row_of_many_rows_is_not_hashed() -> None:
    """Its hash would be calls for each of them, in one turn."""

    class Unhashable(NamedTuple):
        rows: list[int]

    few, many = (Unhashable([]), Unhashable(list(range(5))))
    rows = each_once(
        [many, many, Unhashable([7] * 9)], lambda each: each, lambda each: key_of(each, each.rows)
    )
    made = [row.row if isinstance(row, Repeated) else row for row in rows if row is not None]
    assert made == [many, many, Unhashable([7] * 9)]
    assert key_of(few, few.rows) is few
    assert key_of(few, None) is few


def test_a_repeated_row_within_the_first_row_is_bounded_too() -> None:
    partition = Repeated(
        {"partition_index": 0, "error_code": 0, "error_message": None, "active_producers": ()}
    )
    topics = [{"name": "t", "partitions": [partition] * 1000}]
    with pytest.raises(ResponseTooLarge):
        packed(response_schema(61, 0), {"topics": topics}, 5000)


def test_rows_of_repeated_rows_count_as_work() -> None:
    """Each row may be in a Repeated, whether it is there again or not."""
    rows = [Repeated(group(str(number), ROWS_A_TURN // 2, 1)) for number in range(20)]
    assert is_long(SCHEMA, {"groups": rows})
    assert not is_long(SCHEMA, {"groups": rows[:1]})
    body, _, turns = packed(SCHEMA, {"groups": rows})
    assert turns >= 10
    assert body == encode_response(DESCRIBE_GROUPS, 5, {"groups": [row.row for row in rows]})


def test_error_codes_are_those_of_all_rows() -> None:
    rows = [{**group(str(code), 0, 0), "error_code": code} for code in (0, 30, 16)]
    repeated = Repeated(rows[1])
    message = {"groups": iter([*rows, repeated, repeated])}
    assert packed(SCHEMA, message)[1] == [30, 16, 30, 30]


def heartbeat(topics: int) -> dict[str, Any]:
    """An answer that assigns one partition of each topic."""
    rows = [{"topic_id": UUID(int=number), "partitions": (0,)} for number in range(topics)]
    return {"error_code": 0, "member_epoch": 1, "heartbeat_interval": 0, "member_id": "m",
            "assignment": {"topic_partitions": rows}}  # fmt: skip


def test_texts_and_what_one_row_holds_are_encoded_in_turns() -> None:
    assert packed(HEARTBEAT, heartbeat(3 * ROWS_A_TURN))[2] == 6
    unknown = [f"state {number}" for number in range(3 * ROWS_A_TURN)]
    message = {"error_code": 0, "unknown_state_filters": unknown, "transaction_states": ()}
    answer, _, turns = packed(response_schema(LIST_TRANSACTIONS, 1), message)
    assert (answer, turns) == (encode_response(LIST_TRANSACTIONS, 1, message), 3)


def test_rows_that_are_left_out_count_as_work() -> None:
    looked_at: list[int] = []

    def rows() -> Iterator[Any]:
        for number in range(10 * ROWS_A_TURN):
            looked_at.append(number)
            yield None

    packing = Packing(SCHEMA, {"groups": rows()}, ANY_ROWS)
    seen = [len(looked_at) for _ in packing.turns()]
    assert seen == [ROWS_A_TURN * turn for turn in range(1, 11)]
    assert b"".join(packing.parts) == encode_response(DESCRIBE_GROUPS, 5, {"groups": ()})


def test_which_responses_are_long() -> None:
    small = group("g", 3, 1)
    groups = ROWS_A_TURN // 4  # Each is four rows, with its members.
    assert not is_long(SCHEMA, {"groups": [small] * groups})
    assert is_long(SCHEMA, {"groups": [small] * (groups + 1)})
    assert is_long(SCHEMA, {"groups": iter(())})
    assert not is_long(response_schema(12, 4), {"error_code": 0})
    assert not is_long(HEARTBEAT, heartbeat(ROWS_A_TURN // 2 - 1))
    assert is_long(HEARTBEAT, heartbeat(ROWS_A_TURN // 2))


def test_every_api_has_a_bound() -> None:
    assert set(BOUNDS) == set(APIS)
