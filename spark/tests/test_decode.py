"""Decoding: both decoders return exactly the same arrays and errors, and the same as
`kbroker.formats.batches`."""

from __future__ import annotations

import pickle
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.formats.batches import Record, build_batch, stamp_log_append_time
from kbroker.formats.compression import Codec
from kbroker_spark.decode import COLUMNS, CorruptBatch, Decoder, decode
from spark.tests.record_batches import (
    EVERYTHING,
    batch,
    decoded,
    expected_rows,
    outcome,
    record,
    rows,
    sealed,
    zigzag,
)

DECODERS: tuple[Decoder, ...] = ("numpy", "c")
both = pytest.mark.parametrize("decoder", DECODERS)

_bytes = st.one_of(
    st.none(), st.binary(max_size=40), st.sampled_from((b"", b"x" * 63, b"y" * 64, b"z" * 9000))
)
_times = st.one_of(st.integers(-1, 2**41), st.sampled_from((0, -1, 2**53, -(2**62), 2**62)))
_headers = st.lists(st.tuples(st.text(max_size=5), _bytes), max_size=3).map(tuple)
_record = st.builds(Record, st.just(0), _times, _bytes, _bytes, st.one_of(st.just(()), _headers))


@st.composite
def _logs(draw: st.DrawFn) -> list[bytes]:
    """Batches of a partition: any codec, control batches, broker timestamps, and holes between
    offsets."""
    found: list[bytes] = []
    offset = draw(st.integers(0, 10))
    for records in draw(st.lists(st.lists(_record, min_size=1, max_size=6), max_size=8)):
        attributes = draw(st.sampled_from((0, 0, 0, 0x10, 0x30)))
        codec = draw(st.sampled_from(list(Codec)))
        data = bytearray(build_batch(records, base_offset=offset, codec=codec, attributes=attributes))
        if draw(st.booleans()):
            stamp_log_append_time(data, draw(_times))
        found.append(bytes(data))
        offset += len(records) + draw(st.integers(0, 2))
    return found


@settings(deadline=None)
@given(log=_logs(), copies=st.sampled_from((1, 40)), data=st.data())
def test_equal_to_the_records(log: list[bytes], copies: int, data: st.DataObject) -> None:
    """`copies` makes a group wide enough for numpy's steps."""
    log *= copies
    first, end = sorted((data.draw(st.integers(0, 60)), data.draw(st.integers(0, 60))))
    chunks = log if data.draw(st.booleans()) else [b"".join(log)]
    by_numpy, by_c = (decoded(chunks, decoder, first=first, end=end) for decoder in DECODERS)
    assert by_numpy == by_c
    assert rows(by_c) == expected_rows(log, first, end)


@settings(deadline=None)
@given(log=_logs(), columns=st.sets(st.sampled_from(list(COLUMNS))))
def test_only_wanted_columns_are_built(log: list[bytes], columns: set[str]) -> None:
    whole = decoded(log, "c")
    for decoder in DECODERS:
        assert decoded(log, decoder, columns=sorted(columns)) == {
            name: whole[name] for name in sorted(columns)
        }


@both
def test_number_of_rows_without_columns(decoder: Decoder) -> None:
    pieces = decode(
        [memoryview(batch([record(i) for i in range(5)]))], first=1, end=4, columns=(), decoder=decoder
    )
    assert [(piece.rows, piece.columns) for piece in pieces] == [(3, {})]


@both
def test_compacted_batches_have_holes(decoder: Decoder) -> None:
    log = [
        batch([record(0), record(7), record(9)], 100, last_delta=12),
        batch([], 113, last_delta=4),
        batch([record(3)], 118, last_delta=3),
    ]
    assert [row.offset for row in rows(decoded(log, decoder))] == [100, 107, 109, 121]
    assert [row.offset for row in rows(decoded(log, decoder, first=101, end=109))] == [107]
    assert rows(decoded(log, decoder, first=110, end=121)) == []


@both
def test_numbers_longer_than_needed(decoder: Decoder) -> None:
    body = b"\x00" + zigzag(-5, 10) + zigzag(1, 5) + zigzag(2, 3) + b"kk" + zigzag(-1, 4) + zigzag(0, 5)
    log = [batch([zigzag(len(body), 5) + body, record(0, length_size=3)])]
    assert rows(decoded(log, decoder)) == expected_rows(log)


@both
@pytest.mark.parametrize(
    "milliseconds", [-1, 0, 2**63 // 1000, 2**63 // 1000 + 1, -(2**63) // 1000, 2**63 - 1, -(2**63)]
)
@pytest.mark.parametrize("delta", [0, 1, -1, 2**63 - 1])
@pytest.mark.parametrize("attributes", [0, 8])
def test_times(decoder: Decoder, milliseconds: int, delta: int, attributes: int) -> None:
    """-1 is a millisecond before 1970, as in Spark's Kafka source; times beyond 64 bits of
    microseconds are null."""
    log = [
        batch(
            [record(time_delta=delta), record(1)], times=(milliseconds, milliseconds), attributes=attributes
        )
    ]
    assert rows(decoded(log, decoder)) == expected_rows(log)


@both
def test_names_of_headers_are_what_java_reads(decoder: Decoder) -> None:
    log = [
        batch(
            [
                record(headers=[(b"\xff\xfeok", b"1"), (None, None), ("é".encode(), b"")]),
                record(1, headers=[(b"a", b"")] * 5),
            ]
        )
    ]
    (first, second) = rows(decoded(log, decoder))
    assert first.headers == [
        {"key": "\ufffd\ufffdok", "value": b"1"},
        {"key": "", "value": None},
        {"key": "é", "value": b""},
    ]
    assert second.headers == [{"key": "a", "value": b""}] * 5


@both
def test_pieces_are_of_a_size_for_spark(decoder: Decoder) -> None:
    many = [batch([record(i, None, b"") for i in range(1000)], 1000 * k) for k in range(60)]
    large = [batch([record(i, None, bytes(100_000)) for i in range(100)], codec=Codec.ZSTD)]
    for log, number, least in (
        (many, 60_000, 2),
        (large, 100, 3),
        ([batch([record(i) for i in range(60_000)])], 60_000, 2),
    ):
        pieces = list(
            decode(
                [memoryview(b"".join(log))],
                first=0,
                end=EVERYTHING,
                columns=("value", "offset"),
                decoder=decoder,
            )
        )
        assert len(pieces) >= least
        assert all(piece.rows <= 50_000 and piece.columns["value"].nbytes <= 5 << 20 for piece in pieces)
        assert [offset for piece in pieces for offset in piece.columns["offset"].to_pylist()] == list(
            range(number)
        )


@both
def test_nothing_given_out_refers_to_the_chunk(decoder: Decoder) -> None:
    memory = bytearray(batch([record(0, b"kept", b"kept as well", headers=[(b"name", b"content")])]))
    chunk = memoryview(memory)
    (piece,) = decode([chunk], first=0, end=EVERYTHING, columns=tuple(COLUMNS), decoder=decoder)
    chunk.release()
    memory[:] = bytes(len(memory))
    assert piece.columns["value"].to_pylist() == [b"kept as well"]
    assert piece.columns["headers"].to_pylist() == [[{"key": "name", "value": b"content"}]]


def _damaged_records() -> dict[str, Sequence[bytes]]:
    """One invalid record each."""
    sound = record()
    return {
        "length 0": [b"\x00" + sound],
        "negative length": [zigzag(-20) + sound[1:]],
        "length beyond the batch": [zigzag(1000) + sound[1:]],
        "huge length": [zigzag(2**31 - 1) + sound[1:]],
        "length of six bytes": [zigzag(len(sound) - 1, 6) + sound[1:]],
        "shorter than its fields": [zigzag(len(sound) - 3) + sound[1:]],
        "longer than its fields": [zigzag(len(sound)) + sound[1:] + b"\x00"],
        "length without end": [b"\xff" * 9],
        "key beyond the record": [zigzag(9) + b"\x00\x00\x00" + zigzag(2**30) + b"12345"],
        "value beyond the record": [zigzag(9) + b"\x00\x00\x00\x01" + zigzag(2**30)],
        "time of eleven bytes": [zigzag(17) + b"\x00" + b"\x80" * 10 + b"\x00" * 6],
        "offset of six bytes": [zigzag(12) + b"\x00\x00" + b"\x80" * 5 + b"\x00" * 5],
        "offset behind the batch's last": [record(1)],
        "offset before the batch's first": [record(-1)],
        "too many headers": [record(header_count=2**31 - 1)],
        "one header too many": [record(headers=[(b"a", b"b")], header_count=2)],
        "header beyond the record": [zigzag(11) + b"\x00\x00\x00\x01\x01\x02" + zigzag(4) + b"abcd"],
    }


@pytest.mark.parametrize("name", list(_damaged_records()))
@pytest.mark.parametrize("width", [1, 50])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_damaged_records(name: str, width: int, codec: Codec) -> None:
    """The first, the last or the middle one of so many batches; its CRC is right."""
    damaged = batch(_damaged_records()[name], 10 * width, codec=codec, last_delta=0)
    around = [batch([record(i) for i in range(3)], 10 * k) for k in range(2 * width)]
    for log in ([damaged], [*around[:width], damaged], [*around[:width], damaged, *around[width + 1 :]]):
        by_numpy, by_c = (outcome([b"".join(log)], decoder) for decoder in DECODERS)
        assert isinstance(by_c, tuple)
        assert by_c == by_numpy
        assert by_c[0] == 10 * width


_sound = batch([record()], 7)
_DAMAGED_BATCHES = {
    "magic 1": batch([record()], 7, magic=1),
    "last offset delta is -2": batch([record()], 7, last_delta=-2),
    "4 records do not fit": batch([record()], 7, count=4),
    "5 records do not fit": batch([record()], 7, count=5, codec=Codec.GZIP),
    "record at byte 15": batch([record()], 7, count=2),
    "unknown codec 5": batch([record()], 7, attributes=5),
    "zstd payload cannot be decompressed": batch([record()], 7, codec=Codec.ZSTD, payload=b"no frame"),
    "snappy payload is cut short": batch(
        [record()], 7, codec=Codec.SNAPPY, payload=b"\x82SNAPPY\x00" + bytes(12)
    ),
    "its length is 64, but only 75 bytes are left": _sound[:-1],
    "40 bytes are too few": _sound[:40],
    "its length is 2147483647": _sound[:8] + b"\x7f\xff\xff\xff" + _sound[12:],
    "its length is -1": _sound[:8] + b"\xff\xff\xff\xff" + _sound[12:],
    "do not match its CRC": _sound[:-1] + b"\x02",
}


@both
@pytest.mark.parametrize("reason", list(_DAMAGED_BATCHES))
def test_damaged_batches(decoder: Decoder, reason: str) -> None:
    with pytest.raises(CorruptBatch, match=reason) as raised:
        decoded([batch([record()]), _DAMAGED_BATCHES[reason]], decoder)
    assert raised.value.offset == 7
    again = pickle.loads(pickle.dumps(raised.value))
    assert (again.offset, again.reason, str(again)) == (7, raised.value.reason, str(raised.value))


@both
def test_an_impossible_base_offset(decoder: Decoder) -> None:
    for offset in (-5, 2**63 - 1):
        with pytest.raises(CorruptBatch, match=f"offset {offset} is damaged"):
            decoded([batch([record()], offset)], decoder)


@both
def test_the_crc_counts_only_where_it_is_asked_for(decoder: Decoder) -> None:
    """And for batches in the range: the others are not read."""
    log = [batch([record(i) for i in range(3)], 3 * k) for k in range(4)]
    wrong = bytearray(log[1])
    wrong[-2] ^= 1
    damaged = [log[0], bytes(wrong), *log[2:]]
    assert [row.offset for row in rows(decoded(damaged, decoder, first=6))] == [6, 7, 8, 9, 10, 11]
    assert rows(decoded(damaged, decoder, check_crc=False)) == expected_rows(
        [log[0], sealed(wrong), *log[2:]]
    )
    with pytest.raises(CorruptBatch, match="CRC"):
        decoded(damaged, decoder, first=5)


@both
@pytest.mark.parametrize(
    ("at", "bit", "first"),
    [(22, 0x20, 0), (57, 0x80, 0), (26, 0x08, 15)],
    ids=["control batch", "no records", "ends before the range"],
)
def test_a_batch_with_a_wrong_crc_is_not_believed_that_it_has_no_rows(
    decoder: Decoder, at: int, bit: int, first: int
) -> None:
    log = [batch([record(i) for i in range(10)], 10 * k) for k in range(3)]
    wrong = bytearray(log[1])
    wrong[at] ^= bit
    with pytest.raises(CorruptBatch, match="CRC") as raised:
        decoded([b"".join((log[0], wrong, log[2]))], decoder, first=first)
    assert raised.value.offset == 10


@both
def test_zstd_without_content_size(decoder: Decoder) -> None:
    import zstandard

    records = [record(i, value=bytes(3000)) for i in range(100)]
    compressor = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    payload = compressor.compress(b"".join(records)) + compressor.flush()
    log = [batch(records, codec=Codec.ZSTD, payload=payload)]
    assert rows(decoded(log, decoder)) == expected_rows(log)


@both
@pytest.mark.parametrize("size", [1, 7_000, 200_000])
def test_batches_from_small_to_large(decoder: Decoder, size: int) -> None:
    """Few large batches next to many small ones: numpy walks the tails of the large ones only."""
    chance = random.Random(size)
    log, offset = [], 0
    for _ in range(40):
        values = [
            chance.randbytes(chance.choice((0, 10, 100, 200)))
            for _ in range(max(1, chance.randrange(size // 50 + 1) // 10))
        ]
        log.append(build_batch([Record(0, 5, None, value) for value in values], base_offset=offset))
        offset += len(values)
    assert rows(decoded([b"".join(log)], decoder)) == expected_rows(log)
