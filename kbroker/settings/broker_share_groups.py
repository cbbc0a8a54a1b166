"""The broker's settings for share groups: a part of the table of settings/broker.py.

A group's own setting share.X overrides group.share.X, within group.share.min.X and
group.share.max.X. All three may be altered while the broker runs; Kafka reads them at its start
only. An operator finds that a bound is too narrow when a queue is at work. The default is altered
with it, as it lies between.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from kbroker.settings.definition import ConfigDef, ConfigType

_INT, _LIST = ConfigType.INT, ConfigType.LIST


class _Limits(NamedTuple):
    """A default, and what it may be."""

    default: int
    minimum: int
    maximum: int | None = None


def _triple(x: str, doc: str, value: _Limits, least: _Limits, most: _Limits) -> Iterator[ConfigDef]:
    """group.share.X and its bounds."""
    for name, limits, meaning in (
        (f"group.share.{x}", value, doc),
        (f"group.share.min.{x}", least, "Least value a group may set for it."),
        (f"group.share.max.{x}", most, "Greatest value a group may set for it."),
    ):
        yield ConfigDef(
            name=name,
            type=_INT,
            default=str(limits.default),
            minimum=limits.minimum,
            maximum=limits.maximum,
            dynamic=True,
            doc=meaning,
        )


SHARE_GROUP_CONFIGS: Final = (
    *_triple(
        "delivery.count.limit",
        "How often a record is delivered before it is given up.",
        _Limits(5, 2, 10),
        _Limits(2, 2, 5),
        _Limits(10, 5, 25),
    ),
    *_triple(
        "record.lock.duration.ms",
        "How long a delivered record belongs to its consumer before it is delivered again.",
        _Limits(30_000, 1000, 3_600_000),
        _Limits(15_000, 1000, 30_000),
        _Limits(60_000, 30_000, 3_600_000),
    ),
    *_triple(
        "partition.max.record.locks",
        "Records of one share-partition that may be in flight at one time.",
        _Limits(2000, 100, 10_000),
        _Limits(100, 100, 2000),
        _Limits(4000, 2000, 10_000),
    ),
    *_triple(
        "session.timeout.ms",
        "How long a member may be silent before it is removed from its group.",
        _Limits(45_000, 1),
        _Limits(45_000, 1),
        _Limits(60_000, 1),
    ),
    *_triple(
        "heartbeat.interval.ms",
        "How often members are told to send a heartbeat.",
        _Limits(5000, 1),
        _Limits(5000, 1),
        _Limits(15_000, 1),
    ),
    *_triple(
        "assignment.interval.ms",
        "Least time between two assignments of a group; a member that joins does not wait for it.",
        _Limits(1000, 0),
        _Limits(0, 0),
        _Limits(15_000, 0),
    ),
    ConfigDef(
        name="group.share.initialize.retry.interval.ms",
        type=_INT,
        default="30000",
        minimum=1,
        hidden=True,
        doc="After how long without an answer the persister is asked again to initialise a share-partition.",
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
        doc="Share sessions kept at one time, over all groups.",
    ),
    ConfigDef(
        name="group.share.assignors",
        type=_LIST,
        default="simple",
        only=("simple",),
        reason="a group chooses another one by its own kbroker.queue.assignment",
        doc="How partitions are given to members.",
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
