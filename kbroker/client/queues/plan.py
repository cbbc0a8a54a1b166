"""The plan that creates or alters a queue: its steps, and the differences that each step removes.

    dead letter topic -> configs of the share group -> topic -> share state from offset 0

Senders see the topic only when everything else is set, so no job arrives in a queue without its
settings. The group's configs set its start to the earliest record, so no job is skipped before the
share state exists. After a crash between two steps, planning again yields the missing steps only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ...errors import ErrorCode, KafkaError
from ...settings.queue import LOCK_MAX, REDELIVERY_DELAY, REDELIVERY_MAX
from .. import admin, group_admin
from ..admin import ResourceType
from ..caller import Caller
from ..group_admin import TopicPartition, kind_of_group
from .advice import QueueRefused
from .settings import (
    ALWAYS,
    DEAD_LETTER_PREFIX,
    DEAD_LETTER_TOPIC,
    DEFAULT_PARTITIONS,
    SETTINGS,
    Part,
    Queue,
    Wish,
    counted,
    look,
    names,
    same_value,
)

_LOCK_DURATION = "share.record.lock.duration.ms"
_START = 0
_OF_BROKERS = "__"


class Difference(NamedTuple):
    """A config of a part whose value, `present`, is not the `wanted` one. Without `config`,
    `present` is a sentence about the part as a whole."""

    part: Part
    config: str | None
    present: str | None
    wanted: str


class QueueStep(NamedTuple):
    """`done`: the text to print after the step. `check` changes nothing and raises KafkaError if
    the broker would refuse the step."""

    done: str
    differences: tuple[Difference, ...]
    check: Callable[[Caller], None]
    run: Callable[[Caller], None]


@dataclass(frozen=True)
class QueuePlan:
    """`left`: settings that the wish does not name and whose values differ from those of a new
    queue. They stay as they are."""

    name: str
    is_new: bool
    steps: tuple[QueueStep, ...]
    left: tuple[Difference, ...]

    @property
    def differences(self) -> list[Difference]:
        return [each for step in self.steps for each in step.differences]


def plan(connection: Caller, wish: Wish) -> QueuePlan:
    """Raises QueueRefused and KafkaError."""
    if wish.name.startswith(_OF_BROKERS):
        raise QueueRefused(
            f"names that begin with {_OF_BROKERS} are for topics of brokers: choose another one than "
            f"{wish.name}"
        )
    queue = look(connection, wish.name)
    if queue.group_type not in (None, "share"):
        raise QueueRefused(
            f"group {wish.name} is {kind_of_group(queue.group_type or '')}, and a queue needs the name for "
            "its share group: choose another one"
        )
    dead_letters = _dead_letters(queue, wish)
    if dead_letters == wish.name:
        raise QueueRefused(f"queue {wish.name} cannot be its own dead letter topic: choose another one")
    letters_are_jobs = False
    if dead_letters != queue.dead_letters:
        queue = look(connection, wish.name, dead_letters)
        letters_are_jobs = dead_letters in names(connection)
    left: list[Difference] = []
    grows = queue.topic is not None and (wish.partitions or 0) > len(queue.topic.partitions)
    steps = [
        *_dead_letter_steps(queue, wish, dead_letters, left, are_jobs=letters_are_jobs),
        *_group_steps(queue, wish, dead_letters, left),
        *_topic_steps(queue, wish),
        *_state_steps(queue, grows=grows),
    ]
    return QueuePlan(wish.name, queue.topic is None, tuple(steps), tuple(left))


def _dead_letters(queue: Queue, wish: Wish) -> str:
    if wish.dead_letters is not None:
        return wish.dead_letters
    own = queue.own(Part.GROUP).get(DEAD_LETTER_TOPIC)
    return DEAD_LETTER_PREFIX + wish.name if own is None else own


def _wanted(wish: Wish, part: Part) -> tuple[dict[str, str], dict[str, str]]:
    """The configs that the wish names, and the defaults of those that it does not name."""
    rows = [each for each in SETTINGS.values() if each.part is part]
    asked = {each.config: wish.settings[each.name] for each in rows if each.name in wish.settings} | dict(
        wish.configs.get(part, {})
    )
    defaults = {each.config: each.default for each in rows} | dict(ALWAYS[part])
    return asked, {config: text for config, text in defaults.items() if config not in asked}


def _changes(queue: Queue, part: Part, wish: Wish, left: list[Difference]) -> dict[str, str]:
    """The configs to set on a part that exists, or on the group. Adds to `left` the values that the
    wish does not name and that stay."""
    asked, defaults = _wanted(wish, part)
    changes = {
        config: text
        for config, text in asked.items()
        if not same_value(part, config, queue.value(part, config), text)
    }
    own = queue.own(part)
    for config, text in defaults.items():
        if same_value(part, config, queue.value(part, config), text):
            continue
        if config in own and config not in ALWAYS[Part.DEAD_LETTERS]:
            left.append(Difference(part, config, own[config], text))
        else:
            changes[config] = text
    return changes


def _as_differences(
    queue: Queue, part: Part, changes: Mapping[str, str], *, only_own: bool = False
) -> tuple[Difference, ...]:
    own = queue.own(part)
    return tuple(
        Difference(part, config, queue.value(part, config), text)
        for config, text in changes.items()
        if not only_own or config in own
    )


def _dead_letter_steps(
    queue: Queue, wish: Wish, name: str, left: list[Difference], *, are_jobs: bool
) -> Iterator[QueueStep]:
    """`are_jobs`: the topic is that of another queue."""
    part = Part.DEAD_LETTERS
    if not name:
        return
    if queue.dead_letter_topic is None:
        asked, defaults = _wanted(wish, part)
        missing = (
            (Difference(part, None, f"dead letter topic {name} does not exist", ""),)
            if queue.is_whole
            else ()
        )
        yield _creation(name, f"created dead letter topic {name}", 1, {**defaults, **asked}, missing)
    elif changes := _changes(queue, part, wish, left):
        differences = _as_differences(queue, part, changes)
        if are_jobs:
            line = f"topic {name} is that of a queue: dead letters of {wish.name} would become its jobs"
            differences = (Difference(part, None, line, ""), *differences)
        yield _alteration(ResourceType.TOPIC, name, f"dead letter topic {name}", changes, differences)


def _group_steps(queue: Queue, wish: Wish, dead_letters: str, left: list[Difference]) -> Iterator[QueueStep]:
    part = Part.GROUP
    if queue.is_configured or queue.is_whole:
        changes = _changes(queue, part, wish, left)
    else:
        asked, defaults = _wanted(wish, part)
        # Also values that equal the broker's defaults: if those change, the queue must not.
        changes = {**defaults, **asked}
    if queue.own(part).get(DEAD_LETTER_TOPIC) != dead_letters:
        changes[DEAD_LETTER_TOPIC] = dead_letters
    _check_delays(queue, changes)
    if LOCK_MAX in changes:
        _check_lock(queue, changes)
    if changes:
        differences = _as_differences(queue, part, changes, only_own=queue.topic is None)
        if not queue.is_configured and not queue.is_whole:
            differences = tuple(_not_a_queue(queue))
        yield _alteration(ResourceType.GROUP, wish.name, f"share group {wish.name}", changes, differences)


def _check_delays(queue: Queue, changes: Mapping[str, str]) -> None:
    """The broker would refuse this too, but its message has the names of configs."""
    values = [
        changes.get(config, queue.value(Part.GROUP, config)) for config in (REDELIVERY_DELAY, REDELIVERY_MAX)
    ]
    delay_ms, max_ms = (int(value or 0) for value in values)
    if delay_ms > max_ms:
        raise QueueRefused(
            f"queue {queue.name} would have a delay that is longer than its max-delay: ask for both"
        )


def _check_lock(queue: Queue, changes: Mapping[str, str]) -> None:
    """A lock that ends later than `lock-max` is never prolonged."""
    values = [changes.get(config, queue.value(Part.GROUP, config)) for config in (_LOCK_DURATION, LOCK_MAX)]
    lock_ms, most_ms = (int(value or 0) for value in values)
    if 0 < most_ms < lock_ms:
        raise QueueRefused(
            f"queue {queue.name} would have a lock-max of {most_ms} ms, and a lock lasts {lock_ms} ms "
            f"before it is prolonged ({_LOCK_DURATION}): ask for at least that, or for 0s, or shorten the "
            "lock first"
        )


def _not_a_queue(queue: Queue) -> Iterator[Difference]:
    """The name belongs to an existing topic, or to a group of other topics: one line for it instead
    of one per config."""
    if queue.topic is not None:
        line = f"topic {queue.name} exists already and is no queue: what it holds would become jobs"
        yield Difference(Part.TOPIC, None, line, "")
    elif queue.group_type is not None:
        line = (
            f"share group {queue.name} exists already, without a topic of its name: it would get the "
            "settings of a queue"
        )
        yield Difference(Part.GROUP, None, line, "")


def _topic_steps(queue: Queue, wish: Wish) -> Iterator[QueueStep]:
    part, name = Part.TOPIC, wish.name
    if queue.topic is None:
        asked, defaults = _wanted(wish, part)
        yield _creation(
            name, f"created topic {name}", wish.partitions or DEFAULT_PARTITIONS, {**defaults, **asked}, ()
        )
        return
    present = len(queue.topic.partitions)
    if wish.partitions is not None and wish.partitions != present:
        yield _growth(name, present, wish.partitions)
    if changes := _changes(queue, part, wish, []):
        yield _alteration(
            ResourceType.TOPIC, name, f"topic {name}", changes, _as_differences(queue, part, changes)
        )


def _state_steps(queue: Queue, *, grows: bool) -> Iterator[QueueStep]:
    if grows or queue.topic is None or queue.group_type is None or _without_state(queue):
        done = f"share group {queue.name} begins at offset {_START}"
        yield QueueStep(done, (), lambda _: None, lambda connection: _begin(connection, queue.name))


def _without_state(queue: Queue) -> list[int]:
    known = {row.partition for row in queue.offsets}
    return [] if queue.topic is None else [number for number in queue.topic.partitions if number not in known]


def _begin(connection: Caller, name: str) -> None:
    """Create share state for the partitions that have none. If workers have joined meanwhile, the
    broker has created it for them, from the earliest record, as the group's configs say."""
    missing = _without_state(look(connection, name))
    if not missing:
        return
    try:
        starts = {TopicPartition(name, partition): _START for partition in missing}
        refused = group_admin.alter_share_group_offsets(connection, name, starts)
    except KafkaError as error:
        if error.code is not ErrorCode.non_empty_group:
            raise
        return
    for each in refused.values():
        raise each


def _creation(
    name: str, done: str, partitions: int, config: Mapping[str, str], differences: tuple[Difference, ...]
) -> QueueStep:
    def create(connection: Caller, *, validate_only: bool = False) -> None:
        admin.create_topic(
            connection, name, partitions=partitions, config=config, validate_only=validate_only
        )

    return QueueStep(done, differences, lambda connection: create(connection, validate_only=True), create)


def _growth(name: str, present: int, wanted: int) -> QueueStep:
    difference = Difference(Part.TOPIC, "partitions", str(present), str(wanted))

    def grow(connection: Caller, *, validate_only: bool = False) -> None:
        if wanted < present:
            has = f"topic {name} has {counted(present, 'partition')}, and partitions are never taken away"
            raise QueueRefused(f"{has}: ask for {present} or more")
        admin.grow_topic(connection, name, wanted, validate_only=validate_only)

    return QueueStep(
        f"topic {name} has {counted(wanted, 'partition')} now",
        (difference,),
        lambda connection: grow(connection, validate_only=True),
        grow,
    )


def _alteration(
    kind: ResourceType, name: str, whose: str, changes: Mapping[str, str], differences: tuple[Difference, ...]
) -> QueueStep:
    def alter(connection: Caller, *, validate_only: bool = False) -> None:
        admin.alter_configs(connection, kind, name, set_configs=changes, validate_only=validate_only)

    done = f"set {counted(len(changes), 'config')} of {whose}"
    return QueueStep(done, differences, lambda connection: alter(connection, validate_only=True), alter)
