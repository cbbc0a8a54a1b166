"""`kbroker tls init`: certificates with which real handshakes succeed, and files that others cannot
read."""

from __future__ import annotations

import re
import socket
import ssl
import sys
from pathlib import Path

import pytest

from kbroker.cli import run
from kbroker.cli.exits import OK, REFUSED, USAGE
from kbroker.client.rpc import Connection
from kbroker.client.security import ClientSecurity
from kbroker.settings.properties import read_properties
from tests.client.fake_broker import fake_broker
from tests.client.sasl_answers import SaslAnswers


def server(folder: Path, *, required: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    if required:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(folder / "ca.pem")
    return context


def test_files_and_their_modes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new" / "certificates"
    assert run(["tls", "init", str(folder), "--client", "alice", "--client", "bob@example.org"]) == OK
    names = ["ca.key", "ca.pem", "client-alice.pem", "client-bob@example.org.pem", "server.pem"]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert "PRIVATE" not in capsys.readouterr().out


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_handshake(host: str, tmp_path: Path) -> None:
    assert run(["tls", "init", str(tmp_path)]) == OK
    security = ClientSecurity.of({"security.protocol": "SSL", "ssl.ca.location": str(tmp_path / "ca.pem")})
    with (
        fake_broker(SaslAnswers(), server(tmp_path)) as broker,
        Connection(host, broker.port, security=security) as connection,
    ):
        assert connection.served_versions()


def test_the_names_of_the_broker(tmp_path: Path) -> None:
    from cryptography import x509

    assert run(["tls", "init", str(tmp_path), "--name", "b.example.org", "--name", "10.1.2.3"]) == OK
    certificate = x509.load_pem_x509_certificate((tmp_path / "server.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["b.example.org", "localhost", socket.gethostname()]
    addresses = [str(each) for each in names.get_values_for_type(x509.IPAddress)]
    assert addresses == ["10.1.2.3", "127.0.0.1", "::1"]


def test_the_lines_for_clients_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tls", "init", str(tmp_path), "--client", "alice"]) == OK
    _, broker_lines, client_lines = capsys.readouterr().out.split("\n\n")
    settings = read_properties(broker_lines, "broker")
    assert settings["ssl.client.auth"] == "required"
    assert settings["ssl.keystore.location"] == str(tmp_path / "server.pem")
    assert settings["listeners"] == "SSL://127.0.0.1:9093"
    security = ClientSecurity.of(read_properties(client_lines, "client"))
    with (
        fake_broker(SaslAnswers(), server(tmp_path, required=True)) as broker,
        Connection("localhost", broker.port, security=security) as connection,
    ):
        assert connection.served_versions()
        subject = dict(part[0] for part in _peer_certificate(tmp_path, security)["subject"])
    assert subject == {"commonName": "alice"}


def test_without_client_certificates_users_log_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tls", "init", str(tmp_path), "--name", "2001:db8::1"]) == OK
    _, broker_lines, client_lines = capsys.readouterr().out.split("\n\n")
    settings = read_properties(broker_lines, "broker")
    assert settings["listeners"] == "SASL_SSL://[::]:9093"
    assert settings["advertised.listeners"] == "SASL_SSL://[2001:db8::1]:9093"
    assert settings["sasl.enabled.mechanisms"] == "SCRAM-SHA-256"
    found = ClientSecurity.of(read_properties(client_lines, "client"), lambda user: "typed")
    assert found.login is not None
    assert (found.login.username, found.login.mechanism) == ("NAME", "SCRAM-SHA-256")


def test_existing_files_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "server.pem").write_text("mine")
    assert run(["tls", "init", str(tmp_path)]) == REFUSED
    assert f"{tmp_path / 'server.pem'} exists, and is not replaced" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["server.pem"]
    assert (tmp_path / "server.pem").read_text() == "mine"


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("--name", "b c", "is neither a host name nor an IP address"),
        ("--client", "../x", "is not a name of at most 64"),
        ("--days", "0", "is not in the range"),
    ],
)
def test_wrong_values(
    option: str, value: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["tls", "init", str(tmp_path), option, value]) == USAGE
    assert text in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_without_the_package(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "kbroker.client.certificates", raising=False)
    monkeypatch.setattr(sys.modules["kbroker.client"], "certificates", None, raising=False)
    monkeypatch.delattr(sys.modules["kbroker.client"], "certificates")
    monkeypatch.setitem(sys.modules, "cryptography", None)
    assert run(["tls", "init", str(tmp_path)]) == USAGE
    assert re.search(r"pip install cryptography", capsys.readouterr().err)


def _peer_certificate(
    folder: Path, security: ClientSecurity
) -> dict[str, tuple[tuple[tuple[str, str], ...]]]:
    """The client's certificate as a broker sees it."""
    import threading

    from kbroker.client.tls import wrapped

    listener = socket.create_server(("127.0.0.1", 0))
    found = {}

    def serve() -> None:
        peer, _ = listener.accept()
        with server(folder, required=True).wrap_socket(peer, server_side=True) as secured:
            found.update(secured.getpeercert() or {})

    thread = threading.Thread(target=serve)
    thread.start()
    plain = socket.create_connection(listener.getsockname())
    assert security.tls is not None
    with wrapped(plain, "localhost", "localhost", security.tls):
        thread.join()
    listener.close()
    return found
