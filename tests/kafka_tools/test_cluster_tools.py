"""Tools of Apache Kafka for clusters of several brokers, against one that is alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.api import APIS
from kbroker.api.unserved import UNSERVED
from kbroker.testing.broker import RunningBroker, open_test_broker
from tests.kafka_tools.java import MISSING, TOOLS, Ended, run

pytestmark = [pytest.mark.full, pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with open_test_broker(storage="segment") as running:
        running.create_topic("orders", partitions=2)
        yield running


def tool(broker: RunningBroker, name: str, *arguments: str) -> Ended:
    return run(f"{TOOLS}.{name}", "--bootstrap-server", broker.bootstrap, *arguments)


def test_elections(broker: RunningBroker) -> None:
    ended = tool(broker, "LeaderElectionCommand", "--election-type", "PREFERRED", "--all-topic-partitions")
    assert ended.code == 0, ended
    named = ("--topic", "orders", "--partition", "1")
    ended = tool(broker, "LeaderElectionCommand", "--election-type", "UNCLEAN", *named)
    assert ended.code == 0, ended
    assert "Valid replica already elected for partitions orders-1" in ended.lines


def test_reassignments(broker: RunningBroker, tmp_path: Path) -> None:
    def plan(replicas: list[int]) -> str:
        rows = [{"topic": "orders", "partition": 0, "replicas": replicas}]
        (file := tmp_path / "plan.json").write_text(json.dumps({"version": 1, "partitions": rows}))
        return str(file)

    def reassign(*arguments: str) -> Ended:
        return tool(broker, "reassign.ReassignPartitionsCommand", *arguments)

    ended = reassign("--execute", "--reassignment-json-file", plan([1]))
    assert ended.code == 0, ended
    assert "Successfully started partition reassignment for orders-0" in ended.lines
    ended = reassign("--verify", "--reassignment-json-file", plan([1]))
    assert ended.code == 0, ended
    assert "Reassignment of partition orders-0 is completed." in ended.lines
    assert reassign("--list").lines == ["No partition reassignments found."]
    ended = reassign("--execute", "--reassignment-json-file", plan([1, 2]))
    assert ended.code == 1, ended


def test_features(broker: RunningBroker) -> None:
    ended = tool(broker, "FeatureCommand", "upgrade", "--feature", "share.version=2")
    assert (ended.code, ended.lines) == (0, ["share.version was upgraded to 2."]), ended
    ended = tool(broker, "FeatureCommand", "downgrade", "--feature", "share.version=1")
    assert ended.code == 1, ended
    assert "This broker has version 2, and cannot change it." in "".join(ended.lines) + ended.errors


def test_the_quorum(broker: RunningBroker) -> None:
    ended = tool(broker, "MetadataQuorumCommand", "describe", "--status")
    assert ended.code == 0, ended
    status = {name.strip(): value.strip() for name, _, value in (row.partition(":") for row in ended.lines)}
    assert (status["LeaderId"], status["MaxFollowerLag"]) == ("1", "0")
    (voter,) = json.loads(status["CurrentVoters"])
    assert voter["id"] == 1
    assert voter["endpoints"] == [f"PLAINTEXT://{broker.host}:{broker.port}"]


def test_levels_of_loggers(broker: RunningBroker) -> None:
    loggers = ("--entity-type", "broker-loggers", "--entity-name", "1")
    ended = tool(broker, "ConfigCommand", *loggers, "--alter", "--add-config", "kbroker.server=DEBUG")
    assert ended.code == 0, ended
    described = tool(broker, "ConfigCommand", *loggers, "--describe").lines
    assert any("kbroker.server.peer=DEBUG" in line for line in described), described


def test_every_api_of_this_kafka_is_served_or_listed(tmp_path: Path) -> None:
    program = tmp_path / "Keys.java"
    program.write_text(
        "import org.apache.kafka.common.protocol.ApiKeys;\n"
        "public class Keys { public static void main(String[] a) {\n"
        '  for (ApiKeys each : ApiKeys.values()) System.out.println(each.id + " " + each.name); } }\n'
    )
    names = {int(key): name for key, name in (line.split(" ") for line in run(str(program)).lines)}
    ours = {key: each.name for key, each in UNSERVED.items()}
    ours |= {key: api.module.title().replace("_", "") for key, api in APIS.items()}
    assert ours == names
