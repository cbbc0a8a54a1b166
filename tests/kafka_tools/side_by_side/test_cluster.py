"""Tools for versions, features, the quorum, elections and reassignments at both brokers, and
kafka-transactions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.kafka_tools.java import MISSING, TOOLS, TOPICS
from tests.kafka_tools.side_by_side.pair import ADDRESS, Pair

pytestmark = [pytest.mark.full, pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]
FEATURES = f"{TOOLS}.FeatureCommand"
QUORUM = f"{TOOLS}.MetadataQuorumCommand"
CLUSTER = f"{TOOLS}.ClusterTool"
ELECTIONS = f"{TOOLS}.LeaderElectionCommand"
REASSIGN = f"{TOOLS}.reassign.ReassignPartitionsCommand"
TRANSACTIONS = f"{TOOLS}.TransactionsCommand"
PATIENCE_S = 60.0


def test_versions_and_features(pair: Pair) -> None:
    with pair.chapter("versions and features") as same:
        same("api versions", f"{TOOLS}.BrokerApiVersionsCommand")
        same("describe", FEATURES, "describe")
        same("mapping", FEATURES, "version-mapping --release-version 4.4")
        same("dependencies", FEATURES, "feature-dependencies --feature transaction.version=2")
        same("upgrade to the level it has", FEATURES, "upgrade --feature share.version=2")
        same("upgrade too far", FEATURES, "upgrade --feature share.version=9")
        same("upgrade none", FEATURES, "upgrade --feature no.such=1")
        same("downgrade, planned", FEATURES, "downgrade --feature share.version=1 --dry-run")
        same("disable, planned", FEATURES, "disable --feature group.version --dry-run")


def test_cluster_and_quorum(pair: Pair) -> None:
    with pair.chapter("cluster and quorum") as same:
        same("id", CLUSTER, f"cluster-id --bootstrap-server {ADDRESS}")
        same("endpoints", CLUSTER, f"list-endpoints --bootstrap-server {ADDRESS}")
        more = f"--bootstrap-server {ADDRESS} --include-fenced-brokers"
        same("fenced endpoints", CLUSTER, f"list-endpoints {more}")
        same("unregister another", CLUSTER, f"unregister --bootstrap-server {ADDRESS} --id 7")
        same("quorum", QUORUM, "describe --status")
        same("replication", QUORUM, "describe --replication")
        same("replication, for people", QUORUM, "describe --replication --human-readable")
        same(
            "remove a controller",
            QUORUM,
            "remove-controller --controller-id 7 --controller-directory-id B8yH3xdSRiGbBgqYZj3w2A",
        )
        token = "--create --max-life-time-period -1 --command-config /dev/null"
        same("token", f"{TOOLS}.DelegationTokenCommand", token)


def test_elections_and_reassignments(pair: Pair, tmp_path: Path) -> None:
    with pair.chapter("elections and reassignments") as same:
        same("create", TOPICS, "--create --topic moved --partitions 2")
        one = "--topic moved --partition 1"
        for kind in ("PREFERRED", "UNCLEAN"):
            same(f"elect {kind}", ELECTIONS, f"--election-type {kind} {one}")
            same(
                f"elect {kind} of a missing one",
                ELECTIONS,
                f"--election-type {kind} --topic missing --partition 0",
            )
        topics, plan = tmp_path / "topics.json", tmp_path / "plan.json"
        topics.write_text(json.dumps({"topics": [{"topic": "moved"}], "version": 1}))
        same("generate", REASSIGN, f"--generate --topics-to-move-json-file {topics} --broker-list 1")
        same(
            "generate for another",
            REASSIGN,
            f"--generate --topics-to-move-json-file {topics} --broker-list 7",
        )
        for broker, actions in ((1, ("--execute", "--verify", "--cancel")), (7, ("--execute",))):
            rows = [{"topic": "moved", "partition": 0, "replicas": [broker]}]
            plan.write_text(json.dumps({"version": 1, "partitions": rows}))
            for action in actions:
                same(f"{action} on {broker}", REASSIGN, f"{action} --reassignment-json-file {plan}")
        same("list", REASSIGN, "--list")


def test_transactions(pair: Pair) -> None:
    with pair.chapter("transactions") as same:
        same("create", TOPICS, "--create --topic paid")
        producers = [_opened(pair.kafka.address), _opened(pair.kbroker.address)]
        log = "--topic paid --partition 0"
        same("list", TRANSACTIONS, "list", only="Transactional|pay")
        same("list by pattern", TRANSACTIONS, "list --transactional-id-pattern p.y")
        same("list long ones", TRANSACTIONS, "list --duration-filter 3600000")
        same("describe", TRANSACTIONS, "describe --transactional-id pay")
        same("describe a missing one", TRANSACTIONS, "describe --transactional-id missing")
        same("producers", TRANSACTIONS, f"describe-producers {log}")
        same("hanging", TRANSACTIONS, "find-hanging --broker-id 1")
        same("hanging in a topic", TRANSACTIONS, "find-hanging --topic paid")
        same("abort nothing", TRANSACTIONS, f"abort {log} --start-offset 0")
        same("abort", TRANSACTIONS, f"abort {log} --start-offset 2")
        same("producers after", TRANSACTIONS, f"describe-producers {log}")
        same("fence", TRANSACTIONS, "forceTerminateTransaction --transactionalId pay")
        same("fence a new one", TRANSACTIONS, "forceTerminateTransaction --transactionalId new")
        same("describe after", TRANSACTIONS, "describe --transactional-id pay")
        producers.clear()


def _opened(address: str) -> Producer:
    """With a committed transaction, and one open since offset 2."""
    producer = Producer({"bootstrap.servers": address, "transactional.id": "pay"})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce("paid", b"one", partition=0)
    producer.commit_transaction(PATIENCE_S)
    producer.begin_transaction()
    producer.produce("paid", b"open", partition=0)
    assert producer.flush(PATIENCE_S) == 0
    return producer
