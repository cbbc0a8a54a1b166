"""The table of the settings of a group (config resource type GROUP); settings/group.py has the
values of one group. Clients that create queues read it too."""

from __future__ import annotations

from typing import Final

from .definition import ConfigDef, ConfigType, by_name
from .queue import QUEUE_CONFIGS

_BOOLEAN, _STRING, _INT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT
RESET: Final = "share.auto.offset.reset"
DEAD_LETTER_TOPIC: Final = "errors.deadletterqueue.topic.name"


def _offload(kind: str) -> ConfigDef:
    return ConfigDef(
        name=f"{kind}.assignor.offload.enable",
        type=_BOOLEAN,
        default=None,
        no_effect="an assignment is computed with the request that needs it",
        doc=f"Whether assignments of the {kind} group are computed in a thread of their own.",
    )


def _overriding(name: str, default: int, minimum: int, doc: str) -> ConfigDef:
    """A group's own value of the broker's setting group.NAME, which also has bounds for it."""
    return ConfigDef(
        name=name,
        type=_INT,
        default=str(default),
        minimum=minimum,
        synonyms=((f"group.{name}", 1),),
        doc=doc,
    )


GROUP_CONFIGS: Final = by_name(
    _offload("consumer"),
    _offload("share"),
    _overriding(
        "consumer.session.timeout.ms",
        45_000,
        1,
        "How long a member of the consumer group may be silent before it is removed; more than the "
        "heartbeat interval.",
    ),
    _overriding(
        "consumer.heartbeat.interval.ms",
        5000,
        1,
        "How often members of the consumer group send a heartbeat.",
    ),
    _overriding(
        "consumer.assignment.interval.ms",
        1000,
        0,
        "Least time between two assignments of the consumer group; who joins sooner gets its "
        "partitions with a later heartbeat.",
    ),
    _overriding("share.delivery.count.limit", 5, 2, "How often a record is delivered before it is archived."),
    _overriding(
        "share.record.lock.duration.ms",
        30_000,
        1000,
        "How long a delivered record belongs to its consumer before it is redelivered.",
    ),
    _overriding(
        "share.partition.max.record.locks",
        2000,
        100,
        "Records of one share-partition that may be in flight at one time.",
    ),
    _overriding(
        "share.session.timeout.ms",
        45_000,
        1,
        "How long a member may be silent before it is removed; more than the heartbeat interval.",
    ),
    _overriding("share.heartbeat.interval.ms", 5000, 1, "How often members send a heartbeat."),
    _overriding(
        "share.assignment.interval.ms",
        1000,
        0,
        "Least time between two assignments of the group; a member that joins does not wait for it.",
    ),
    ConfigDef(
        name=RESET,
        type=_STRING,
        default="latest",
        doc="Where a share-partition of the group begins at its first use: latest, earliest, or "
        "by_duration:PnDTnHnMn.nS (records "
        "not older than that).",
    ),
    ConfigDef(
        name="share.isolation.level",
        type=_STRING,
        default="read_uncommitted",
        choices=("read_uncommitted", "read_committed"),
        doc="With read_committed, members get no records of aborted transactions, and records behind "
        "an open one only when it has ended.",
    ),
    ConfigDef(
        name="share.renew.acknowledge.enable",
        type=_BOOLEAN,
        default="true",
        doc="Whether consumers may renew the lock of a record.",
    ),
    ConfigDef(
        name=DEAD_LETTER_TOPIC,
        type=_STRING,
        default="",
        doc="Topic that gets a dead letter for each record that the group gives up "
        "(`kbroker docs dead-letters`); empty for none.",
    ),
    ConfigDef(
        name="errors.deadletterqueue.copy.record.enable",
        type=_BOOLEAN,
        default="false",
        doc="Whether dead letters hold the record's key and value.",
    ),
    ConfigDef(
        name="kbroker.errors.deadletterqueue.keep.headers.enable",
        type=_BOOLEAN,
        default="false",
        doc="Whether dead letters hold the record's headers, too, behind those that tell where it comes "
        "from.",
    ),
    ConfigDef(
        name="kbroker.errors.deadletterqueue.keep.timestamp.enable",
        type=_BOOLEAN,
        default="false",
        doc="Whether dead letters have the record's timestamp instead of the time at which they are written.",
    ),
    *QUEUE_CONFIGS,
)
