"""The broker's settings of log compaction: defaults of topic settings, and what a pass may use."""

from __future__ import annotations

from typing import Final

from .definition import LONG_MAX, ConfigDef, ConfigType, Value

POLICIES: Final = ("compact", "delete")


def policy_fault(value: Value) -> str | None:
    assert isinstance(value, tuple)
    return None if set(value) <= set(POLICIES) else f"String must be one of: {', '.join(POLICIES)}"


CLEANER_CONFIGS: Final = (
    ConfigDef(
        name="log.cleanup.policy",
        type=ConfigType.LIST,
        default="delete",
        fault=policy_fault,
        doc="What becomes of closed segments; default of cleanup.policy.",
    ),
    ConfigDef(
        name="log.cleaner.delete.retention.ms",
        type=ConfigType.LONG,
        default="86400000",
        minimum=0,
        dynamic=True,
        doc="How long compacted topics keep tombstones; default of delete.retention.ms.",
    ),
    ConfigDef(
        name="log.cleaner.min.compaction.lag.ms",
        type=ConfigType.LONG,
        default="0",
        minimum=0,
        dynamic=True,
        doc="A segment with a record that is younger is not compacted; default of min.compaction.lag.ms.",
    ),
    ConfigDef(
        name="log.cleaner.max.compaction.lag.ms",
        type=ConfigType.LONG,
        default=str(LONG_MAX),
        minimum=1,
        doc="A closed segment that is older is compacted in any case; default of max.compaction.lag.ms.",
    ),
    ConfigDef(
        name="log.cleaner.min.cleanable.ratio",
        type=ConfigType.DOUBLE,
        default="0.5",
        minimum=0,
        maximum=1,
        dynamic=True,
        doc="A log is compacted when more than this part of it is new; default of min.cleanable.dirty.ratio.",
    ),
    ConfigDef(
        name="log.cleaner.backoff.ms",
        type=ConfigType.LONG,
        default="15000",
        minimum=0,
        dynamic=True,
        doc="How long the cleaner waits between two looks at all compacted logs.",
    ),
    ConfigDef(
        name="log.cleaner.dedupe.buffer.size",
        type=ConfigType.LONG,
        default="134217728",
        minimum=1 << 20,
        dynamic=True,
        doc="Memory for the keys of a pass, at most: 128 MiB are enough for 3.1 million different keys. With "
        "more, a log takes several passes.",
    ),
    ConfigDef(
        name="log.cleaner.io.max.bytes.per.second",
        type=ConfigType.DOUBLE,
        default="1.7976931348623157e+308",
        minimum=1024,
        dynamic=True,
        doc="How much the cleaner reads in a second, at most. It works at most half of the time anyway.",
    ),
)
