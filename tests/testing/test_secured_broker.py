"""A broker with a protocol, and its fixture: real clients with TLS and log-ins, by one word."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient

from kbroker import cli
from kbroker.cli.exits import OK, REFUSED
from kbroker.client.broker_process import RunningBroker
from kbroker.settings.properties import as_properties
from kbroker.testing.broker import open_test_broker

PATIENCE_S = 60
QUOTES = 'a "quoted" \\ pass=word'


@pytest.fixture(scope="module", params=["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def broker(protocol: str) -> Iterator[RunningBroker]:
    with open_test_broker(protocol=protocol) as running:
        yield running


def send(settings: dict[str, str], topic: str, *values: bytes) -> list[Any]:
    """Returns the error of each, or None."""
    results: list[Any] = []
    producer = Producer({**settings, "message.timeout.ms": PATIENCE_S * 1000})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: results.append(error))
    assert producer.flush(PATIENCE_S) == 0
    return results


def test_records_over_a_restart(broker: RunningBroker, protocol: str) -> None:
    broker.create_topic("orders")
    broker.set_group_config("workers", {"share.auto.offset.reset": "earliest"})
    settings = broker.client_settings()
    assert settings["security.protocol"] == protocol
    assert send(settings, "orders", b"one") == [None]
    broker.kill()
    broker.restart()
    consumer = ShareConsumer({**settings, "group.id": "workers"})
    consumer.subscribe(["orders"])
    messages: list[Any] = []
    while not messages:
        messages = list(consumer.poll(1))
    assert [message.value() for message in messages] == [b"one"]
    consumer.close()


def test_no_client_without_its_settings(broker: RunningBroker) -> None:
    client = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    with pytest.raises(KafkaException):
        client.list_topics(timeout=1)


def test_another_user_and_its_rights(broker: RunningBroker, capfd: pytest.CaptureFixture[str]) -> None:
    broker.create_topic("mail")
    broker.create_user("app", QUOTES)
    admin, app = broker.command_config(), broker.command_config("app")
    assert stat.S_IMODE(app.stat().st_mode) == 0o600

    def run(command: str, file: Path) -> int:
        return cli.run([*command.split(), "-b", broker.bootstrap, "--command-config", str(file)])

    assert run("acls list", app) == REFUSED
    (refused,) = send(broker.client_settings("app"), "mail", b"x")
    assert refused.name() == "TOPIC_AUTHORIZATION_FAILED"
    assert run("acls add --producer --user app --topic mail", admin) == OK
    assert send(broker.client_settings("app"), "mail", b"x") == [None]
    assert "app" not in broker.client_settings().values()
    with pytest.raises(ValueError, match="there is a user app already"):
        broker.create_user("app")
    with pytest.raises(KeyError):
        broker.client_settings("nobody")


@pytest.mark.parametrize("storage", ["lmdb", "memory"])
def test_other_engines(protocol: str, storage: str) -> None:
    """The memory engine forgets its users."""
    with open_test_broker(protocol=protocol, storage=storage) as broker:
        broker.create_user("app")
        for _ in range(2):
            (refused,) = send(broker.client_settings("app"), "absent", b"x")
            assert refused.name() == "TOPIC_AUTHORIZATION_FAILED"
            broker.create_topic(f"t{broker.pid}")
            broker.restart()


def test_no_password_is_an_argument(protocol: str) -> None:
    with open_test_broker(protocol=protocol) as broker:
        line = Path(f"/proc/{broker.pid}/cmdline").read_bytes()
        assert b"PlainLoginModule" not in line
        assert b"listeners=" in line


def test_a_plain_broker_has_no_users() -> None:
    with open_test_broker() as broker:
        assert broker.client_settings() == {"bootstrap.servers": broker.bootstrap}
        assert broker.command_config().read_text() == "security.protocol=PLAINTEXT\n"
        with pytest.raises(ValueError, match="only a broker with `protocol` has users"):
            broker.create_user("app")


def test_an_unknown_protocol() -> None:
    with pytest.raises(ValueError, match="TLS"), open_test_broker(protocol="TLS"):
        pass


def test_lines_of_a_file() -> None:
    assert as_properties({"a": "b\\c", "d": "e=f"}) == "a=b\\\\c\nd=e=f\n"
