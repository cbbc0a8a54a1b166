"""Dead letters as records: their content, how they are packed, and which record each came from."""

from __future__ import annotations

import os
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.formats.batches import Record, build_batch, encoded_size, iter_records, read_header
from kbroker.formats.compression import Codec
from kbroker.share.dead_letter import (
    MESSAGES,
    Contents,
    Origin,
    encode,
    headers_of,
    letter_of,
    offsets_found,
    origin_of,
    own_headers,
    pack,
    reason_of,
)
from kbroker.share.effects import DeadLetterCause
from kbroker.share.reasons import Reason
from kbroker.share.runs import runs_of

ORIGIN = Origin("orders", 3, 4711, "wörkers", 5, "Offset rejected by client.")
SOURCE = Record(4711, 1000, b"key", b"value", (("trace", b"\x00\xff"), ("trace", None)))


def test_headers_are_exactly_these() -> None:
    """DLQ-24: six, in this order, as text."""
    assert headers_of(ORIGIN) == (
        ("__dlq.errors.topic", b"orders"),
        ("__dlq.errors.partition", b"3"),
        ("__dlq.errors.offset", b"4711"),
        ("__dlq.errors.group", "wörkers".encode()),
        ("__dlq.errors.delivery.count", b"5"),
        ("__dlq.errors.message", b"Offset rejected by client."),
    )
    assert MESSAGES[DeadLetterCause.EXHAUSTED] == "Offset delivery count exceeded the threshold."


def test_contents() -> None:
    """DLQ-25, DLQ-26, DLQ-27: null, or the record's own where it could be read; its headers and
    timestamp only if asked for."""
    bare = Record(4711, 99, None, None, headers_of(ORIGIN))
    assert letter_of(ORIGIN, None, Contents(key_and_value=True), 99) == bare
    assert letter_of(ORIGIN, SOURCE, Contents(), 99) == bare
    assert letter_of(ORIGIN, SOURCE, Contents(key_and_value=True), 99) == bare._replace(
        key=b"key", value=b"value"
    )
    everything = letter_of(ORIGIN, SOURCE, Contents(key_and_value=True, headers=True), 99)
    assert everything.headers == headers_of(ORIGIN) + SOURCE.headers
    assert letter_of(ORIGIN, SOURCE, Contents(headers=True), 99) == bare._replace(headers=everything.headers)


def test_a_dead_letter_of_a_dead_letter_stands_for_the_last_one() -> None:
    first = letter_of(ORIGIN, None, Contents(), 1)
    again = ORIGIN._replace(topic="dlq.orders", offset=5)
    assert origin_of(letter_of(again, first, Contents(headers=True), 2).headers) == again


@pytest.mark.parametrize(
    "headers",
    [
        (),
        SOURCE.headers,
        headers_of(ORIGIN)[1:],
        (("__dlq.errors.topic", None), *headers_of(ORIGIN)[1:]),
        (*headers_of(ORIGIN)[:2], ("__dlq.errors.offset", b"many"), *headers_of(ORIGIN)[3:]),
        (("__dlq.errors.topic", b"\xff"), *headers_of(ORIGIN)[1:]),
    ],
)
def test_what_is_no_dead_letter(headers: tuple[tuple[str, bytes | None], ...]) -> None:
    assert origin_of(headers) is None


def test_finding_those_of_one_share_partition() -> None:
    others = [{"offset": 5}, {"group_id": "other"}, {"topic": "x"}, {"partition": 1}]
    origins = [ORIGIN, *(ORIGIN._replace(**other) for other in others)]
    records = [letter_of(each, None, Contents(), 1) for each in origins] + [SOURCE]
    assert offsets_found(records, "wörkers", "orders", 3) == {4711, 5}


def test_runs() -> None:
    assert runs_of([]) == []
    assert runs_of([7, 3, 4, 5, 9]) == [(3, 5), (7, 7), (9, 9)]


texts = st.text(max_size=20)
contents = st.none() | st.binary(max_size=300)
origins = st.builds(
    Origin, texts, st.integers(0, 5), st.integers(0, 1 << 60), texts, st.integers(0, 255), texts
)
sources = st.builds(
    Record,
    st.just(0),
    st.just(0),
    contents,
    contents,
    st.lists(st.tuples(texts, contents), max_size=3).map(tuple),
)
all_contents = st.builds(Contents, st.booleans(), st.booleans(), st.booleans())


def test_reasons_follow_the_six_headers() -> None:
    reason, user = Reason("E", "", "tb"), ("__kbroker.error.type", b"a producer's")
    source = SOURCE._replace(headers=(user,))
    letter = letter_of(ORIGIN, source, Contents(headers=True), 9, reason)
    added = (("__kbroker.error.type", b"E"), ("__kbroker.error.traceback", b"tb"))
    assert letter.headers == (*headers_of(ORIGIN), *added, user)
    assert own_headers(letter.headers) == (*headers_of(ORIGIN), *added)
    assert reason_of(letter.headers) == reason
    again = letter_of(ORIGIN, letter, Contents(headers=True), 10)
    assert again.headers == (*headers_of(ORIGIN), *letter.headers)
    assert reason_of(again.headers) is None, "the older one is not of the last time"
    assert reason_of(headers_of(ORIGIN)) is None
    assert letter_of(ORIGIN, None, Contents(), 9, Reason("", "", "")).headers == headers_of(ORIGIN)


letters = st.builds(letter_of, origins, st.none() | sources, all_contents, st.integers(0, 1 << 50))


@given(origins)
def test_origins_come_back(origin: Origin) -> None:
    assert origin_of(headers_of(origin)) == origin


@given(st.lists(letters, max_size=12), st.integers(61, 2000))
@settings(deadline=None)
def test_packing(given_letters: list[Record], max_bytes: int) -> None:
    """DLQ-28: batches as large as max.message.bytes allows, each letter once and in order. A larger
    letter is alone, and whole (DLQ-27)."""
    packed = pack(given_letters, max_bytes)
    built = [build_batch(batch) for batch in packed]
    assert all(len(data) <= max_bytes or len(batch) == 1 for data, batch in zip(built, packed, strict=True))
    for before, after in pairwise(packed):
        assert len(build_batch([*before, after[0]])) > max_bytes, "there was room for one more"
    assert [record for batch in packed for record in batch] == given_letters
    for data, batch in zip(built, packed, strict=True):
        encoded = encode(batch, max_bytes)
        assert len(encoded) <= len(data)
        assert encoded == data or len(data) > max_bytes
        assert list(iter_records(encoded)) == list(iter_records(data))


def test_a_letter_that_does_not_fit_is_compressed() -> None:
    """DLQ-27: unless that makes it larger, or tools would refuse to decompress that much."""
    large = Record(0, 1, b"k", bytes(3_000_000))
    encoded = encode([large], 1_048_588)
    assert (len(encoded) < 1000, list(iter_records(encoded))) == (True, [large])
    noise = Record(0, 1, None, os.urandom(2000))
    assert encode([noise], 100) == build_batch([noise])
    huge = Record(0, 1, None, bytes((64 << 20) + 1))
    assert len(encode([huge], 1_048_588)) > 64 << 20


@pytest.mark.parametrize("codec", Codec)
def test_letters_in_the_codec_of_their_topic(codec: Codec) -> None:
    """Also one that does not fit, unless readers would refuse to decompress so much."""
    letters = [Record(number, number, b"k", b"value " * 50) for number in range(5)]
    for max_bytes in (1_048_588, 100):
        encoded = encode(letters, max_bytes, codec)
        assert read_header(encoded).codec_id == codec
        assert [each._replace(offset=0) for each in iter_records(encoded)] == [
            each._replace(offset=0) for each in letters
        ]
    huge = Record(0, 1, None, bytes((64 << 20) + 1))
    assert read_header(encode([huge], 1_048_588, codec)).codec_id == Codec.NONE


def test_the_level_of_the_codec() -> None:
    text = b"".join(b"order %d of customer %d; " % (n, n * n % 1009) for n in range(2000))
    sizes = [len(encode([Record(0, 1, None, text)], 1 << 20, Codec.GZIP, level)) for level in (1, 9)]
    assert sizes[1] < sizes[0] < len(text)


@given(sources, st.integers(-(1 << 62), 1 << 62), st.integers(0, 1 << 30))
def test_sizes_of_records(record: Record, timestamp_delta: int, offset_delta: int) -> None:
    """As in a batch: the first record at this exact delta cannot be built, so the parts are
    measured."""
    alone = encoded_size(record, timestamp_delta=0, offset_delta=0)
    assert len(build_batch([record])) == 61 + alone
    later = encoded_size(record, timestamp_delta=timestamp_delta, offset_delta=offset_delta)
    assert later >= alone
    pair = [Record(0, 0, None, None), record._replace(timestamp_ms=timestamp_delta)]
    assert len(build_batch(pair)) - len(build_batch(pair[:1])) == encoded_size(
        record, timestamp_delta=timestamp_delta, offset_delta=1
    )
