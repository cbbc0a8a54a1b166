"""The single-pass reader of a batch of state changes: it must return what the general record reader
returns, and report damage as that one does."""

from __future__ import annotations

import struct
from collections.abc import Callable
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.formats.batches import (
    HEADER_SIZE,
    NO_HEADERS,
    NO_TIMESTAMP,
    Buffer,
    Record,
    build_batch,
    build_timeless_batch,
    iter_records,
    read_header,
)
from kbroker.formats.compression import Codec, CorruptPayload
from kbroker.formats.state import ShareStateKey
from kbroker.storage.segment import state_log_records
from kbroker.storage.segment.state_log_records import batch_changes, from_record, to_record
from kbroker.storage.spi import Change

TOPIC = UUID(int=0x1234)
ERRORS = CorruptPayload, KeyError, struct.error

share_keys = st.builds(
    lambda partition, group, number: ShareStateKey(TOPIC, partition, group, number).encode(),
    st.integers(0, 9), st.sampled_from(["", "g", "gr\u00fcppe", "g" * 255]), st.integers(0, 600),
)  # fmt: skip
keys = (
    share_keys
    | share_keys
    | st.binary(min_size=1, max_size=80)
    | st.binary(max_size=300).map(lambda rest: b"share/" + rest)
)
values = (
    st.none()
    | st.binary(max_size=200)
    | st.sampled_from([bytes(63), bytes(64), bytes(8191), bytes(8192), bytes(1 << 20)])
)
changes = st.lists(st.tuples(keys, values), min_size=1, max_size=200)


def slow(data: Buffer) -> list[Change]:
    return list(map(from_record, iter_records(data)))


def fast(data: Buffer) -> list[Change]:
    return batch_changes(memoryview(data), 0, read_header(data))


def told(read: Callable[[Buffer], list[Change]], data: Buffer) -> object:
    """The records, or the error."""
    try:
        return read(data)
    except ERRORS as error:
        return type(error), str(error)


@given(changes)
def test_changes_come_back(written: list[Change]) -> None:
    batch = build_timeless_batch([to_record(*change) for change in written])
    assert fast(batch) == slow(batch) == written


@given(changes)
def test_the_bytes_are_those_of_build_batch(written: list[Change]) -> None:
    records = []
    for key, value, headers in [to_record(*change) for change in written]:
        records.append(
            Record(0, NO_TIMESTAMP, key, value, () if headers == NO_HEADERS else (("n", headers[-8:]),))
        )
    assert build_timeless_batch([to_record(*change) for change in written], base_offset=7) == build_batch(
        records, base_offset=7
    )


@given(changes.filter(lambda written: all(len(value or b"") < 300 for _, value in written)), st.data())
def test_damage_is_told_as_everywhere(written: list[Change], data: st.DataObject) -> None:
    batch = bytearray(build_timeless_batch([to_record(*change) for change in written]))
    for at in data.draw(st.lists(st.integers(HEADER_SIZE, len(batch) - 1), min_size=1, max_size=3)):
        batch[at] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0x81, 0xFF, batch[at] ^ 1]))
    cut = bytes(batch[: data.draw(st.integers(HEADER_SIZE, len(batch)))])
    for damaged in (bytes(batch), cut):
        assert told(fast, damaged) == told(slow, damaged)


@pytest.mark.parametrize(
    "payload",
    [
        "",
        "00",
        "01",
        "ffffffffff",  # a varint that does not end
        "80808080808001",
        "fffffffff0",
        "feffffff0f",  # of 2 GiB
        "10 00 00 00 02",  # beyond the end
        "0e 00 00 00 02 61 ff",
        "0e 00 00 00 02 61 feffffff0f 00",
        "0c 00 00 808080808000 02 61 01 00",
        "10 00 00 8000 02 61 01 00 00",
        "0e 00 00 00 02 61 01 00 00",  # more than its headers
        "0c 00 00 00 02 61 01 feffffff0f",  # two billion headers
        "10 01 00 00 02 61 02 62 00",
        "10 00 02 00 02 61 02 62 00",
        "10 00 00 00 05 02 62 00 00",  # a null key
        "0c 00 00 00 00 01 00",  # an empty one
        "0e 00 00 00 02 00 01 00",
        "10 00 00 00 04 00 01 01 00",
        "10 00 00 00 04 00 00 01 00",
        "1a 00 00 00 08 00 01 00 00 01 02 02 6e 01",  # a number that is null
    ],
)
@pytest.mark.parametrize("count", [-1, 0, 1, 2, 2**31 - 1])
def test_what_no_broker_writes(payload: str, count: int) -> None:
    body = bytes.fromhex(payload)
    batch = bytearray(build_timeless_batch([(b"k", b"", NO_HEADERS)])[:HEADER_SIZE] + body)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">i", batch, 57, count)
    assert told(fast, batch) == told(slow, batch)


def test_what_is_compressed_or_has_other_headers_is_read_too() -> None:
    records = [
        Record(0, 5, b"a", b"1", (("x", b"y"),)),
        Record(0, 6, b"\0\xffb", b"2"),
        Record(0, 7, None, b"3"),
    ]
    for codec in (Codec.NONE, Codec.GZIP):
        assert fast(build_batch(records, codec=codec)) == [(b"a", b"1"), (b"b", b"2"), (b"", b"3")]


def test_a_start_opens_no_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual keys and values of state, of every size, are read in the single pass."""
    monkeypatch.delattr(state_log_records, "iter_records")
    written: list[Change] = [
        (ShareStateKey(TOPIC, 3, "g", number).encode(), bytes(number * 20) if number % 3 else None)
        for number in range(9000)
    ]
    written += [(b"topic/1", b"{}"), (b"log_start/1", bytes(1 << 20))]
    assert fast(build_timeless_batch([to_record(*change) for change in written])) == written
