"""The cluster and settings as a principal without, with partial and with full rights:
DescribeCluster, FindCoordinator, DescribeConfigs, AlterConfigs, IncrementalAlterConfigs,
ListConfigResources, DescribeLogDirs, telemetry, client quotas."""

from __future__ import annotations

import struct
from uuid import UUID

from tests.differential.classic import classic_group
from tests.differential.script import Entity, Value
from tests.differential.scripts.base_other import framed, header
from tests.differential.scripts.security_topics import missing, pair
from tests.differential.secured import (
    ALTER,
    ALTER_CONFIGS,
    BOB,
    CLUSTER,
    CLUSTER_ACTION,
    CREATE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    GROUP,
    KAFKA_CLUSTER,
    READ,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
    Secured,
    secured_script,
)
from tests.differential.transactions import fresh
from tests.differential.transcript import Json

OF_TOPIC, OF_BROKER, OF_GROUP = 2, 4, 32


@secured_script()
def described(s: Secured) -> None:
    def ask() -> None:
        for version in (0, 2):
            more: dict[str, Value] = {"include_fenced_brokers": False} if version >= 2 else {}
            answer = s.prepare("describe_cluster", version, BOB, include_cluster_authorized_operations=True,
                               **more)  # fmt: skip
            bits = answer.cluster_authorized_operations
            s.note("bits", [answer.error_code.name, bits, len(answer.brokers)])

    s.rising(ask, (CREATE, CLUSTER, KAFKA_CLUSTER), (DESCRIBE, CLUSTER, KAFKA_CLUSTER))


@secured_script()
def ports_of_each_listener(s: Secured) -> None:
    """Answers name brokers and coordinators with the address of the listener of the request."""
    classic_group(s)
    for on, port in ((BOB, s.place.ports["sasl_plaintext"]), ("a", s.place.plain)):
        found = s.prepare("metadata", 12, on, topics=(), allow_auto_topic_creation=False,
                          include_topic_authorized_operations=False)  # fmt: skip
        s.note("metadata", [row.port == port for row in found.brokers])
        found = s.prepare("describe_cluster", 1, on, include_cluster_authorized_operations=False)
        s.note("describe cluster", [row.port == port for row in found.brokers])
    s.allow(BOB, READ, GROUP, f"{s.name}-g")
    for on, port in ((BOB, s.place.ports["sasl_plaintext"]), ("a", s.place.plain)):
        found = s.prepare("find_coordinator", 4, on, key_type=0, coordinator_keys=[f"{s.name}-g"])
        s.note("coordinator", [row.port == port for row in found.coordinators])


@secured_script()
def coordinators_of_groups(s: Secured) -> None:
    group = classic_group(s)

    def ask() -> None:
        for version in (0, 3):
            more: dict[str, Value] = {"key_type": 0} if version >= 1 else {}
            s.call("find_coordinator", version, on=BOB, key=group, **more)
        s.call("find_coordinator", 4, on=BOB, key_type=0, coordinator_keys=[group, f"{s.name}-other"])

    s.rising(ask, (DESCRIBE, GROUP, group))


@secured_script()
def coordinators_of_transactions(s: Secured) -> None:
    producer = fresh(s, "x")

    def ask() -> None:
        s.call("find_coordinator", 3, on=BOB, key=producer.id, key_type=1)
        s.call("find_coordinator", 4, on=BOB, key_type=1, coordinator_keys=[producer.id, f"{s.name}-other"])

    s.rising(ask, (DESCRIBE, GROUP, producer.id), (WRITE, TRANSACTIONAL_ID, producer.id))


@secured_script()
def coordinators_of_share_partitions(s: Secured) -> None:
    def ask() -> None:
        # topics need not exist, and real ids would differ in each run
        keys = [f"{s.name}:AAAAAAAAAAEAAAAAAAAAAA:0", ""]
        s.call("find_coordinator", 6, on=BOB, key_type=2, coordinator_keys=keys)

    s.rising(ask, (READ, GROUP, s.name), (DESCRIBE, CLUSTER, KAFKA_CLUSTER))


def resource(kind: int, name: str, *keys: str) -> dict[str, Value]:
    return {"resource_type": kind, "resource_name": name, "configuration_keys": list(keys) or None}


def configs(s: Secured, *rows: dict[str, Value], version: int = 4) -> Entity:
    more: dict[str, Value] = {"include_documentation": False} if version >= 3 else {}
    return s.call("describe_configs", version, on=BOB, resources=list(rows), include_synonyms=False, **more)


@secured_script()
def settings_of_topics(s: Secured) -> None:
    topic, other = pair(s)

    def ask() -> None:
        names = (topic.name, other.name, missing(s))
        configs(s, *(resource(OF_TOPIC, name, "retention.ms") for name in names))

    s.rising(
        ask, (READ, TOPIC, topic.name), (ALTER_CONFIGS, TOPIC, topic.name),
        (DESCRIBE_CONFIGS, TOPIC, missing(s)),
    )  # fmt: skip


@secured_script()
def settings_of_topics_in_each_version(s: Secured) -> None:
    topic, other = pair(s)
    s.allow(BOB, DESCRIBE_CONFIGS, TOPIC, topic.name)
    for version in (1, 2, 3, 4):
        rows = [resource(OF_TOPIC, each.name, "retention.ms") for each in (topic, other)]
        configs(s, *rows, version=version)


@secured_script()
def settings_of_everything_else(s: Secured) -> None:
    group = s.group()
    names = {OF_BROKER: "1", OF_GROUP: group}

    def ask() -> None:
        for kind, name in names.items():
            wanted = resource(kind, name, "message.max.bytes", "share.auto.offset.reset")
            answer = s.prepare("describe_configs", 4, BOB, resources=[wanted], include_synonyms=False,
                               include_documentation=False)  # fmt: skip
            (row,) = answer.results
            found = sorted(each.name for each in row.configs)
            s.note(f"type {kind}", [row.error_code.name, bool(row.error_message), found])

    s.rising(ask, (DESCRIBE, CLUSTER, KAFKA_CLUSTER), (DESCRIBE_CONFIGS, GROUP, group),
             (DESCRIBE_CONFIGS, CLUSTER, KAFKA_CLUSTER))  # fmt: skip


@secured_script()
def settings_of_several_kinds_in_one_request(s: Secured) -> None:
    topic = s.topic()
    group = s.group()
    s.allow(BOB, DESCRIBE_CONFIGS, TOPIC, topic.name)
    configs(
        s,
        resource(OF_TOPIC, topic.name, "retention.ms"),
        resource(OF_BROKER, "1", "message.max.bytes"),
        resource(OF_GROUP, group, "share.auto.offset.reset"),
        resource(OF_TOPIC, missing(s), "retention.ms"),
    )


@secured_script()
def passwords_are_not_shown(s: Secured) -> None:
    """Settings with secrets have no value, also for a super user."""
    answer = s.prepare("describe_configs", 4, resources=[resource(OF_BROKER, "1")], include_synonyms=False,
                       include_documentation=False)  # fmt: skip
    s.note("no password", "secret-of" not in repr(answer))


def altered(s: Secured, name: str, kind: int, value: str, *, key: str) -> None:
    row = {"name": key, "value": value, "config_operation": 0}
    rows = [{"resource_type": kind, "resource_name": name, "configs": [row]}]
    s.call("incremental_alter_configs", 1, on=BOB, resources=rows, validate_only=True)
    old = [{"resource_type": kind, "resource_name": name, "configs": [{"name": key, "value": value}]}]
    if kind == OF_TOPIC:
        s.call("alter_configs", 2, on=BOB, resources=old, validate_only=True)


@secured_script()
def altered_settings_of_topics(s: Secured) -> None:
    topic = s.topic()

    def ask() -> None:
        altered(s, topic.name, OF_TOPIC, "1000", key="retention.ms")
        altered(s, missing(s), OF_TOPIC, "1000", key="retention.ms")

    s.rising(ask, (ALTER, TOPIC, topic.name), (DESCRIBE_CONFIGS, TOPIC, topic.name),
             (ALTER_CONFIGS, TOPIC, topic.name), (ALTER_CONFIGS, TOPIC, missing(s)))  # fmt: skip


@secured_script()
def altered_settings_of_everything_else(s: Secured) -> None:
    group = s.group()

    def ask() -> None:
        altered(s, "1", OF_BROKER, "2000000", key="max.connections.per.ip")
        altered(s, "", OF_BROKER, "2000000", key="max.connections.per.ip")
        altered(s, group, OF_GROUP, "latest", key="share.auto.offset.reset")

    s.rising(ask, (ALTER, CLUSTER, KAFKA_CLUSTER), (ALTER_CONFIGS, GROUP, group),
             (ALTER_CONFIGS, CLUSTER, KAFKA_CLUSTER))  # fmt: skip


@secured_script()
def altered_settings_row_by_row(s: Secured) -> None:
    topic, other = pair(s)
    s.allow(BOB, ALTER_CONFIGS, TOPIC, topic.name)
    row = {"name": "retention.ms", "value": "12345", "config_operation": 0}
    rows = [
        {"resource_type": OF_TOPIC, "resource_name": each.name, "configs": [row]} for each in (topic, other)
    ]
    s.call("incremental_alter_configs", 1, on=BOB, resources=rows, validate_only=False)


@secured_script()
def resources_with_settings(s: Secured) -> None:
    topic = s.topic()

    def own(answer: Json) -> Json:
        rows = answer["config_resources"]
        return {**answer, "config_resources": [row for row in rows if s.name in row["resource_name"]]}

    def ask() -> None:
        s.call("list_config_resources", 1, on=BOB, keep=own, resource_types=[OF_TOPIC])
        s.call("list_config_resources", 0, on=BOB, keep=own)

    s.rising(ask, (DESCRIBE_CONFIGS, TOPIC, topic.name), (DESCRIBE_CONFIGS, CLUSTER, KAFKA_CLUSTER))


@secured_script()
def log_directories(s: Secured) -> None:
    topic = s.topic()

    def ask() -> None:
        for version in (1, 2, 4):
            topics = [{"topic": topic.name, "partitions": [0]}]
            answer = s.prepare("describe_log_dirs", version, BOB, topics=topics)
            rows = [[row.error_code.name, [each.name for each in row.topics]] for row in answer.results]
            code = answer.error_code.name if version >= 3 else None
            s.note(f"version {version}", [code, rows])

    s.rising(ask, (DESCRIBE, TOPIC, topic.name), (DESCRIBE, CLUSTER, KAFKA_CLUSTER))


@secured_script()
def telemetry_needs_no_rights(s: Secured) -> None:
    answer = s.call("get_telemetry_subscriptions", 0, on=BOB, client_instance_id=UUID(int=77))
    known = 0 if answer is None else answer.subscription_id
    s.call("push_telemetry", 0, on=BOB, client_instance_id=UUID(int=77), subscription_id=known,
           terminating=False, compression_type=0, metrics=b"")  # fmt: skip


@secured_script()
def requests_that_cannot_be_read(s: Secured) -> None:
    """A request that ends too early closes the connection of whatever principal."""
    for key, version in ((3, 9), (30, 3), (31, 3), (50, 0), (51, 0)):
        s.frame(f"API {key}", framed(header(key, version, flexible=True)), f"{BOB}/{key}")
    s.frame("API 0", framed(header(0, 7) + struct.pack(">h", -1)), f"{BOB}/0")


@secured_script()
def rights_on_the_cluster_do_not_reach_other_users(s: Secured) -> None:
    s.allow(BOB, CLUSTER_ACTION, CLUSTER)
    for on in (BOB, "carol"):
        s.call("write_txn_markers", 1, on=on, markers=[
            {"producer_id": 987_654, "producer_epoch": 3, "transaction_result": False, "topics": [
                {"name": missing(s), "partition_indexes": [0]}
            ], "coordinator_epoch": 0}
        ])  # fmt: skip
