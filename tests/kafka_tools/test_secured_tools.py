"""Apache Kafka's tools and kcat against brokers with TLS and log-ins: topics, records, queues, ACLs
and users, by an administrator and by a user with few rights."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator

import pytest

from kbroker.testing.broker import RunningBroker, open_test_broker
from tests.kafka_tools.java import (
    ACLS,
    CONFIGS,
    CONSOLE_CONSUMER,
    CONSOLE_PRODUCER,
    CONSOLE_SHARE_CONSUMER,
    MISSING,
    TOPICS,
    Ended,
    run,
)

PROTOCOLS = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
java = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
pytestmark = pytest.mark.full
VALUES = [f"value-{number}" for number in range(5)]
LINES = "".join(f"{value}\n" for value in VALUES)
PATIENCE_MS = "30000"


@pytest.fixture(scope="module", params=PROTOCOLS)
def broker(request: pytest.FixtureRequest) -> Iterator[RunningBroker]:
    with open_test_broker(protocol=request.param) as running:
        running.create_user("alice")
        yield running


def tool(
    broker: RunningBroker, main: str, *arguments: str, given: str = "", user: str | None = None
) -> Ended:
    config = broker.command_config(user)
    return run(
        main, "--bootstrap-server", broker.bootstrap, "--command-config", str(config), *arguments, given=given
    )


def ended_well(ended: Ended) -> list[str]:
    assert ended.code == 0, ended
    assert "Exception" not in ended.errors, ended
    return ended.lines


@java
def test_an_administrator_manages_topics_and_records(broker: RunningBroker) -> None:
    ended_well(tool(broker, TOPICS, "--create", "--topic", "orders"))
    ended_well(tool(broker, CONSOLE_PRODUCER, "--topic", "orders", given=LINES))
    read = ("--topic", "orders", "--from-beginning", "--max-messages", "5", "--timeout-ms", PATIENCE_MS)
    assert ended_well(tool(broker, CONSOLE_CONSUMER, *read)) == VALUES


@java
def test_a_queue_is_worked_on(broker: RunningBroker) -> None:
    ended_well(tool(broker, TOPICS, "--create", "--topic", "jobs"))
    ended_well(tool(broker, CONSOLE_PRODUCER, "--topic", "jobs", given=LINES))
    broker.set_group_config("workers", {"share.auto.offset.reset": "earliest"})
    work = ("--topic", "jobs", "--group", "workers", "--max-messages", "5", "--timeout-ms", PATIENCE_MS)
    assert ended_well(tool(broker, CONSOLE_SHARE_CONSUMER, *work)) == VALUES


@java
def test_a_user_may_do_what_acls_allow(broker: RunningBroker) -> None:
    broker.create_topic("private")
    ended_well(tool(broker, CONSOLE_PRODUCER, "--topic", "private", given=LINES))
    read = (
        "--topic", "private", "--group", "readers", "--from-beginning", "--max-messages", "5",
        "--timeout-ms", PATIENCE_MS,
    )  # fmt: skip
    refused = tool(broker, CONSOLE_CONSUMER, *read, user="alice")
    assert "uthoriz" in "".join([*refused.lines, refused.errors]), refused
    assert not set(VALUES) & set(refused.lines)
    allowed = ("--allow-principal", "User:alice", "--consumer", "--topic", "private", "--group", "readers")
    ended_well(tool(broker, ACLS, "--add", *allowed))
    assert ended_well(tool(broker, CONSOLE_CONSUMER, *read, user="alice")) == VALUES
    listed = "\n".join(ended_well(tool(broker, ACLS, "--list", "--topic", "private")))
    assert "principal=User:alice, host=*, operation=READ, permissionType=ALLOW" in listed
    ended_well(tool(broker, ACLS, "--remove", "--force", *allowed))
    assert "User:alice" not in "\n".join(ended_well(tool(broker, ACLS, "--list", "--topic", "private")))


@java
def test_kafka_configs_manages_users(broker: RunningBroker) -> None:
    entity = ("--entity-type", "users", "--entity-name", "bob")
    password = "SCRAM-SHA-512=[iterations=4096,password=kept]"
    ended_well(tool(broker, CONFIGS, "--alter", "--add-config", password, *entity))
    (described,) = ended_well(tool(broker, CONFIGS, "--describe", *entity))
    assert described == "SCRAM credential configs for user-principal 'bob' are SCRAM-SHA-512=iterations=4096"
    ended_well(tool(broker, CONFIGS, "--alter", "--delete-config", "SCRAM-SHA-512", *entity))
    assert not any("bob" in line for line in ended_well(tool(broker, CONFIGS, "--describe", *entity)))


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed (apt install kcat)")
def test_kcat(broker: RunningBroker) -> None:
    """Its librdkafka is an older one."""
    broker.create_topic("kcat")
    settings = broker.client_settings()
    address = settings.pop("bootstrap.servers")
    common = ["kcat", "-b", address, *(f"-X{name}={value}" for name, value in settings.items()), "-t", "kcat"]
    options = {"capture_output": True, "text": True, "timeout": 60, "check": True}
    subprocess.run([*common, "-P"], input=LINES, **options)
    read = subprocess.run([*common, "-C", "-e", "-q", "-o", "beginning"], **options)
    assert read.stdout.splitlines() == VALUES
