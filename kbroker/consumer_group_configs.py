"""The broker's settings for committed offsets, classic groups and consumer groups: a part of the table of broker_config.py."""

from __future__ import annotations

from typing import Final

from kbroker.config_def import INT_MAX, ConfigDef, ConfigType

_INT, _LONG, _LIST, _STRING = ConfigType.INT, ConfigType.LONG, ConfigType.LIST, ConfigType.STRING

CONSUMER_GROUP_CONFIGS: Final = (
    # Committed offsets.
    ConfigDef(
        name="offsets.retention.minutes",
        type=_INT,
        default="10080",
        minimum=1,
        doc="How long offsets are kept after the last member has left the group, or without members after their commit.",
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
        doc="Longest text that a consumer may commit with an offset, in characters.",
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
        doc="How long a classic group that was empty waits for more members before it begins; Kafka's own default is 3000.",
    ),
    ConfigDef(name="group.max.size", type=_INT, default=str(INT_MAX), minimum=1, doc="Members of one classic group."),
    # Consumer groups (KIP-848).
    ConfigDef(
        name="group.consumer.assignors",
        type=_LIST,
        default="uniform,range",
        doc="Assignors that members may ask for; the first is for groups that ask for none. uniform, range (or Kafka's classes), plugins.",
    ),
)
