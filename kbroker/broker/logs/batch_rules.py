"""The rules for produced batches that the settings of a topic make."""

from __future__ import annotations

from kbroker.broker.logs.recompression import stored_codec
from kbroker.broker.logs.validation import BatchRules
from kbroker.settings.altering import TopicConfig
from kbroker.settings.definition import ARRAY_MAX
from kbroker.settings.topic import is_compacted


def batch_rules(config: TopicConfig) -> BatchRules:
    codec, codec_level = stored_codec(config)
    max_record_bytes = config["max.decompressed.message.bytes"]
    return BatchRules(
        max_message_bytes=config["max.message.bytes"],
        # internal.segment.bytes is lower, and cuts segments only.
        segment_bytes=max(config["segment.bytes"], 1 << 20),
        log_append_time=config["message.timestamp.type"] == "LogAppendTime",
        timestamp_before_max_ms=config["message.timestamp.before.max.ms"],
        timestamp_after_max_ms=config["message.timestamp.after.max.ms"],
        check_payload=(
            config["kbroker.payload.check"]
            or is_compacted(config)
            or codec is not None
            or max_record_bytes < ARRAY_MAX
        ),
        max_record_bytes=max_record_bytes,
        needs_keys=is_compacted(config),
        codec=codec,
        codec_level=codec_level,
    )
