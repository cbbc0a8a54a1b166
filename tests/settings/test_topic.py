"""A topic's settings: accepted values, refusals with their messages, and the sources of values."""

from __future__ import annotations

import pytest

from kbroker.errors import ErrorCode, KafkaError
from kbroker.settings.altering import (
    BrokerConfig,
    ConfigRow,
    Scope,
    Source,
    Synonym,
    TopicConfig,
    checked_topic_configs,
    describe,
)
from kbroker.settings.definition import ARRAY_MAX, INT_MAX, LONG_MAX, ConfigDef, to_text
from kbroker.settings.topic import is_compacted
from kbroker.settings.topic_configs import TOPIC_CONFIGS

DEFAULTS = BrokerConfig.load()
FIXED = [each for each in TOPIC_CONFIGS.values() if each.only]
WITHOUT_EFFECT = [each for each in TOPIC_CONFIGS.values() if each.no_effect]

KAFKA_NAMES = [
    "cleanup.policy",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.type",
    "compression.zstd.level",
    "delete.retention.ms",
    "errors.deadletterqueue.group.enable",
    "file.delete.delay.ms",
    "flush.messages",
    "flush.ms",
    "follower.replication.throttled.replicas",
    "index.interval.bytes",
    "leader.replication.throttled.replicas",
    "local.retention.bytes",
    "local.retention.ms",
    "max.compaction.lag.ms",
    "max.decompressed.message.bytes",
    "max.message.bytes",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.type",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "min.insync.replicas",
    "preallocate",
    "remote.copy.lag.bytes",
    "remote.copy.lag.ms",
    "remote.log.copy.disable",
    "remote.log.delete.on.disable",
    "remote.storage.enable",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.index.bytes",
    "segment.jitter.ms",
    "segment.ms",
    "unclean.leader.election.enable",
]


def refused(name: str, value: str | None) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        checked_topic_configs([(name, value)], DEFAULTS)
    return caught.value


def row(stored: dict[str, str], broker: BrokerConfig, name: str) -> ConfigRow:
    [found] = describe(Scope.TOPIC, stored, broker, [name])
    return found


def test_all_of_kafkas_topic_settings_are_known() -> None:
    """And some that only kbroker has."""
    own = ["kbroker.payload.check", "kbroker.queue.retention", "kbroker.queue.retention.max.bytes"]
    assert [row.name for row in describe(Scope.TOPIC, {}, DEFAULTS)] == sorted([*KAFKA_NAMES, *own])


@pytest.mark.parametrize("each", TOPIC_CONFIGS.values(), ids=lambda each: each.name)
def test_the_broker_gives_the_same_defaults(each: ConfigDef) -> None:
    assert TopicConfig({}, DEFAULTS)[each.name] == each.default_value()


@pytest.mark.parametrize("each", FIXED, ids=lambda each: each.name)
def test_what_does_not_apply_is_taken_only_as_it_is(each: ConfigDef) -> None:  # CFG-48
    assert checked_topic_configs([(each.name, each.only[0])], DEFAULTS) == {each.name: each.only[0]}
    others = {"true", "1", "2", "7", "0.75", "compact", "gzip", "compact,delete", "*"}
    for other in others - set(each.only):
        error = refused(each.name, other)
        assert error.code is ErrorCode.invalid_config
        assert error.message is not None
        assert each.name in error.message


def test_settings_that_promise_something_are_fixed() -> None:
    """CFG-48. The table of settings without effect must not take them in."""
    assert [each.name for each in FIXED] == [
        "min.insync.replicas",
        "unclean.leader.election.enable",
        "remote.storage.enable",
        "remote.log.delete.on.disable",
    ]


# CFG-45
@pytest.mark.parametrize("each", WITHOUT_EFFECT, ids=lambda each: each.name)
def test_what_has_no_effect_is_described_with_kafkas_default(each: ConfigDef) -> None:
    found = row({}, DEFAULTS, each.name)
    assert (found.value, found.source, found.read_only) == (each.default, Source.DEFAULT, False)
    value = {"": "0:1,1:1", "false": "true"}.get(str(each.default), "5000")
    stored = checked_topic_configs([(each.name, value)], DEFAULTS)
    assert stored == {each.name: value}
    found = row(stored, DEFAULTS, each.name)
    assert (found.value, found.source) == (value, Source.TOPIC)


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_throttled_replicas(side: str) -> None:  # CFG-45
    name = f"{side}.replication.throttled.replicas"
    for value in ("*", "0:1", "0:1,1:1", "", "7:99"):
        assert checked_topic_configs([(name, value)], DEFAULTS) == {name: value}
    for value in ("all", "0", "*,*", "0:1,*", "0:1:2", "-1:1", "\u0663:1"):
        assert refused(name, value).message == (
            f"Invalid value {value} for configuration {name}: must be the literal '*' or a list of replicas: "
            "[partitionId]:[brokerId],[partitionId]:[brokerId]"
        )


@pytest.mark.parametrize(
    "policy", ["", "delete", "compact", "compact,delete", " delete , compact", "compact,compact"]
)
def test_policies(policy: str) -> None:
    stored = checked_topic_configs([("cleanup.policy", policy)], DEFAULTS)
    assert is_compacted(TopicConfig(stored, DEFAULTS)) == ("compact" in policy)


@pytest.mark.parametrize("policy", ["none", "Compact", "compact;delete", "compact,,delete"])
def test_other_policies_are_refused(policy: str) -> None:
    assert refused("cleanup.policy", policy).message == (
        f"Invalid value {policy} for configuration cleanup.policy: String must be one of: compact, delete"
    )


def test_the_least_lag_is_not_above_the_greatest() -> None:
    together = [("min.compaction.lag.ms", "10"), ("max.compaction.lag.ms", "5")]
    with pytest.raises(KafkaError) as caught:
        checked_topic_configs(together, DEFAULTS)
    assert caught.value.message == (
        "conflict topic config setting min.compaction.lag.ms (10) > max.compaction.lag.ms (5)"
    )


def test_codecs() -> None:
    for name in ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"):
        assert checked_topic_configs([("compression.type", name)], DEFAULTS) == {"compression.type": name}
    assert refused("compression.type", "none").message == (
        "Invalid value none for configuration compression.type: String must be one of: uncompressed, zstd, "
        "lz4, snappy, gzip, producer"
    )


def test_levels_of_gzip() -> None:
    for level in ("-1", "1", "9"):
        assert checked_topic_configs([("compression.gzip.level", level)], DEFAULTS)
    assert refused("compression.gzip.level", "0").message == (
        "Invalid value 0 for configuration compression.gzip.level: Value must be between 1 and 9 or equal to "
        "-1"
    )


LIMITS = [
    ("retention.ms", -1, LONG_MAX),
    ("retention.bytes", -LONG_MAX - 1, LONG_MAX),
    ("segment.bytes", 1 << 20, INT_MAX),
    ("segment.ms", 1, LONG_MAX),
    ("max.decompressed.message.bytes", 1, ARRAY_MAX),
    ("max.message.bytes", 0, INT_MAX),
    ("compression.gzip.level", -1, 9),
    ("compression.lz4.level", 1, 17),
    ("compression.zstd.level", -131072, 22),
    ("message.timestamp.before.max.ms", 0, LONG_MAX),
    ("message.timestamp.after.max.ms", 0, LONG_MAX),
    ("flush.messages", 1, LONG_MAX),
    ("flush.ms", 0, LONG_MAX),
    ("file.delete.delay.ms", 0, LONG_MAX),
    ("segment.jitter.ms", 0, LONG_MAX),
    ("segment.index.bytes", 4, INT_MAX),
    ("index.interval.bytes", 0, INT_MAX),
    ("remote.copy.lag.ms", -1, LONG_MAX),
    ("remote.copy.lag.bytes", -1, LONG_MAX),
    ("local.retention.ms", -2, LONG_MAX),
    ("local.retention.bytes", -2, LONG_MAX),
]


@pytest.mark.parametrize(("name", "least", "most"), LIMITS)
def test_bounds(name: str, least: int, most: int) -> None:  # CFG-45, CFG-46
    for value in (least, most):
        stored = checked_topic_configs([(name, f" {value} ")], DEFAULTS)
        assert stored == {name: str(value)}
        assert TopicConfig(stored, DEFAULTS)[name] == value
    for value in (least - 1, most + 1):
        assert refused(name, str(value)).code is ErrorCode.invalid_config


def test_messages() -> None:
    assert (
        refused("retention.ms", "-2").message
        == "Invalid value -2 for configuration retention.ms: Value must be at least -1"
    )
    assert refused("segment.bytes", "2147483648").message == (
        "Invalid value 2147483648 for configuration segment.bytes: Not a number of type INT"
    )
    assert (
        refused("retention.ms", "soon").message
        == "Invalid value soon for configuration retention.ms: Not a number of type LONG"
    )
    assert refused("message.timestamp.type", "logappendtime").message == (
        "Invalid value logappendtime for configuration message.timestamp.type: String must be one of: "
        "CreateTime, LogAppendTime"
    )
    assert refused("preallocate", "maybe").message == (
        "Invalid value maybe for configuration preallocate: Expected value to be either true or false"
    )
    assert refused("retention.years", "1").message == (
        "Unknown topic config name: retention.years. Did you mean retention.bytes or retention.ms?"
    )
    assert refused("retention.ms", None).message == "Null value not supported for topic configs: retention.ms"


def test_every_list_of_settings_is_judged_as_a_whole() -> None:
    with pytest.raises(KafkaError):
        checked_topic_configs([("retention.ms", "1"), ("segment.ms", "0")], DEFAULTS)


def test_defaults_come_from_the_broker() -> None:
    broker = BrokerConfig.load(
        ["log.retention.hours=2", "log.segment.bytes=2097152", "log.roll.hours=3", "message.max.bytes=7"]
    )
    config = TopicConfig({"segment.bytes": "1048576"}, broker)
    assert (config["retention.ms"], config["segment.ms"], config["max.message.bytes"]) == (
        7_200_000,
        10_800_000,
        7,
    )
    assert config["segment.bytes"] == 1 << 20


def test_the_finest_unit_of_the_broker_wins() -> None:
    lines = ["log.retention.hours=2", "log.retention.minutes=3"]
    assert TopicConfig({}, BrokerConfig.load(lines))["retention.ms"] == 180_000
    assert TopicConfig({}, BrokerConfig.load([*lines, "log.retention.ms=4"]))["retention.ms"] == 4
    assert TopicConfig({}, BrokerConfig.load(["log.retention.hours=-1"]))["retention.ms"] == -1


def test_a_live_topic_sees_what_is_altered_on_the_broker() -> None:
    broker = BrokerConfig.load()
    config = TopicConfig({}, broker)
    broker.set_dynamic({"log.retention.ms": "5"}, {})
    assert config["retention.ms"] == 5


def test_small_segments_for_tests_are_not_listed() -> None:
    stored = checked_topic_configs([("internal.segment.bytes", "1")], DEFAULTS)
    assert TopicConfig(stored, DEFAULTS)["segment.bytes"] == 1
    assert "internal.segment.bytes" not in {row.name for row in describe(Scope.TOPIC, stored, DEFAULTS)}


def test_described_sources() -> None:
    broker = BrokerConfig.load(["log.segment.bytes=2097152"])
    assert row({}, broker, "segment.bytes") == ConfigRow(
        name="segment.bytes",
        value="2097152",
        source=Source.STATIC_BROKER,
        synonyms=(
            Synonym("log.segment.bytes", "2097152", Source.STATIC_BROKER),
            Synonym("log.segment.bytes", "1073741824", Source.DEFAULT),
        ),
        read_only=False,
        type=TOPIC_CONFIGS["segment.bytes"].type,
        documentation=TOPIC_CONFIGS["segment.bytes"].doc,
    )
    own = row({"segment.bytes": "1048576"}, broker, "segment.bytes")
    assert (own.value, own.source, own.is_default) == ("1048576", Source.TOPIC, False)
    assert own.synonyms[0] == Synonym("segment.bytes", "1048576", Source.TOPIC)


def test_a_default_without_a_synonym_of_its_unit_has_none() -> None:
    kept = row({}, DEFAULTS, "retention.ms")
    assert (kept.value, kept.source, kept.synonyms, kept.is_default) == (
        "604800000",
        Source.DEFAULT,
        (),
        True,
    )
    hours = row({}, BrokerConfig.load(["log.retention.hours=1"]), "retention.ms")
    assert (hours.value, hours.source) == ("3600000", Source.STATIC_BROKER)


def test_values_are_described_as_they_are_stored() -> None:
    for each in describe(Scope.TOPIC, {}, DEFAULTS):
        assert each.value == to_text(TopicConfig({}, DEFAULTS)[each.name])


def test_settings_of_a_later_version_are_ignored() -> None:
    assert TopicConfig({"retention.decades": "1", "retention.ms": "9"}, DEFAULTS)["retention.ms"] == 9
