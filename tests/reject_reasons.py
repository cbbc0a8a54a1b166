"""For tests: the tagged field with the reasons of rejections, built apart from the code under
test."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, TypeAlias
from uuid import UUID

from kbroker.share.dead_letter import reason_of
from kbroker.share.reasons import Reason

TAG = 10_000
Row: TypeAlias = tuple[UUID, int, int, Reason]


def uvarint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return uvarint(len(data) + 1) + data


def tags(*fields: tuple[int, bytes]) -> bytes:
    """A tag section."""
    return uvarint(len(fields)) + b"".join(
        uvarint(tag) + uvarint(len(content)) + content for tag, content in fields
    )


def row(topic_id: UUID, partition: int, offset: int, reason: Reason, more: bytes = b"\0") -> bytes:
    """`more`: the row's tag section."""
    return topic_id.bytes + struct.pack(">iq", partition, offset) + b"".join(map(text, reason)) + more


def content(rows: Sequence[Row]) -> bytes:
    return uvarint(len(rows) + 1) + b"".join(row(*each) for each in rows)


def with_reasons(body: bytes, rows: Sequence[Row]) -> bytes:
    """A request that ends with an empty tag section, with these reasons instead."""
    assert body.endswith(b"\0")
    return body[:-1] + tags((TAG, content(rows)))


def reasons_in(letters: Sequence[Any]) -> list[Reason | None]:
    """Of records with `headers`."""
    return [reason_of(letter.headers) for letter in letters]
