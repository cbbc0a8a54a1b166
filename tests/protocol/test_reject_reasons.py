"""The reasons of rejections in a ShareAcknowledge request are cut out before kio decodes it, and
every other unknown tag is skipped."""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

import pytest

from kbroker.protocol.messages import encode, read_request, read_request_head, request_schema
from kbroker.protocol.reject_reasons import ReasonedAcknowledge, RejectReason
from kbroker.share.reasons import Reason
from tests.reject_reasons import TAG, content, row, tags, text, uvarint

TOPIC = UUID(int=7)
REASON = Reason("ValueError", "no such size: größe", "Traceback …\n  line 1\nValueError")
ROWS = [(TOPIC, 0, 5, REASON), (TOPIC, 3, (1 << 63) - 1, Reason("", "", ""))]
UNKNOWN = (77, b"abc")
BOTH = pytest.mark.parametrize("version", [1, 2])


def frame(
    version: int,
    end: bytes,
    *,
    batch: bytes = b"\0",
    partition: bytes = b"\0",
    topic: bytes = b"\0",
    header: bytes = b"\0",
) -> bytes:
    """A request that rejects offset 5, with these tag sections."""
    acks = b"\x02" + struct.pack(">qq", 5, 5) + b"\x02\x03" + batch
    partitions = b"\x02" + struct.pack(">i", 0) + acks + partition
    topics = b"\x02" + TOPIC.bytes + partitions + topic
    renew = b"\0" if version >= 2 else b""
    body = text("g") + text("m") + struct.pack(">i", 1) + renew + topics + end
    return struct.pack(">hhih", 79, version, 7, -1) + header + body


def read(data: bytes) -> Any:
    return read_request(read_request_head(data), memoryview(data))


def given(*rows: tuple[UUID, int, int, Reason]) -> list[RejectReason]:
    return [RejectReason(*each) for each in rows]


@BOTH
def test_reasons_reach_the_handler(version: int) -> None:
    plain = read(frame(version, b"\0"))
    found = read(frame(version, tags((TAG, content(ROWS)))))
    assert isinstance(found, ReasonedAcknowledge)
    assert found.reasons == given(*ROWS)
    assert (found.group_id, found.member_id, found.share_session_epoch, found.topics) == (
        "g", "m", 1, plain.topics,
    )  # fmt: skip
    assert found.is_renew_ack is False
    assert type(plain) is request_schema(79, version)
    assert encode(plain) == frame(version, b"\0")[11:]


@BOTH
def test_unknown_tags_are_skipped_at_every_level(version: int) -> None:
    """RPC-73. A reason's tag counts at the end of the request only."""
    plain = read(frame(version, b"\0"))
    for tag in (77, TAG):
        unknown = tags((tag, content(ROWS)), UNKNOWN) if tag < 77 else tags(UNKNOWN, (tag, content(ROWS)))
        for level in ("batch", "partition", "topic", "header"):
            assert read(frame(version, b"\0", **{level: unknown})) == plain, level
    everywhere = dict.fromkeys(("batch", "partition", "topic", "header"), tags(UNKNOWN))
    assert read(frame(version, tags(UNKNOWN), **everywhere)) == plain
    inner = row(*ROWS[0], more=tags(UNKNOWN, (TAG, b"?")))
    end = tags((0, b""), UNKNOWN, (TAG, b"\x02" + inner), (TAG + 1, b"x"))
    found = read(frame(version, end, **everywhere))
    assert found.reasons == given(ROWS[0])
    assert found.topics == plain.topics


@BOTH
def test_no_reasons(version: int) -> None:
    assert read(frame(version, tags((TAG, content([]))))).reasons == []


ONE = row(*ROWS[0])


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"\0",
        b"\x02",
        b"\x03" + ONE,
        b"\x02" + ONE + b"x",
        *(b"\x02" + ONE[:size] for size in range(len(ONE))),
        uvarint(1 << 31) + ONE,
        b"\xff\xff\xff\xff\xff\xff" + ONE,
        b"\x02" + ONE[:28] + b"\0" + text("m") + text("t") + b"\0",
        b"\x02" + ONE[:28] + text(b"\xff") + text("m") + text("t") + b"\0",
        b"\x02" + ONE[:28] + text("t") + text("m") + uvarint(1 << 30) + b"t\0",
        b"\x02" + ONE[:-1] + b"\x01",
    ],
)
def test_reasons_that_cannot_be_parsed_make_the_request_malformed(broken: bytes) -> None:
    with pytest.raises(ValueError, match="cannot be parsed"):
        read(frame(2, tags((TAG, broken))))


def test_reasons_twice_make_the_request_malformed() -> None:
    with pytest.raises(ValueError, match="more than one field"):
        read(frame(2, tags((TAG, content(ROWS)), (TAG, content(ROWS)))))


def test_the_tag_of_another_request_is_skipped() -> None:
    """ShareFetch acknowledges as well, and has no reasons."""
    body = text("g") + text("m") + struct.pack(">iiiiiib", 1, 0, 0, 0, 9, 9, 0) + b"\0\x01\x01"
    start = struct.pack(">hhih", 78, 2, 7, -1) + b"\0" + body
    assert read(start + tags((TAG, content(ROWS)))) == read(start + b"\0")
