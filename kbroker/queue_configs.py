"""The settings of a group that make it a work queue: a part of the table of group_config.py.

They are kbroker's own. All are off by default: a share group without them behaves as Kafka's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from kbroker.config_def import ConfigDef, ConfigType

_INT, _DOUBLE, _STRING = ConfigType.INT, ConfigType.DOUBLE, ConfigType.STRING
_DAY_MS = 86_400_000
LOCK_MAX_LIMIT_MS: Final = _DAY_MS

PARK_FROM_MS: Final = 1000
"""Waits that are longer are spent outside the in-flight window: a record there holds back the start offset, and counts as in
flight. Shorter ones are not worth two writes."""

PREFETCH: Final = "kbroker.queue.prefetch"
REDELIVERY_DELAY: Final = "kbroker.queue.redelivery.delay.ms"
REDELIVERY_MULTIPLIER: Final = "kbroker.queue.redelivery.multiplier"
REDELIVERY_MAX: Final = "kbroker.queue.redelivery.max.ms"
REDELIVERY_JITTER: Final = "kbroker.queue.redelivery.jitter"
LOCK_MAX: Final = "kbroker.queue.lock.max.ms"
ASSIGNMENT: Final = "kbroker.queue.assignment"

QUEUE_CONFIGS: Final = (
    ConfigDef(
        name=PREFETCH,
        type=_INT,
        default="0",
        minimum=0,
        maximum=10_000,
        doc="Records that a member may hold at a time, over all partitions; 1: one job for each worker. 0: as many as it "
        "asks for, in whole batches.",
    ),
    ConfigDef(
        name=REDELIVERY_DELAY,
        type=_INT,
        default="0",
        minimum=0,
        maximum=_DAY_MS,
        doc="How long a record that comes back waits after its first delivery: released, its lock run out, its connection "
        "lost. 0: it does not wait.",
    ),
    ConfigDef(
        name=REDELIVERY_MULTIPLIER,
        type=_DOUBLE,
        default="2.0",
        minimum=1,
        maximum=100,
        doc="The factor by which that wait grows with each further delivery.",
    ),
    ConfigDef(
        name=REDELIVERY_MAX,
        type=_INT,
        default="600000",
        minimum=0,
        maximum=7 * _DAY_MS,
        doc="The longest such wait, without jitter.",
    ),
    ConfigDef(
        name=REDELIVERY_JITTER,
        type=_DOUBLE,
        default="0.1",
        minimum=0,
        maximum=1,
        doc="A wait is longer by a random part of itself, up to this one, so that records that failed together come apart.",
    ),
    ConfigDef(
        name=LOCK_MAX,
        type=_INT,
        default="0",
        minimum=0,
        maximum=LOCK_MAX_LIMIT_MS,
        doc="For how long in all the broker itself prolongs the lock of a record while its consumer is alive, so that a job may take "
        "longer than the lock. 0: it does not.",
    ),
    ConfigDef(
        name=ASSIGNMENT,
        type=_STRING,
        default="simple",
        choices=("simple", "all"),
        doc="Which partitions a member is assigned: a share of them, as in Kafka, or all of its topics, so that no member is idle "
        "beside a partition that is full.",
    ),
)


def contradictions(stored: Mapping[str, str]) -> Iterator[str]:
    """What a single one of these settings cannot see, a line for each."""
    delay_ms = int(stored.get(REDELIVERY_DELAY, 0))
    if REDELIVERY_MAX in stored and int(stored[REDELIVERY_MAX]) < delay_ms:
        yield f"{REDELIVERY_MAX} ({stored[REDELIVERY_MAX]}) must not be less than {REDELIVERY_DELAY} ({delay_ms})"
