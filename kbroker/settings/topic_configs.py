"""The table of all topic settings of Kafka; settings/topic.py has the values of one topic. Clients
that create queues read it too.

A topic setting works, changes only speed or the layout of files (`no_effect`), or is refused. The
second kind is stored and described, so that a topic arrives here with all that it had in Kafka. A
setting that promises what kbroker does not do (replication, tiered storage) is listed with the one
value that describes its behaviour. Any other value is refused with INVALID_CONFIG.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from .broker_cleaner import policy_fault
from .compression import TOPIC_COMPRESSION
from .definition import ARRAY_MAX, LONG_MAX, ConfigDef, ConfigType, Value, by_name
from .queue import QUEUE_RETENTION, QUEUE_RETENTION_MAX_BYTES

_BOOLEAN, _STRING, _INT, _LONG, _LIST = (
    ConfigType.BOOLEAN,
    ConfigType.STRING,
    ConfigType.INT,
    ConfigType.LONG,
    ConfigType.LIST,
)


DEAD_LETTERS: Final = "errors.deadletterqueue.group.enable"


COMPACT: Final = "compact"
CLEANUP_POLICY: Final = "cleanup.policy"
MIN_COMPACTION_LAG: Final = "min.compaction.lag.ms"
MAX_COMPACTION_LAG: Final = "max.compaction.lag.ms"
FLUSH_MESSAGES: Final = "flush.messages"
FLUSH_MS: Final = "flush.ms"
NEVER_FLUSH: Final = str(LONG_MAX)
"""The value of both that promises nothing."""


def _fixed(name: str, kind: ConfigType, value: str, reason: str, doc: str) -> ConfigDef:
    """A setting of Kafka that has only one value here."""
    return ConfigDef(name=name, type=kind, default=value, only=(value,), reason=reason, doc=doc)


def _no_effect(
    name: str,
    kind: ConfigType,
    value: str,
    reason: str,
    doc: str,
    *,
    minimum: int | None = None,
    fault: Callable[[Value], str | None] | None = None,
) -> ConfigDef:
    """A setting of Kafka that changes nothing here. `value`: Kafka's default; `minimum` and `fault`
    bound it as in Kafka."""
    return ConfigDef(
        name=name, type=kind, default=value, minimum=minimum, fault=fault, no_effect=reason, doc=doc
    )


_REPLICA = re.compile(r"([0-9]+:[0-9]+)?")


def _replicas_fault(value: Value) -> str | None:
    """As Kafka's ThrottledReplicaListValidator."""
    assert isinstance(value, tuple)
    if value == ("*",) or all(_REPLICA.fullmatch(each) for each in value):
        return None
    return "must be the literal '*' or a list of replicas: [partitionId]:[brokerId],[partitionId]:[brokerId]"


_ONE_COPY = "one broker holds the only copy"
_NO_TIERS = "there is no remote storage"
_ALL_LOCAL = "all segments are local"
_NO_REPLICATION = "one broker replicates nothing"

TOPIC_CONFIGS: Final = by_name(
    ConfigDef(
        name="retention.ms",
        type=_LONG,
        default="604800000",
        minimum=-1,
        synonyms=(
            ("log.retention.ms", 1),
            ("log.retention.minutes", 60_000),
            ("log.retention.hours", 3_600_000),
        ),
        doc="How long records are kept at least; -1 forever. Whole segments are removed.",
    ),
    ConfigDef(
        name="retention.bytes",
        type=_LONG,
        default="-1",
        synonyms=(("log.retention.bytes", 1),),
        doc="How large a partition may grow before its oldest segments are removed; negative for no limit.",
    ),
    ConfigDef(
        name="segment.bytes",
        type=_INT,
        default="1073741824",
        minimum=1 << 20,
        synonyms=(("log.segment.bytes", 1),),
        doc="Size at which a partition's log starts a new segment.",
    ),
    ConfigDef(
        name="internal.segment.bytes",
        type=_INT,
        default=None,
        minimum=1,
        hidden=True,
        doc="Overrides segment.bytes without its lower bound: for tests of retention and recovery only.",
    ),
    ConfigDef(
        name="segment.ms",
        type=_LONG,
        default="604800000",
        minimum=1,
        synonyms=(("log.roll.ms", 1), ("log.roll.hours", 3_600_000)),
        doc="Age at which a partition's log starts a new segment.",
    ),
    ConfigDef(
        name="max.message.bytes",
        type=_INT,
        default="1048588",
        minimum=0,
        synonyms=(("message.max.bytes", 1),),
        doc="Largest accepted record batch, in bytes as sent (compressed, if it is).",
    ),
    ConfigDef(
        name="max.decompressed.message.bytes",
        type=_INT,
        default=str(ARRAY_MAX),
        minimum=1,
        maximum=ARRAY_MAX,
        synonyms=(("max.decompressed.message.bytes", 1),),
        doc="Largest accepted record of a compressed batch, in bytes. Below the default, every "
        "compressed batch is opened.",
    ),
    ConfigDef(
        name="message.timestamp.type",
        type=_STRING,
        default="CreateTime",
        choices=("CreateTime", "LogAppendTime"),
        synonyms=(("log.message.timestamp.type", 1),),
        doc="Whose clock a record's timestamp is of: the producer's or the broker's.",
    ),
    ConfigDef(
        name="message.timestamp.before.max.ms",
        type=_LONG,
        default=str(LONG_MAX),
        minimum=0,
        synonyms=(("log.message.timestamp.before.max.ms", 1),),
        doc="How far in the past a producer's timestamp may lie.",
    ),
    ConfigDef(
        name="message.timestamp.after.max.ms",
        type=_LONG,
        default="3600000",
        minimum=0,
        synonyms=(("log.message.timestamp.after.max.ms", 1),),
        doc="How far in the future a producer's timestamp may lie.",
    ),
    ConfigDef(
        name=DEAD_LETTERS,
        type=_BOOLEAN,
        default="false",
        doc="Whether share groups may write their dead letters into this topic.",
    ),
    ConfigDef(
        name="kbroker.payload.check",
        type=_BOOLEAN,
        default="false",
        synonyms=(("kbroker.payload.check", 1),),
        doc="Whether Produce opens batches, as Kafka does, and refuses those whose records do not match "
        "the header. A batch of several compressed frames is stored as one.",
    ),
    ConfigDef(
        name=QUEUE_RETENTION,
        type=_STRING,
        default="time",
        choices=("time", "unfinished", "workqueue"),
        doc="Whether share groups hold their records. time: no, as in Kafka. unfinished: retention removes "
        "only records that all share groups have finished. workqueue: likewise, and finished records are "
        "removed soon.",
    ),
    ConfigDef(
        name=QUEUE_RETENTION_MAX_BYTES,
        type=_LONG,
        default="-1",
        minimum=-1,
        doc="How large a partition may grow that share groups hold: beyond that the oldest records are "
        "removed all the same, with a "
        "warning. -1 for no limit.",
    ),
    ConfigDef(
        name=CLEANUP_POLICY,
        type=_LIST,
        default="delete",
        synonyms=(("log.cleanup.policy", 1),),
        fault=policy_fault,
        doc="What becomes of closed segments. delete: retention.ms and retention.bytes remove them. compact: "
        "of each key only the latest record stays. Both, or none (empty).",
    ),
    *TOPIC_COMPRESSION,
    _fixed(
        "min.insync.replicas",
        _INT,
        "1",
        _ONE_COPY,
        "Replicas that must have a record before it is acknowledged with acks=all.",
    ),
    _fixed(
        "unclean.leader.election.enable",
        _BOOLEAN,
        "false",
        _ONE_COPY,
        "Whether a replica that lags may lead.",
    ),
    *(
        _no_effect(
            f"{side}.replication.throttled.replicas",
            _LIST,
            "",
            _NO_REPLICATION,
            "Replicas whose replication is throttled.",
            fault=_replicas_fault,
        )
        for side in ("leader", "follower")
    ),
    ConfigDef(
        name="delete.retention.ms",
        type=_LONG,
        default="86400000",
        minimum=0,
        synonyms=(("log.cleaner.delete.retention.ms", 1),),
        doc="How long a compacted topic keeps tombstones (records without a value), from the first pass on.",
    ),
    ConfigDef(
        name=MIN_COMPACTION_LAG,
        type=_LONG,
        default="0",
        minimum=0,
        synonyms=(("log.cleaner.min.compaction.lag.ms", 1),),
        doc="A segment with a record that is younger is not compacted.",
    ),
    ConfigDef(
        name=MAX_COMPACTION_LAG,
        type=_LONG,
        default=str(LONG_MAX),
        minimum=1,
        synonyms=(("log.cleaner.max.compaction.lag.ms", 1),),
        doc="A closed segment that is older is compacted, however few bytes are new.",
    ),
    ConfigDef(
        name="min.cleanable.dirty.ratio",
        type=ConfigType.DOUBLE,
        default="0.5",
        minimum=0,
        maximum=1,
        synonyms=(("log.cleaner.min.cleanable.ratio", 1),),
        doc="A log is compacted when more than this part of its closed segments is new.",
    ),
    ConfigDef(
        name=FLUSH_MESSAGES,
        type=_LONG,
        default=NEVER_FLUSH,
        minimum=1,
        doc="Records between two syncs of this topic, at most. With `--durability disk` every write is "
        "synced before it is answered, which keeps this promise; with `os` only the default is taken.",
    ),
    ConfigDef(
        name=FLUSH_MS,
        type=_LONG,
        default=NEVER_FLUSH,
        minimum=0,
        doc="Time between two syncs of this topic, at most. Durability decides as with flush.messages.",
    ),
    _no_effect(
        "file.delete.delay.ms",
        _LONG,
        "60000",
        "removed segments are gone at once",
        "Delay of the removal of files.",
        minimum=0,
    ),
    _no_effect(
        "segment.jitter.ms",
        _LONG,
        "0",
        "segments roll at segment.ms exactly",
        "Greatest random part by which segment.ms is shortened.",
        minimum=0,
    ),
    _no_effect(
        "segment.index.bytes",
        _INT,
        "10485760",
        "an index is as large as its segment needs",
        "Size of an offset index.",
        minimum=4,
    ),
    _no_effect(
        "index.interval.bytes",
        _INT,
        "4096",
        "engines choose how to index",
        "Bytes between two index entries.",
        minimum=0,
    ),
    _no_effect(
        "preallocate",
        _BOOLEAN,
        "false",
        "engines choose how to allocate",
        "Whether new segments get their space at once.",
    ),
    _fixed(
        "remote.storage.enable", _BOOLEAN, "false", _NO_TIERS, "Whether old segments move to remote storage."
    ),
    _no_effect(
        "remote.log.copy.disable",
        _BOOLEAN,
        "false",
        _ALL_LOCAL,
        "Whether copying to remote storage pauses.",
    ),
    _fixed(
        "remote.log.delete.on.disable",
        _BOOLEAN,
        "false",
        _NO_TIERS,
        "Whether ending remote storage deletes it.",
    ),
    *(
        _no_effect(name, _LONG, value, _ALL_LOCAL, doc, minimum=least)
        for name, value, least, doc in (
            ("remote.copy.lag.ms", "0", -1, "Age at which a segment is copied to remote storage."),
            ("remote.copy.lag.bytes", "-1", -1, "Newer bytes after which a segment is copied to it."),
            ("local.retention.ms", "-2", -2, "How long records stay local; -2: as retention.ms."),
            (
                "local.retention.bytes",
                "-2",
                -2,
                "How much of a partition stays local; -2: as retention.bytes.",
            ),
        )
    ),
)
