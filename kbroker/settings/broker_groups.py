"""The broker's settings for committed offsets, classic groups and consumer groups: a part of the
table of settings/broker.py."""

from __future__ import annotations

from typing import Final

from kbroker.settings.definition import INT_MAX, ConfigDef, ConfigType, Limits, bounded

_INT, _LONG, _LIST, _STRING = ConfigType.INT, ConfigType.LONG, ConfigType.LIST, ConfigType.STRING

CONSUMER_GROUP_CONFIGS: Final = (
    # Committed offsets.
    ConfigDef(
        name="offsets.retention.minutes",
        type=_INT,
        default="10080",
        minimum=1,
        doc="How long offsets are kept after the last member has left the group, or without members after "
        "their commit.",
    ),
    ConfigDef(
        name="offsets.retention.check.interval.ms",
        type=_LONG,
        default="600000",
        minimum=1,
        doc="How often expired offsets, and groups without members and offsets, are removed.",
    ),
    ConfigDef(
        name="offset.metadata.max.bytes",
        type=_INT,
        default="4096",
        doc="Longest text that a consumer may commit with an offset, in UTF-16 code units.",
    ),
    # Classic groups.
    ConfigDef(
        name="group.min.session.timeout.ms",
        type=_INT,
        default="6000",
        minimum=1,
        doc="Shortest session timeout that members of classic groups may request.",
    ),
    ConfigDef(
        name="group.max.session.timeout.ms",
        type=_INT,
        default="1800000",
        minimum=1,
        doc="Longest session timeout that members of classic groups may request.",
    ),
    ConfigDef(
        name="group.initial.rebalance.delay.ms",
        type=_INT,
        default="200",
        minimum=0,
        doc="How long an empty classic group waits for more members before its first rebalance; Kafka's "
        "default is 3000.",
    ),
    ConfigDef(
        name="group.max.size", type=_INT, default=str(INT_MAX), minimum=1, doc="Members of one classic group."
    ),
    # Consumer groups (KIP-848). A group's own consumer.X overrides group.consumer.X, within
    # group.consumer.min.X and group.consumer.max.X.
    *bounded(
        "group.consumer",
        "session.timeout.ms",
        "How long a member may be silent before it is removed from its group.",
        Limits(45_000, 1),
        Limits(45_000, 1),
        Limits(60_000, 1),
        (),
    ),
    *bounded(
        "group.consumer",
        "heartbeat.interval.ms",
        "How often members send a heartbeat.",
        Limits(5000, 1),
        Limits(5000, 1),
        Limits(15_000, 1),
        (),
    ),
    *bounded(
        "group.consumer",
        "assignment.interval.ms",
        "Least time between two assignments of a group; a member that joins sooner gets its partitions "
        "with a later heartbeat.",
        Limits(1000, 0),
        Limits(0, 0),
        Limits(15_000, 0),
        ("",),
    ),
    ConfigDef(
        name="group.consumer.max.size",
        type=_INT,
        default=str(INT_MAX),
        minimum=1,
        doc="Members of one consumer group.",
    ),
    ConfigDef(
        name="group.consumer.migration.policy",
        type=_STRING,
        default="bidirectional",
        choices=("disabled", "downgrade", "upgrade", "bidirectional"),
        ignores_case=True,
        doc="In which direction groups with members may switch between the classic protocol and this one; "
        "groups without members always may.",
    ),
    ConfigDef(
        name="group.consumer.assignors",
        type=_LIST,
        default="uniform,range",
        doc="Assignors that members may request; the first is the default of a group. uniform, range "
        "(or Kafka's classes), plugins.",
    ),
)

GROUP_CONSUMER_TRIPLES: Final = ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms")
"""X of which there are group.consumer.X, group.consumer.min.X and group.consumer.max.X (and a
group's own consumer.X)."""
