"""The log-ins and the requests about users of this client, judged by a real Apache Kafka.

Needs Java and Maven, as tests/differential does; without them the tests are skipped.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.cli import run
from kbroker.cli.exits import OK, UNREACHABLE
from kbroker.client import acl_admin, user_admin
from kbroker.client.broker_process import free_port
from kbroker.client.rpc import BrokerUnreachable, Connection
from kbroker.client.security import ClientSecurity
from kbroker.client.unreachable import NotAuthenticated
from kbroker.errors import KafkaError
from kbroker.formats.security_values import ScramMechanism
from kbroker.security.acls import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from tests.client.certificates import Certificates, make_certificates
from tests.differential.apache_kafka import running_kafka

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        not (shutil.which("java") and shutil.which("mvn")), reason="Java and Maven are needed"
    ),
]
PORTS = {"SASL_PLAINTEXT": free_port(), "SSL": free_port(), "SASL_SSL": free_port()}
PASSWORD = "p,=\u00e4 \\"
JAAS = "org.apache.kafka.common.security"
ACL = Acl(
    ResourceType.TOPIC,
    PatternType.PREFIXED,
    "orders",
    "User:app",
    "*",
    Operation.READ,
    Permission.ALLOW,
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory, files: Certificates) -> Iterator[int]:
    """The port without security. The user alice has both mechanisms of SCRAM; PLAIN knows bob."""
    plain = free_port()
    with running_kafka(tmp_path_factory.mktemp("kafka"), _config(files, plain), port=plain) as port:
        with Connection("127.0.0.1", port) as connection:
            for each in ScramMechanism:
                user_admin.set_credential(connection, "alice", each, PASSWORD, 4096)
        yield port


def _config(files: Certificates, plain: int) -> dict[str, str]:
    addresses = {name: f"{name}://127.0.0.1:{port}" for name, port in {"PLAINTEXT": plain, **PORTS}.items()}
    controller = f"127.0.0.1:{free_port()}"
    config = {
        "listeners": ",".join([*addresses.values(), f"CONTROLLER://{controller}"]),
        "controller.quorum.voters": f"1@{controller}",
        "advertised.listeners": ",".join(addresses.values()),
        "listener.security.protocol.map": ",".join(
            ["CONTROLLER:PLAINTEXT", *(f"{each}:{each}" for each in addresses)]
        ),
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(files.server),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(files.ca),
        "listener.name.ssl.ssl.client.auth": "required",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "connections.max.reauth.ms": "3000",
    }
    for name in ("sasl_plaintext", "sasl_ssl"):
        prefix = f"listener.name.{name}"
        config[f"{prefix}.plain.sasl.jaas.config"] = (
            f'{JAAS}.plain.PlainLoginModule required user_bob="secret";'
        )
        for mechanism in ("scram-sha-256", "scram-sha-512"):
            config[f"{prefix}.{mechanism}.sasl.jaas.config"] = f"{JAAS}.scram.ScramLoginModule required;"
    return config


def log_in(protocol: str, mechanism: str, files: Certificates, **changed: str) -> Connection:
    user, password = ("bob", "secret") if mechanism == "PLAIN" else ("alice", PASSWORD)
    settings = {
        "security.protocol": protocol,
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": changed.get("password", password),
        "ssl.ca.location": str(files.ca),
    }
    return Connection("127.0.0.1", PORTS[protocol], security=ClientSecurity.of(settings))


def list_groups(connection: Connection) -> object:
    return connection.call("list_groups", 4, states_filter=()).groups


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_log_ins(kafka: int, files: Certificates, protocol: str, mechanism: str) -> None:
    with log_in(protocol, mechanism, files) as connection:
        assert list_groups(connection) == ()
    with pytest.raises(NotAuthenticated, match=r"SASL authentication failed: .*[Ii]nvalid"):
        log_in(protocol, mechanism, files, password="wrong")


def test_a_log_in_is_renewed(kafka: int, files: Certificates) -> None:
    """The broker closes a connection whose log-in has ended (after 3 s)."""
    with log_in("SASL_PLAINTEXT", "SCRAM-SHA-256", files) as connection:
        begun_s = connection._renewal_s
        while connection._renewal_s < begun_s + 4:
            list_groups(connection)


def test_client_certificates(kafka: int, files: Certificates) -> None:
    known = {"security.protocol": "SSL", "ssl.ca.location": str(files.ca)}
    security = ClientSecurity.of({**known, "ssl.keystore.location": str(files.client)})
    with Connection("127.0.0.1", PORTS["SSL"], security=security) as connection:
        assert connection.served_versions()
    for without in (known, {**known, "ssl.keystore.location": str(files.stranger)}):
        with (
            pytest.raises(BrokerUnreachable, match="client"),
            Connection("127.0.0.1", PORTS["SSL"], security=ClientSecurity.of(without)) as connection,
        ):
            connection.served_versions()


def test_the_wrong_protocol(kafka: int, files: Certificates) -> None:
    """Each combination is one line that names the setting."""
    for port in PORTS.values():
        with (
            Connection("127.0.0.1", port) as connection,
            pytest.raises(BrokerUnreachable, match=r"give --command-config with security\.protocol"),
        ):
            list_groups(connection)
    security = ClientSecurity.of({"security.protocol": "SSL", "ssl.ca.location": str(files.ca)})
    for port in (kafka, PORTS["SASL_PLAINTEXT"]):
        with pytest.raises(BrokerUnreachable, match="is it a listener without TLS"):
            Connection("127.0.0.1", port, security=security)


def test_users_and_entries(kafka: int) -> None:
    with Connection("127.0.0.1", kafka) as connection:
        user_admin.set_credential(connection, "carol", ScramMechanism.SHA_512, "x", 8192)
        found = user_admin.list_credentials(connection)
        assert [each for each in found if each.user == "carol"] == [("carol", 2, 8192)]
        user_admin.delete_credential(connection, "carol", ScramMechanism.SHA_512)
        with pytest.raises(KafkaError, match="resource_not_found"):
            user_admin.delete_credential(connection, "carol", ScramMechanism.SHA_512)
        assert acl_admin.create(connection, [ACL]) == [None]
        assert ACL in acl_admin.describe(connection, AclFilter())
        assert acl_admin.delete(connection, [ACL]) == [None]
        assert ACL not in acl_admin.describe(connection, AclFilter())


def test_commands(kafka: int, files: Certificates, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Also those that use librdkafka."""
    password = tmp_path / "password"
    password.write_text("canary-word")
    plain, secured = ["-b", f"127.0.0.1:{kafka}"], ["-b", f"127.0.0.1:{PORTS['SASL_SSL']}"]
    assert run(["users", "create", "app", "--password-file", str(password), *plain]) == OK
    assert run(["acls", "add", "--producer", "--user", "app", "-t", "jobs", *plain]) == OK
    assert run(["acls", "add", "--consumer", "--user", "app", "-t", "jobs", "-g", "g", *plain]) == OK
    assert run(["topics", "create", "jobs", *plain]) == OK
    config = tmp_path / "client.properties"
    config.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-256\n"
        f"sasl.jaas.config={JAAS}.scram.ScramLoginModule required \\\n"
        '  username="app" \\\n  password="canary-word";\n'
        f"ssl.truststore.type=PEM\nssl.truststore.location={files.ca}\n"
    )
    (tmp_path / "lines").write_text("one\ntwo\n")
    secured += ["--command-config", str(config)]
    assert run(["produce", "jobs", str(tmp_path / "lines"), *secured]) == OK
    capfd.readouterr()
    assert run(["consume", "jobs", "--from", "earliest", "-n", "2", *secured]) == OK
    assert capfd.readouterr().out == "one\ntwo\n"
    config.write_text(config.read_text().replace("canary-word", "canary-wrong"))
    assert run(["produce", "jobs", str(tmp_path / "lines"), *secured]) == UNREACHABLE
    output = capfd.readouterr()
    assert "SASL authentication failed" in output.err
    assert "canary" not in output.err
