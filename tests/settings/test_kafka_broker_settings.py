"""Every broker setting of Apache Kafka is served, or refused with what to do instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.errors import OperatorError
from kbroker.settings.broker import BROKER_CONFIGS, BrokerConfig, SettingsRefused
from kbroker.settings.broker_unserved import instead, table_names

NAMES = [
    line
    for line in (Path(__file__).parent / "kafka" / "broker_settings.txt").read_text().splitlines()
    if not line.startswith("#")
]
EARLIER = (
    "advertised.host.name",
    "advertised.port",
    "auto.include.jmx.reporter",
    "broker.id.generation.enable",
    "control.plane.listener.name",
    "eligible.leader.replicas.enable",
    "host.name",
    "log.message.downconversion.enable",
    "log.message.format.version",
    "log.message.timestamp.difference.max.ms",
    "password.encoder.*",
    "port",
    "quota.consumer.default",
    "quota.producer.default",
    "reserved.broker.max.id",
    "zookeeper.*",
)
"""Entries about settings that Kafka 4.4 no longer has."""
DYNAMIC = ("follower.replication.*", "leader.replication.*")
"""Entries about settings that no file has: tools set them on a running broker."""


def test_every_setting_of_kafka_is_served_or_has_its_own_refusal() -> None:  # CFG-49
    assert len(NAMES) == 379
    missing = [name for name in NAMES if name not in BROKER_CONFIGS]
    assert len(missing) < 250
    assert [name for name in missing if not instead(name)] == []


def test_the_table_has_no_other_names() -> None:
    """An entry that fits no setting is a typing error."""
    for entry in table_names():
        fits = [name for name in NAMES if name == entry or (entry[-1] == "*" and name.startswith(entry[:-1]))]
        assert [name for name in fits if name not in BROKER_CONFIGS] or entry in EARLIER + DYNAMIC, entry


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("zookeeper.connect", "remove it: there is no ZooKeeper"),
        ("controller.quorum.voters", "remove it: one broker is the whole cluster"),
        ("controller.listener.names", "remove it, and its listeners from listeners and advertised.listeners"),
        ("log.message.downconversion.enable", "remove it: Kafka 4 has no such setting either"),
        ("log.message.timestamp.difference.max.ms", "the settings of Kafka 4 are log.message.times"),
        ("port", "the settings of Kafka 4 are listeners and advertised.listeners"),
        ("queued.max.requests", "the closest setting is queued.max.request.bytes"),
        ("log.dirs", "use --data-dir, or a line data-dir=DIR of the file"),
        ("listener.name.internal.ssl.engine.factory.class", "remove it: it names a Java class"),
        ("listener.name.x.plain.sasl.server.callback.handler.class", "remove it: it names a Java class"),
    ],
)
def test_a_refusal_says_what_to_do(name: str, advice: str) -> None:  # CFG-49
    with pytest.raises(OperatorError, match=rf"^configuration file, line 1: {name}: {advice}"):
        BrokerConfig.load([f"{name}=1"])


@pytest.mark.parametrize(
    ("name", "value", "other"),
    [
        ("process.roles", "controller,broker", "broker"),
        ("offsets.topic.replication.factor", "1", "3"),
        ("transaction.state.log.min.isr", "1", "2"),
        ("share.coordinator.state.topic.min.isr", "1", "2"),
        ("min.insync.replicas", "1", "2"),
        ("unclean.leader.election.enable", "false", "true"),
        ("log.cleaner.enable", "true", "false"),
        ("remote.log.storage.system.enable", "false", "true"),
    ],
)
def test_a_value_that_says_what_the_broker_does_is_taken(name: str, value: str, other: str) -> None:  # CFG-50
    BrokerConfig.load([f"{name}={value}"])
    with pytest.raises(OperatorError, match=f"Invalid value {other} for configuration {name}: kbroker takes"):
        BrokerConfig.load([f"{name}={other}"])


def test_all_refusals_come_at_once_in_the_order_given() -> None:  # CFG-51
    lines = ["num.io.threads=8", "num.partitions=x", "# broker.rack=b", "nonsense=1", "=2", "log.dirs=/d"]
    with pytest.raises(SettingsRefused) as refused:
        BrokerConfig.load(lines, {"broker.rack": "a"})
    found = refused.value.lines
    file = "configuration file, line "
    for line, (where, what) in zip(
        found,
        [
            (f"{file}1", "num.io.threads: remove it"),
            (f"{file}2", "Invalid value x for configuration num.partitions"),
            (f"{file}4", "unknown setting 'nonsense'"),
            (f"{file}5", "this line has no name"),
            (f"{file}6", "log.dirs: use --data-dir"),
            ("--config", "broker.rack: remove it"),
            ("6 settings are refused", ""),
        ],
        strict=True,
    ):
        assert line.startswith(f"{where}: {what}" if what else where)
    with pytest.raises(SettingsRefused) as one:
        BrokerConfig.load(["log.dirs=/d"])
    assert len(one.value.lines) == 1


def test_node_id_and_broker_id_are_one_setting() -> None:  # CFG-52
    for given in ({"node.id": "7"}, {"broker.id": "7"}, {"node.id": "7", "broker.id": "7"}):
        config = BrokerConfig.load((), given)
        assert (config["node.id"], config["broker.id"]) == (7, 7)
    assert (BrokerConfig.load()["node.id"], BrokerConfig.load()["broker.id"]) == (1, None)
    for wrong in ("-1", "x", str(1 << 31)):
        with pytest.raises(OperatorError, match="Invalid value"):
            BrokerConfig.load((), {"node.id": wrong})
