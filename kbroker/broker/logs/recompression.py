"""Compresses produced batches again, for topics whose compression.type is not `producer`.

As in Kafka, the records of such a batch are checked. They stay byte by byte, and so do all fields
of the header except codec, length and CRC. In a thread: levels are the operator's choice, and one
batch may take a second.
"""

from __future__ import annotations

from kbroker.broker.logs.payload_check import check
from kbroker.broker.logs.validation import BadBatch, BatchRules, check_size
from kbroker.formats.batches import CODEC_MASK, BatchHeader, Buffer, read_header
from kbroker.formats.compacted_batches import with_payload
from kbroker.formats.compression import Codec, compress
from kbroker.settings.compression import (
    COMPRESSION_TYPE,
    GZIP_LEVEL,
    LZ4_LEVEL,
    PRODUCER,
    UNCOMPRESSED,
    ZSTD_LEVEL,
)
from kbroker.settings.topic import TopicConfig

_LEVELS = {Codec.GZIP: GZIP_LEVEL, Codec.LZ4: LZ4_LEVEL, Codec.ZSTD: ZSTD_LEVEL}


def stored_codec(config: TopicConfig) -> tuple[Codec | None, int | None]:
    """The codec of a topic's stored batches and its level; None: the producer's."""
    name = config[COMPRESSION_TYPE]
    if name == PRODUCER:
        return None, None
    codec = Codec.NONE if name == UNCOMPRESSED else Codec[name.upper()]
    return codec, config[_LEVELS[codec]] if codec in _LEVELS else None


def must_recompress(header: BatchHeader, rules: BatchRules) -> bool:
    """Whether the batch has another codec than its topic asks for."""
    return rules.codec is not None and header.codec_id != rules.codec


def recompressed(
    batch: Buffer, header: BatchHeader, rules: BatchRules, keys_of: str = ""
) -> tuple[memoryview, BatchHeader] | BadBatch:
    """The batch in the topic's codec, or what to refuse it with, as refusal_of(): its records may
    contradict the header, and it may now be larger than max.message.bytes."""
    assert rules.codec is not None
    try:
        plain = check(batch, header, keys_of)
        attributes = header.attributes & ~CODEC_MASK | rules.codec
        payload = compress(rules.codec, plain, level=rules.codec_level)
        stored = with_payload(header._replace(attributes=attributes), payload)
        check_size(len(stored), rules)
    except BadBatch as error:
        return error.bare()
    return memoryview(bytearray(stored)), read_header(stored)
