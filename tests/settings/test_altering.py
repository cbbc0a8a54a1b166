"""IncrementalAlterConfigs and AlterConfigs as functions: operations, refusals with their codes, and
no partial changes."""

from __future__ import annotations

import pytest

from kbroker.errors import ErrorCode, KafkaError
from kbroker.settings.altering import (
    BrokerConfig,
    ConfigChange,
    ConfigOperation,
    Scope,
    Source,
    alter_incrementally,
    check_resource_name,
    describe,
    describe_broker_default,
    replace_all,
)

DEFAULTS = BrokerConfig.load()
SET, DELETE, APPEND, SUBTRACT = (
    ConfigOperation.SET,
    ConfigOperation.DELETE,
    ConfigOperation.APPEND,
    ConfigOperation.SUBTRACT,
)
INTERVAL = "group.share.assignment.interval.ms"


def alter(scope: Scope, stored: dict[str, str], *changes: tuple[str, int, str | None]) -> dict[str, str]:
    return alter_incrementally(scope, stored, [ConfigChange(*change) for change in changes], DEFAULTS)


def refused(scope: Scope, *changes: tuple[str, int, str | None]) -> tuple[ErrorCode, str | None]:
    with pytest.raises(KafkaError) as caught:
        alter(scope, {}, *changes)
    return caught.value.code, caught.value.message


def test_set_and_delete() -> None:
    before = {"retention.ms": "1", "segment.ms": "2"}
    after = alter(
        Scope.TOPIC,
        before,
        ("retention.ms", DELETE, None),
        ("segment.ms", SET, " 3 "),
        ("retention.bytes", SET, "+4"),
    )
    assert after == {"segment.ms": "3", "retention.bytes": "4"}
    assert before == {"retention.ms": "1", "segment.ms": "2"}


def test_deleting_what_is_not_set_is_fine() -> None:  # CFG-35
    for scope in Scope:
        assert (
            alter(scope, {}, ("share.session.timeout.ms", DELETE, None), ("unknown.name", DELETE, "ignored"))
            == {}
        )


def test_lists() -> None:
    assert alter(Scope.TOPIC, {}, ("cleanup.policy", APPEND, "delete")) == {"cleanup.policy": "delete"}
    both = {"cleanup.policy": "delete,compact"}
    assert alter(Scope.TOPIC, {}, ("cleanup.policy", APPEND, "compact")) == both
    assert alter(Scope.TOPIC, both, ("cleanup.policy", SUBTRACT, "delete")) == {"cleanup.policy": "compact"}
    assert alter(Scope.TOPIC, {}, ("cleanup.policy", SUBTRACT, "delete")) == {"cleanup.policy": ""}
    assert refused(Scope.TOPIC, ("cleanup.policy", APPEND, "later"))[0] is ErrorCode.invalid_config
    assert alter(Scope.TOPIC, {}, ("cleanup.policy", SUBTRACT, "compact")) == {"cleanup.policy": "delete"}


@pytest.mark.parametrize("operation", [APPEND, SUBTRACT])
def test_only_lists_have_parts(operation: ConfigOperation) -> None:  # CFG-31
    code, message = refused(Scope.GROUP, ("share.session.timeout.ms", operation, "1"))
    assert (code, message) == (
        ErrorCode.invalid_config,
        f"Can't {operation.name} to key share.session.timeout.ms because its type is not LIST.",
    )


@pytest.mark.parametrize("operation", [SET, APPEND, SUBTRACT])
def test_null_is_for_deleting_only(operation: ConfigOperation) -> None:  # CFG-31
    refusal = (ErrorCode.invalid_request, "Null value not supported for : share.session.timeout.ms")
    assert refused(Scope.GROUP, ("share.session.timeout.ms", operation, None)) == refusal


def test_duplicates_and_unknown_operations() -> None:  # CFG-34, CFG-44
    twice = (("retention.ms", SET, "1"), ("retention.ms", DELETE, None))
    assert refused(Scope.TOPIC, *twice) == (ErrorCode.invalid_request, "Error due to duplicate config keys")
    assert refused(Scope.TOPIC, ("retention.ms", 4, "1")) == (ErrorCode.unknown_server_error, None)
    assert refused(Scope.BROKER, (INTERVAL, 4, "1")) == (
        ErrorCode.invalid_request,
        "Unknown operations type 4",
    )


def test_one_bad_setting_refuses_the_resource() -> None:  # CFG-33
    assert refused(Scope.TOPIC, ("retention.ms", SET, "1"), ("no.such.name", SET, "1")) == (
        ErrorCode.invalid_config,
        "Unknown topic config name: no.such.name",
    )


def test_replacing_forgets_the_rest() -> None:  # CFG-36
    assert replace_all(Scope.TOPIC, [("segment.ms", "5")], DEFAULTS) == {"segment.ms": "5"}
    assert replace_all(Scope.GROUP, [], DEFAULTS) == {}
    with pytest.raises(KafkaError, match=r"Null value not supported for : segment\.ms") as caught:
        replace_all(Scope.TOPIC, [("segment.ms", None)], DEFAULTS)
    assert caught.value.code is ErrorCode.invalid_request
    with pytest.raises(KafkaError, match="duplicate"):
        replace_all(Scope.TOPIC, [("segment.ms", "5"), ("segment.ms", "5")], DEFAULTS)


AT_START = (
    "It is read at start only: set it with `kbroker start --config {0}=VALUE`, or a line {0}=VALUE "
    "in the file of --config-file"
)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("group.share.max.size", AT_START),
        ("num.partitions", AT_START),
        ("listeners", AT_START),
        (
            "log.dirs",
            "kbroker has no such setting: use --data-dir, or a line data-dir=DIR of the file",
        ),
        ("num.io.threads", "kbroker has no such setting: one thread serves all requests"),
        ("retention.ms", "The broker setting of that meaning is log.retention.ms"),
        ("share.session.timeout.ms", "The broker setting of that meaning is group.share.session.timeout.ms"),
        ("share.auto.offset.reset", "It is a setting of a group"),
        ("cleanup.policy", "The broker setting of that meaning is log.cleanup.policy"),
        ("errors.deadletterqueue.group.enable", "It is a setting of a topic"),
        ("log.retention.mss", "Did you mean log.retention.ms or "),
        ("num.partition", "Did you mean num.partitions (read at start only)?"),
        ("no.such.name", ""),
    ],
)
def test_what_cannot_be_altered_on_a_running_broker(name: str, instead: str) -> None:  # CFG-11
    """The alternative is named after Kafka's own text."""
    code, message = refused(Scope.BROKER, (name, SET, "1"))
    words = f"Cannot update these configs dynamically: [{name}]"
    assert (code, message and message[: len(words)]) == (ErrorCode.invalid_request, words)
    assert (message or "")[len(words) :].startswith(f". {instead.format(name)}" if instead else "")
    assert (message == words) == (not instead)


@pytest.mark.parametrize(
    ("scope", "name", "instead"),
    [
        (Scope.TOPIC, "log.retention.hours", "The topic setting of that meaning is retention.ms"),
        (Scope.TOPIC, "share.auto.offset.reset", "It is a setting of a group"),
        (Scope.TOPIC, "num.partitions", "It is a setting of a broker"),
        (Scope.TOPIC, "retention.mss", "Did you mean retention.ms"),
        (
            Scope.GROUP,
            "group.share.record.lock.duration.ms",
            "The group setting of that meaning is share.record.lock.duration.ms",
        ),
        (Scope.GROUP, "share.auto.offset.rest", "Did you mean share.auto.offset.reset?"),
        (Scope.GROUP, "retention.ms", "It is a setting of a topic"),
    ],
)
def test_what_a_topic_or_a_group_does_not_have(scope: Scope, name: str, instead: str) -> None:
    code, message = refused(scope, (name, SET, "1"))
    assert code is ErrorCode.invalid_config
    assert (message or "").startswith(f"Unknown {scope.name.lower()} config name: {name}. {instead}")


def test_altering_the_broker() -> None:
    assert alter(Scope.BROKER, {}, (INTERVAL, SET, "15000")) == {INTERVAL: "15000"}
    assert refused(Scope.BROKER, (INTERVAL, SET, "-1"))[0] is ErrorCode.invalid_request
    code, message = refused(Scope.BROKER, (INTERVAL, SET, "15001"))
    assert code is ErrorCode.invalid_request
    assert message is not None
    assert "group.share.max.assignment.interval.ms" in message


def test_settings_of_dead_letter_topics_can_be_altered() -> None:
    """DLQ-9, CFG-16, CFG-43: which groups may create dead letter topics, and the topics' names."""
    create, prefix = (
        "errors.deadletterqueue.auto.create.topics.enable",
        "errors.deadletterqueue.topic.name.prefix",
    )
    broker = BrokerConfig.load()
    assert (broker[create], broker[prefix]) == (False, "dlq.")
    altered = alter(Scope.BROKER, {}, (create, SET, "TRUE"), (prefix, SET, " dead- "))
    assert altered == {create: "true", prefix: "dead-"}
    broker.set_dynamic(altered, {prefix: ""})
    assert (broker[create], broker[prefix]) == (True, "")
    assert alter(Scope.TOPIC, {}, ("errors.deadletterqueue.group.enable", SET, "true")) == {
        "errors.deadletterqueue.group.enable": "true"
    }
    assert (
        refused(Scope.TOPIC, ("errors.deadletterqueue.group.enable", SET, "x"))[0] is ErrorCode.invalid_config
    )


def test_described_broker() -> None:
    broker = BrokerConfig.load(["num.partitions=3"], {INTERVAL: "10"})
    broker.set_dynamic({INTERVAL: "20"}, {INTERVAL: "30"})
    rows = {row.name: row for row in describe(Scope.BROKER, {}, broker)}
    interval = rows[INTERVAL]
    assert (interval.value, interval.source, interval.read_only) == ("30", Source.DYNAMIC_BROKER, False)
    assert [(synonym.value, synonym.source) for synonym in interval.synonyms] == [
        ("30", Source.DYNAMIC_BROKER),
        ("20", Source.DYNAMIC_DEFAULT_BROKER),
        ("10", Source.STATIC_BROKER),
        ("1000", Source.DEFAULT),
    ]
    partitions = rows["num.partitions"]
    assert (partitions.value, partitions.source, partitions.read_only) == ("3", Source.STATIC_BROKER, True)
    assert (rows["log.retention.ms"].value, rows["log.retention.ms"].source) == (None, Source.DEFAULT)
    assert [(row.name, row.value, row.source) for row in describe_broker_default(broker)] == [
        (INTERVAL, "20", Source.DYNAMIC_DEFAULT_BROKER)
    ]
    assert describe_broker_default(broker, ["num.partitions"]) == []


def test_resource_names() -> None:  # CFG-32
    for scope, name in (
        (Scope.TOPIC, "orders"),
        (Scope.GROUP, "workers"),
        (Scope.BROKER, "1"),
        (Scope.BROKER, ""),
    ):
        check_resource_name(scope, name, node_id=1)
    for scope, name, message in (
        (Scope.TOPIC, "", "Default topic resources are not allowed."),
        (Scope.GROUP, "", "Default group resources are not allowed."),
        (Scope.BROKER, "2", "Unexpected broker id, expected 1, but received 2"),
        (Scope.BROKER, "one", "Node id must be an integer, but it is: one"),
    ):
        with pytest.raises(KafkaError) as caught:
            check_resource_name(scope, name, node_id=1)
        assert (caught.value.code, caught.value.message) == (ErrorCode.invalid_request, message)
