"""The settings of a group that make it a work queue: a part of the table in group_configs.py.

They are kbroker's own and off by default: a share group without them behaves as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from .definition import ConfigDef, ConfigType, Value

_INT, _DOUBLE, _STRING = ConfigType.INT, ConfigType.DOUBLE, ConfigType.STRING
_DAY_MS = 86_400_000
PRIORITY_LIMIT: Final = 1000
LOCK_MAX_LIMIT_MS: Final = _DAY_MS

PARK_FROM_MS: Final = 1000
"""Records with a longer wait are parked, as a record in the window holds back the start offset and
counts as in flight. A shorter wait is not worth two writes."""

PREFETCH: Final = "kbroker.queue.prefetch"
REDELIVERY_DELAY: Final = "kbroker.queue.redelivery.delay.ms"
REDELIVERY_MULTIPLIER: Final = "kbroker.queue.redelivery.multiplier"
REDELIVERY_MAX: Final = "kbroker.queue.redelivery.max.ms"
REDELIVERY_JITTER: Final = "kbroker.queue.redelivery.jitter"
LOCK_MAX: Final = "kbroker.queue.lock.max.ms"
ASSIGNMENT: Final = "kbroker.queue.assignment"
IN_FLIGHT_LIMIT: Final = "kbroker.share.in.flight.limit"
SCHEDULING: Final = "kbroker.queue.scheduling"
SCHEDULING_MAX_DELAY: Final = "kbroker.queue.scheduling.max.delay.ms"
TTL: Final = "kbroker.queue.ttl.ms"
ORDERING: Final = "kbroker.queue.ordering"
PAUSED: Final = "kbroker.queue.paused"
QUEUE_RETENTION: Final = "kbroker.queue.retention"
QUEUE_RETENTION_MAX_BYTES: Final = "kbroker.queue.retention.max.bytes"
"""Settings of topics (settings/topic_configs.py)."""
PRIORITIES: Final = "kbroker.queue.priorities"


def parse_priorities(parts: Iterable[str]) -> dict[str, int]:
    """By topic. Raises ValueError with a message for the user."""
    found: dict[str, int] = {}
    for part in parts:
        topic, _, number = part.partition("=")
        topic, number = topic.strip(), number.strip()
        if not topic or not number.isascii() or not number.isdigit() or int(number) > PRIORITY_LIMIT:
            raise ValueError(
                f"Expected TOPIC=NUMBER,... with numbers from 0 to {PRIORITY_LIMIT}, found {part!r}"
            )
        if topic in found:
            raise ValueError(f"Topic {topic} is named twice")
        found[topic] = int(number)
    return found


def _priorities_fault(value: Value) -> str | None:
    assert isinstance(value, tuple)
    try:
        parse_priorities(value)
    except ValueError as error:
        return str(error)
    return None


QUEUE_CONFIGS: Final = (
    ConfigDef(
        name=PREFETCH,
        type=_INT,
        default="0",
        minimum=0,
        maximum=10_000,
        doc="Records that a member may hold at a time, over all partitions; 1: one job for each worker. 0: "
        "as many as it requests, in whole batches.",
    ),
    ConfigDef(
        name=REDELIVERY_DELAY,
        type=_INT,
        default="0",
        minimum=0,
        maximum=_DAY_MS,
        doc="How long a record waits before its first redelivery, after a release, an expired lock or a "
        "lost connection. 0: it does not wait.",
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
        doc="A wait is longer by a random part of itself, up to this one, so that records that failed "
        "together come apart.",
    ),
    ConfigDef(
        name=LOCK_MAX,
        type=_INT,
        default="0",
        minimum=0,
        maximum=LOCK_MAX_LIMIT_MS,
        doc="For how long in all the broker itself prolongs the lock of a record while its consumer is "
        "alive, so that a job may take "
        "longer than the lock. 0: it does not.",
    ),
    ConfigDef(
        name=ASSIGNMENT,
        type=_STRING,
        default="simple",
        choices=("simple", "all"),
        doc="Which partitions a member is assigned: a share of them, as in Kafka, or all of its topics, so "
        "that no member is idle "
        "beside a partition that is full.",
    ),
    ConfigDef(
        name=IN_FLIGHT_LIMIT,
        type=_STRING,
        default="span",
        choices=("span", "undecided"),
        doc="What share.partition.max.record.locks counts: all offsets from the first record that is not "
        "finished to the last one "
        "that was delivered, as in Kafka, or those of them that are not finished, so that one slow job "
        "stops nobody.",
    ),
    ConfigDef(
        name=SCHEDULING,
        type=ConfigType.BOOLEAN,
        default="false",
        doc="Whether records with the header kbroker-deliver-at (milliseconds since 1970, as text) or "
        "kbroker-delay-ms are "
        "delivered when they are due. Ordinary consumers see them at once.",
    ),
    ConfigDef(
        name=SCHEDULING_MAX_DELAY,
        type=ConfigType.LONG,
        default=str(365 * _DAY_MS),
        minimum=1000,
        maximum=10 * 365 * _DAY_MS,
        doc="How far ahead a record may be scheduled. A later time is replaced by the latest allowed one.",
    ),
    ConfigDef(
        name=TTL,
        type=ConfigType.LONG,
        default="0",
        minimum=0,
        maximum=10 * 365 * _DAY_MS,
        doc="How long after its timestamp, or after it was due if it was scheduled, a record may still be "
        "delivered. An older one "
        "becomes a dead letter, or is archived where the group has none. 0: at any age.",
    ),
    ConfigDef(
        name=ORDERING,
        type=_STRING,
        default="none",
        choices=("none", "key"),
        doc="key: of records with the same key in the same partition, members have one at a time, in "
        "offset order; a record that "
        "waits for its redelivery keeps its key waiting. Records without a key are not ordered.",
    ),
    ConfigDef(
        name=PAUSED,
        type=ConfigType.BOOLEAN,
        default="false",
        doc="Members get no records; they may still acknowledge those that they hold. It survives a restart.",
    ),
    ConfigDef(
        name=PRIORITIES,
        type=ConfigType.LIST,
        default="",
        fault=_priorities_fault,
        doc="Topics with their numbers, as in urgent=10,bulk=1: while a topic with a higher number has "
        "records to deliver, "
        "members get those. Others have 0.",
    ),
)


def contradictions(stored: Mapping[str, str]) -> Iterator[str]:
    """Contradictions between these settings, one line each."""
    delay_ms = int(stored.get(REDELIVERY_DELAY, 0))
    if REDELIVERY_MAX in stored and int(stored[REDELIVERY_MAX]) < delay_ms:
        yield (
            f"{REDELIVERY_MAX} ({stored[REDELIVERY_MAX]}) must not be less than {REDELIVERY_DELAY} "
            f"({delay_ms})"
        )
