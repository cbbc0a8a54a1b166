"""Settings of groups and their bounds: IncrementalAlterConfigs, AlterConfigs, DescribeConfigs,
ListConfigResources."""

from __future__ import annotations

from tests.differential.script import Entity, Json, Keep, Session, only, script
from tests.differential.scripts.group_heartbeats import heartbeat, ready

SET, DELETE, APPEND, SUBTRACT = range(4)
GROUP = 32


def change(s: Session, group: str, *rows: tuple[str, int, str | None], validate_only: bool = False) -> Entity:
    """IncrementalAlterConfigs: name, operation, value."""
    configs = [
        {"name": name, "config_operation": operation, "value": value} for name, operation, value in rows
    ]
    resource = {"resource_type": GROUP, "resource_name": group, "configs": configs}
    return s.call("incremental_alter_configs", 1, resources=[resource], validate_only=validate_only)


def each(s: Session, group: str, name: str, *values: str | None) -> None:
    for value in values:
        change(s, group, (name, SET, value))


def share_configs(*names: str) -> Keep:
    def kept(answer: Json) -> Json:
        rows = [
            {**result, "configs": [row for row in result["configs"] if row["name"] in names]}
            for result in answer["results"]
        ]
        return {**answer, "results": rows}

    return kept


def shown(s: Session, group: str, *names: str, synonyms: bool = True) -> Entity:
    """DescribeConfigs of these settings; requested without keys, so that all settings are returned,
    and these are kept."""
    resource = {"resource_type": GROUP, "resource_name": group, "configuration_keys": None}
    return s.call(
        "describe_configs",
        4,
        keep=share_configs(*names),
        resources=[resource],
        include_synonyms=synonyms,
        include_documentation=False,
    )


def settled(s: Session, group: str, name: str, value: str | None) -> None:
    """Wait until a change takes effect: Kafka's brokers get it from the controller."""

    def seen() -> bool:
        resource = {"resource_type": GROUP, "resource_name": group, "configuration_keys": [name]}
        answer = s.prepare(
            "describe_configs", 4, resources=[resource], include_synonyms=False, include_documentation=False
        )
        rows = answer.results[0].configs
        return any(
            (row.value == value and row.config_source == 8) or (value is None and row.config_source != 8)
            for row in rows
        )

    s.until(seen, f"{name} is {value}")


ALL = (
    "share.session.timeout.ms", "share.heartbeat.interval.ms", "share.record.lock.duration.ms",
    "share.delivery.count.limit",
    "share.partition.max.record.locks", "share.assignment.interval.ms", "share.auto.offset.reset",
    "share.isolation.level",
    "share.renew.acknowledge.enable", "errors.deadletterqueue.topic.name",
    "errors.deadletterqueue.copy.record.enable",
)  # fmt: skip


@script("CFG-17", "CFG-18", "CFG-19", "CFG-20", "CFG-21", "CFG-37")
def defaults(s: Session) -> None:
    shown(s, f"{s.name}-g", *ALL)


@script("CFG-37")
def a_group_s_own_value(s: Session) -> None:
    group = f"{s.name}-g"
    change(s, group, ("share.delivery.count.limit", SET, "7"), ("share.auto.offset.reset", SET, "earliest"))
    settled(s, group, "share.auto.offset.reset", "earliest")
    shown(s, group, "share.delivery.count.limit", "share.auto.offset.reset")
    shown(s, group, "share.delivery.count.limit", synonyms=False)


@script("CFG-37", "CFG-32")
def descriptions_of_odd_names(s: Session) -> None:
    shown(s, "", "share.delivery.count.limit")
    shown(s, " ", "share.delivery.count.limit")
    keys = ["share.delivery.count.limit", "nonsense"]
    resource = {"resource_type": GROUP, "resource_name": f"{s.name}-g", "configuration_keys": keys}
    s.call("describe_configs", 4, resources=[resource], include_synonyms=False, include_documentation=False)


@script("CFG-23", "CFG-26", "CFG-27", "CFG-1", "CFG-17")
def delivery_count_limit(s: Session) -> None:
    each(
        s,
        f"{s.name}-g",
        "share.delivery.count.limit",
        "1",
        "2",
        "10",
        "11",
        "0",
        "-1",
        "x",
        "",
        "2147483648",
        "2.5",
    )


@script("CFG-23", "CFG-2", "CFG-17")
def record_lock_duration(s: Session) -> None:
    each(
        s,
        f"{s.name}-g",
        "share.record.lock.duration.ms",
        "999",
        "1000",
        "60000",
        "60001",
        "3600000",
        "3600001",
        "-1",
    )


@script("CFG-23", "CFG-3", "CFG-17")
def max_record_locks(s: Session) -> None:
    each(s, f"{s.name}-g", "share.partition.max.record.locks", "99", "100", "4000", "4001", "10000", "10001")


@script("CFG-23", "CFG-28", "CFG-4", "CFG-5")
def session_and_heartbeat(s: Session) -> None:
    group = f"{s.name}-g"
    each(s, group, "share.session.timeout.ms", "999", "1000", "60000", "60001", "0")
    each(s, group, "share.heartbeat.interval.ms", "99", "100", "15000", "15001", "0")
    change(
        s,
        f"{s.name}-b",
        ("share.heartbeat.interval.ms", SET, "5000"),
        ("share.session.timeout.ms", SET, "5000"),
    )
    change(
        s,
        f"{s.name}-b",
        ("share.heartbeat.interval.ms", SET, "4999"),
        ("share.session.timeout.ms", SET, "5000"),
    )
    change(s, f"{s.name}-c", ("share.session.timeout.ms", SET, "4000"))


@script("CFG-23", "CFG-9", "CFG-17")
def assignment_interval(s: Session) -> None:
    each(s, f"{s.name}-g", "share.assignment.interval.ms", "-1", "0", "15000", "15001")


@script("CFG-18", "CFG-29", "CFG-30")
def reset_policies(s: Session) -> None:
    durations = (
        "by_duration:PT0S",
        "by_duration:P1DT2H3M4S",
        "by_duration:P1M",
        "by_duration:-PT1S",
        "by_duration:",
        "by_duration:x",
    )
    each(
        s,
        f"{s.name}-g",
        "share.auto.offset.reset",
        "earliest",
        "latest",
        " latest ",
        "Earliest",
        "none",
        "",
        *durations,
    )


@script("CFG-19", "CFG-20", "CFG-29")
def levels_and_switches(s: Session) -> None:
    group = f"{s.name}-g"
    each(
        s,
        group,
        "share.isolation.level",
        "read_committed",
        "read_uncommitted",
        " read_committed ",
        "READ_COMMITTED",
        "x",
        "",
    )
    each(s, group, "share.renew.acknowledge.enable", "true", "FALSE", " False ", "yes", "1", "")


@script("CFG-21")
def dead_letter_queue(s: Session) -> None:
    group = f"{s.name}-g"
    each(s, group, "errors.deadletterqueue.topic.name", "", "dlq.x", "a b", "x")
    each(s, group, "errors.deadletterqueue.copy.record.enable", "false", "true", "x")


@script("CFG-25", "CFG-33")
def unknown_names(s: Session) -> None:
    group = f"{s.name}-g"
    change(s, group, ("nonsense", SET, "1"))
    change(s, group, ("", SET, "1"))
    change(s, group, ("nonsense", DELETE, None))
    change(s, group, ("share.delivery.count.limit", SET, "7"), ("share.record.lock.duration.ms", SET, "1"))
    shown(s, group, "share.delivery.count.limit")


@script("CFG-31", "CFG-34", "CFG-35")
def operations(s: Session) -> None:
    group, name = f"{s.name}-g", "share.delivery.count.limit"
    change(s, group, (name, SET, None))
    change(s, group, (name, APPEND, "7"))
    change(s, group, (name, SUBTRACT, "7"))
    change(s, group, (name, DELETE, None))
    change(s, group, (name, DELETE, "7"))
    change(s, group, (name, 9, "7"))
    change(s, group, (name, SET, "7"), (name, SET, "6"))
    change(s, group)


@script("CFG-32", "CFG-34")
def resources(s: Session) -> None:
    group, name = f"{s.name}-g", "share.delivery.count.limit"
    change(s, "", (name, SET, "7"))
    row = {
        "resource_type": GROUP,
        "resource_name": group,
        "configs": [{"name": name, "config_operation": SET, "value": "7"}],
    }
    s.call("incremental_alter_configs", 1, resources=[row, row], validate_only=False)
    s.call("incremental_alter_configs", 1, resources=[{**row, "resource_type": 77}], validate_only=False)
    s.call("incremental_alter_configs", 1, resources=(), validate_only=False)


@script("CFG-35", "CFG-37")
def validated_set_and_deleted(s: Session) -> None:
    group, name = f"{s.name}-g", "share.delivery.count.limit"
    change(s, group, (name, SET, "7"), validate_only=True)
    change(s, group, (name, SET, "11"), validate_only=True)
    shown(s, group, name)
    change(s, group, (name, SET, "7"))
    settled(s, group, name, "7")
    change(s, group, (name, DELETE, None))
    settled(s, group, name, None)
    shown(s, group, name)


@script("CFG-36")
def alter_configs_replaces_all(s: Session) -> None:
    group = f"{s.name}-g"
    limit, locks = "share.delivery.count.limit", "share.partition.max.record.locks"
    change(s, group, (limit, SET, "7"))
    settled(s, group, limit, "7")
    for configs in (
        [{"name": locks, "value": "300"}],
        [{"name": locks, "value": "1"}],
        [{"name": "nonsense", "value": "1"}],
    ):
        s.call(
            "alter_configs",
            2,
            resources=[{"resource_type": GROUP, "resource_name": group, "configs": configs}],
            validate_only=False,
        )
    settled(s, group, limit, None)
    shown(s, group, limit, locks)
    s.call(
        "alter_configs",
        2,
        resources=[{"resource_type": GROUP, "resource_name": group, "configs": ()}],
        validate_only=False,
    )
    settled(s, group, locks, None)


@script("CFG-39")
def listed_resources(s: Session) -> None:
    group = f"{s.name}-g"
    change(s, group, ("share.delivery.count.limit", SET, "7"))
    settled(s, group, "share.delivery.count.limit", "7")
    mine = only("config_resources", "resource_name", f"{s.name}-*")
    s.call("list_config_resources", 1, keep=mine, resource_types=[GROUP])
    s.call("list_config_resources", 1, keep=mine, resource_types=())
    s.call("list_config_resources", 1, keep=mine, resource_types=[2])
    s.call("list_config_resources", 1, keep=mine, resource_types=[77])
    s.call(
        "list_config_resources",
        0,
        keep=only("config_resources", "client_metrics_resource_name", f"{s.name}-*"),
    )


@script("CFG-40", "CFG-41")
def settings_outlive_the_group(s: Session) -> None:
    ready(s)
    group, name = f"{s.name}-g", "share.delivery.count.limit"
    change(s, group, (name, SET, "7"))
    settled(s, group, name, "7")
    heartbeat(s, group, "m", 0, "missing")
    heartbeat(s, group, "m", -1, unchanged=True)
    s.call("delete_groups", 2, groups_names=[group])
    shown(s, group, name)


@script("CFG-11")
def broker_settings_that_cannot_be_altered(s: Session) -> None:
    """Refused, so that nothing changes for the other scripts."""
    for name in (
        "group.share.delivery.count.limit",
        "group.share.max.size",
        "group.share.min.session.timeout.ms",
    ):
        configs = [{"name": name, "config_operation": SET, "value": "4"}]
        resource = {"resource_type": 4, "resource_name": "1", "configs": configs}
        s.call("incremental_alter_configs", 1, resources=[resource], validate_only=True)


@script(
    "CFG-1",
    "CFG-2",
    "CFG-3",
    "CFG-4",
    "CFG-5",
    "CFG-6",
    "CFG-7",
    "CFG-8",
    "CFG-9",
    "CFG-12",
    "CFG-16",
    "ASG-9",
)
def broker_settings(s: Session) -> None:
    names = [
        *(f"group.share.{end}delivery.count.limit" for end in ("", "min.", "max.")),
        *(f"group.share.{end}record.lock.duration.ms" for end in ("", "min.", "max.")),
        *(f"group.share.{end}partition.max.record.locks" for end in ("", "min.", "max.")),
        *(f"group.share.{end}session.timeout.ms" for end in ("", "min.", "max.")),
        *(f"group.share.{end}heartbeat.interval.ms" for end in ("", "min.", "max.")),
        *(f"group.share.{end}assignment.interval.ms" for end in ("", "min.", "max.")),
        "group.share.partition.min.record.locks", "group.share.partition.max.record.locks",
        "group.share.min.partition.max.record.locks",
        "group.share.max.size", "group.share.max.share.sessions", "group.share.assignors",
        "share.coordinator.snapshot.update.records.per.snapshot",
        "errors.deadletterqueue.auto.create.topics.enable",
        "errors.deadletterqueue.topic.name.prefix",
    ]  # fmt: skip
    resource = {"resource_type": 4, "resource_name": "1", "configuration_keys": sorted(set(names))}
    s.call("describe_configs", 4, resources=[resource], include_synonyms=False, include_documentation=False)
