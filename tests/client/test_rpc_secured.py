"""The RPC client over TLS and SASL, against small servers on real sockets: what works, and the line
that a person reads when it does not."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from kbroker.client.rpc import BrokerUnreachable, Connection
from kbroker.client.security import ClientSecurity
from kbroker.client.unreachable import NotAuthenticated
from kbroker.errors import ErrorCode, OperatorError
from tests.client.certificates import Certificates, make_certificates
from tests.client.fake_broker import FakeBroker, fake_broker
from tests.client.sasl_answers import SASL_AUTHENTICATE, SASL_HANDSHAKE, SaslAnswers

LOGIN = {"security.protocol": "SASL_PLAINTEXT", "sasl.username": "alice", "sasl.password": "secret"}
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def server_context(certificate: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_ca)
    return context


def connect(broker: FakeBroker, host: str = "127.0.0.1", **settings: Any) -> Connection:
    given = {name.replace("_", "."): str(value) for name, value in settings.items()}
    return Connection(host, broker.port, timeout_s=5, security=ClientSecurity.of(given))


def log_in(broker: FakeBroker, mechanism: str, **changed: str) -> Connection:
    settings = {**LOGIN, "sasl.mechanism": mechanism, **{k.replace("_", "."): v for k, v in changed.items()}}
    return Connection("127.0.0.1", broker.port, timeout_s=5, security=ClientSecurity.of(settings))


def plain_answers() -> SaslAnswers:
    """Those of a listener without SASL."""
    answers = SaslAnswers()
    answers._is_in = True
    return answers


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_tls(files: Certificates, host: str) -> None:
    with (
        fake_broker(plain_answers(), server_context(files.server)) as broker,
        connect(broker, host, security_protocol="SSL", ssl_ca_location=files.ca) as connection,
    ):
        assert connection.call("metadata", topics=None, **_NO_OPERATIONS).topics == ()


def test_a_client_certificate(files: Certificates) -> None:
    with fake_broker(plain_answers(), server_context(files.server, files.ca)) as broker:
        known = {"security_protocol": "SSL", "ssl_ca_location": files.ca}
        with connect(broker, **known, ssl_keystore_location=files.client) as connection:
            assert connection.served_versions()
        with (
            pytest.raises(BrokerUnreachable, match=r"requires a client certificate[:,] add ssl\.certificate"),
            connect(broker, **known) as connection,
        ):
            connection.served_versions()
        with (
            pytest.raises(
                BrokerUnreachable,
                match=r"does not trust the authority of this client's|may not accept this client's",
            ),
            connect(broker, **known, ssl_keystore_location=files.stranger) as connection,
        ):
            connection.served_versions()


def test_certificates_that_are_not_accepted(files: Certificates) -> None:
    trusted = {"security_protocol": "SSL", "ssl_ca_location": files.ca}
    with fake_broker(plain_answers(), server_context(files.server)) as broker:
        for more in ({"ssl_ca_location": files.other_ca}, {}):
            with pytest.raises(
                BrokerUnreachable,
                match=rf"certificate of 127.0.0.1:{broker.port} is not trusted .*--command-config with ssl",
            ):
                connect(broker, security_protocol="SSL", **more)
    with (
        fake_broker(plain_answers(), server_context(files.expired)) as broker,
        pytest.raises(BrokerUnreachable, match="has expired"),
    ):
        connect(broker, **trusted)
    with fake_broker(plain_answers(), server_context(files.other_host)) as broker:
        with pytest.raises(BrokerUnreachable, match=r"is for another host \(IP address mismatch"):
            connect(broker, **trusted)
        with pytest.raises(BrokerUnreachable, match=r"is for another host \(Hostname mismatch"):
            connect(broker, "localhost", **trusted)
        with connect(broker, **trusted, ssl_endpoint_identification_algorithm="") as connection:
            assert connection.served_versions()


def test_without_the_check_of_names_the_authority_is_still_checked(files: Certificates) -> None:
    with (
        fake_broker(plain_answers(), server_context(files.server)) as broker,
        pytest.raises(BrokerUnreachable, match="is not trusted"),
    ):
        connect(
            broker,
            security_protocol="SSL",
            ssl_ca_location=files.other_ca,
            ssl_endpoint_identification_algorithm="",
        )


def test_a_plain_client_at_a_tls_listener(files: Certificates) -> None:
    with (
        fake_broker(plain_answers(), server_context(files.server)) as broker,
        connect(broker) as connection,
        pytest.raises(BrokerUnreachable, match=r"(with TLS|TLS or SASL).*security\.protocol"),
    ):
        connection.served_versions()


def test_a_tls_client_at_a_plain_listener() -> None:
    security = ClientSecurity.of({"security.protocol": "SSL"})
    refused = pytest.raises(BrokerUnreachable, match="is it a listener without TLS")
    with socket.create_server(("127.0.0.1", 0)) as silent, refused:
        # kbroker waits for the rest of a frame of 369 MB.
        Connection("127.0.0.1", silent.getsockname()[1], timeout_s=0.2, security=security)
    for answer in (b"", b"\0\0\0\x08kafka ok"):
        with _answering(answer) as port, refused:
            Connection("127.0.0.1", port, security=security)


def test_a_key_that_does_not_fit(files: Certificates) -> None:
    pair = {"ssl_certificate_location": files.client, "ssl_key_location": files.stranger}
    with (
        fake_broker(plain_answers(), server_context(files.server)) as broker,
        pytest.raises(OperatorError, match=r"certificate and key cannot be used.*belong together"),
    ):
        connect(broker, security_protocol="SSL", **pair)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_log_in(mechanism: str) -> None:
    answers = SaslAnswers()
    with fake_broker(answers) as broker, log_in(broker, mechanism) as connection:
        assert connection.call("metadata", topics=None, **_NO_OPERATIONS).topics == ()
    assert answers.logins == ["alice"]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_log_in_over_tls(mechanism: str, files: Certificates) -> None:
    more = {"security_protocol": "SASL_SSL", "ssl_ca_location": str(files.ca)}
    with (
        fake_broker(SaslAnswers(), server_context(files.server)) as broker,
        log_in(broker, mechanism, **more) as connection,
    ):
        assert connection.call("metadata", topics=None, **_NO_OPERATIONS).topics == ()


@pytest.mark.parametrize("name", ["a=b,c", "žofie", "n=x"])
def test_names_and_passwords_are_any_text(name: str) -> None:
    for mechanism in MECHANISMS:
        answers = SaslAnswers(name, "p,=\u00e4 \\")
        with (
            fake_broker(answers) as broker,
            log_in(broker, mechanism, sasl_username=name, sasl_password="p,=\u00e4 \\"),
        ):
            assert answers.logins == [name]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_refused_log_in(mechanism: str) -> None:
    with fake_broker(SaslAnswers()) as broker:
        for changed in ({"sasl_username": "bob"}, {"sasl_password": "canary-guess"}):
            with pytest.raises(NotAuthenticated) as caught:
                log_in(broker, mechanism, **changed)
            text = str(caught.value)
            assert text.startswith("SASL authentication failed: Invalid username or password (user ")
            assert f"{mechanism}, 127.0.0.1:{broker.port})" in text
            assert "secret" not in text
            assert "canary" not in text


def test_a_broker_that_does_not_know_the_password_is_not_believed() -> None:
    answers = SaslAnswers()
    answers.forged_signature = True
    with fake_broker(answers) as broker, pytest.raises(NotAuthenticated, match="it is not the broker"):
        log_in(broker, "SCRAM-SHA-256")


def test_a_mechanism_that_is_not_offered() -> None:
    with (
        fake_broker(SaslAnswers(offered=("SCRAM-SHA-512", "PLAIN"))) as broker,
        pytest.raises(
            NotAuthenticated,
            match=r"does not offer SCRAM-SHA-256: set sasl\.mechanism; it offers SCRAM-SHA-512, PLAIN",
        ),
    ):
        log_in(broker, "SCRAM-SHA-256")


def test_a_client_with_a_log_in_at_a_listener_without() -> None:
    answers = SaslAnswers()
    answers.handshake_code = ErrorCode.illegal_sasl_state
    refused = r"is a listener without SASL: set security\.protocol to PLAINTEXT or SSL"
    with fake_broker(answers) as broker, pytest.raises(NotAuthenticated, match=refused):
        log_in(broker, "PLAIN")

    def knows_no_sasl(key: int, version: int, request: Any) -> dict[str, Any] | None:
        return {"error_code": ErrorCode.none, "api_keys": []}

    with fake_broker(knows_no_sasl) as broker, pytest.raises(NotAuthenticated, match=refused):
        log_in(broker, "PLAIN")


def test_a_client_without_a_log_in_at_a_listener_with_one() -> None:
    with (
        fake_broker(SaslAnswers()) as broker,
        connect(broker) as connection,
        pytest.raises(BrokerUnreachable, match=r"if its listener uses TLS or SASL, give --command-config"),
    ):
        connection.call("metadata", topics=None, **_NO_OPERATIONS)


def test_a_log_in_is_renewed_before_it_ends() -> None:
    answers = SaslAnswers(lifetime_ms=1)
    with fake_broker(answers) as broker, log_in(broker, "SCRAM-SHA-256") as connection:
        while len(answers.logins) < 3:  # The first request after 0.85 ms renews it.
            connection.call("metadata", topics=None, **_NO_OPERATIONS)
    keys = [key for key, _, _ in broker.requests]
    assert keys.count(SASL_HANDSHAKE) >= 3
    assert keys.count(SASL_AUTHENTICATE) == 2 * keys.count(SASL_HANDSHAKE)
    assert keys.count(18) == 1


def test_a_log_in_without_a_lifetime_is_not_renewed() -> None:
    answers = SaslAnswers()
    with fake_broker(answers) as broker, log_in(broker, "PLAIN") as connection:
        for _ in range(3):
            connection.call("metadata", topics=None, **_NO_OPERATIONS)
    assert answers.logins == ["alice"]


_NO_OPERATIONS: dict[str, Any] = {
    "include_topic_authorized_operations": False,
    "include_cluster_authorized_operations": False,
}


class _answering:
    """A listener that sends these bytes to one client and hangs up."""

    def __init__(self, answer: bytes) -> None:
        import threading

        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> int:
        self._thread.start()
        port: int = self._listener.getsockname()[1]
        return port

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        peer, _ = self._listener.accept()
        with peer:
            peer.recv(10_000)
            peer.sendall(self._answer)
