"""due_now(): which records of a batch are not scheduled, found without decoding the others."""

from __future__ import annotations

import random

import pytest

from kbroker.broker.queues.scanner import due_now
from kbroker.broker.queues.sliced_batches import walk
from kbroker.formats.batches import HEADER_SIZE, Record, build_batch
from kbroker.formats.compression import Codec
from kbroker.formats.schedule_headers import DELAY_MS, DELIVER_AT

BASE_OFFSET = 100


def found_in(batch: bytes) -> list[int]:
    batches = walk([memoryview(batch)], BASE_OFFSET, 1 << 20, 1 << 30)
    return [offset for first, last in due_now(batches) for offset in range(first, last + 1)]


def made(scheduled: list[bool], chooser: random.Random, codec: Codec) -> bytes:
    records = []
    for number, has_schedule in enumerate(scheduled):
        headers = [("x", chooser.randbytes(chooser.choice((0, 3, 90))))]
        if has_schedule:
            headers.insert(chooser.randrange(2), (chooser.choice((DELIVER_AT, DELAY_MS)), b"7"))
        value = chooser.choice((None, b"", chooser.randbytes(chooser.choice((1, 70, 9000)))))
        records.append(
            Record(BASE_OFFSET + number, 1_000, chooser.choice((None, b"key")), value, tuple(headers))
        )
    return build_batch(records, base_offset=BASE_OFFSET, codec=codec)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("part", [0, 0.01, 0.5, 0.99, 1])
def test_it_finds_the_records_without_a_schedule(codec: Codec, part: float) -> None:
    chooser = random.Random(part)
    for count in (1, 2, 200):
        scheduled = [chooser.random() < part for _ in range(count)]
        wanted = [BASE_OFFSET + number for number, has_schedule in enumerate(scheduled) if not has_schedule]
        assert found_in(made(scheduled, chooser, codec)) == wanted


def test_a_value_that_looks_like_a_schedule_waits_for_the_scan() -> None:
    records = [
        Record(BASE_OFFSET + number, 1_000, None, value, ())
        for number, value in enumerate((b"kbroker-delay-ms", b"y"))
    ]
    assert found_in(build_batch(records, base_offset=BASE_OFFSET)) == [BASE_OFFSET + 1]


@pytest.mark.parametrize("cut", range(0, 60, 7))
def test_a_batch_whose_records_contradict_its_header_is_left_to_the_scan(cut: int) -> None:
    batch = bytearray(made([False, True, False], random.Random(3), Codec.NONE))
    batch[HEADER_SIZE + cut] ^= 0x55
    assert set(found_in(bytes(batch))) <= {BASE_OFFSET, BASE_OFFSET + 1, BASE_OFFSET + 2}
