"""Settings of compaction: CreateTopics, IncrementalAlterConfigs, AlterConfigs, DescribeConfigs."""

from __future__ import annotations

from collections.abc import Mapping

from tests.differential.script import Entity, Session, Topic, script
from tests.differential.scripts.base_topics import create, wanted
from tests.differential.scripts.group_configs import APPEND, DELETE, SET, SUBTRACT

TOPIC, BROKER = 2, 4
POLICY, RATIO = "cleanup.policy", "min.cleanable.dirty.ratio"
MIN_LAG, MAX_LAG = "min.compaction.lag.ms", "max.compaction.lag.ms"
DELETE_RETENTION = "delete.retention.ms"
ALL = (POLICY, RATIO, MIN_LAG, MAX_LAG, DELETE_RETENTION)
LONGEST = str((1 << 63) - 1)
Change = tuple[str, int, str | None]


def change(s: Session, topic: Topic, *rows: Change, validate_only: bool = False) -> Entity:
    """Name, operation and value."""
    configs = [
        {"name": name, "config_operation": operation, "value": value} for name, operation, value in rows
    ]
    resource = {"resource_type": TOPIC, "resource_name": topic.name, "configs": configs}
    return s.call("incremental_alter_configs", 1, resources=[resource], validate_only=validate_only)


def values_of(s: Session, topic: Topic, *names: str) -> Mapping[str, str | None]:
    resource = {"resource_type": TOPIC, "resource_name": topic.name, "configuration_keys": list(names)}
    answer = s.prepare(
        "describe_configs", 4, resources=[resource], include_synonyms=False, include_documentation=False
    )
    return {row.name: row.value for row in answer.results[0].configs}


def show(s: Session, topic: Topic, *names: str, synonyms: bool = False) -> None:
    resource = {"resource_type": TOPIC, "resource_name": topic.name, "configuration_keys": list(names)}
    s.call(
        "describe_configs", 4, resources=[resource], include_synonyms=synonyms, include_documentation=False
    )


def changed(s: Session, topic: Topic, name: str, operation: int, value: str | None, then: str) -> None:
    """A change that is accepted, and the setting once the broker has it."""
    change(s, topic, (name, operation, value))
    s.until(lambda: values_of(s, topic, name)[name] == then, f"{name} is {then}")
    show(s, topic, name)


def creations(s: Session, name: str, *values: str | None) -> None:
    for value in values:
        create(s, wanted(f"{s.name}-v", **{name.replace(".", "_"): value}), validate_only=True)


@script()
def policies_of_new_topics(s: Session) -> None:
    creations(
        s, POLICY,
        "compact", "delete", "compact,delete", "delete,compact", "delete, compact", " compact ", "",
        "compact,compact", "compact,", ",", "COMPACT", "none", "compact,none", "x", None,
    )  # fmt: skip


@script()
def ratios_of_new_topics(s: Session) -> None:
    creations(
        s, RATIO, "0", "1", "0.5", "1.0", "0.0001", "1e-3", ".5", " 0.5", "-0.1", "1.1", "", "x", "NaN", None
    )


@script()
def lags_of_new_topics(s: Session) -> None:
    creations(s, MIN_LAG, "0", "1", LONGEST, "-1", "9223372036854775808", "1.5", "", "x", None)
    creations(s, MAX_LAG, "1", LONGEST, "0", "-1", "9223372036854775808", "1.5", "", "x", None)


@script()
def lags_that_contradict_each_other(s: Session) -> None:
    for least, most in (("10", "5"), ("5", "5"), ("5", "10"), (LONGEST, LONGEST)):
        configs = {"min_compaction_lag_ms": least, "max_compaction_lag_ms": most}
        create(s, wanted(f"{s.name}-v", **configs), validate_only=True)
        create(s, wanted(f"{s.name}-v", cleanup_policy="compact", **configs), validate_only=True)
    topic = s.topic(min_compaction_lag_ms="10", max_compaction_lag_ms="20")
    change(s, topic, (MIN_LAG, SET, "21"))
    change(s, topic, (MAX_LAG, SET, "9"))
    change(s, topic, (MIN_LAG, SET, "30"), (MAX_LAG, SET, "25"))
    change(s, topic, (MIN_LAG, SET, "30"), (MAX_LAG, SET, "40"))
    s.until(lambda: values_of(s, topic, MAX_LAG)[MAX_LAG] == "40", "the lags are altered")
    change(s, topic, (MAX_LAG, DELETE, None))
    change(s, topic, (MIN_LAG, DELETE, None), (MAX_LAG, SET, "1"))
    s.until(lambda: values_of(s, topic, MAX_LAG)[MAX_LAG] == "1", "the lags are altered")
    show(s, topic, MIN_LAG, MAX_LAG)


@script()
def retentions_of_deletions(s: Session) -> None:
    creations(s, DELETE_RETENTION, "0", "1", LONGEST, "-1", "9223372036854775808", "0.5", "", "x", None)


@script()
def the_policy_is_altered(s: Session) -> None:
    topic = s.topic()
    for value in ("compact", "delete", "compact,delete", "delete,compact", ""):
        changed(s, topic, POLICY, SET, value, value)
    for wrong in ("none", "compact,x", "Compact"):
        change(s, topic, (POLICY, SET, wrong))
    change(s, topic, (POLICY, SET, "compact"), validate_only=True)
    show(s, topic, POLICY)
    changed(s, topic, POLICY, DELETE, None, "delete")


@script()
def policies_are_added_and_taken(s: Session) -> None:
    topic = s.topic()
    changed(s, topic, POLICY, APPEND, "compact", "delete,compact")
    changed(s, topic, POLICY, APPEND, "compact", "delete,compact")
    changed(s, topic, POLICY, SUBTRACT, "delete", "compact")
    changed(s, topic, POLICY, SUBTRACT, "delete", "compact")
    change(s, topic, (POLICY, APPEND, "x"))
    change(s, topic, (POLICY, SUBTRACT, "x"))
    changed(s, topic, POLICY, SUBTRACT, "compact", "")
    changed(s, topic, POLICY, APPEND, "compact,delete", "compact,delete")
    for operation in (APPEND, SUBTRACT):
        change(s, topic, (RATIO, operation, "0.1"))
        change(s, topic, (MIN_LAG, operation, "1"))


@script()
def numbers_are_altered(s: Session) -> None:
    topic = s.topic(cleanup_policy="compact")
    changed(s, topic, RATIO, SET, "0.25", "0.25")
    changed(s, topic, MIN_LAG, SET, "1000", "1000")
    changed(s, topic, MAX_LAG, SET, "2000", "2000")
    changed(s, topic, DELETE_RETENTION, SET, "0", "0")
    for name, wrong in (
        (RATIO, "2"),
        (RATIO, "x"),
        (MIN_LAG, "-1"),
        (MAX_LAG, "0"),
        (DELETE_RETENTION, "-1"),
    ):
        change(s, topic, (name, SET, wrong))
    for name in ALL:
        show(s, topic, name)
    changed(s, topic, RATIO, DELETE, None, "0.5")
    changed(s, topic, DELETE_RETENTION, DELETE, None, "86400000")


@script()
def all_settings_are_replaced(s: Session) -> None:
    """AlterConfigs, which sets what it does not name back."""
    topic = s.topic(cleanup_policy="compact", delete_retention_ms="7")
    for configs, name, then in (
        ({RATIO: "0.1"}, RATIO, "0.1"),
        ({POLICY: "none"}, RATIO, "0.1"),
        ({MIN_LAG: "10", MAX_LAG: "5"}, RATIO, "0.1"),
        ({POLICY: "compact,delete"}, POLICY, "compact,delete"),
        ({}, POLICY, "delete"),
    ):
        rows = [{"name": key, "value": value} for key, value in configs.items()]
        resource = {"resource_type": TOPIC, "resource_name": topic.name, "configs": rows}
        s.call("alter_configs", 2, resources=[resource], validate_only=False)
        s.until(lambda name=name, then=then: values_of(s, topic, name)[name] == then, f"{name} is {then}")
        show(s, topic, *ALL)


@script()
def descriptions(s: Session) -> None:
    for topic in (
        s.topic(),
        s.topic(cleanup_policy="compact", min_cleanable_dirty_ratio="0.1", delete_retention_ms="1"),
    ):
        show(s, topic, *ALL)
        show(s, topic, *ALL, synonyms=True)


@script()
def a_new_topic_s_answer(s: Session) -> None:
    configs = {
        "cleanup_policy": "compact,delete", "min_cleanable_dirty_ratio": "0.1", "min_compaction_lag_ms": "1",
        "max_compaction_lag_ms": "2", "delete_retention_ms": "3",
    }  # fmt: skip
    create(s, wanted(f"{s.name}-new", **configs))
    topic = s.learn(f"{s.name}-new")
    show(s, topic, *ALL)


@script()
def the_broker_s_settings(s: Session) -> None:
    names = (
        "log.cleanup.policy", "log.cleaner.delete.retention.ms", "log.cleaner.min.compaction.lag.ms",
        "log.cleaner.max.compaction.lag.ms",
        "log.cleaner.min.cleanable.ratio", "log.cleaner.backoff.ms", "log.cleaner.dedupe.buffer.size",
        "log.cleaner.io.max.bytes.per.second",
    )  # fmt: skip
    resource = {"resource_type": BROKER, "resource_name": "1", "configuration_keys": list(names)}
    s.call("describe_configs", 4, resources=[resource], include_synonyms=False, include_documentation=False)


@script()
def the_broker_s_settings_are_altered(s: Session) -> None:
    """Only checked, so that nothing changes for the other scripts."""
    for name, values in {
        "log.cleaner.backoff.ms": ("0", "-1", "x"),
        "log.cleaner.dedupe.buffer.size": ("134217728", "10", "x"),
        "log.cleaner.io.max.bytes.per.second": ("1048576", "0", "x"),
        "log.cleanup.policy": ("compact", "none"),
        "log.cleaner.min.cleanable.ratio": ("0.1", "2"),
        "log.cleaner.delete.retention.ms": ("1", "-1"),
        "log.cleaner.min.compaction.lag.ms": ("1", "-1"),
        "log.cleaner.max.compaction.lag.ms": ("1", "0"),
    }.items():
        for value in values:
            configs = [{"name": name, "config_operation": SET, "value": value}]
            resource = {"resource_type": BROKER, "resource_name": "1", "configs": configs}
            s.call("incremental_alter_configs", 1, resources=[resource], validate_only=True)
