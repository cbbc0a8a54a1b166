"""Fields that are null or have a negative length, where that is allowed and where it is not."""

from __future__ import annotations

import struct

from tests.differential.script import Session, script
from tests.differential.scripts.base_other import framed, header, sent

METADATA, FIND_COORDINATOR, CREATE_TOPICS, DELETE_GROUPS, INIT_PRODUCER_ID = 3, 10, 19, 42, 22
BELOW_ZERO = (
    b"\xff\xff\xff\xff\x0f",
    b"\x80\x80\x80\x80\x08",
    b"\x80\x80\x80\x80\x10",
    b"\xff\xff\xff\xff\x7f",
    b"\x80" * 5 + b"\x01",
)
"""Unsigned varints that do not fit into an int, or not into five bytes."""


def i16(value: int) -> bytes:
    return struct.pack(">h", value)


def i32(value: int) -> bytes:
    return struct.pack(">i", value)


@script("BASE-5")
def counts_below_zero(s: Session) -> None:
    for count in (-1, -2, -2147483648):
        sent(s, f"metadata, which may be null: {count}", framed(header(METADATA, 4) + i32(count) + b"\x00"))
        sent(s, f"a count of {count} in metadata version 0", framed(header(METADATA, 0) + i32(count)))
        sent(s, f"delete groups, which may not: {count}", framed(header(DELETE_GROUPS, 1) + i32(count)))
        configs = i32(1) + i16(1) + b"t" + i32(-1) + i16(-1) + i32(0) + i32(count)
        sent(
            s,
            f"create topics, in a row: {count}",
            framed(header(CREATE_TOPICS, 4) + configs + i32(1000) + b"\x01"),
        )
    sent(s, "none", framed(header(METADATA, 1) + i32(0)))


@script("BASE-5")
def compact_counts_below_zero(s: Session) -> None:
    for count in (b"\x00", *BELOW_ZERO):
        sent(
            s,
            f"metadata, which may be null: {count.hex()}",
            framed(header(METADATA, 9, flexible=True) + count + bytes(4)),
        )
        sent(
            s,
            f"delete groups, which may not: {count.hex()}",
            framed(header(DELETE_GROUPS, 2, flexible=True) + count + bytes(1)),
        )


@script("BASE-5")
def texts_below_zero(s: Session) -> None:
    for length in (-1, -2, -32768):
        row = i32(1) + i16(1) + b"t" + i32(-1) + i16(-1) + i32(0) + i32(1)
        value = row + i16(1) + b"c" + i16(length)
        sent(
            s,
            f"a value, which may be null: {length}",
            framed(header(CREATE_TOPICS, 4) + value + i32(1000) + b"\x01"),
        )
        sent(
            s,
            f"a transactional id, which may be: {length}",
            framed(header(INIT_PRODUCER_ID, 0) + i16(length) + i32(1000)),
        )
        sent(s, f"a key, which may not: {length}", framed(header(FIND_COORDINATOR, 0) + i16(length)))
        client = struct.pack(">hhih", METADATA, 1, 7, length)
        sent(s, f"a client id: {length}", framed(client + i32(0)))


@script("BASE-5")
def compact_texts_below_zero(s: Session) -> None:
    for length in (b"\x00", *BELOW_ZERO):
        sent(
            s,
            f"a transactional id: {length.hex()}",
            framed(header(INIT_PRODUCER_ID, 2, flexible=True) + length + i32(1000) + b"\x00"),
        )
        sent(
            s,
            f"a key: {length.hex()}",
            framed(header(FIND_COORDINATOR, 3, flexible=True) + length + b"\x00\x00"),
        )


@script("BASE-5")
def bytes_that_are_no_text(s: Session) -> None:
    for text in (b"\xff", b"\xc3", b"a\x00b", b"\xed\xa0\x80"):
        sent(s, f"a key: {text.hex()}", framed(header(FIND_COORDINATOR, 0) + i16(len(text)) + text))
        sent(
            s,
            f"a client id: {text.hex()}",
            framed(struct.pack(">hhih", METADATA, 1, 7, len(text)) + text + i32(0)),
        )
