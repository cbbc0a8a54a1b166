"""Topic settings whose effect shows only as speed or as a layout of files: Kafka's whole ranges,
and values just outside."""

from __future__ import annotations

from tests.differential.script import Session, script
from tests.differential.scripts.base_topics import create, wanted
from tests.differential.scripts.compaction_settings import LONGEST, change, changed, creations, show
from tests.differential.scripts.group_configs import DELETE, SET

JITTER, DELAY = "segment.jitter.ms", "file.delete.delay.ms"
THROTTLED = "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"
INT, TOO_LONG = str((1 << 31) - 1), str(1 << 63)
WRONG = "1.5", "", "x", None
ALL = (
    DELAY, JITTER, "flush.messages", "flush.ms", "index.interval.bytes", "local.retention.bytes",
    "local.retention.ms", "preallocate", "remote.copy.lag.bytes", "remote.copy.lag.ms",
    "remote.log.copy.disable", "segment.index.bytes", *THROTTLED,
)  # fmt: skip


@script("CFG-45")
def times(s: Session) -> None:
    for name in (DELAY, JITTER):
        creations(s, name, "0", "1", LONGEST, " 7 ", "-1", TOO_LONG, *WRONG)


@script("CFG-45")
def indexes(s: Session) -> None:
    creations(s, "index.interval.bytes", "0", "1", INT, "-1", str(1 << 31), *WRONG)
    creations(s, "segment.index.bytes", "4", "5", INT, "3", "0", "-1", str(1 << 31), *WRONG)


@script("CFG-45")
def preallocation(s: Session) -> None:
    creations(s, "preallocate", "true", "false", "TRUE", " False ", "yes", "1", "", None)


@script("CFG-45")
def throttled_replicas(s: Session) -> None:
    for name in THROTTLED:
        creations(
            s, name,
            "", "*", "0:1", "0:1,1:1", " 0:1 , 1:1 ", "0:1,0:1", "7:99", "00:01", "0:1,", ",",
            "*,*", "0:1,*", "all", "0", "0:", ":1", "-1:1", "0:1:2", "0:1;1:1", "٣:1", None,
        )  # fmt: skip


@script("CFG-45")
def tiers(s: Session) -> None:
    for name in ("local.retention.ms", "local.retention.bytes"):
        creations(s, name, "-2", "-1", "0", "1", LONGEST, "-3", TOO_LONG, *WRONG)
    for name in ("remote.copy.lag.ms", "remote.copy.lag.bytes"):
        creations(s, name, "-1", "0", "1", LONGEST, "-2", TOO_LONG, *WRONG)
    creations(s, "remote.log.copy.disable", "true", "false", "yes", None)


@script("CFG-45")
def tiers_beside_retention(s: Session) -> None:
    """Without remote storage they do not contradict each other."""
    for configs in (
        {"retention_ms": "10", "local_retention_ms": "11"},
        {"retention_bytes": "10", "local_retention_bytes": "11"},
        {"retention_ms": "10", "local_retention_ms": "-1"},
        {"local_retention_ms": "10", "remote_copy_lag_ms": "11"},
        {"local_retention_bytes": "10", "remote_copy_lag_bytes": "11"},
        {"remote_log_copy_disable": "true", "local_retention_ms": "10"},
        {"segment_ms": "10", "segment_jitter_ms": "11"},
        {"cleanup_policy": "compact", "local_retention_ms": "10", "remote_copy_lag_ms": "1"},
    ):
        create(s, wanted(f"{s.name}-v", **configs), validate_only=True)


@script("CFG-46")
def flushes(s: Session) -> None:
    creations(s, "flush.messages", "1", "2", LONGEST, "0", "-1", TOO_LONG, *WRONG)
    creations(s, "flush.ms", "0", "1", LONGEST, "-1", TOO_LONG, *WRONG)


@script("CFG-45", "CFG-46")
def created_and_described(s: Session) -> None:
    show(s, s.topic(), *ALL)
    configs = {
        "file_delete_delay_ms": "0", "segment_jitter_ms": "5", "flush_messages": "1", "flush_ms": "0",
        "index_interval_bytes": "0", "local_retention_bytes": "3", "local_retention_ms": "4",
        "preallocate": "true", "remote_copy_lag_bytes": "5", "remote_copy_lag_ms": "6",
        "remote_log_copy_disable": "true", "segment_index_bytes": "1024", "retention_ms": "-1",
        "leader_replication_throttled_replicas": " 0:1 , 1:1 ",
        "follower_replication_throttled_replicas": "*",
    }  # fmt: skip
    create(s, wanted(f"{s.name}-new", **configs))
    show(s, s.learn(f"{s.name}-new"), *ALL, "retention.ms")


@script("CFG-45", "CFG-46")
def altered(s: Session) -> None:
    topic = s.topic(file_delete_delay_ms="60000")
    changed(s, topic, DELAY, SET, "1000", "1000")
    changed(s, topic, "flush.ms", SET, "1", "1")
    changed(s, topic, "preallocate", SET, "true", "true")
    for name, wrong in ((DELAY, "-1"), (JITTER, "x"), ("flush.messages", "0"), (THROTTLED[0], "all")):
        change(s, topic, (name, SET, wrong))
    changed(s, topic, DELAY, DELETE, None, "60000")
    show(s, topic, *ALL)


@script("CFG-48")
def promises(s: Session) -> None:
    for name in ("unclean.leader.election.enable", "remote.storage.enable", "remote.log.delete.on.disable"):
        creations(s, name, "false", "true", "yes")
    creations(s, "min.insync.replicas", "1", "2", "0")
