"""Each way in which a produced batch can be wrong, with the code that a running Kafka 4.3 gives for it."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from crc32c import crc32c

from kbroker.broker.batch_validation import UNLIMITED_MS, BatchRules, validate
from kbroker.compression import Codec
from kbroker.errors import ErrorCode, KafkaError
from kbroker.records import CRC_START, NO_TIMESTAMP, ProducerInfo, Record, build_batch

NOW_MS = 1_700_000_000_000
RULES = BatchRules()


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


def code_of(records: bytes | None, rules: BatchRules = RULES) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        validate(records, rules, NOW_MS)
    return refused.value.code


@pytest.mark.parametrize("codec", list(Codec))
def test_a_good_batch_in_every_codec(codec: Codec) -> None:
    header = validate(bytes(good(codec=codec)), RULES, NOW_MS)
    assert (header.record_count, header.codec_id) == (2, codec)


def test_bytes_after_the_batch_that_make_no_batch_are_ignored() -> None:  # BASE-26
    batch = bytes(good())
    assert validate(batch + b"\x00" * 7, RULES, NOW_MS).size_bytes == len(batch)


CASES: list[tuple[str, Callable[[], bytes | None], ErrorCode]] = [
    ("null records", lambda: None, ErrorCode.invalid_record),
    ("no batch", lambda: b"", ErrorCode.invalid_record),
    ("a cut header", lambda: bytes(good()[:15]), ErrorCode.invalid_record),
    ("a cut batch", lambda: bytes(good()[:-1]), ErrorCode.invalid_record),
    ("two batches", lambda: bytes(good() * 2), ErrorCode.invalid_record),
    ("wrong CRC", lambda: changed(">I", 17, 1, reseal=False), ErrorCode.corrupt_message),
    ("length below a header", lambda: changed(">i", 8, 40), ErrorCode.corrupt_message),
    ("negative length", lambda: changed(">i", 8, -5), ErrorCode.corrupt_message),
    ("magic 0", lambda: changed(">b", 16, 0), ErrorCode.invalid_record),
    ("magic 1", lambda: changed(">b", 16, 1), ErrorCode.invalid_record),
    ("magic 3", lambda: changed(">b", 16, 3), ErrorCode.corrupt_message),
    ("unknown codec", lambda: changed(">h", 21, 5), ErrorCode.unknown_server_error),
    ("control batch", lambda: changed(">h", 21, 0x20), ErrorCode.invalid_record),
    ("count and delta disagree", lambda: changed(">i", 57, 3), ErrorCode.invalid_record),
    ("no records", lambda: changed(">i", 57, 0), ErrorCode.invalid_record),
    ("base offset not 0", lambda: changed(">q", 0, 9), ErrorCode.invalid_record),
    ("producer id without sequence", lambda: bytes(good(producer=ProducerInfo(5, 0, -1))), ErrorCode.invalid_record),
    ("transactional without producer id", lambda: changed(">h", 21, 0x10), ErrorCode.transactional_id_authorization_failed),
]


@pytest.mark.parametrize(("make", "code"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_refused(make: Callable[[], bytes | None], code: ErrorCode) -> None:  # BASE-21..23, BASE-25, BASE-27
    assert code_of(make()) is code


def test_too_large_counts_the_compressed_size() -> None:  # BASE-32
    records = [Record(0, NOW_MS, None, b"\x00" * 50_000)]
    rules = BatchRules(max_message_bytes=10_000)
    assert code_of(build_batch(records), rules) is ErrorCode.message_too_large
    assert validate(build_batch(records, codec=Codec.ZSTD), rules, NOW_MS).record_count == 1


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_timestamps(codec: Codec) -> None:
    batch = bytes(good(codec=codec))
    assert code_of(build_batch([Record(0, NOW_MS + 3_600_001, None, b"")]), RULES) is ErrorCode.invalid_timestamp
    validate(build_batch([Record(0, NOW_MS + 3_600_001, None, b"")]), BatchRules(timestamp_after_max_ms=UNLIMITED_MS), NOW_MS)
    old = BatchRules(timestamp_before_max_ms=1000)
    validate(batch, old, NOW_MS)
    too_old = build_batch([Record(0, NOW_MS, None, b""), Record(0, NOW_MS - 1001, None, b"")], codec=codec)
    assert code_of(too_old, old) is ErrorCode.invalid_timestamp
    validate(too_old, BatchRules(timestamp_before_max_ms=1000, log_append_time=True), NOW_MS)
    validate(build_batch([Record(0, NO_TIMESTAMP, None, b"")], codec=codec), old, NOW_MS)
