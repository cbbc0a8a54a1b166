"""The requests of tools without, with partial and with full rights: ElectLeaders,
AlterPartitionReassignments, ListPartitionReassignments, AlterReplicaLogDirs, DescribeQuorum,
UpdateFeatures, delegation tokens and the levels of loggers."""

from __future__ import annotations

from tests.differential.script import only
from tests.differential.scripts.security_topics import missing
from tests.differential.scripts.tool_features import UPGRADE, levels_of, update
from tests.differential.scripts.tool_loggers import ROOT, SET, altered, described
from tests.differential.scripts.tool_requests import (
    METADATA_LOG,
    _quorum,
    moved,
    named,
    own_directory,
    target,
    tokens,
)
from tests.differential.secured import (
    ALTER,
    ALTER_CONFIGS,
    BOB,
    CLUSTER,
    CLUSTER_ACTION,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    KAFKA_CLUSTER,
    TOPIC,
    Secured,
    secured_script,
)


@secured_script()
def elections(s: Secured) -> None:
    topic = s.topic()
    mine = only("replica_election_results", "topic", f"{s.name}-*")

    def ask() -> None:
        for version in (0, 1, 2):
            more = {"election_type": 0} if version >= 1 else {}
            rows = [named(topic.name, 0, 7), named(missing(s), 0)]
            s.call("elect_leaders", version, on=BOB, topic_partitions=rows, timeout=1000, **more)
            s.call("elect_leaders", version, on=BOB, topic_partitions=None, timeout=1000, keep=mine, **more)

    s.rising(ask, (ALTER, TOPIC, topic.name), (DESCRIBE, CLUSTER, KAFKA_CLUSTER),
             (ALTER, CLUSTER, KAFKA_CLUSTER))  # fmt: skip


@secured_script()
def reassignments(s: Secured) -> None:
    topic = s.topic(3)

    def ask() -> None:
        for version in (0, 1):
            rows = [target(0, (1,)), target(1, (2,)), target(2, None)]
            topics = [moved(topic.name, *rows), moved(missing(s), *rows)]
            s.call("alter_partition_reassignments", version, on=BOB, timeout=1000, topics=topics)

    s.rising(ask, (ALTER, TOPIC, topic.name), (DESCRIBE, CLUSTER, KAFKA_CLUSTER),
             (ALTER, CLUSTER, KAFKA_CLUSTER))  # fmt: skip


@secured_script()
def reassignments_listed(s: Secured) -> None:
    topic = s.topic()

    def ask() -> None:
        for topics in (None, [{"name": topic.name, "partition_indexes": [0]}]):
            s.call("list_partition_reassignments", 0, on=BOB, timeout=1000, topics=topics)

    s.rising(ask, (DESCRIBE, TOPIC, topic.name), (CLUSTER_ACTION, CLUSTER, KAFKA_CLUSTER),
             (DESCRIBE, CLUSTER, KAFKA_CLUSTER))  # fmt: skip


@secured_script()
def replicas_between_directories(s: Secured) -> None:
    topic = s.topic()
    directory = own_directory(s)

    def ask() -> None:
        for version in (1, 2):
            topics = [{"name": topic.name, "partitions": [0]}, {"name": missing(s), "partitions": [0, 0]}]
            dirs = [{"path": directory, "topics": topics}, {"path": "/nowhere", "topics": topics[:1]}]
            answer = s.prepare("alter_replica_log_dirs", version, on=BOB, dirs=dirs)
            s.note(f"version {version}", sorted(
                [each.topic_name, row.partition_index, row.error_code.name]
                for each in answer.results for row in each.partitions
            ))  # fmt: skip

    s.rising(ask, (ALTER, TOPIC, topic.name), (DESCRIBE, CLUSTER, KAFKA_CLUSTER),
             (ALTER, CLUSTER, KAFKA_CLUSTER))  # fmt: skip


@secured_script()
def the_quorum(s: Secured) -> None:
    topic = s.topic()

    def ask() -> None:
        for version in (0, 2):
            for name in (METADATA_LOG, topic.name):
                rows = [{"topic_name": name, "partitions": [{"partition_index": 0}]}]
                s.call("describe_quorum", version, on=BOB, topics=rows, keep=_quorum)

    s.rising(ask, (DESCRIBE, TOPIC, METADATA_LOG), (CLUSTER_ACTION, CLUSTER, KAFKA_CLUSTER),
             (DESCRIBE, CLUSTER, KAFKA_CLUSTER))  # fmt: skip


@secured_script()
def levels_of_features(s: Secured) -> None:
    final = levels_of(s)["share.version"].final

    def ask() -> None:
        for version in (0, 1, 2):
            update(s, "in force", ("share.version", final, UPGRADE), version=version, on=BOB)
            update(s, "above", ("share.version", 99, UPGRADE), version=version, on=BOB)

    s.rising(ask, (DESCRIBE, CLUSTER, KAFKA_CLUSTER), (ALTER_CONFIGS, CLUSTER, KAFKA_CLUSTER),
             (ALTER, CLUSTER, KAFKA_CLUSTER))  # fmt: skip


@secured_script("BASE-94")
def delegation_tokens_of_an_anonymous_client(s: Secured) -> None:
    tokens(s, "a")


@secured_script("BASE-94")
def delegation_tokens(s: Secured) -> None:
    tokens(s, BOB)
    tokens(s, "alice")


@secured_script()
def loggers(s: Secured) -> None:
    def ask() -> None:
        row = described(s, on=BOB)
        s.note("described", [row.error_code.name, row.error_message and "text", bool(row.configs)])
        row = described(s, "2", on=BOB)
        s.note("of another", [row.error_code.name, row.error_message and "text", bool(row.configs)])
        altered(s, "altered", (ROOT, SET, "INFO"), validate_only=True, on=BOB)
        altered(s, "of another", (ROOT, SET, "INFO"), broker="2", validate_only=True, on=BOB)
        resource = {"resource_type": 8, "resource_name": "1", "configs": []}
        s.call("alter_configs", 2, on=BOB, resources=[resource], validate_only=True)

    s.rising(ask, (DESCRIBE, CLUSTER, KAFKA_CLUSTER), (DESCRIBE_CONFIGS, CLUSTER, KAFKA_CLUSTER),
             (ALTER, CLUSTER, KAFKA_CLUSTER), (ALTER_CONFIGS, CLUSTER, KAFKA_CLUSTER))  # fmt: skip
