"""The admin endpoint of a broker in its own process: HTTPS, log-ins over sockets, and the commands
that read it."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlencode

import pytest

from kbroker.cli import run
from kbroker.cli.exits import OK, REFUSED, UNREACHABLE, USAGE
from kbroker.client import admin_endpoint
from kbroker.client.broker_process import BrokerStartFailed, RunningBroker
from kbroker.server.admin_requests import MAX_BODY_BYTES
from tests.certificates import Authority

INFLIGHT = ["share-groups", "inflight", "workers"]
PASSWORD = "canary-of-alice"
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


Start = Callable[..., RunningBroker]


@pytest.fixture
def start(tmp_path: Path, authority: Authority) -> Iterator[Start]:
    """Starts a broker with HTTPS; `_` in a setting stands for a dot. With `users`, alice is one."""
    brokers: list[RunningBroker] = []
    location = tmp_path / "server.pem"
    location.write_bytes(authority.server().pem())

    def started(*, users: bool = False, **settings: str) -> RunningBroker:
        config = {
            "kbroker.admin.protocol": "SSL",
            "listener.name.admin.ssl.keystore.location": str(location),
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        home = tmp_path / "broker"
        home.mkdir(exist_ok=True)
        if users:
            (tmp_path / "password").write_text(PASSWORD)
            made = ["users", "create", "alice", "--password-file", str(tmp_path / "password")]
            assert run([*made, "--data-dir", str(home / "data")]) == OK
        broker = RunningBroker(home, config=config, extra_args=["--admin", "0", "--log-level", "debug"])
        brokers.append(broker)
        broker.start()
        return broker

    yield started
    for broker in brokers:
        broker.kill()
        assert "canary" not in broker.logs()


def port_of(broker: RunningBroker) -> int:
    assert "admin https://127.0.0.1:" in broker.ready_line
    return int(broker.ready_line.rpartition(":")[2].rstrip(")"))


def ask(
    broker: RunningBroker,
    context: ssl.SSLContext,
    path: str = "/v1/users",
    method: str = "GET",
    body: bytes | None = None,
    **headers: str,
) -> tuple[int, bytes, http.client.HTTPResponse]:
    port = port_of(broker)
    with closing(http.client.HTTPSConnection("localhost", port, timeout=30, context=context)) as client:
        client.request(method, path, body, {name.replace("_", "-"): text for name, text in headers.items()})
        answer = client.getresponse()
        return answer.status, answer.read(), answer


@pytest.fixture
def context(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.file))


def test_the_same_views_over_https(start: Start, context: ssl.SSLContext) -> None:
    broker = start()
    status, body, _ = ask(broker, context, "/metrics")
    assert (status, b"\nkbroker_connections 0.0\n" in body) == (200, True)
    status, body, _ = ask(broker, context)
    assert (status, "admin-token" in json.loads(body)["error"]) == (401, True)
    with pytest.raises(ssl.SSLCertVerificationError):
        ask(broker, ssl.create_default_context())
    with closing(http.client.HTTPConnection("127.0.0.1", port_of(broker), timeout=30)) as client:
        client.request("GET", "/metrics")
        answer = client.getresponse()
        assert (answer.status, answer.read()) == (400, b"This port speaks HTTPS: use https://\n")
    with socket.create_connection(("127.0.0.1", port_of(broker))) as silent:
        silent.sendall(b"\x16\x03\x01\x00\x05hello")
        assert silent.recv(100)[:1] in (b"", b"\x15"), "an alert, or the end"
    assert ask(broker, context, "/metrics")[0] == 200
    broker.stop()
    logs = broker.logs()
    assert "use https://" in logs
    assert "its TLS handshake failed" in logs


def test_http_at_the_kafka_port_names_the_url(start: Start) -> None:
    broker = start()
    with closing(http.client.HTTPConnection(broker.host, broker.port, timeout=30)) as client:
        client.request("GET", "/metrics")
        assert f"https://127.0.0.1:{port_of(broker)}/".encode() in client.getresponse().read()


def test_a_new_certificate_is_taken(
    start: Start, authority: Authority, context: ssl.SSLContext, tmp_path: Path
) -> None:
    broker = start()

    def serial() -> str:
        with (
            socket.create_connection(("127.0.0.1", port_of(broker))) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secured,
        ):
            return str((secured.getpeercert() or {})["serialNumber"])

    before = serial()
    (tmp_path / "server.pem").write_bytes(authority.server().pem())
    while serial() == before:
        assert broker.is_running


def test_no_certificate_is_one_line(start: Start) -> None:
    with pytest.raises(BrokerStartFailed, match=r"listener ADMIN: ssl\.keystore\.location"):
        start(**{"listener_name_admin_ssl_keystore_location": ""})


def test_a_browser_over_sockets(start: Start, context: ssl.SSLContext) -> None:
    broker = start(users=True)
    origin = {"origin": f"https://localhost:{port_of(broker)}"}
    form = urlencode({"user": "alice", "password": PASSWORD}).encode()
    kind = {"content_type": "application/x-www-form-urlencoded"}
    status, _, answer = ask(broker, context, "/log-in", "POST", form, **kind, **origin)
    assert (status, answer.getheader("location")) == (303, "/")
    cookie = answer.getheader("set-cookie") or ""
    assert cookie.startswith(f"__Host-kbroker-admin-{port_of(broker)}=")
    assert cookie.endswith("; Path=/; Max-Age=28800; HttpOnly; SameSite=Strict; Secure")
    status, body, _ = ask(broker, context, cookie=cookie.partition(";")[0])
    assert (status, json.loads(body)["users"][0]["user"]) == (200, "alice")
    assert ask(broker, context, "/log-in", "POST", form, **kind, origin="https://evil.example")[0] == 403
    for size, wanted in ((MAX_BODY_BYTES, 403), (MAX_BODY_BYTES + 1, 413)):
        status, _, answer = ask(broker, context, "/log-in", "POST", b"x" * size, **kind)
        assert (status, answer.will_close) == (wanted, wanted == 413)


def test_a_body_that_is_announced_first(start: Start, context: ssl.SSLContext) -> None:
    """Expect: 100-continue, and chunks."""
    broker = start(users=True)
    form = urlencode({"user": "alice", "password": PASSWORD}).encode()
    head = (
        b"POST /log-in HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
        b"Transfer-Encoding: chunked\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
    )
    with (
        socket.create_connection(("127.0.0.1", port_of(broker)), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secured,
    ):
        secured.sendall(head)
        assert secured.recv(1000).startswith(b"HTTP/1.1 100 ")
        for chunk in (form[:3], form[3:], b""):
            secured.sendall(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        assert secured.recv(1000).startswith(b"HTTP/1.1 303 ")


def test_client_certificates_are_principals(
    start: Start, authority: Authority, context: ssl.SSLContext, tmp_path: Path
) -> None:
    broker = start(
        listener_name_admin_ssl_client_auth="requested",
        ssl_truststore_location=str(authority.file),
        ssl_principal_mapping_rules="RULE:CN=(root|nobody),.*/$1/",
        authorizer_class_name=AUTHORIZER,
        super_users="User:root",
    )
    assert ask(broker, context)[0] == 401
    statuses = {}
    for name in ("root", "nobody", "other"):
        (tmp_path / name).write_bytes(authority.client(name).pem())
        with_certificate = ssl.create_default_context(cafile=str(authority.file))
        with_certificate.load_cert_chain(tmp_path / name)
        statuses[name] = ask(broker, with_certificate)[0]
    assert statuses == {"root": 200, "nobody": 403, "other": 403}


# -- the commands
# --------------------------------------------------------------------------------------------------


def test_commands_log_in(
    start: Start, authority: Authority, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    broker = start(users=True, authorizer_class_name=AUTHORIZER, super_users="User:alice")
    file = tmp_path / "client.properties"
    admin = f"https://localhost:{port_of(broker)}"

    def outcome(*lines: str, url: str = admin) -> tuple[int, str]:
        file.write_text("\n".join(("security.protocol=PLAINTEXT", *lines)))
        capfd.readouterr()
        code = run([*INFLIGHT, "--admin", url, "--command-config", str(file)])
        return code, capfd.readouterr().err

    trusted = f"ssl.ca.location={authority.file}"
    log_in = ("sasl.username=alice", f"sasl.password={PASSWORD}")
    code, errors = outcome(*log_in)
    assert (code, "is not trusted" in errors) == (UNREACHABLE, True), errors
    code, errors = outcome(trusted, *log_in)
    assert (code, errors) == (REFUSED, "kbroker: there is no share group workers\n")
    code, errors = outcome(trusted, "sasl.username=alice", "sasl.password=canary-wrong")
    assert (code, "the log-in failed" in errors) == (UNREACHABLE, True), errors
    assert "canary" not in errors
    code, errors = outcome(trusted, *log_in, url=f"http://localhost:{port_of(broker)}")
    assert (code, "Or does it speak https?" in errors) == (UNREACHABLE, True), errors
    code, errors = outcome("ssl.ca.location=/no/file", url=admin)
    assert (code, "/no/file" in errors) == (USAGE, True), errors


def test_commands_send_the_token(
    tmp_path: Path,
    start: Start,
    authority: Authority,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = start(authorizer_class_name=AUTHORIZER, super_users="User:root")
    monkeypatch.setenv("KBROKER_SECURITY_SSL_CA_LOCATION", str(authority.file))
    monkeypatch.setenv("KBROKER_SECURITY_PROTOCOL", "PLAINTEXT")
    monkeypatch.setenv("KBROKER_ADMIN", f"https://localhost:{port_of(broker)}")
    assert run(INFLIGHT) == UNREACHABLE
    assert "with kbroker.admin.token" in capfd.readouterr().err
    for _ in range(2):
        assert run(["admin", "token", "--data-dir", str(broker.data_dir)]) == OK
        token = (broker.data_dir / "admin-token").read_text().strip()
        assert capfd.readouterr().out == f"new token in {broker.data_dir}/admin-token\n"
        monkeypatch.setenv("KBROKER_SECURITY_ADMIN_TOKEN_FILE", str(broker.data_dir / "admin-token"))
        assert run(INFLIGHT) == REFUSED
        assert capfd.readouterr().err == "kbroker: there is no share group workers\n"
        assert token not in broker.logs()
    assert run(["admin", "token", "--data-dir", str(broker.data_dir), "--show"]) == OK
    assert capfd.readouterr().out == f"{token}\n"


def test_a_log_in_is_not_sent_in_clear(
    start: Start, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = start(users=True, kbroker_admin_protocol="PLAINTEXT", authorizer_class_name=AUTHORIZER)
    url = broker.ready_line.rpartition("admin ")[2].rstrip(")")
    file = tmp_path / "client.properties"
    file.write_text(
        f"security.protocol=PLAINTEXT\nsasl.username=alice\nsasl.password={PASSWORD}\n"
        "kbroker.admin.token=canary-token\n"
    )
    monkeypatch.setattr(admin_endpoint, "_is_this_machine", lambda _: False)
    assert run([*INFLIGHT, "--admin", url, "--command-config", str(file)]) == UNREACHABLE
    assert "use --admin https://" in capfd.readouterr().err
    assert "log-in of" not in broker.logs()
    monkeypatch.undo()
    assert run([*INFLIGHT, "--admin", url, "--command-config", str(file)]) == REFUSED
    assert "kbroker: this user lacks DESCRIBE on group " in capfd.readouterr().err
