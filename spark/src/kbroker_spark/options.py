"""The options of the source "kbroker", those of Spark's own Kafka source, parsed and checked.

Names are case-insensitive. `path` replaces the bootstrap servers. Options that only configure a
consumer's communication with a broker are accepted and have no effect. Options that have no meaning
here, or another one, are refused, with Spark's message where it has one. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, Literal, TypeAlias, TypeVar, cast

from kbroker_spark.errors import SourceError
from kbroker_spark.offsets import (
    EARLIEST,
    LATEST,
    Edge,
    Offsets,
    Position,
    Timestamp,
    Timestamps,
    TopicPartition,
    from_json,
)

T = TypeVar("T")
Decoder: TypeAlias = Literal["auto", "numpy", "c"]

DEFAULT_TRIGGER_DELAY_MS: Final = 15 * 60_000


@dataclass(frozen=True)
class Subscribe:
    """All partitions of these topics; each topic must exist."""

    topics: tuple[str, ...]


@dataclass(frozen=True)
class SubscribePattern:
    """Topics whose whole name matches the regular expression; there may be none."""

    pattern: str


@dataclass(frozen=True)
class Assign:
    """These partitions; each must exist."""

    partitions: tuple[TopicPartition, ...]


Selection: TypeAlias = Subscribe | SubscribePattern | Assign


@dataclass(frozen=True)
class ReadOptions:
    """Parsed options. Times are milliseconds. In streaming queries `ending` is LATEST and
    unused."""

    path: str
    selection: Selection
    starting: Position
    starting_option: str
    ending: Position = Edge.LATEST
    ending_option: str = "endingOffsets"
    starting_no_match: str = "error"
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    include_headers: bool = False
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = DEFAULT_TRIGGER_DELAY_MS
    decoder: Decoder = "auto"
    read_committed: bool = False
    ignored: tuple[str, ...] = ()
    """Warnings about options without effect in this kind of query."""


SELECTIONS: Final = ("subscribe", "subscribePattern", "assign")
DECODERS: Final = ("auto", "numpy", "c")
STRATEGIES: Final = ("error", "latest")
ISOLATION: Final = "kafka.isolation.level"
ISOLATION_LEVELS: Final = ("read_uncommitted", "read_committed")

OPTIONS: Final = frozenset(
    {
        "path", *SELECTIONS, "startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp",
        "startingOffsetsByTimestamp",
        "endingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy", "failOnDataLoss", "minPartitions",
        "maxRecordsPerPartition",
        "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "includeHeaders", "decoder",
        ISOLATION,
    }
)  # fmt: skip
"""All options that have an effect."""

WITHOUT_EFFECT: Final = frozenset(
    {
        "groupIdPrefix", "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
        "useDeprecatedOffsetFetching",
    }
)  # fmt: skip
"""Accepted and ignored, as are all other names that begin with "kafka." and are not in REFUSED."""

REFUSED: Final[Mapping[str, str]] = {
    "kafka.auto.offset.reset": "Instead set the source option 'startingOffsets' to 'earliest' or 'latest' "
    "to specify where to start",
    "kafka.key.deserializer": "Keys are columns of bytes: use DataFrame operations to deserialize them",
    "kafka.value.deserializer": "Values are columns of bytes: use DataFrame operations to deserialize them",
    "kafka.enable.auto.commit": "Reading a data directory commits no offsets of groups: Spark's checkpoint "
    "has them",
    "kafka.interceptor.classes": "No consumer is used: change records with DataFrame operations",
}
_KNOWN: Final = {name.lower(): name for name in OPTIONS | WITHOUT_EFFECT}
_BATCH_ONLY: Final = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")
_STREAMING_ONLY: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_DURATION = re.compile(r"(\d+)\s*(ms|us|s|m|min|h|d)?")
_UNITS_MS: Final = {
    "us": 0.001,
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}


def parse(options: Mapping[str, str], *, streaming: bool | None) -> ReadOptions:
    """Raises SourceError for the first error. `streaming` is None where the kind of query is not
    known yet (at load()). Only the rules of both kinds are checked then, and the positions are
    those of a batch query."""
    given = _Given(options)
    given.check_names()
    path = given.text("path")
    if path is None:
        raise SourceError("Option 'path' must be specified: load(DATA_DIR), the --data-dir of a broker")
    selection = _selection(given)
    if streaming:
        given.refuse(_BATCH_ONLY, "{} not valid in streaming queries")
    starting, starting_option = given.position("starting", Edge.LATEST if streaming else Edge.EARLIEST)
    ending, ending_option = given.position("ending", Edge.LATEST)
    if streaming is False:
        _check_batch_positions(starting, ending)
    least, most = given.positive("minOffsetsPerTrigger"), given.positive("maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise SourceError(
            f"The value of minOffsetPerTrigger({least}) is higher than the maxOffsetsPerTrigger({most})"
        )
    delay_ms = given.parsed("maxTriggerDelay", _duration_ms, "a duration such as 15m")
    return ReadOptions(
        path=path,
        selection=selection,
        starting=starting,
        starting_option=starting_option,
        ending=ending,
        ending_option=ending_option,
        starting_no_match=given.one_of("startingOffsetsByTimestampStrategy", STRATEGIES),
        fail_on_data_loss=given.boolean("failOnDataLoss", True),
        min_partitions=given.positive("minPartitions"),
        max_records_per_partition=given.positive("maxRecordsPerPartition"),
        include_headers=given.boolean("includeHeaders", False),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=DEFAULT_TRIGGER_DELAY_MS if delay_ms is None else delay_ms,
        decoder=cast(Decoder, given.one_of("decoder", DECODERS)),
        read_committed=given.one_of(ISOLATION, ISOLATION_LEVELS) == "read_committed",
        ignored=given.without_effect(_STREAMING_ONLY) if streaming is False else (),
    )


class _Given:
    """Options by lower-case name."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}

    def check_names(self) -> None:
        """Refuses an unknown name only if it resembles one of this source's options, since a
        mistyped startingOffsets would read everything. Other names may be meant for other code."""
        for name in sorted(self._values):
            if name in REFUSED:
                raise SourceError(
                    f"Kafka option '{name.removeprefix('kafka.')}' is not supported. {REFUSED[name]}"
                )
            if name in _KNOWN or name == "paths":
                continue
            if "isolation" in name:
                raise SourceError(f"There is no option '{name}': did you mean {ISOLATION}?")
            if not name.startswith("kafka."):
                for close in get_close_matches(name, _KNOWN, n=1, cutoff=0.85):
                    raise SourceError(f"There is no option '{name}': did you mean {_KNOWN[close]}?")
        if "paths" in self._values:
            raise SourceError("load() takes one data directory, not several: read each and union them")

    def text(self, name: str) -> str | None:
        return self._values.get(name.lower())

    def parsed(self, name: str, parse: Callable[[str], T], expected: str) -> T | None:
        """None if the option is not given."""
        text = self.text(name)
        if text is None:
            return None
        try:
            return parse(text.strip())
        except ValueError as error:
            raise SourceError(f"Option '{name}' is '{text}': expected {expected}") from error

    def positive(self, name: str) -> int | None:
        number = self.parsed(name, int, "a positive number")
        if number is not None and number <= 0:
            raise SourceError(f"{name} must be positive")
        return number

    def boolean(self, name: str, default: bool) -> bool:
        found = self.parsed(name, _boolean, "true or false")
        return default if found is None else found

    def one_of(self, name: str, allowed: tuple[str, ...]) -> str:
        """The first of `allowed` is the default."""
        text = (self.text(name) or allowed[0]).strip().lower()
        if text not in allowed:
            raise SourceError(f"Option '{name}' is '{self.text(name)}': expected {' or '.join(allowed)}")
        return text

    def refuse(self, names: tuple[str, ...], text: str) -> None:
        for name in names:
            if name.lower() in self._values:
                raise SourceError(text.format(name))

    def without_effect(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(
            f"option {name} has no effect in batch queries" for name in names if name.lower() in self._values
        )

    def position(self, which: str, default: Edge) -> tuple[Position, str]:
        """The value and name of the first of three options that is given, in Spark's order."""
        moment = self.parsed(f"{which}Timestamp", _time_ms, "milliseconds since 1970")
        if moment is not None:
            return Timestamp(moment), f"{which}Timestamp"
        option = f"{which}OffsetsByTimestamp"
        times = self.parsed(
            option, _partition_times, 'JSON such as {"topicA": {"0": 123456789, "1": 123456789}}'
        )
        if times is not None:
            return Timestamps(times), option
        option = f"{which}Offsets"
        found = self.parsed(
            option, _position, 'earliest, latest or JSON such as {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
        )
        return found or default, option


def _selection(given: _Given) -> Selection:
    found = [name for name in SELECTIONS if given.text(name) is not None]
    if len(found) != 1:
        which = "One" if not found else "Only one"
        verb = "must" if not found else "can"
        raise SourceError(
            f"{which} of the following options {verb} be specified for the source kbroker: "
            f"{', '.join(SELECTIONS)}"
        )
    text = given.text(found[0]) or ""
    if found[0] == "assign":
        return Assign(_assigned(text))
    if found[0] == "subscribe":
        topics = tuple(dict.fromkeys(name for name in map(str.strip, text.split(",")) if name))
        if not topics:
            raise SourceError(
                f"No topics to subscribe to as specified value for option 'subscribe' is '{text}'"
            )
        return Subscribe(topics)
    if not text.strip():
        raise SourceError(
            f"Pattern to subscribe is empty as specified value for option 'subscribePattern' is '{text}'"
        )
    try:
        re.compile(text.strip())
    except (re.error, OverflowError) as error:  # OverflowError: a repetition count that is too large
        raise SourceError(
            f"Option 'subscribePattern' is '{text}', which is not a regular expression: {error}"
        ) from error
    return SubscribePattern(text.strip())


def _assigned(text: str) -> tuple[TopicPartition, ...]:
    if not text.strip().startswith("{"):
        raise SourceError(f"No topicpartitions to assign as specified value for option 'assign' is '{text}'")
    try:
        values = json.loads(text)
        pairs = [(topic, number) for topic, numbers in values.items() for number in numbers]
        if not all(type(number) is int and number >= 0 for _, number in pairs):
            raise ValueError(text)
    except (ValueError, TypeError) as error:
        raise SourceError(
            f"Option 'assign' is '{text}': expected e.g. {{\"topicA\":[0,1],\"topicB\":[0,1]}}"
        ) from error
    if not pairs:
        raise SourceError(f"No topicpartitions to assign as specified value for option 'assign' is '{text}'")
    return tuple(sorted({TopicPartition(topic, number) for topic, number in pairs}))


def _check_batch_positions(starting: Position, ending: Position) -> None:
    if starting is Edge.LATEST:
        raise SourceError("starting offset can't be latest for batch queries")
    if ending is Edge.EARLIEST:
        raise SourceError("ending offset can't be earliest for batch queries")
    if isinstance(starting, Offsets):
        for partition, offset in starting.by_partition.items():
            if offset == LATEST:
                raise SourceError(f"startingOffsets for {partition} can't be latest for batch queries")
    if isinstance(ending, Offsets):
        for partition, offset in ending.by_partition.items():
            if offset == EARLIEST:
                raise SourceError(f"ending offset for {partition} can't be earliest for batch queries")


def _position(text: str) -> Position:
    if text.lower() in ("earliest", "latest"):
        return Edge(text.lower())
    found = from_json(json.loads(text))
    if any(offset < EARLIEST for offset in found.values()):
        raise ValueError(text)
    return Offsets(found)


def _partition_times(text: str) -> dict[TopicPartition, int]:
    found = from_json(json.loads(text))
    if any(ms < 0 for ms in found.values()):
        raise ValueError(text)
    return found


def _time_ms(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _duration_ms(text: str) -> int:
    """Parses Java's time strings: a number without a unit is milliseconds."""
    found = _DURATION.fullmatch(text.lower())
    if found is None:
        raise ValueError(text)
    return int(int(found[1]) * _UNITS_MS[found[2] or "ms"])
