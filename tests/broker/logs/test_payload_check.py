"""Damaged payloads of produced batches are refused, and payloads written by clients are not."""

from __future__ import annotations

import gc
import random
import struct
import sys
from functools import partial
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.broker.logs import payload_check
from kbroker.broker.logs.payload_arrays import check_with_arrays
from kbroker.broker.logs.payload_check import ARRAYS_FROM, RecordRules, check, check_quickly
from kbroker.broker.logs.recompression import stored_form
from kbroker.broker.logs.validation import BadBatch, BatchRules
from kbroker.errors import ErrorCode
from kbroker.formats.batches import (
    HEADER_SIZE,
    NO_TIMESTAMP,
    Record,
    build_batch,
    read_header,
    stored_records,
)
from kbroker.formats.compression import Codec, compress
from kbroker.formats.turns import Turn
from tests.odd_batches import ODD_BATCHES, odd_batch, payload_of, varint, with_header, with_payload

CODES = {
    "no gzip": ErrorCode.unknown_server_error,
    "no snappy": ErrorCode.unknown_server_error,
    "no lz4": ErrorCode.unknown_server_error,
    "no zstd": ErrorCode.unknown_server_error,
    "gzip that is cut off": ErrorCode.unknown_server_error,
    "a bomb": ErrorCode.message_too_large,
}
"""All others: 87."""


def code_of(batch: bytes) -> ErrorCode | None:
    """None: it is accepted. The quick check, if it applies, must agree."""
    header = read_header(batch)
    codes: list[ErrorCode | None] = []
    for asked in (check, partial(check_quickly, turn=Turn())):
        try:
            if asked(batch, header) is not False:
                codes.append(None)
        except BadBatch as error:
            codes.append(error.code)
    assert len(set(codes)) == 1
    return codes[0]


@pytest.mark.parametrize("kind", ODD_BATCHES)
def test_odd_batches(kind: str) -> None:  # BASE-24
    assert code_of(odd_batch(kind)) is CODES.get(kind, ErrorCode.invalid_record)


HEADERS = st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=70)), max_size=3).map(tuple)
RECORDS = st.builds(
    Record,
    st.just(0),
    st.sampled_from([NO_TIMESTAMP, 0, 1_700_000_000_000, 1_700_000_009_000]),
    st.none() | st.binary(max_size=70),
    st.none() | st.binary(max_size=200),
    HEADERS,
)
MANY = st.builds(
    lambda records, times: records * times,
    st.lists(RECORDS, min_size=1, max_size=20),
    st.sampled_from([1, 1, 10, 500]),
)


@settings(max_examples=60, deadline=None)
@given(MANY, st.sampled_from(Codec))
def test_what_clients_write_is_taken(records: list[Record], codec: Codec) -> None:
    batch = build_batch(records, codec=codec)
    assert code_of(batch) is None
    plain = build_batch(records)[HEADER_SIZE:]
    base_ms = records[0].timestamp_ms
    payload_check._walk(plain, len(records), base_ms)
    check_with_arrays(plain, len(records), base_ms)


def verdict(payload: bytes, count: int) -> tuple[bool, bool]:
    """The common result of the arrays and of the walk."""
    said = []
    for each in (check_with_arrays, payload_check._walk):
        try:
            each(payload, count, 1000)
            said.append(True)
        except (ValueError, IndexError, payload_check.BufferUnderflow):
            said.append(False)
    return said[0], said[1]


def test_arrays_and_the_walk_say_the_same() -> None:
    """On damaged bytes, whatever the result; an accepted payload can be read as records at each
    offset in turn."""
    chance = random.Random(0)
    records = [
        Record(0, 1000 + n // 7, b"k" * (n % 3), bytes(n % 90), ((("h", b"x"),) if n % 5 == 0 else ()))
        for n in range(200)
    ]
    taken = 0
    for _ in range(4000):
        count = chance.choice([1, 2, 63, 64, 65, 200])
        payload = bytearray(build_batch(records[:count])[HEADER_SIZE:])
        for _ in range(chance.randrange(1, 4)):
            payload[chance.randrange(len(payload))] = chance.choice(
                [0, 1, 2, 0x7F, 0x80, 0xFF, chance.randrange(256)]
            )
        if chance.random() < 0.2:
            payload = payload[: chance.randrange(len(payload))]
        by_arrays, by_walk = verdict(bytes(payload), count)
        assert by_arrays == by_walk, payload.hex()
        if by_walk:
            taken += 1
            read = list(stored_records(with_payload(bytes(payload), claimed=count, time_ms=1000)))
            assert [record.offset for record in read] == list(range(count))
    assert taken > 100, "values were damaged, which nobody can tell"


@pytest.mark.parametrize(
    "field",
    ["length", "time", "delta", "key", "value"],
)
def test_varints_that_are_too_long(field: str) -> None:
    for encoded, is_good in (
        (b"\x80" * 4 + b"\x00", True),
        (b"\xff" * 4 + b"\x7f", False),
        (b"\x80" * 5 + b"\x00", False),
    ):
        fields = {"time": b"\0", "delta": b"\0", "key": b"\0", "value": b"\0"}
        if field in fields:
            fields[field] = encoded
            is_good = is_good or field == "time"
        body = b"\0" + b"".join(fields.values()) + b"\0"
        payload = (encoded if field == "length" else varint(len(body))) + body
        if field == "length" and is_good:
            payload = bytes([0x80 | 2 * len(body), 0x80, 0x80, 0x80, 0]) + body
        assert verdict(payload, 1) == (is_good, is_good), (field, encoded)


@pytest.mark.parametrize("count", [1, ARRAYS_FROM, 20_000])
@pytest.mark.parametrize("codec", list(Codec))
def test_one_record_more_or_less(count: int, codec: Codec) -> None:
    batch = build_batch([Record(0, 5, None, b"v")] * count, codec=codec)
    assert code_of(batch) is None
    for claimed in {max(1, count - 1), count + 1} - {count}:
        assert (
            code_of(with_header(batch, record_count=claimed, last_offset_delta=claimed - 1))
            is ErrorCode.invalid_record
        )


def test_a_claim_of_millions_is_not_walked_through() -> None:
    claimed = (1 << 31) - 1
    assert (
        code_of(with_payload(compress(Codec.ZSTD, bytes(60 << 20)), codec=Codec.ZSTD, claimed=claimed))
        is ErrorCode.invalid_record
    )


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_more_than_the_cap(codec: Codec) -> None:
    """A record of 70 MiB, and one of 60 MiB."""
    assert (
        code_of(build_batch([Record(0, 5, None, bytes(70 << 20))], codec=codec))
        is ErrorCode.message_too_large
    )
    assert code_of(build_batch([Record(0, 5, None, bytes(60 << 20))], codec=codec)) is None


@pytest.mark.parametrize("kind", ["a bomb", "zstd with too few records"])
def test_a_refusal_holds_nothing_of_what_was_decompressed(kind: str) -> None:
    """It is passed to another thread: the stack frames of a raised one would keep 64 MiB each until
    garbage collection."""
    batch = odd_batch(kind)
    refusal = stored_form(memoryview(batch), read_header(batch), BatchRules())
    assert isinstance(refusal, BadBatch)
    assert (refusal.code, refusal.by_log) == (CODES.get(kind, ErrorCode.invalid_record), kind != "a bomb")
    assert (refusal.__traceback__, refusal.__cause__, refusal.__context__) == (None, None, None)
    good = build_batch([Record(0, 5, None, b"v")])
    assert stored_form(memoryview(good), read_header(good), BatchRules()) == (good, read_header(good))


def test_lz4_with_linked_blocks() -> None:
    """BASE-24: Java consumers cannot read them, and Kafka refuses them."""
    import cramjam

    linked = bytes(cramjam.lz4.compress(payload_of(b"0", b"1", b"2")))
    assert list(stored_records(with_payload(linked, codec=Codec.LZ4))), "others can"
    assert code_of(with_payload(linked, codec=Codec.LZ4)) is ErrorCode.unknown_server_error


def test_times_at_the_end_of_64_bits() -> None:
    batch = build_batch([Record(0, 5, None, b"v")])
    for base_ms in ((1 << 63) - 1, -(1 << 63)):
        assert code_of(with_header(batch, base_timestamp=base_ms)) is ErrorCode.invalid_record
    assert code_of(with_header(batch, base_timestamp=1 << 62)) is None


def test_no_exception_but_bad_batch() -> None:
    """From compressed batches with damage anywhere."""
    chance = random.Random(1)
    whole = {
        codec: build_batch([Record(0, n, b"k", bytes(range(90))) for n in range(30)], codec=codec)
        for codec in Codec
    }
    for _ in range(4000):
        batch = bytearray(chance.choice(list(whole.values())))
        for _ in range(chance.randrange(1, 5)):
            batch[chance.randrange(HEADER_SIZE, len(batch))] = chance.randrange(256)
        if chance.random() < 0.3:
            del batch[chance.randrange(HEADER_SIZE, len(batch)) :]
            struct.pack_into(">i", batch, 8, len(batch) - 12)
        try:
            check(bytes(batch), read_header(batch))
        except BadBatch:
            continue
        assert len(list(stored_records(bytes(batch)))) == 30, "what passes can be read"


def _sized(value_bytes: int) -> tuple[Record, int]:
    """With the bytes that it has behind its length."""
    record = Record(0, 0, None, bytes(value_bytes), ())
    payload = build_batch([record])[HEADER_SIZE:]
    return record, len(payload) - (2 if len(payload) > 64 else 1)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("others", [0, 3, 2 * ARRAYS_FROM])
def test_no_record_of_a_compressed_batch_is_above_the_bound(codec: Codec, others: int) -> None:
    """The batch may be, and so may records of a batch without a codec."""
    small, _ = _sized(10)
    for value_bytes in (500, 5000):
        large, size_bytes = _sized(value_bytes)
        size_bytes += others > 63  # Its offset delta has two bytes then.
        batch = build_batch([*[small] * others, large, small], codec=codec)
        header = read_header(batch)
        check(batch, header, RecordRules(max_bytes=size_bytes))
        if codec is Codec.NONE:
            check(batch, header, RecordRules(max_bytes=size_bytes - 1))
            continue
        with pytest.raises(BadBatch) as refused:
            check(batch, header, RecordRules(max_bytes=size_bytes - 1))
        assert refused.value.code is ErrorCode.invalid_record
        assert refused.value.message is None
        assert refused.value.reason == (
            f"record {others} has {size_bytes} bytes; max.decompressed.message.bytes is {size_bytes - 1}"
        )


@pytest.mark.parametrize("count", [50, 20 * ARRAYS_FROM])
def test_the_bound_of_records_takes_no_pass_of_its_own(count: int) -> None:
    """Millions of small records, whose check may end at the first, fit into 64 MiB."""
    batch = build_batch([_sized(100)[0]] * count, codec=Codec.ZSTD)
    header = read_header(batch)
    calls = []
    for rules in (RecordRules(), RecordRules(max_bytes=1000)):
        calls.append(0)

        def note(_frame: FrameType, event: str, _arg: object) -> None:
            calls[-1] += event in ("call", "c_call")

        gc.disable()  # It calls others.
        sys.setprofile(note)
        try:
            check(batch, header, rules)
        finally:
            sys.setprofile(None)
            gc.enable()
    assert calls[1] <= calls[0] + 20
