"""The form in which a topic stores a produced batch that is opened in a thread: as it is, or
compressed again.

- In a topic whose compression.type is not `producer`, a batch of another codec gets that codec. As
  in Kafka, its records are checked.
- In a topic that checks its payloads, a batch that is not one frame becomes one in its own codec:
  librdkafka reads only the first member of a gzip payload.

The records stay byte by byte, and so do all fields of the header except codec, length and CRC. Bits
of the attributes that producers do not set, such as that of a delete horizon, are cleared. In a
thread: levels are the operator's choice, and one batch may take a second.
"""

from __future__ import annotations

from kbroker.broker.logs.payload_check import ANY_RECORDS, RecordRules, check
from kbroker.broker.logs.validation import BadBatch, BatchRules, check_size, check_times
from kbroker.formats.batches import (
    CONTROL,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
    read_header,
)
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

_KEPT_BITS = LOG_APPEND_TIME | TRANSACTIONAL | CONTROL
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


def stored_form(
    batch: memoryview,
    header: BatchHeader,
    rules: BatchRules,
    record_rules: RecordRules = ANY_RECORDS,
    *,
    is_checked: bool = True,
    times_at_ms: int | None = None,
) -> tuple[memoryview, BatchHeader] | BadBatch:
    """The batch as it is to be stored, or what to refuse it with (BadBatch.bare).

    - `record_rules`: for the check of its payload
    - `is_checked`: whether the payload is checked
    - `times_at_ms`: when the batch arrived, if validate() left its timestamps to check_times()"""
    try:
        if times_at_ms is not None:
            check_times(batch, header, rules, times_at_ms)
        if not is_checked and not must_recompress(header, rules):
            return batch, header
        plain, is_one_frame = check(batch, header, record_rules)
        codec = Codec(header.codec_id) if rules.codec is None else rules.codec
        if header.codec_id == codec and is_one_frame:
            return batch, header
        payload = compress(codec, plain, level=rules.codec_level)
        stored = with_payload(header._replace(attributes=header.attributes & _KEPT_BITS | codec), payload)
        check_size(len(stored), rules)
    except BadBatch as error:
        return error.bare()
    return memoryview(bytearray(stored)), read_header(stored)
