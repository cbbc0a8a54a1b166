"""Each way in which a produced batch can be invalid, with the code that a running Kafka 4.3 returns
for it."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from crc32c import crc32c

from kbroker.broker.logs import validation
from kbroker.broker.logs.validation import UNLIMITED_MS, BadBatch, BatchRules, MustOpen, check_times
from kbroker.errors import ErrorCode
from kbroker.formats.batches import (
    CRC_START,
    NO_TIMESTAMP,
    BatchHeader,
    ProducerInfo,
    Record,
    build_batch,
    read_header,
)
from kbroker.formats.compression import Codec, compress
from kbroker.formats.turns import TURN_RECORDS, Turn
from tests.odd_batches import odd_batch, with_header, with_payload

NOW_MS = 1_700_000_000_000
RULES = BatchRules()


def validate(records: bytes | None, rules: BatchRules, now_ms: int) -> BatchHeader:
    """In the loop's turn as far as that goes, and all in a thread: both must say the same."""
    here, there = (_verdict(records, rules, now_ms, turn) for turn in (Turn(), None))
    if isinstance(here, BadBatch):
        assert isinstance(there, BadBatch)
        assert (here.code, here.reason, here.message, here.by_log, here.record_errors) == (
            there.code,
            there.reason,
            there.message,
            there.by_log,
            there.record_errors,
        )
        raise here
    assert here == there
    return here


def _verdict(
    records: bytes | None, rules: BatchRules, now_ms: int, turn: Turn | None
) -> BatchHeader | BadBatch:
    try:
        try:
            return validation.validate(records, rules, now_ms, turn=turn)
        except MustOpen as unopened:
            header = unopened.header
            check_times(memoryview(records or b"")[: header.size_bytes], header, rules, now_ms)
            return header
    except BadBatch as error:
        return error


def good(**options: object) -> bytearray:
    records = [Record(0, NOW_MS, b"key", b"value"), Record(0, NOW_MS + 5, None, None)]
    return bytearray(build_batch(records, **options))  # type: ignore[arg-type]


def resealed(batch: bytearray) -> bytes:
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[CRC_START:]))
    return bytes(batch)


def changed(layout: str, position: int, value: int, *, reseal: bool = True, **options: object) -> bytes:
    batch = good(**options)
    struct.pack_into(layout, batch, position, value)
    return resealed(batch) if reseal else bytes(batch)


def refusal_of(records: bytes | None, rules: BatchRules = RULES) -> BadBatch:
    with pytest.raises(BadBatch) as refused:
        validate(records, rules, NOW_MS)
    return refused.value


def code_of(records: bytes | None, rules: BatchRules = RULES) -> ErrorCode:
    return refusal_of(records, rules).code


@pytest.mark.parametrize("codec", list(Codec))
def test_a_good_batch_in_every_codec(codec: Codec) -> None:
    header = validate(bytes(good(codec=codec)), RULES, NOW_MS)
    assert (header.record_count, header.codec_id) == (2, codec)


def test_bytes_after_the_batch_that_make_no_batch_are_ignored() -> None:  # BASE-26
    batch = bytes(good())
    cut = struct.pack(">qiiB", 0, 100, 0, 2)
    for rest in (b"\x00" * 11, cut[:12], cut[:16], cut, cut + bytes(80), batch[:-1]):
        assert validate(batch + rest, RULES, NOW_MS).size_bytes == len(batch), rest


def test_bytes_after_the_batch_that_cannot_begin_one_are_not() -> None:  # BASE-26
    for rest in (b"\x00" * 12, struct.pack(">qi", 0, 13), struct.pack(">qiiB", 0, 100, 0, 3), b"x" * 20):
        refusal = refusal_of(bytes(good()) + rest)
        assert (refusal.code, refusal.by_log, refusal.message) == (ErrorCode.corrupt_message, False, None), (
            rest
        )


CASES: list[tuple[str, Callable[[], bytes | None], ErrorCode]] = [
    ("null records", lambda: None, ErrorCode.invalid_record),
    ("no batch", lambda: b"", ErrorCode.invalid_record),
    ("a cut header", lambda: bytes(good()[:15]), ErrorCode.invalid_record),
    ("a cut batch", lambda: bytes(good()[:-1]), ErrorCode.invalid_record),
    ("two batches", lambda: bytes(good() * 2), ErrorCode.invalid_record),
    ("wrong CRC", lambda: changed(">I", 17, 1, reseal=False), ErrorCode.corrupt_message),
    ("length below a header", lambda: changed(">i", 8, 40), ErrorCode.corrupt_message),
    ("length below any format's", lambda: changed(">i", 8, 13), ErrorCode.corrupt_message),
    (
        "a whole batch that is shorter than a header",
        lambda: struct.pack(">qiiB", 0, 20, 0, 2) + bytes(15),
        ErrorCode.corrupt_message,
    ),
    (
        "a whole message of the oldest format",
        lambda: struct.pack(">qiiB", 0, 20, 0, 0) + bytes(15),
        ErrorCode.invalid_record,
    ),
    ("negative length", lambda: changed(">i", 8, -5), ErrorCode.corrupt_message),
    ("magic 0", lambda: changed(">b", 16, 0), ErrorCode.invalid_record),
    ("magic 1", lambda: changed(">b", 16, 1), ErrorCode.invalid_record),
    ("magic 3", lambda: changed(">b", 16, 3), ErrorCode.corrupt_message),
    ("unknown codec", lambda: changed(">h", 21, 5), ErrorCode.unknown_server_error),
    ("control batch", lambda: changed(">h", 21, 0x20), ErrorCode.invalid_record),
    ("count and delta disagree", lambda: changed(">i", 57, 3), ErrorCode.invalid_record),
    ("no records", lambda: changed(">i", 57, 0), ErrorCode.invalid_record),
    ("base offset not 0", lambda: changed(">q", 0, 9), ErrorCode.invalid_record),
    (
        "producer id without sequence",
        lambda: bytes(good(producer=ProducerInfo(5, 0, -1))),
        ErrorCode.invalid_record,
    ),
    (
        "transactional without producer id",
        lambda: changed(">h", 21, 0x10),
        ErrorCode.transactional_id_authorization_failed,
    ),
    (
        "transactional",
        lambda: changed(">h", 21, 0x10, producer=ProducerInfo(5, 0, 0)),
        ErrorCode.transactional_id_authorization_failed,
    ),
    (
        "transactional, and a second batch",
        lambda: changed(">h", 21, 0x10) * 2,
        ErrorCode.transactional_id_authorization_failed,
    ),
    (
        "two batches, and a wrong CRC",
        lambda: changed(">I", 17, 1, reseal=False) * 2,
        ErrorCode.invalid_record,
    ),
    (
        "a base offset, and a wrong CRC",
        lambda: changed(">q", 0, 9)[:17] + bytes(4) + bytes(good())[21:],
        ErrorCode.invalid_record,
    ),
    ("a control batch of an unknown codec", lambda: changed(">h", 21, 0x25), ErrorCode.unknown_server_error),
]


@pytest.mark.parametrize(("make", "code"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_refused(make: Callable[[], bytes | None], code: ErrorCode) -> None:  # BASE-21..23, BASE-25, BASE-27
    assert code_of(make()) is code


TOLD = {"length below any format's", "negative length", "magic 3"}
BY_LOG = {
    "unknown codec",
    "control batch",
    "count and delta disagree",
    "no records",
    "base offset not 0",
    "producer id without sequence",
    "a base offset, and a wrong CRC",
    "a control batch of an unknown codec",
}


def test_what_is_told_beside_the_code() -> None:
    """A message where no batch can begin, the log's start if the log checked the batch; never
    both."""
    refusals = {name: refusal_of(make()) for name, make, _ in CASES}
    assert {name for name, refusal in refusals.items() if refusal.message is not None} == TOLD
    assert {name for name, refusal in refusals.items() if refusal.by_log} == BY_LOG


@pytest.mark.parametrize(
    "producer", [ProducerInfo(-1, 3, 7), ProducerInfo(-5, 0, -1), ProducerInfo(5, -1, 0)]
)
def test_odd_producers_that_are_taken(producer: ProducerInfo) -> None:  # BASE-39
    header = validate(bytes(good(producer=producer)), RULES, NOW_MS)
    assert header.has_producer == (producer.producer_id == 5)


def test_too_large_counts_the_compressed_size() -> None:  # BASE-32
    records = [Record(0, NOW_MS, None, b"\x00" * 50_000)]
    rules = BatchRules(max_message_bytes=10_000)
    assert code_of(build_batch(records), rules) is ErrorCode.message_too_large
    assert validate(build_batch(records, codec=Codec.ZSTD), rules, NOW_MS).record_count == 1


def test_larger_than_a_segment() -> None:  # BASE-32
    size = len(good())
    assert validate(bytes(good()), BatchRules(segment_bytes=size), NOW_MS).size_bytes == size
    refusal = refusal_of(bytes(good()), BatchRules(segment_bytes=size - 1))
    assert (refusal.code, refusal.by_log) == (ErrorCode.record_list_too_large, False)


@pytest.mark.parametrize("codec", list(Codec))
def test_records_at_fault_are_named(codec: Codec) -> None:  # BASE-33
    times = (NOW_MS, NOW_MS + 3_600_001, NO_TIMESTAMP, 5, NOW_MS - 1000)
    batch = build_batch([Record(0, each, None, b"") for each in times], codec=codec)
    after, both = refusal_of(batch), refusal_of(batch, BatchRules(timestamp_before_max_ms=1000))
    assert [error.place for error in after.record_errors] == [1]
    assert [error.place for error in both.record_errors] == [1, 3]
    assert (both.message, both.by_log) == (
        "One or more records have been rejected due to invalid timestamp",
        True,
    )
    assert all("Timestamp" in error.message for error in both.record_errors)


def test_so_many_records_at_fault_are_named() -> None:
    late = build_batch((Record(0, NOW_MS + 3_600_001, None, b"") for _ in range(1500)), codec=Codec.ZSTD)
    assert len(refusal_of(late).record_errors) == 1000


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_a_batch_whose_times_claim_to_be_the_topic_s(codec: Codec) -> None:  # BASE-33
    batch = bytes(good(codec=codec, attributes=0x08))
    assert validate(batch, RULES, NOW_MS).is_log_append_time
    refusal = refusal_of(batch, BatchRules(log_append_time=True))
    assert (refusal.code, [error.place for error in refusal.record_errors]) == (
        ErrorCode.invalid_timestamp,
        [0, 1],
    )


def test_records_that_cannot_be_opened_to_be_named() -> None:
    rules = BatchRules(timestamp_before_max_ms=1000)
    assert code_of(changed(">h", 21, Codec.GZIP), rules) is ErrorCode.unknown_server_error
    more = bytearray(changed(">i", 57, 3))
    struct.pack_into(">i", more, 23, 2)
    assert code_of(resealed(more), rules) is ErrorCode.invalid_record


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_timestamps(codec: Codec) -> None:
    batch = bytes(good(codec=codec))
    assert (
        code_of(build_batch([Record(0, NOW_MS + 3_600_001, None, b"")]), RULES) is ErrorCode.invalid_timestamp
    )
    validate(
        build_batch([Record(0, NOW_MS + 3_600_001, None, b"")]),
        BatchRules(timestamp_after_max_ms=UNLIMITED_MS),
        NOW_MS,
    )
    old = BatchRules(timestamp_before_max_ms=1000)
    validate(batch, old, NOW_MS)
    too_old = build_batch([Record(0, NOW_MS, None, b""), Record(0, NOW_MS - 1001, None, b"")], codec=codec)
    assert code_of(too_old, old) is ErrorCode.invalid_timestamp
    validate(too_old, BatchRules(timestamp_before_max_ms=1000, log_append_time=True), NOW_MS)
    # Without the key that it needs, the record is refused for that, by the check of the payload.
    validate(too_old, old._replace(needs_keys=True), NOW_MS)
    validate(build_batch([Record(0, NO_TIMESTAMP, None, b"")], codec=codec), old, NOW_MS)


def test_a_record_out_of_bounds_is_named_before_those_without_a_key() -> None:
    """As in Kafka: one wrong time of a record with a key decides for the error."""
    rules = BatchRules(needs_keys=True)
    late_ms = NOW_MS + 3_600_001
    keyless, keyed = Record(0, late_ms, None, b""), Record(0, late_ms, b"k", b"")
    validate(build_batch([keyless, keyless]), rules, NOW_MS)
    validate(build_batch([keyless, Record(0, NOW_MS, b"k", b"")]), rules, NOW_MS)
    assert code_of(build_batch([keyless, keyed]), rules) is ErrorCode.invalid_timestamp
    assert code_of(build_batch([keyless]), RULES) is ErrorCode.invalid_timestamp


@pytest.mark.parametrize("codec", list(Codec))
def test_what_is_too_much_for_a_turn_is_not_opened_in_it(codec: Codec) -> None:
    """By records, and by bytes; a turn that has opened something opens less afterwards."""
    late_ms = NOW_MS + 3_600_001
    many = build_batch([Record(0, late_ms, None, b"")] * (TURN_RECORDS + 1), codec=codec)
    large = build_batch([Record(0, late_ms, None, bytes(70_000))], codec=codec)
    half = build_batch([Record(0, late_ms, None, bytes(40_000))], codec=codec)
    for batch in (many, large):
        with pytest.raises(MustOpen):
            validation.validate(batch, RULES, NOW_MS, turn=Turn())
    turn = Turn()
    with pytest.raises(BadBatch):
        validation.validate(half, RULES, NOW_MS, turn=turn)
    with pytest.raises(MustOpen):
        validation.validate(half, RULES, NOW_MS, turn=turn)


def small_bomb() -> bytes:
    return with_payload(compress(Codec.ZSTD, bytes(1 << 20)), codec=Codec.ZSTD, time_ms=NOW_MS)


def test_what_was_inflated_in_vain_ends_the_turn() -> None:
    rules = BatchRules(timestamp_before_max_ms=1000)
    turn = Turn()
    with pytest.raises(MustOpen):
        validation.validate(small_bomb(), rules, NOW_MS, turn=turn)
    assert not turn.allows(read_header(good()))
    turn = Turn()
    with pytest.raises(BadBatch):
        validation.validate(odd_batch("no gzip", time_ms=NOW_MS), rules, NOW_MS, turn=turn)
    assert not turn.allows(read_header(good()))


def test_the_claim_of_the_topic_s_time_is_refused_unopened() -> None:
    """From the header's count; the payload is not even of its codec."""
    batch = odd_batch("no zstd", time_ms=NOW_MS)
    attributes = Codec.ZSTD | 0x08
    refusal = refusal_of(with_header(batch, attributes=attributes), BatchRules(log_append_time=True))
    assert (refusal.code, [each.place for each in refusal.record_errors]) == (
        ErrorCode.invalid_timestamp,
        [0, 1, 2],
    )
    claimed = with_header(batch, attributes=attributes, record_count=1 << 30, last_offset_delta=(1 << 30) - 1)
    assert len(refusal_of(claimed, BatchRules(log_append_time=True)).record_errors) == 1000
