"""Unmodified clients log in with every mechanism that they have, and manage users; passwords stay
out of every place where somebody could find them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import KafkaError as ClientError
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from kbroker import cli
from kbroker.cli.exits import OK
from kbroker.testing.broker import RunningBroker, free_port, open_test_broker
from tests.clients.secured_clients import PATIENCE_S, RECORDS, aiokafka, confluent, kafka_python

# kafka-python on Python 3.11 and 3.12
pytestmark = pytest.mark.filterwarnings("ignore:.*_text is deprecated:DeprecationWarning")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
PASSWORD, JAAS_PASSWORD, WRONG = "canary-stored", "canary-jaas", "canary-wrong"
JAAS = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_carol="{JAAS_PASSWORD}";'


class Secured(NamedTuple):
    """`address`: of the listener with SASL; `short`: of one whose sessions last a second and a
    half."""

    broker: RunningBroker
    address: str
    short: str


class LogIn(NamedTuple):
    address: str
    mechanism: str
    user: str
    password: str

    def confluent(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": self.mechanism,
            "sasl.username": self.user,
            "sasl.password": self.password,
        }

    def python(self) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.address,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.user,
            "sasl_plain_password": self.password,
        }


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    file = tmp_path_factory.mktemp("sasl") / "broker.properties"
    file.touch(mode=0o600)
    file.write_text(f"listener.name.sasl_plaintext.plain.sasl.jaas.config={JAAS}\n")
    plain, sasl, short = (free_port() for _ in range(3))
    config = {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{sasl},"
        f"SHORT://127.0.0.1:{short}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,"
        "SHORT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "listener.name.short.connections.max.reauth.ms": "1500",
        "connection.failed.authentication.delay.ms": "10",
    }
    arguments = ["--config-file", str(file), "--log-level", "debug"]
    with open_test_broker(config=config, port=plain, extra_args=arguments) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            alter(
                admin,
                UserScramCredentialUpsertion(
                    "alice", ScramCredentialInfo(mechanism, 4096), PASSWORD.encode()
                ),
            )
        yield Secured(broker, f"127.0.0.1:{sasl}", f"127.0.0.1:{short}")


def alter(admin: AdminClient, alteration: Any) -> None:
    for future in admin.alter_user_scram_credentials([alteration]).values():
        future.result(PATIENCE_S)


CLIENTS: dict[str, Callable[[LogIn, str], list[bytes]]] = {
    "confluent-kafka": lambda log_in, topic: confluent(log_in.confluent(), topic),
    "kafka-python": lambda log_in, topic: kafka_python(log_in.python(), topic),
    "aiokafka": lambda log_in, topic: aiokafka(log_in.python(), topic),
}
DEFAULT_RUN = {
    ("confluent-kafka", "SCRAM-SHA-256"),
    ("kafka-python", "PLAIN"),
    ("aiokafka", "SCRAM-SHA-512"),
}


def matrix() -> Iterator[object]:
    for client in CLIENTS:
        for mechanism in MECHANISMS:
            marks = [] if (client, mechanism) in DEFAULT_RUN else [pytest.mark.full]
            yield pytest.param(client, mechanism, marks=marks, id=f"{client}-{mechanism}")


@pytest.mark.parametrize(("client", "mechanism"), [*matrix()])
def test_records_after_a_log_in(secured: Secured, client: str, mechanism: str, name: str) -> None:
    secured.broker.create_topic(name)
    assert CLIENTS[client](LogIn(secured.address, mechanism, "alice", PASSWORD), name) == RECORDS


def test_a_user_of_a_jaas_line(secured: Secured, name: str) -> None:
    secured.broker.create_topic(name)
    assert confluent(LogIn(secured.address, "PLAIN", "carol", JAAS_PASSWORD).confluent(), name) == RECORDS


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_is_an_authentication_error(secured: Secured, mechanism: str) -> None:
    errors: list[Any] = []
    log_in = LogIn(secured.address, mechanism, "alice", WRONG)
    client = AdminClient({**log_in.confluent(), "error_cb": errors.append})
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        client.poll(0.1)
        if any(error.code() == ClientError._AUTHENTICATION for error in errors):
            return
    raise AssertionError(errors)


def test_a_client_renews_its_session(secured: Secured, name: str) -> None:
    """librdkafka logs in again on the living connection, before its session ends."""
    secured.broker.create_topic(name)
    errors: list[Any] = []
    log_in = LogIn(secured.short, "SCRAM-SHA-256", "alice", PASSWORD)
    producer = Producer({**log_in.confluent(), "error_cb": errors.append})
    ends = time.monotonic() + 5
    sent = 0
    delivered: list[Any] = []
    while time.monotonic() < ends:
        producer.produce(name, b"x", on_delivery=lambda error, _: delivered.append(error))
        sent += 1
        producer.poll(0.05)
    assert producer.flush(PATIENCE_S) == 0
    assert delivered == [None] * sent
    assert not errors


def test_an_administration_client_manages_users(secured: Secured) -> None:
    admin = AdminClient(LogIn(secured.address, "SCRAM-SHA-512", "alice", PASSWORD).confluent())
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 5000)
    alter(admin, UserScramCredentialUpsertion("dave", info, b"canary-dave"))
    found = admin.describe_user_scram_credentials(["dave"])["dave"].result(PATIENCE_S)
    assert [(each.mechanism, each.iterations) for each in found.scram_credential_infos] == [
        (ScramMechanism.SCRAM_SHA_256, 5000)
    ]
    alter(admin, UserScramCredentialDeletion("dave", ScramMechanism.SCRAM_SHA_256))
    with pytest.raises(KafkaException):
        admin.describe_user_scram_credentials(["dave"])["dave"].result(PATIENCE_S)


@pytest.mark.parametrize("command", ["delete", "alter"])
def test_a_user_is_out_at_once(secured: Secured, name: str, command: str, tmp_path: Path) -> None:
    """Clients on every listener lose their connections, and cannot log in again. Others stay."""
    broker = secured.broker
    broker.create_topic(name)
    run = partial(kbroker, broker, password=tmp_path / "password")
    (tmp_path / "password").write_text("canary-erin")
    run("create", "erin")
    errors: dict[str, list[int]] = {"erin": [], "alice": []}
    users = {"erin": "canary-erin", "alice": PASSWORD}
    consumers = []
    for user, password in users.items():
        for address in (secured.address, secured.short):
            settings = {
                **LogIn(address, "SCRAM-SHA-256", user, password).confluent(),
                "group.id": f"{name}-{user}-{address[-5:]}",
                "error_cb": lambda error, user=user: errors[user].append(error.code()),
            }
            consumer = Consumer(settings)
            consumer.subscribe([name])
            consumers.append(consumer)
    until(lambda: all([consumer.poll(0.05) is None and consumer.assignment() for consumer in consumers]))
    (tmp_path / "password").write_text("canary-of-later")
    run(command, "erin", "--disconnect")
    until(
        lambda: (
            [consumer.poll(0.05) for consumer in consumers]
            and errors["erin"].count(ClientError._AUTHENTICATION) >= 2
        )
    )
    assert errors["alice"] == []
    for consumer in consumers:
        consumer.close()


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline


def kbroker(broker: RunningBroker, command: str, user: str, *more: str, password: Path) -> None:
    """`kbroker users`, at the plain listener."""
    given = () if command == "delete" else ("--password-file", str(password))
    assert cli.run(["users", command, user, *given, *more, "-b", broker.bootstrap]) == OK


def test_passwords_are_nowhere(secured: Secured) -> None:
    """After all of the above, in whatever order: in no file, no log at debug level, no argument,
    and no answer about settings."""
    broker = secured.broker
    with broker.connect() as connection:
        resource = [{"resource_type": 4, "resource_name": "1", "configuration_keys": None}]
        described = connection.call(
            "describe_configs", 4, resources=resource, include_synonyms=True, include_documentation=True
        )
    (row,) = [each for each in described.results[0].configs if each.name == "sasl.jaas.config"]
    assert (row.value, row.is_sensitive) == (None, True)
    places = {
        "settings": repr(described).encode(),
        "log": broker.logs().encode(),
        "arguments": Path(f"/proc/{broker.pid}/cmdline").read_bytes(),
        **{str(path): path.read_bytes() for path in broker.data_dir.rglob("*") if path.is_file()},
    }
    assert [place for place, content in places.items() if b"canary" in content] == []
