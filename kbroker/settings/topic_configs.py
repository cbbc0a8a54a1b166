"""The table of all topic settings of Kafka; settings/topic.py has the values of one topic. Clients
that create queues read it too.

A topic setting works or is refused. Settings without a counterpart in kbroker (replication, tiered
storage) are listed with the one value that describes its behaviour, so that tools can read and
repeat a topic's settings. Any other value is refused with INVALID_CONFIG.
"""

from __future__ import annotations

from typing import Final

from .broker_cleaner import policy_fault
from .compression import TOPIC_COMPRESSION
from .definition import ARRAY_MAX, LONG_MAX, ConfigDef, ConfigType, by_name
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


def _fixed(name: str, kind: ConfigType, value: str, reason: str, doc: str) -> ConfigDef:
    """A setting of Kafka that has only one value here."""
    return ConfigDef(name=name, type=kind, default=value, only=(value,), reason=reason, doc=doc)


_ONE_COPY = "one broker holds the only copy"
_NO_TIERS = "there is no remote storage"
_DURABILITY = "durability is chosen for the whole broker, with --durability"

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
    _fixed(
        "leader.replication.throttled.replicas",
        _LIST,
        "",
        _ONE_COPY,
        "Replicas whose replication is throttled.",
    ),
    _fixed(
        "follower.replication.throttled.replicas",
        _LIST,
        "",
        _ONE_COPY,
        "Replicas whose replication is throttled.",
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
    _fixed("flush.messages", _LONG, str(LONG_MAX), _DURABILITY, "Records between two syncs of this topic."),
    _fixed("flush.ms", _LONG, str(LONG_MAX), _DURABILITY, "Time between two syncs of this topic."),
    _fixed(
        "file.delete.delay.ms",
        _LONG,
        "0",
        "removed segments are gone at once",
        "Delay of the removal of files.",
    ),
    _fixed(
        "segment.jitter.ms", _LONG, "0", "segments roll at segment.ms exactly", "Random part of segment.ms."
    ),
    _fixed(
        "segment.index.bytes",
        _INT,
        "10485760",
        "an index is as large as its segment needs",
        "Size of an offset index.",
    ),
    _fixed(
        "index.interval.bytes",
        _INT,
        "4096",
        "engines choose how to index",
        "Bytes between two index entries.",
    ),
    _fixed(
        "preallocate",
        _BOOLEAN,
        "false",
        "engines choose how to allocate",
        "Whether new segments get their space at once.",
    ),
    _fixed(
        "remote.storage.enable", _BOOLEAN, "false", _NO_TIERS, "Whether old segments move to remote storage."
    ),
    _fixed(
        "remote.log.copy.disable", _BOOLEAN, "false", _NO_TIERS, "Whether copying to remote storage pauses."
    ),
    _fixed(
        "remote.log.delete.on.disable",
        _BOOLEAN,
        "false",
        _NO_TIERS,
        "Whether ending remote storage deletes it.",
    ),
    _fixed("local.retention.ms", _LONG, "-2", _NO_TIERS, "How long records stay local; -2: as retention.ms."),
    _fixed(
        "local.retention.bytes",
        _LONG,
        "-2",
        _NO_TIERS,
        "How much of a partition stays local; -2: as retention.bytes.",
    ),
)
