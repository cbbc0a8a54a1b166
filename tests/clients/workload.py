"""The records that clients send and must get back. They are computed from their number, so that no
copy is needed for the comparison.

Record `number` of a run goes to partition `number % partitions`. The record at (partition, offset)
of a topic that was empty is therefore number `offset * partitions + partition`: one comparison per
record shows that none is lost, duplicated, changed or out of order. Keys, values and headers are
mixed on purpose: none, empty, repeated header names, null values, timestamps that go back and
forth.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

BASE_MS = int(time.time() * 1000) - 3_600_000
"""An hour ago: later records are not in the future, and retention does not reach this one."""

_FILLER = b"the quick brown fox jumps over the lazy dog, again and again; "


class Content(NamedTuple):
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class Placed(NamedTuple):
    """A record as it was received."""

    partition: int
    offset: int
    content: Content


def content(number: int) -> Content:
    timestamp_ms = BASE_MS + number // 8 + number * 37 % 500
    if number % 97 == 5:
        return Content(timestamp_ms, b"deleted-%d" % number, None)
    key = None if number % 3 == 0 else b"" if number % 50 == 1 else b"key-%d" % (number % 1000)
    value = b"%d:%s" % (number, _FILLER[: number % 60]) if number % 41 else b""
    headers: Headers = (
        (("trace", b"%d" % number), ("trace", b""), ("ü", b"\x00\xff")) if number % 10 == 1 else ()
    )
    return Content(timestamp_ms, key, value, headers)


def contents(count: int) -> Iterator[Content]:
    return map(content, range(count))


def check_all(received: Iterable[Placed], count: int, partitions: int) -> None:
    """Fails unless `received` is each of the `count` records exactly once, in order within each
    partition."""
    expected_offset = [0] * partitions
    total = 0
    for placed in received:
        partition, offset, got = placed
        assert offset == expected_offset[partition], (
            f"partition {partition}: offset {offset} where {expected_offset[partition]} was due"
        )
        expected_offset[partition] += 1
        expected = content(offset * partitions + partition)
        assert got == expected, f"{partition}@{offset}"
        total += 1
    assert total == count
