"""Every secret that a broker is given or sent stays where it must be: passwords of users (SCRAM,
PLAIN, JAAS), of keys (PEM, PKCS12), private keys, bearer tokens, the secret of a client at its
issuer, and the admin token. Right and wrong ones are used, and then looked for in the files of the
data directory, the log at debug level, command lines, answers about settings, metrics, inspections,
and what a crash prints."""

from __future__ import annotations

import base64
import http.client
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from kbroker.cli import run
from kbroker.cli.exits import OK
from kbroker.client.rpc import BrokerUnreachable, Connection
from kbroker.client.security import ClientSecurity
from kbroker.client.unreachable import NotAuthenticated
from kbroker.storage.admin_token import ADMIN_TOKEN
from kbroker.testing.broker import BrokerStartFailed, RunningBroker, free_port
from tests.canaries import command_lines, files_in, places_with
from tests.certificates import Authority
from tests.security.tokens import AUDIENCE, ISSUER, claims, key_set, public, rsa, signed
from tests.server.issuer import CLIENT_ID, CLIENT_SECRET, Issuer, open_issuer

STORED, JAAS_PASSWORD, WRONG = "canary-stored-password", "canary-jaas-password", "canary-wrong-password"
PEM_PASSWORD, PKCS12_PASSWORD = "canary-pem-password", "canary-pkcs12-password"
WRONG_ADMIN_TOKEN = "canary-wrong-admin-token"
JAAS = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_carol="{JAAS_PASSWORD}";'
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
DEFECT = "a defect of the log-in"
CRASHING = f"""
from kbroker.broker.security.log_in import LogIn
from kbroker.cli import main

async def defect(*_):
    raise RuntimeError("{DEFECT}")

LogIn._derived = LogIn._checked = defect
main()
"""
PATIENCE_S = 60


class World(NamedTuple):
    """`ports`: by the names of the listeners. `key`: a line of a private key in the settings."""

    broker: RunningBroker
    ports: dict[str, int]
    folder: Path
    authority: Authority
    issuer: Issuer
    key: bytes

    def security(self, mechanism: str, **given: str) -> ClientSecurity:
        settings = {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.authority.file),
            "sasl.mechanism": mechanism,
            **{f"sasl.{name.replace('_', '.')}": value for name, value in given.items()},
        }
        return ClientSecurity.of(settings)

    def connect(self, mechanism: str, listener: str = "pem", **given: str) -> Connection:
        security = self.security(mechanism, **given)
        return Connection("127.0.0.1", self.ports[listener], timeout_s=PATIENCE_S, security=security)

    def ask_admin(self, path: str, authorization: str) -> tuple[int, bytes]:
        found = re.search(r"admin http://127\.0\.0\.1:(\d+)", self.broker.ready_line)
        assert found is not None
        port = int(found[1])
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)) as client:
            client.request("GET", path, headers={"Authorization": authorization})
            answer = client.getresponse()
            return answer.status, answer.read()

    def file(self, name: str, text: str) -> str:
        path = self.folder / name
        path.touch(mode=0o600)
        path.write_text(text)
        return str(path)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("secrets")
    authority = Authority(folder)
    (folder / "issuer.pem").write_bytes(authority.server().pem())
    with open_issuer(folder / "issuer.pem") as issuer, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(authority.file))
        found = opened(folder, authority, issuer)
        try:
            yield found
        finally:
            found.broker.kill()


def opened(
    folder: Path,
    authority: Authority,
    issuer: Issuer,
    command: list[str] | None = None,
    **changed: str,
) -> World:
    """With a broker that is not started."""
    names = ("plain", "pem", "pkcs12", "given")
    ports = {name: free_port() for name in names}
    pair = authority.server()
    (folder / "server.pem").write_bytes(pair.pem(PEM_PASSWORD.encode()))
    (folder / "server.p12").write_bytes(pair.pkcs12(PKCS12_PASSWORD.encode()))
    (folder / "keys.json").write_bytes(key_set(public(rsa("a"))))
    config = {
        "listeners": ",".join(f"{name.upper()}://127.0.0.1:{port}" for name, port in ports.items()),
        "listener.security.protocol.map": "PLAIN:PLAINTEXT,PEM:SASL_SSL,PKCS12:SASL_SSL,GIVEN:SASL_SSL",
        "listener.name.pem.ssl.keystore.location": str(folder / "server.pem"),
        "listener.name.pem.ssl.key.password": PEM_PASSWORD,
        "listener.name.pkcs12.ssl.keystore.location": str(folder / "server.p12"),
        "listener.name.pkcs12.ssl.keystore.type": "PKCS12",
        "listener.name.pkcs12.ssl.keystore.password": PKCS12_PASSWORD,
        "listener.name.given.ssl.keystore.certificate.chain": in_one_line(pair.certificate_pem()),
        "listener.name.given.ssl.keystore.key": in_one_line(pair.key_pem()),
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "sasl.jaas.config": JAAS,
        "sasl.oauthbearer.jwks.endpoint.url": (folder / "keys.json").as_uri(),
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "connection.failed.authentication.delay.ms": "10",
        **changed,
    }
    arguments = ["--admin", "0", "--log-level", "debug"]
    broker = RunningBroker(folder, port=ports["plain"], config=config, extra_args=arguments, command=command)
    return World(broker, ports, folder, authority, issuer, pair.key_pem().splitlines()[1])


def in_one_line(pem: bytes) -> str:
    return pem.decode().strip().replace("\n", "\\n")


def tokens() -> tuple[str, str]:
    """A right and a wrong one."""
    return signed(rsa("a"), claims(time.time())), signed(rsa("wrong"), claims(time.time()), kid="a")


def use_passwords(world: World) -> None:
    for mechanism in MECHANISMS[:3]:
        for listener in ("pem", "pkcs12", "given"):
            with world.connect(mechanism, listener, username="alice", password=STORED) as connection:
                assert connection.call("metadata", 7, topics=None, allow_auto_topic_creation=False).brokers
        with pytest.raises(NotAuthenticated) as caught:
            world.connect(mechanism, username="alice", password=WRONG)
        assert WRONG not in str(caught.value)
    world.connect("PLAIN", username="carol", password=JAAS_PASSWORD).close()


def use_tokens(world: World, right: str, wrong: str) -> None:
    url = "oauthbearer_token_endpoint_url"
    world.connect("OAUTHBEARER", **{url: Path(world.file("right", right)).as_uri()}).close()
    with pytest.raises(NotAuthenticated) as caught:
        world.connect("OAUTHBEARER", **{url: Path(world.file("wrong", wrong)).as_uri()})
    assert wrong not in str(caught.value)


def use_the_admin_endpoint(world: World) -> str:
    """As long as there are no users. Returns the token."""
    assert world.ask_admin("/v1/users", f"Bearer {WRONG_ADMIN_TOKEN}")[0] == 401
    file = world.broker.data_dir / ADMIN_TOKEN
    assert file.stat().st_mode & 0o777 == 0o600
    token = file.read_text().strip()
    assert world.ask_admin("/v1/users", f"Bearer {token}")[0] == 200
    return token


def use_commands(world: World) -> str:
    """Each in a process of its own, and processes that they start. Returns all that they print."""
    secret_file = world.file("client-secret", CLIENT_SECRET)
    oidc = {
        "KBROKER_SECURITY_PROTOCOL": "SASL_SSL",
        "KBROKER_SECURITY_SSL_CA_LOCATION": str(world.authority.file),
        "KBROKER_SECURITY_SASL_MECHANISM": "OAUTHBEARER",
        "KBROKER_SECURITY_SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL": world.issuer.url("token"),
        "KBROKER_SECURITY_SASL_OAUTHBEARER_CLIENT_ID": CLIENT_ID,
        "KBROKER_SECURITY_SASL_OAUTHBEARER_CLIENT_SECRET_FILE": secret_file,
    }
    secured = f"127.0.0.1:{world.ports['pem']}"
    commands = {
        "kbroker topics create orders": oidc,
        "kbroker produce orders " + world.file("lines", "one\n"): oidc,
        "perf.workloads produce --seconds 0.2 --warm-up 0": oidc,
        "kbroker configs describe --broker 1": oidc,
        f"kbroker storage inspect {world.broker.data_dir} --json": None,
        f"kbroker storage inspect {world.broker.data_dir} --segments --check": None,
    }
    printed = []
    for command, environment in commands.items():
        line = [sys.executable, "-m", *command.split()]
        line += [] if environment is None else ["-b", secured]
        found = subprocess.run(
            line,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert found.returncode == OK, (command, found.stderr)
        printed.append(found.stdout + found.stderr)
    return "".join(printed)


def described(world: World) -> str:
    resource = [{"resource_type": 4, "resource_name": "1", "configuration_keys": None}]
    with world.broker.connect() as connection:
        answer = connection.call(
            "describe_configs", 4, resources=resource, include_synonyms=True, include_documentation=True
        )
    rows = {row.name: row for row in answer.results[0].configs}
    assert {row.value for row in rows.values() if row.is_sensitive} == {None}
    assert rows["ssl.key.password"].is_sensitive
    return repr(answer)


def test_secrets_are_nowhere(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    broker, (right, wrong) = world.broker, tokens()
    broker.start()
    arguments = Path(f"/proc/{broker.pid}/cmdline").read_bytes()
    admin_token = use_the_admin_endpoint(world)
    password = world.file("password", STORED)
    create = ["users", "create", "alice", "--mechanism", "SCRAM-SHA-256", "--mechanism", "SCRAM-SHA-512"]
    assert run([*create, "--password-file", password, "-b", broker.bootstrap]) == OK
    use_passwords(world)
    use_tokens(world, right, wrong)
    with command_lines() as seen:
        printed = use_commands(world) + "".join(capfd.readouterr())
    metrics = world.ask_admin("/metrics", basic("alice", STORED))
    users = world.ask_admin("/v1/users", basic("alice", STORED))
    refused = world.ask_admin("/v1/users", basic("alice", WRONG))
    settings = described(world)
    broker.tell_stacks()
    broker.stop()
    assert (metrics[0], users[0], refused[0]) == (200, 200, 401)
    assert b'mechanism="OAUTHBEARER"' in metrics[1]
    assert "Current thread" in broker.logs()
    secrets = [STORED, JAAS_PASSWORD, WRONG, PEM_PASSWORD, PKCS12_PASSWORD, WRONG_ADMIN_TOKEN, CLIENT_SECRET]
    secrets += [admin_token, *right.split(".")[1:], *wrong.split(".")[1:]]
    files = files_in(broker.data_dir)
    own_file = {"its own file": files.pop(str(broker.data_dir / ADMIN_TOKEN))}
    assert places_with([admin_token.encode()], own_file)
    places = {
        "the log": broker.logs().encode(),
        "a command line": b"\n".join((arguments, *seen)),
        "the output of commands": printed.encode(),
        "metrics": metrics[1],
        "users": users[1],
        "a refusal": refused[1],
        "DescribeConfigs": settings.encode(),
        **files,
    }
    assert any(b"topics" in line for line in seen)
    assert places_with([world.key, *map(str.encode, secrets)], places) == []


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.mark.parametrize("kind", ["ssl.key.password", "ssl.keystore.password", "sasl.jaas.config"])
def test_a_start_that_fails_prints_no_secret(world: World, tmp_path: Path, kind: str) -> None:
    listener = "pem" if kind == "ssl.key.password" else "pkcs12"
    world = opened(tmp_path, world.authority, world.issuer, **{f"listener.name.{listener}.{kind}": WRONG})
    broker = world.broker
    with pytest.raises(BrokerStartFailed) as caught:
        broker.start()
    secrets = (WRONG, JAAS_PASSWORD, PEM_PASSWORD, PKCS12_PASSWORD)
    places = {"the error": str(caught.value).encode(), "the log": broker.logs().encode()}
    assert places_with([world.key, *map(str.encode, secrets)], places) == []
    assert kind in broker.logs() or "ssl.keystore.location" in broker.logs()


@pytest.mark.parametrize("mechanism", MECHANISMS[:1] + MECHANISMS[3:])
def test_a_crash_prints_no_secret(world: World, tmp_path: Path, mechanism: str) -> None:
    """A defect in the middle of a log-in: the traceback has no values."""
    token, _ = tokens()
    world = opened(tmp_path, world.authority, world.issuer, command=[sys.executable, "-c", CRASHING])
    broker = world.broker
    given = {"username": "carol", "password": JAAS_PASSWORD}
    if mechanism == "OAUTHBEARER":
        given = {"oauthbearer_token_endpoint_url": Path(world.file("right", token)).as_uri()}
    broker.start()
    try:
        with pytest.raises(BrokerUnreachable):
            world.connect(mechanism, **given)
        deadline = time.monotonic() + PATIENCE_S
        while DEFECT not in broker.logs():
            assert time.monotonic() < deadline
    finally:
        broker.kill()
    assert "Traceback" in broker.logs()
    secrets = (JAAS_PASSWORD, PEM_PASSWORD, PKCS12_PASSWORD, *token.split(".")[1:])
    places = {"the log": broker.logs().encode(), **files_in(broker.data_dir)}
    assert places_with([world.key, *map(str.encode, secrets)], places) == []
