"""A queue: a topic, the share group of the same name, its dead letter topic, and the settings of
all three.

The tables have the settings that make these a work queue. `look` reads a queue from a broker;
plan.py creates or alters one. Prints nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from ...errors import ErrorCode, KafkaError
from ...settings.definition import ConfigDef, ConfigType
from ...settings.group_configs import GROUP_CONFIGS
from ...settings.queue import (
    ASSIGNMENT,
    IN_FLIGHT_LIMIT,
    LOCK_MAX,
    ORDERING,
    PAUSED,
    PREFETCH,
    QUEUE_RETENTION,
    REDELIVERY_DELAY,
    REDELIVERY_JITTER,
    REDELIVERY_MAX,
    REDELIVERY_MULTIPLIER,
    SCHEDULING,
    TTL,
)
from ...settings.topic_configs import TOPIC_CONFIGS
from .. import admin, group_admin
from ..admin import ConfigEntry, ResourceType, Topic
from ..caller import Caller
from ..group_admin import ShareOffset

DEAD_LETTER_TOPIC: Final = "errors.deadletterqueue.topic.name"
ISOLATION_LEVEL: Final = "share.isolation.level"
DEAD_LETTER_PREFIX: Final = "dlq."
"""The default of errors.deadletterqueue.topic.name.prefix."""
DEFAULT_PARTITIONS: Final = 1


class Part(Enum):
    """The parts of a queue; the values are their names in texts."""

    GROUP = "share group"
    TOPIC = "topic"
    DEAD_LETTERS = "dead letter topic"


class Kind(Enum):
    """How a value is written on the command line."""

    COUNT = "N"
    FACTOR = "X"
    DURATION = "DURATION"
    SWITCH = "true|false"
    FLAG = "flag"
    """An option without a value, and its opposite; true or false in a file."""
    WORD = "WORD"
    TEXT = "TEXT"


_KINDS: Final[Mapping[ConfigType, Kind]] = {
    ConfigType.BOOLEAN: Kind.SWITCH,
    ConfigType.INT: Kind.COUNT,
    ConfigType.SHORT: Kind.COUNT,
    ConfigType.LONG: Kind.COUNT,
    ConfigType.DOUBLE: Kind.FACTOR,
    ConfigType.STRING: Kind.TEXT,
    ConfigType.LIST: Kind.TEXT,
}


class Setting(NamedTuple):
    """A setting of queues.

    - `name`: its name as an option and in a file.
    - `part`, `config`: the config that it sets.
    - `default`: the value for new queues, which may differ from the config's default.
    - `doc`: the help text.
    - `switch`: the config's values for false and true, if a person switches it on or off.
    """

    name: str
    part: Part
    config: str
    default: str
    doc: str
    switch: tuple[str, str] | None = None

    @property
    def definition(self) -> ConfigDef:
        return _DEFINITIONS[self.part][self.config]

    @property
    def kind(self) -> Kind:
        """Derived from the config's definition: its choices, unit and type."""
        if self.switch is not None:
            return Kind.FLAG
        if self.definition.choices:
            return Kind.WORD
        return Kind.DURATION if self.config.endswith(".ms") else _KINDS[self.definition.type]


_DEFINITIONS: Final[Mapping[Part, Mapping[str, ConfigDef]]] = {
    Part.GROUP: GROUP_CONFIGS,
    Part.TOPIC: TOPIC_CONFIGS,
    Part.DEAD_LETTERS: TOPIC_CONFIGS,
}

_GROUP, _LETTERS = Part.GROUP, Part.DEAD_LETTERS
_DELIVERIES, _MONTH_MS = "share.delivery.count.limit", str(30 * 86_400_000)

SETTINGS: Final[Mapping[str, Setting]] = {
    row[0]: Setting(*row)
    for row in (
        (
            "prefetch",
            _GROUP,
            PREFETCH,
            "1",
            "Jobs that a worker holds at a time; 0: as many as its client requests, as in Kafka.",
        ),
        ("delay", _GROUP, REDELIVERY_DELAY, "1000", "How long a job waits after its first failed delivery."),
        (
            "multiplier",
            _GROUP,
            REDELIVERY_MULTIPLIER,
            "2.0",
            "Factor by which the wait grows with each delivery.",
        ),
        ("max-delay", _GROUP, REDELIVERY_MAX, "600000", "The longest such wait."),
        (
            "jitter",
            _GROUP,
            REDELIVERY_JITTER,
            "0.1",
            "The largest random part of a wait that is added to it.",
        ),
        (
            "deliveries",
            _GROUP,
            _DELIVERIES,
            "10",
            "Deliveries of a job before it becomes a dead letter; by default a broker allows at most 10.",
        ),
        (
            "lock-max",
            _GROUP,
            LOCK_MAX,
            "3600000",
            "How long a live worker may hold a job at most. Less than the lock itself (30 s) is "
            "refused; 0s renews no lock.",
        ),
        ("assignment", _GROUP, ASSIGNMENT, "all", "Partitions of each worker: all, or a share, as in Kafka."),
        (
            "in-flight-limit",
            _GROUP,
            IN_FLIGHT_LIMIT,
            "undecided",
            "Which jobs count toward share.partition.max.record.locks: the unfinished ones "
            "(undecided), or also the finished ones between them, as in Kafka (span).",
        ),
        (
            "scheduling",
            _GROUP,
            SCHEDULING,
            "true",
            "Whether jobs with the header kbroker-delay-ms or kbroker-deliver-at wait until they are "
            "due. The cost: the broker reads each batch once more to search it for these headers.",
        ),
        (
            "ttl",
            _GROUP,
            TTL,
            "0",
            "How long after it was sent, or after its due time, a job may still be delivered; 0s: "
            "always. An older one becomes a dead letter with the cause expired.",
        ),
        (
            "ordering",
            _GROUP,
            ORDERING,
            "none",
            "key: jobs with the same key are done one at a time, in the order in which they were sent.",
        ),
        (
            "committed",
            _GROUP,
            ISOLATION_LEVEL,
            "read_uncommitted",
            "Deliver jobs of transactions when they are committed, and none of aborted ones. An open "
            "transaction holds back all jobs of its partition that were sent after it began.",
            ("read_uncommitted", "read_committed"),
        ),
        (
            "retention",
            Part.TOPIC,
            QUEUE_RETENTION,
            "workqueue",
            "What the topic's retention does. workqueue: unfinished jobs stay, finished ones are "
            "removed soon. unfinished: the same, but finished ones stay for retention.ms. time: "
            "retention.ms alone decides, as in Kafka.",
        ),
        (
            "keep-dead-letters",
            _LETTERS,
            "retention.ms",
            _MONTH_MS,
            "How long dead letters are kept; forever: no limit.",
        ),
    )
}
"""The settings of a queue and their defaults. A row is all that a setting needs. Its option, key
in files, `export`, `describe` and the comparison with an existing queue follow from it. The tests
then require a line in docs/cli-reference.md and one in docs/queues.md."""

ALWAYS: Final[Mapping[Part, Mapping[str, str]]] = {
    Part.GROUP: {
        "share.auto.offset.reset": "earliest",
        "errors.deadletterqueue.copy.record.enable": "true",
        "kbroker.errors.deadletterqueue.keep.headers.enable": "true",
    },
    Part.TOPIC: {"kbroker.payload.check": "true"},
    Part.DEAD_LETTERS: {"errors.deadletterqueue.group.enable": "true"},
}
"""Configs that every queue has and that have no option.

- `kbroker.payload.check`: a batch that clients cannot read would block a worker for as long as the
  broker prolongs its locks. So the topic accepts no such batch.
- Dead letters get timestamps of their own: their retention then begins when the job failed, not
  when it was sent.
"""


@dataclass(frozen=True)
class Wish:
    """A request for a queue. A setting that it does not name keeps its value, or gets its default
    in a new queue.

    - `partitions`, `dead_letters`: None if not named. `dead_letters` "": no dead letter topic.
    - `settings`: texts of config values, by names of SETTINGS.
    - `configs`: further configs, by part.
    """

    name: str
    partitions: int | None = None
    dead_letters: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    configs: Mapping[Part, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Queue:
    """The state of a queue on a broker.

    - `topic`, `dead_letter_topic`: None if the topic does not exist.
    - `group_type`: None if the group does not exist; it may have configs nevertheless.
    - `dead_letters`: the dead letter topic named by the group's configs, "" for none.
    """

    name: str
    topic: Topic | None
    group_type: str | None
    dead_letters: str
    dead_letter_topic: Topic | None
    entries: Mapping[Part, Mapping[str, ConfigEntry]]
    offsets: tuple[ShareOffset, ...]

    @property
    def is_whole(self) -> bool:
        return self.topic is not None and self.group_type == "share"

    def own(self, part: Part) -> dict[str, str]:
        """The configs that are set on a part itself; empty if the part does not exist."""
        return {name: entry.value or "" for name, entry in self.entries.get(part, {}).items() if entry.is_own}

    def value(self, part: Part, config: str) -> str | None:
        """The value in force; None if the broker does not report it or does not have the part."""
        entry = self.entries.get(part, {}).get(config)
        return None if entry is None else entry.value

    @property
    def is_paused(self) -> bool:
        return self.value(Part.GROUP, PAUSED) == "true"

    @property
    def is_configured(self) -> bool:
        return bool(self.own(Part.GROUP))


def counted(number: int, noun: str) -> str:
    """`1 job`, `2 jobs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def has_workers(queue: Queue, workers: int) -> str:
    """The beginning of a refusal. A killed worker stays a member until its session ends."""
    timeout_s = int(queue.value(Part.GROUP, "share.session.timeout.ms") or 0) // 1000
    killed = f" (one that was killed counts for {timeout_s} s more)" if timeout_s else ""
    return f"queue {queue.name} has {counted(workers, 'worker')}{killed}"


def names(connection: Caller) -> list[str]:
    """All queues: topics with a share group of the same name."""
    groups = {group.group_id for group in group_admin.groups(connection)}
    return [topic.name for topic in admin.topics(connection) if topic.name in groups]


def look(connection: Caller, name: str, dead_letters: str | None = None) -> Queue:
    """Read the state of a queue. `dead_letters`: the dead letter topic to read instead of the one
    that the configs name."""
    topics = {topic.name: topic for topic in admin.topics(connection)}
    entries = {Part.GROUP: _entries(connection, ResourceType.GROUP, name)}
    configured = entries[Part.GROUP].get(DEAD_LETTER_TOPIC)
    named = "" if configured is None or not configured.is_own else configured.value or ""
    chosen = named if dead_letters is None else dead_letters
    for part, topic in ((Part.TOPIC, name), (Part.DEAD_LETTERS, chosen)):
        if topic in topics:
            try:
                entries[part] = _entries(connection, ResourceType.TOPIC, topic)
            except KafkaError as error:
                if error.code is not ErrorCode.unknown_topic_or_partition:
                    raise
                del topics[topic]  # It was deleted meanwhile.
    group_type = group_admin.group_types(connection).get(name)
    offsets = group_admin.describe_share_group_offsets(connection, name) if group_type == "share" else []
    rows = tuple(row for row in offsets if row.topic == name)
    return Queue(name, topics.get(name), group_type, named, topics.get(chosen), entries, rows)


def _entries(connection: Caller, kind: ResourceType, name: str) -> dict[str, ConfigEntry]:
    return {entry.name: entry for entry in admin.describe_configs(connection, kind, name)}


def same_value(part: Part, config: str, one: str | None, other: str | None) -> bool:
    """Whether two texts mean the same value of a config."""
    if one is None or other is None or one == other:
        return one == other
    definition = _DEFINITIONS[part].get(config)
    if definition is None:
        return False
    try:
        return definition.parse(one) == definition.parse(other)
    except ValueError:
        return False


def wish_of(queue: Queue) -> Wish:
    """The wish that creates the same queue on another broker: every setting with its value in
    force, and the further configs."""
    settings = {
        each.name: value
        for each in SETTINGS.values()
        if (value := queue.value(each.part, each.config)) is not None
    }
    covered = {(each.part, each.config) for each in SETTINGS.values()} | {(Part.GROUP, DEAD_LETTER_TOPIC)}
    configs: dict[Part, Mapping[str, str]] = {}
    for part in Part:
        own = queue.own(part)
        always = {config: text for config in ALWAYS[part] if (text := queue.value(part, config)) is not None}
        found = {
            config: text
            for config, text in {**always, **own}.items()
            if (part, config) not in covered and not same_value(part, config, text, ALWAYS[part].get(config))
        }
        if found:
            configs[part] = dict(sorted(found.items()))
    partitions = DEFAULT_PARTITIONS if queue.topic is None else len(queue.topic.partitions)
    return Wish(queue.name, partitions, queue.dead_letters, settings, configs)


def unlike_defaults(queue: Queue) -> dict[str, str | None]:
    """Settings whose values differ from the defaults of a new queue, by name; None if the broker
    does not report the value."""
    parts = set(queue.entries)
    return {
        each.name: value
        for each in SETTINGS.values()
        if each.part in parts
        if not same_value(each.part, each.config, value := queue.value(each.part, each.config), each.default)
    }


def groups_with_dead_letters_in(connection: Caller, topic: str) -> list[str]:
    """The groups whose configs name this dead letter topic."""
    return [
        name
        for name in admin.groups_with_configs(connection)
        if any(
            entry.name == DEAD_LETTER_TOPIC and entry.value == topic
            for entry in admin.describe_configs(connection, ResourceType.GROUP, name)
        )
    ]
