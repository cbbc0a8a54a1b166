"""Records of a batch by field: many are read with arrays, and few, or wrong ones, one by one."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from kbroker.formats.batches import (
    BatchHeader,
    Record,
    build_batch,
    iter_records,
    read_header,
    records_payload,
)
from kbroker.formats.compacted_batches import (
    ARRAYS_FROM,
    StoredRecords,
    emptied,
    read_stored,
    rebuilt,
)
from kbroker.formats.compression import Codec, CorruptPayload
from kbroker.formats.record_arrays import read_fields

NOW_MS = 1_700_000_000_000
HORIZON_MS = NOW_MS + 86_400_000


def some(count: int, chooser: random.Random) -> list[Record]:
    """With varints of one, two and three bytes."""
    return [
        Record(
            number,
            NOW_MS + chooser.choice((0, -3, 100, -70_000, 10**9)),
            chooser.choice((None, b"", b"k%d" % number, b"long" * 30)),
            chooser.choice((None, b"", b"v" * 70, b"v" * 9000)),
            chooser.choice(((), (("h", None), ("i", b"1")))),
        )
        for number in range(count)
    ]


def stored(records: list[Record]) -> tuple[bytes, BatchHeader]:
    batch = build_batch(records)
    header = read_header(batch)
    return bytes(records_payload(batch, header)), header


def one_by_one(payload: bytes, header: BatchHeader, monkeypatch: pytest.MonkeyPatch) -> StoredRecords:
    with monkeypatch.context() as patch:
        patch.setattr("kbroker.formats.compacted_batches.ARRAYS_FROM", 1 << 31)
        return read_stored(payload, header)


@pytest.mark.parametrize("count", [1, ARRAYS_FROM - 1, ARRAYS_FROM, 700, 9000])
def test_the_fields_are_those_of_the_records(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    records = some(count, random.Random(count))
    payload, header = stored(records)
    found = read_stored(payload, header)
    assert found.keys == [each.key for each in records]
    assert found.offset_deltas == list(range(count))
    assert found.timestamp_deltas == [each.timestamp_ms - header.base_timestamp_ms for each in records]
    assert found.tombstones == [at for at, each in enumerate(records) if each.value is None]
    assert (found.bounds[0], found.bounds[-1], len(found.bounds)) == (0, len(payload), count + 1)
    assert found == one_by_one(payload, header, monkeypatch)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("horizon_ms", [None, HORIZON_MS])
@pytest.mark.parametrize("count", [9, 400])
def test_a_rebuilt_batch_has_the_records_that_stay(codec: Codec, horizon_ms: int | None, count: int) -> None:
    chooser = random.Random(count + codec)
    records = some(count, chooser)
    batch = build_batch(records, base_offset=50, codec=codec)
    header = read_header(batch)
    parts = read_stored(bytes(records_payload(batch, header)), header)
    for part in (0.1, 0.5, 0.95):
        staying = [at for at in range(count) if chooser.random() < part] or [count - 1]
        new = rebuilt(header, parts, staying, horizon_ms=horizon_ms)
        assert list(iter_records(new)) == [records[at]._replace(offset=50 + at) for at in staying]
        again = read_header(new)
        plain = read_stored(bytes(records_payload(new, again)), again)
        assert plain.offset_deltas == staying, "a batch with holes is read like one without"
        assert plain.keys == [records[at].key for at in staying]


def _cut(payload: bytes, header: BatchHeader) -> tuple[bytes, BatchHeader]:
    return payload[:-1], header


def _longer(payload: bytes, header: BatchHeader) -> tuple[bytes, BatchHeader]:
    return payload + b"\0", header


def _more(payload: bytes, header: BatchHeader) -> tuple[bytes, BatchHeader]:
    return payload, header._replace(record_count=header.record_count + 1)


def _fewer(payload: bytes, header: BatchHeader) -> tuple[bytes, BatchHeader]:
    return payload, header._replace(record_count=header.record_count - 1)


def _lower_last(payload: bytes, header: BatchHeader) -> tuple[bytes, BatchHeader]:
    return payload, header._replace(last_offset_delta=header.last_offset_delta - 1)


def _late(payload: bytes, header: BatchHeader) -> tuple[bytes, BatchHeader]:
    return payload, header._replace(base_timestamp_ms=(1 << 63) - 1)


def _twice(payload: bytes, header: BatchHeader) -> tuple[bytes, BatchHeader]:
    size = payload[0] // 2 + 1
    return payload[:size] + payload[:size] + payload[2 * size :], header


@pytest.mark.parametrize("change", [_cut, _longer, _more, _fewer, _lower_last, _late, _twice])
@pytest.mark.parametrize("count", [3, 300])
def test_records_that_are_not_what_the_header_says_are_refused(
    count: int, change: Callable[[bytes, BatchHeader], tuple[bytes, BatchHeader]]
) -> None:
    records = [Record(0, NOW_MS + 1 + number, b"k", b"v") for number in range(count)]
    payload, header = change(*stored([Record(0, NOW_MS, b"k", b"v"), *records]))
    with pytest.raises(CorruptPayload, match="the batch at offset 0, byte"):
        read_stored(payload, header)


def test_random_damage_gets_the_same_answer_with_arrays_and_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chooser = random.Random(8)
    payload, header = stored([Record(0, NOW_MS + at, b"k%d" % at, b"v" * (at % 9)) for at in range(200)])
    refused = 0
    for _ in range(1500):
        damaged = bytearray(payload)
        for _ in range(chooser.choice((1, 2))):
            damaged[chooser.randrange(len(payload))] = chooser.randrange(256)
        answers = [answer_to(read_stored, bytes(damaged), header)]
        with monkeypatch.context() as patch:
            patch.setattr("kbroker.formats.compacted_batches.ARRAYS_FROM", 1 << 31)
            answers.append(answer_to(read_stored, bytes(damaged), header))
        assert answers[0] == answers[1]
        refused += isinstance(answers[0], str)
    assert 200 < refused < 1400


def answer_to(
    read: Callable[[bytes, BatchHeader], StoredRecords], payload: bytes, header: BatchHeader
) -> StoredRecords | str:
    try:
        return read(payload, header)
    except CorruptPayload as error:
        return str(error)


def test_sound_records_are_read_with_arrays() -> None:
    """And not by the walk that follows when arrays refuse them."""
    records = some(500, random.Random(3))
    payload, _ = stored(records)
    found = read_fields(payload, 0, 500)
    assert found.offset_deltas.tolist() == list(range(500))
    assert found.key_sizes.tolist() == [-1 if each.key is None else len(each.key) for each in records]


def test_an_emptied_batch_is_a_header() -> None:
    _, header = stored(some(3, random.Random(1)))
    empty = emptied(header)
    assert len(empty) == 61
    assert read_header(empty).record_count == 0
