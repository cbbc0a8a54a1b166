"""The codecs of record batches: compressed data can be read here and by stricter readers, and sizes
are bounded."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import zstandard

from kbroker.formats.batches import HEADER_SIZE, read_header, stored_records
from kbroker.formats.compression import Codec, CorruptPayload, TooLarge, compress, decompress, inflate
from tests.framings import READABLE, RECORDS, TWO_LZ4_FRAMES, framed_batch

RECORDED = Path(__file__).parents[1] / "differential" / "recorded"
NOISE = random.Random(0).randbytes(200_000)
SAMPLES = {
    "nothing": b"",
    "a byte": b"a",
    "text": b"orders " * 1000,
    "a block": b"x" * (1 << 16),
    "a block and a byte": b"x" * ((1 << 16) + 1),
    "noise": NOISE,
    "both": bytes(100_000) + NOISE[:70_000] + bytes(100_000),
}


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("sample", list(SAMPLES))
def test_what_is_compressed_can_be_read(codec: Codec, sample: str) -> None:
    data = SAMPLES[sample]
    packed = compress(codec, data)
    assert decompress(codec, packed, max_bytes=len(data)) == data
    if data:
        with pytest.raises(CorruptPayload, match="larger than"):
            decompress(codec, packed, max_bytes=len(data) - 1)


@pytest.mark.parametrize("sample", list(SAMPLES))
def test_lz4_blocks_depend_on_none_before_them(sample: str) -> None:
    """Kafka's reader supports no others; here each of kbroker's blocks is decompressed alone."""
    data = SAMPLES[sample]
    frame = compress(Codec.LZ4, data)
    assert frame[:7] == bytes.fromhex("04224d18604082"), (
        "independent blocks of up to 64 KiB, no checksums, no content size"
    )
    at, plain = 7, b""
    while size := int.from_bytes(frame[at : at + 4], "little"):
        end = at + 4 + (size & 0x7FFFFFFF)
        plain += decompress(Codec.LZ4, frame[:7] + frame[at:end] + bytes(4))
        at = end
    assert (plain, frame[at:]) == (data, bytes(4))


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_damage_is_noticed(codec: Codec) -> None:
    packed = compress(codec, SAMPLES["text"])
    with pytest.raises(CorruptPayload):
        decompress(codec, b"no such thing" + packed)


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_an_end_that_is_missing_is_noticed(codec: Codec) -> None:
    with pytest.raises(CorruptPayload):
        decompress(codec, compress(codec, SAMPLES["text"])[:-9])


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
@pytest.mark.parametrize("noise", [1000, 300_000])
@pytest.mark.parametrize("zeros", [0, 1000, 3_000_000])
def test_the_bound_is_exact(codec: Codec, noise: int, zeros: int) -> None:
    """For data that expands a little, and a lot; exceeding the bound is distinguished from
    damage."""
    data = random.Random(1).randbytes(noise) + bytes(zeros)
    packed = compress(codec, data)
    assert decompress(codec, packed, max_bytes=len(data)) == data
    assert decompress(codec, packed, max_bytes=64 << 20) == data
    for less in (len(data) - 1, len(data) // 2, 10):
        with pytest.raises(TooLarge):
            decompress(codec, packed, max_bytes=less)


@pytest.mark.parametrize("name", [*READABLE, TWO_LZ4_FRAMES])
def test_several_frames_are_read_as_kafka_reads_them(name: str) -> None:  # BASE-24
    batch = framed_batch(name)
    header = read_header(batch)
    plain, is_one_frame = inflate(Codec(header.codec_id), batch[HEADER_SIZE:])
    assert not is_one_frame
    if name == TWO_LZ4_FRAMES:
        with pytest.raises(CorruptPayload):
            list(stored_records(batch))
    else:
        assert len(list(stored_records(batch))) == RECORDS
        with pytest.raises(TooLarge):
            decompress(Codec(header.codec_id), batch[HEADER_SIZE:], max_bytes=len(plain) - 1)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.ZSTD])
def test_the_bound_is_for_all_frames_together(codec: Codec) -> None:
    packed = compress(codec, b"a" * 1000) * 3
    assert decompress(codec, packed, max_bytes=3000) == b"a" * 3000
    for less in (2999, 2000, 1000, 10):
        with pytest.raises(TooLarge, match=f" {less} bytes"):
            decompress(codec, packed, max_bytes=less)


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_one_frame_is_known_as_one(codec: Codec) -> None:
    for sample in SAMPLES.values():
        packed = compress(codec, sample)
        assert inflate(codec, packed) == (sample, True)
    if codec is not Codec.SNAPPY:
        behind = b"\x28" if codec is Codec.ZSTD else b"x"
        assert inflate(codec, compress(codec, NOISE) + behind) == (NOISE, False)


def test_a_member_that_is_larger_than_what_is_read_at_once() -> None:
    """A gzip payload is read in pieces; members may end anywhere in one."""
    sizes = range(65_400, 65_620, 9)
    packed = b"".join(compress(Codec.GZIP, NOISE[:size], level=0) for size in sizes)
    assert decompress(Codec.GZIP, packed) == b"".join(NOISE[:size] for size in sizes)


@pytest.mark.parametrize("options", range(16))
def test_frames_of_zstd_with_all_kinds_of_heads(options: int) -> None:
    """With and without size, checksum and dictionary id; of one segment; with blocks of one byte
    repeated."""
    for data in (b"", b"a" * 10, b"orders " * 100, NOISE, bytes(3_000_000)):
        parameters = zstandard.ZstdCompressionParameters.from_level(
            1,
            write_content_size=bool(options & 1),
            write_checksum=bool(options & 2),
            window_log=10 if options & 4 else 0,
        )
        packer = zstandard.ZstdCompressor(compression_params=parameters)
        streaming = packer.compressobj()
        packed = packer.compress(data) if options & 8 else streaming.compress(data) + streaming.flush()
        assert inflate(Codec.ZSTD, packed) == (data, True)
        assert inflate(Codec.ZSTD, packed + packed) == (data + data, False)
        if data:
            with pytest.raises(CorruptPayload):
                decompress(Codec.ZSTD, packed[:-1])


def test_the_bound_of_frames_that_do_not_tell_their_size() -> None:
    """As streaming producers write them."""
    data = NOISE + bytes(1_000_000)
    packed = zstandard.ZstdCompressor(write_content_size=False).compress(data)
    assert decompress(Codec.ZSTD, packed, max_bytes=len(data)) == data
    with pytest.raises(TooLarge):
        decompress(Codec.ZSTD, packed, max_bytes=len(data) - 1)


def test_kafka_takes_what_is_compressed_here() -> None:
    """Its recorded answers to batches of every codec, small ones and some that need several
    blocks."""
    small = json.loads((RECORDED / "base_produce" / "codecs.json").read_text())["steps"]
    sent = [
        step["request"]["topic_data"][0]["partition_data"][0]["records"][0]["codec"]
        for step in small[: len(Codec)]
    ]
    codes = [
        step["answer"]["responses"][0]["partition_responses"][0]["error_code"] for step in small[: len(Codec)]
    ]
    assert (sent, codes) == ([codec.name for codec in Codec], ["none"] * len(Codec))
    large = [
        step
        for step in json.loads((RECORDED / "base_batches" / "large_payloads.json").read_text())["steps"]
        if "note" in step
    ]
    assert {step["note"] for step in large} == {codec.name for codec in Codec}
    assert {step["value"][0] for step in large} == {"none"}


def of_many_parts(codec: Codec, size_bytes: int) -> bytes:
    """A good payload of about so many bytes, whose frames or blocks are nearly all empty."""
    head, part, end = {
        Codec.GZIP: (b"", compress(Codec.GZIP, b""), b""),
        Codec.SNAPPY: (compress(Codec.SNAPPY, b""), bytes((0, 0, 0, 1, 0)), b""),
        Codec.LZ4: (compress(Codec.LZ4, b"")[:-4], bytes((1, 0, 0, 0x80, 97)), bytes(4)),
        Codec.ZSTD: (b"\x28\xb5\x2f\xfd\x00\x58", bytes(3), bytes((1, 0, 0))),
    }[codec]
    return head + part * (size_bytes // len(part)) + end


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_parts_count_where_less_than_the_default_may_be_inflated(codec: Codec) -> None:
    payload = of_many_parts(codec, 32 << 10)
    assert len(decompress(codec, payload)) < 8000
    with pytest.raises(TooLarge):
        decompress(codec, payload, max_bytes=64 << 10)
    assert len(decompress(codec, of_many_parts(codec, 300), max_bytes=64 << 10)) <= 100
