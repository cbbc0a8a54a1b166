"""The broker's settings for share groups: a part of the table of settings/broker.py.

A group's own setting share.X overrides group.share.X, within group.share.min.X and
group.share.max.X. All three may be altered while the broker runs, as operators usually notice a
bound that is too narrow when a queue is at work; Kafka reads them only at its start.
"""

from __future__ import annotations

from typing import Final

from kbroker.settings.definition import ConfigDef, ConfigType, Limits, bounded

_INT, _LIST = ConfigType.INT, ConfigType.LIST


_DYNAMIC = ("", "min.", "max.")

SHARE_GROUP_CONFIGS: Final = (
    *bounded(
        "group.share",
        "delivery.count.limit",
        "How often a record is delivered before it is archived.",
        Limits(5, 2, 10),
        Limits(2, 2, 5),
        Limits(10, 5, 25),
        _DYNAMIC,
    ),
    *bounded(
        "group.share",
        "record.lock.duration.ms",
        "How long a delivered record belongs to its consumer before it is redelivered.",
        Limits(30_000, 1000, 3_600_000),
        Limits(15_000, 1000, 30_000),
        Limits(60_000, 30_000, 3_600_000),
        _DYNAMIC,
    ),
    *bounded(
        "group.share",
        "partition.max.record.locks",
        "Records of one share-partition that may be in flight at one time.",
        Limits(2000, 100, 10_000),
        Limits(100, 100, 2000),
        Limits(4000, 2000, 10_000),
        _DYNAMIC,
    ),
    *bounded(
        "group.share",
        "session.timeout.ms",
        "How long a member may be silent before it is removed from its group.",
        Limits(45_000, 1),
        Limits(45_000, 1),
        Limits(60_000, 1),
        _DYNAMIC,
    ),
    *bounded(
        "group.share",
        "heartbeat.interval.ms",
        "How often members send a heartbeat.",
        Limits(5000, 1),
        Limits(5000, 1),
        Limits(15_000, 1),
        _DYNAMIC,
    ),
    *bounded(
        "group.share",
        "assignment.interval.ms",
        "Least time between two assignments of a group; a member that joins does not wait for it.",
        Limits(1000, 0),
        Limits(0, 0),
        Limits(15_000, 0),
        _DYNAMIC,
    ),
    ConfigDef(
        name="group.share.initialize.retry.interval.ms",
        type=_INT,
        default="30000",
        minimum=1,
        hidden=True,
        doc="How long the persister may take to initialise a share-partition before the request is repeated.",
    ),
    ConfigDef(
        name="group.share.max.size",
        type=_INT,
        default="200",
        minimum=1,
        maximum=1000,
        doc="Members of one share group.",
    ),
    ConfigDef(
        name="group.share.max.share.sessions",
        type=_INT,
        default="2000",
        minimum=1,
        doc="Share sessions kept at one time, over all groups, with at most 500 000 partitions together.",
    ),
    ConfigDef(
        name="group.share.assignors",
        type=_LIST,
        default="simple",
        only=("simple",),
        reason="a group chooses another one by its own kbroker.queue.assignment",
        doc="How partitions are assigned to members.",
    ),
)

GROUP_SHARE_TRIPLES: Final = (
    "delivery.count.limit",
    "record.lock.duration.ms",
    "partition.max.record.locks",
    "session.timeout.ms",
    "heartbeat.interval.ms",
    "assignment.interval.ms",
)
"""X of which there are group.share.X, group.share.min.X and group.share.max.X (and a group's own
share.X)."""
