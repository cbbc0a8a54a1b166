"""The broker's settings for committed offsets, classic groups and consumer groups: a part of the
table of settings/broker.py."""

from __future__ import annotations

from typing import Final

from kbroker.settings.definition import INT_MAX, ConfigDef, ConfigType

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
        doc="How often offsets that are too old, and groups without members and offsets, are looked for.",
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
        doc="Shortest session timeout that members of classic groups may ask for.",
    ),
    ConfigDef(
        name="group.max.session.timeout.ms",
        type=_INT,
        default="1800000",
        minimum=1,
        doc="Longest session timeout that members of classic groups may ask for.",
    ),
    ConfigDef(
        name="group.initial.rebalance.delay.ms",
        type=_INT,
        default="200",
        minimum=0,
        doc="How long a classic group that was empty waits for more members before it begins; Kafka's own "
        "default is 3000.",
    ),
    ConfigDef(
        name="group.max.size", type=_INT, default=str(INT_MAX), minimum=1, doc="Members of one classic group."
    ),
    # Consumer groups (KIP-848). A group's own consumer.X overrides group.consumer.X, within
    # group.consumer.min.X and group.consumer.max.X.
    ConfigDef(
        name="group.consumer.session.timeout.ms",
        type=_INT,
        default="45000",
        minimum=1,
        doc="How long a member may be silent before it is removed from its group.",
    ),
    ConfigDef(
        name="group.consumer.min.session.timeout.ms",
        type=_INT,
        default="45000",
        minimum=1,
        doc="Least value a group may set for it.",
    ),
    ConfigDef(
        name="group.consumer.max.session.timeout.ms",
        type=_INT,
        default="60000",
        minimum=1,
        doc="Greatest value a group may set for it.",
    ),
    ConfigDef(
        name="group.consumer.heartbeat.interval.ms",
        type=_INT,
        default="5000",
        minimum=1,
        doc="How often members are told to send a heartbeat.",
    ),
    ConfigDef(
        name="group.consumer.min.heartbeat.interval.ms",
        type=_INT,
        default="5000",
        minimum=1,
        doc="Least value a group may set for it.",
    ),
    ConfigDef(
        name="group.consumer.max.heartbeat.interval.ms",
        type=_INT,
        default="15000",
        minimum=1,
        doc="Greatest value a group may set for it.",
    ),
    ConfigDef(
        name="group.consumer.assignment.interval.ms",
        type=_INT,
        default="1000",
        minimum=0,
        dynamic=True,
        doc="Least time between two assignments of a group; who joins sooner gets its partitions with a "
        "later heartbeat.",
    ),
    ConfigDef(
        name="group.consumer.min.assignment.interval.ms",
        type=_INT,
        default="0",
        minimum=0,
        doc="Least value a group may set for it.",
    ),
    ConfigDef(
        name="group.consumer.max.assignment.interval.ms",
        type=_INT,
        default="15000",
        minimum=0,
        doc="Greatest value a group may set for it.",
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
        doc="Which way groups with members may go between the classic protocol and this one; those without "
        "members always may.",
    ),
    ConfigDef(
        name="group.consumer.assignors",
        type=_LIST,
        default="uniform,range",
        doc="Assignors that members may ask for; the first is for groups that ask for none. uniform, range "
        "(or Kafka's classes), plugins.",
    ),
)

GROUP_CONSUMER_TRIPLES: Final = ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms")
"""X of which there are group.consumer.X, group.consumer.min.X and group.consumer.max.X (and a
group's own consumer.X)."""
