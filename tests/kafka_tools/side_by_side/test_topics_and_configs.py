"""kafka-topics, kafka-configs and kafka-client-metrics at both brokers."""

from __future__ import annotations

import pytest

from tests.kafka_tools.java import CONFIGS, MISSING, TOOLS, TOPICS
from tests.kafka_tools.side_by_side.pair import Pair, Same

pytestmark = [pytest.mark.full, pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]
CLIENT_METRICS = f"{TOOLS}.ClientMetricsCommand"


def test_topics(pair: Pair) -> None:
    with pair.chapter("topics") as same:
        a, b = "--topic a", "--topic b.1"
        same("create", TOPICS, f"--create {a} --partitions 2 --config retention.ms=123456")
        same("create with defaults", TOPICS, f"--create {b}")
        same("create again", TOPICS, f"--create {a}")
        same("create if missing", TOPICS, f"--create --if-not-exists {a}")
        same("create a bad name", TOPICS, "--create --topic a/b")
        same("create two replicas", TOPICS, "--create --topic c --replication-factor 2")
        same("create with replicas", TOPICS, "--create --topic c --replica-assignment 1,1")
        same("create with a wrong replica", TOPICS, "--create --topic d --replica-assignment 7")
        same("create with a bad value", TOPICS, "--create --topic d --config retention.ms=x")
        same("create no setting", TOPICS, "--create --topic d --config no.such=x")
        same("create nothing", TOPICS, "--create --topic d --partitions 0")
        same("list", TOPICS, "--list --exclude-internal")
        same("describe", TOPICS, f"--describe {a}")
        same("describe all", TOPICS, "--describe --exclude-internal")
        for view in (
            "topics-with-overrides",
            "under-replicated-partitions",
            "unavailable-partitions",
            "under-min-isr-partitions",
            "at-min-isr-partitions",
        ):
            same(f"describe {view}", TOPICS, f"--describe --{view} --exclude-internal")
        same("describe a missing one", TOPICS, "--describe --topic missing")
        same("describe a missing one if it is there", TOPICS, "--describe --topic missing --if-exists")
        same("describe an unknown id", TOPICS, "--describe --topic-id B8yH3xdSRiGbBgqYZj3w2A")
        same("more partitions", TOPICS, f"--alter {a} --partitions 3")
        same("fewer partitions", TOPICS, f"--alter {a} --partitions 1")
        same("as many partitions", TOPICS, f"--alter {a} --partitions 3")
        same("partitions with replicas", TOPICS, f"--alter {b} --partitions 3 --replica-assignment 1,1,1")
        same("describe after", TOPICS, "--describe --topic 'a|b.*'")
        same("delete", TOPICS, f"--delete {a}")
        same("delete again", TOPICS, f"--delete {a}")
        same("delete if there", TOPICS, f"--delete {a} --if-exists")
        same("delete by a pattern", TOPICS, "--delete --topic 'b.*|c'")
        same("list after", TOPICS, "--list --exclude-internal")


def test_configs_of_topics(pair: Pair) -> None:
    with pair.chapter("configs of topics") as same:
        same("create", TOPICS, "--create --topic t --config cleanup.policy=compact")
        topic = "--entity-type topics --entity-name t"
        _walk(same, topic, "retention.ms=123456,cleanup.policy=[compact,delete]", "retention.ms")
        same("describe all", CONFIGS, f"{topic} --describe --all")
        same("by its name", CONFIGS, "--topic t --describe")
        same("alter a bad value", CONFIGS, f"{topic} --alter --add-config retention.ms=-2")
        same("alter a missing one", CONFIGS, "--topic missing --alter --add-config retention.ms=1")
        same("describe a missing one", CONFIGS, "--topic missing --describe")
        same("describe every one", CONFIGS, "--entity-type topics --describe")
        same("delete", TOPICS, "--delete --topic t")


def test_configs_of_groups(pair: Pair) -> None:
    with pair.chapter("configs of groups") as same:
        group = "--entity-type groups --entity-name g"
        value = "share.auto.offset.reset=earliest,share.record.lock.duration.ms=20000"
        _walk(same, group, value, "share.record.lock.duration.ms")
        same("describe all", CONFIGS, f"{group} --describe --all")
        same("by its name", CONFIGS, "--group g --describe")
        same("describe every one", CONFIGS, "--entity-type groups --describe")
        for value in (
            "share.delivery.count.limit=1",
            "share.isolation.level=x",
            "consumer.session.timeout.ms=1",
            "errors.deadletterqueue.topic.name=__a",
        ):
            name = value.split("=")[0]
            same(f"alter a bad {name}", CONFIGS, f"{group} --alter --add-config {value}")
        same("delete the other", CONFIGS, f"{group} --alter --delete-config share.auto.offset.reset")


def test_configs_of_brokers(pair: Pair) -> None:
    with pair.chapter("configs of brokers") as same:
        for whose, entity in (("of all", "--entity-default"), ("of one", "--entity-name 1")):
            broker = f"--entity-type brokers {entity}"
            _walk(
                same,
                broker,
                "log.retention.ms=7200000,log.retention.bytes=1000000",
                "log.retention.ms",
                whose,
            )
            same(
                f"{whose}: delete the other", CONFIGS, f"{broker} --alter --delete-config log.retention.bytes"
            )
            for name in ("num.partitions", "message.max.bytes", "broker.rack"):
                same(f"{whose}: alter {name}", CONFIGS, f"{broker} --alter --add-config {name}=200000")
            same(f"{whose}: delete it", CONFIGS, f"{broker} --alter --delete-config message.max.bytes")
        same("describe another", CONFIGS, "--broker 7 --describe")


def test_levels_of_loggers(pair: Pair) -> None:
    """Of the root: the names of the others are the broker's own."""
    with pair.chapter("loggers") as same:
        logger = "--entity-type broker-loggers --entity-name 1"
        described = "(?!.*=(INFO|ERROR|WARN))|root=|exit"
        same("alter", CONFIGS, f"{logger} --alter --add-config root=WARN")
        same("describe", CONFIGS, f"{logger} --describe", only=described)
        for level in ("LOUD", "warn", "OFF"):
            same(f"alter to no level {level}", CONFIGS, f"{logger} --alter --add-config root={level}")
        same("delete the root", CONFIGS, f"{logger} --alter --delete-config root")
        same("alter none", CONFIGS, f"{logger} --alter --add-config no.such=INFO")
        same("delete none", CONFIGS, f"{logger} --alter --delete-config no.such")
        same("describe after", CONFIGS, f"{logger} --describe", only=described)
        same("another broker", CONFIGS, "--broker-logger 7 --describe")
        same("every broker", CONFIGS, "--entity-type broker-loggers --describe", only=described)


def test_client_metrics(pair: Pair) -> None:
    with pair.chapter("client metrics") as same:
        same("alter", CLIENT_METRICS, "--alter --name m --metrics org.apache --interval 60000")
        same("list", CLIENT_METRICS, "--list")
        same("describe", CLIENT_METRICS, "--describe --name m")
        same("describe all", CLIENT_METRICS, "--describe")
        same("delete", CLIENT_METRICS, "--delete --name m")
        entity = "--entity-type client-metrics --entity-name m"
        same("configs describe", CONFIGS, f"{entity} --describe")
        same("configs alter", CONFIGS, f"{entity} --alter --add-config interval.ms=60000")
        same("configs delete", CONFIGS, f"{entity} --alter --delete-config interval.ms")


def _walk(same: Same, entity: str, values: str, removed: str, whose: str = "") -> None:
    """Describe, alter, describe, delete a setting, describe; then what does not exist."""
    first = f"{whose}: " if whose else ""
    same(f"{first}describe before", CONFIGS, f"{entity} --describe")
    same(f"{first}alter", CONFIGS, f"{entity} --alter --add-config {values}")
    same(f"{first}describe", CONFIGS, f"{entity} --describe")
    same(f"{first}delete one", CONFIGS, f"{entity} --alter --delete-config {removed}")
    same(f"{first}describe after", CONFIGS, f"{entity} --describe")
    same(f"{first}alter none", CONFIGS, f"{entity} --alter --add-config no.such=1")
    same(f"{first}delete none", CONFIGS, f"{entity} --alter --delete-config no.such")
