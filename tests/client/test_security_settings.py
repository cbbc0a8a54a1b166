"""ClientSecurity from Kafka's names: what is understood, what is refused, and that no secret is
shown."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)

from kbroker.client.keystores import Pem
from kbroker.client.security import NAMES, PLAINTEXT, ClientSecurity, Login
from kbroker.client.tls import context_of
from kbroker.errors import OperatorError
from kbroker.settings.listeners import SecurityProtocol
from tests.client.certificates import Certificates, make_certificates

SASL = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256"}
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def test_nothing_is_plain_text() -> None:
    assert ClientSecurity.of({}) == PLAINTEXT
    assert ClientSecurity.of({"client.id": "x", "bootstrap.servers": "a:1", "acks": "all"}) == PLAINTEXT
    assert PLAINTEXT.library_settings() == {}


def test_settings_of_another_protocol_are_ignored() -> None:
    given = {**SASL, "security.protocol": "plaintext", "ssl.ca.location": "/no/such/file"}
    assert ClientSecurity.of(given) == PLAINTEXT


def test_a_log_in() -> None:
    found = ClientSecurity.of({**SASL, "sasl.username": "alice", "sasl.password": "secret"})
    assert found == ClientSecurity(
        SecurityProtocol.SASL_PLAINTEXT, None, Login("SCRAM-SHA-256", "alice", "secret")
    )
    assert found.library_settings() == {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "alice",
        "sasl.password": "secret",
    }


def test_librdkafkas_name_of_the_mechanism() -> None:
    given = {"security.protocol": "sasl_plaintext", "sasl.mechanisms": "plain", "sasl.username": "a"}
    login = ClientSecurity.of({**given, "sasl.password": "b"}).login
    assert login == Login("PLAIN", "a", "b")


@pytest.mark.parametrize(
    ("options", "username", "password"),
    [
        ('username="alice" password="a secret;"', "alice", "a secret;"),
        ("username=alice password=secret", "alice", "secret"),
        ("\n  username='al ice'\n  password='sec\"ret' ", "al ice", 'sec"ret'),
        (r'username="a\"b" password="c\\d"', 'a"b', r"c\d"),
    ],
)
def test_jaas(options: str, username: str, password: str) -> None:
    for mechanism, module in (
        ("SCRAM-SHA-256", SCRAM_MODULE),
        ("SCRAM-SHA-512", SCRAM_MODULE),
        ("PLAIN", PLAIN_MODULE),
    ):
        given = {**SASL, "sasl.mechanism": mechanism, "sasl.jaas.config": f"{module} required {options};"}
        assert ClientSecurity.of(given).login == Login(mechanism, username, password)


@pytest.mark.parametrize(
    ("jaas", "line"),
    [
        ("canary", "with the semicolon"),
        (f'{SCRAM_MODULE} required username="canary" password="canary"', "with the semicolon"),
        (
            f'{PLAIN_MODULE} required username="canary";',
            "does not speak SCRAM-SHA-256; .*ScramLoginModule does",
        ),
        (f'{SCRAM_MODULE} required username="a" password="canary" tokenauth="true";', "only"),
        (f'{SCRAM_MODULE} required username="a" canary;', "only"),
        (f'{SCRAM_MODULE} required password="canary";', "sasl.username is missing"),
        (f'{SCRAM_MODULE} required username="alice";', "sasl.password is missing: the password of alice"),
    ],
)
def test_jaas_that_is_refused_is_not_shown(jaas: str, line: str) -> None:
    with pytest.raises(OperatorError, match=line) as caught:
        ClientSecurity.of({**SASL, "sasl.jaas.config": jaas})
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (
            {"sasl.mechanim": "PLAIN"},
            "sasl.mechanim is not a security setting .* did you mean sasl.mechanism",
        ),
        ({"ssl.cipher.suites": "x"}, "ssl.cipher.suites is not a security setting that kbroker knows"),
        ({"securty.protocol": "SSL"}, "did you mean security.protocol"),
        ({"sals.username": "a"}, "did you mean sasl.username"),
        ({"security.protocol": "TLS"}, "'TLS' is not one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"sasl.username": "a"}, "sasl.username is given without security.protocol"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism is missing: add one of PLAIN, SCRAM-SHA-256"),
        ({**SASL, "sasl.mechanism": "GSSAPI"}, "'GSSAPI' is not one of PLAIN"),
        (SASL, "sasl.username is missing"),
        ({**SASL, "sasl.username": "a"}, "sasl.password is missing: the password of a"),
        ({**SASL, "sasl.username": "a", "sasl.jaas.config": "b"}, "sasl.jaas.config excludes"),
        ({"security.protocol": "SSL", "ssl.enabled.protocols": "TLSv1.1"}, "only TLSv1.2 and TLSv1.3"),
        (
            {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "HTTP"},
            "neither https nor empty",
        ),
        ({"security.protocol": "SSL", "ssl.ca.location": "/no/file"}, "cannot read /no/file: No such file"),
        ({"security.protocol": "SSL", "ssl.truststore.certificates": "x"}, "is not PEM text"),
        (
            {"security.protocol": "SSL", "ssl.ca.location": "a", "ssl.truststore.location": "b"},
            "ssl.ca.location and ssl.truststore.location exclude each other",
        ),
        ({"security.protocol": "SSL", "ssl.key.location": "a"}, "without the certificate"),
        (
            {"security.protocol": "SSL", "ssl.keystore.certificate.chain": "-----BEGIN x"},
            "without ssl.keystore.key",
        ),
    ],
)
def test_what_is_refused(given: dict[str, str], line: str) -> None:
    with pytest.raises(OperatorError, match=line):
        ClientSecurity.of(given)


def test_every_name_is_understood() -> None:
    """None of them is refused as unknown: all are ignored, as their protocol is."""
    for name in NAMES:
        assert ClientSecurity.of({name: "x", "security.protocol": "PLAINTEXT"}) == PLAINTEXT


def test_a_missing_password_is_asked_for() -> None:
    asked: list[str] = []

    def ask(user: str) -> str:
        asked.append(user)
        return "typed"

    login = ClientSecurity.of({**SASL, "sasl.username": "alice"}, ask).login
    assert login is not None
    assert (login.password, asked) == ("typed", ["alice"])


def test_pem_files(files: Certificates) -> None:
    found = ClientSecurity.of(
        {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(files.ca),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(files.client),
            "ssl.protocol": "TLSv1.3",
            "ssl.enabled.protocols": "TLSv1.2,TLSv1.3",
        }
    )
    assert found.library_settings() == {
        "security.protocol": "SSL",
        "ssl.ca.location": str(files.ca),
        "ssl.certificate.location": str(files.client),
        "ssl.key.location": str(files.client),
        "ssl.endpoint.identification.algorithm": "https",
    }
    assert found.tls is not None
    assert len(context_of(found.tls).get_ca_certs()) == 1


def test_pem_text(files: Certificates) -> None:
    text = files.client.read_text()
    given = {
        "security.protocol": "SSL",
        "ssl.truststore.certificates": files.ca.read_text(),
        "ssl.keystore.certificate.chain": text,
        "ssl.keystore.key": text,
        "ssl.endpoint.identification.algorithm": "",
    }
    found = ClientSecurity.of(given)
    assert found.library_settings() == {
        "security.protocol": "SSL",
        "ssl.ca.pem": files.ca.read_text().strip(),
        "ssl.certificate.pem": text.strip(),
        "ssl.key.pem": text.strip(),
        "ssl.endpoint.identification.algorithm": "none",
    }
    assert found.tls is not None
    assert not context_of(found.tls).check_hostname


def test_pkcs12(files: Certificates, tmp_path: Path) -> None:
    data = files.client.read_bytes()
    key, certificate = load_pem_private_key(data, None), x509.load_pem_x509_certificate(data)
    ca = x509.load_pem_x509_certificate(files.ca.read_bytes())
    assert isinstance(key, pkcs12.PKCS12PrivateKeyTypes)
    store = tmp_path / "client.p12"
    store.write_bytes(
        pkcs12.serialize_key_and_certificates(
            b"alice", key, certificate, [ca], BestAvailableEncryption(b"canary-p12")
        )
    )
    given = {
        "security.protocol": "SSL",
        "ssl.keystore.location": str(store),
        "ssl.keystore.password": "canary-p12",
        "ssl.truststore.location": str(store),
        "ssl.truststore.password": "canary-p12",
    }
    tls = ClientSecurity.of(given).tls
    assert tls is not None
    assert len(context_of(tls).get_ca_certs()) == 1  # get_ca_certs leaves out the client's own
    assert "PRIVATE" not in repr(tls)
    with pytest.raises(OperatorError, match="not a PKCS12 file, or its password is wrong") as caught:
        ClientSecurity.of({**given, "ssl.keystore.password": "canary-wrong"})
    assert "canary" not in str(caught.value)


def test_pkcs12_without_its_package(
    files: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "some.p12"
    store.write_bytes(b"\x30\x82\x00")
    monkeypatch.setitem(__import__("sys").modules, "cryptography.hazmat.primitives.serialization", None)
    with pytest.raises(OperatorError, match=r"PKCS12 needs pip install cryptography"):
        ClientSecurity.of({"security.protocol": "SSL", "ssl.ca.location": str(store)})


def test_jks_says_how_to_convert_it(tmp_path: Path) -> None:
    store = tmp_path / "client.jks"
    store.write_bytes(b"\xfe\xed\xfe\xed\x00\x00")
    with pytest.raises(OperatorError, match=f"is a JKS file.*keytool -importkeystore -srckeystore {store}"):
        ClientSecurity.of({"security.protocol": "SSL", "ssl.truststore.location": str(store)})


@pytest.mark.skipif(shutil.which("keytool") is None, reason="keytool is needed")
def test_a_truststore_of_keytool(files: Certificates, tmp_path: Path) -> None:
    store = tmp_path / "trust.p12"
    subprocess.run(
        ["keytool", "-importcert", "-noprompt", "-alias", "ca", "-file", str(files.ca), "-keystore",
         str(store), "-storetype", "PKCS12", "-storepass", "changeit"],
        check=True, capture_output=True,
    )  # fmt: skip
    given = {"security.protocol": "SSL", "ssl.truststore.location": str(store)}
    tls = ClientSecurity.of({**given, "ssl.truststore.password": "changeit"}).tls
    assert tls is not None
    assert len(context_of(tls).get_ca_certs()) == 1


def test_an_encrypted_key_is_not_asked_for_at_the_terminal(files: Certificates, tmp_path: Path) -> None:
    data = files.client.read_bytes()
    key = load_pem_private_key(data, None)
    encrypted = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"canary-key"))
    path = tmp_path / "client.pem"
    path.write_bytes(encrypted + x509.load_pem_x509_certificate(data).public_bytes(Encoding.PEM))
    given = {"security.protocol": "SSL", "ssl.certificate.location": str(path)}
    tls = ClientSecurity.of({**given, "ssl.key.password": "canary-key"}).tls
    assert tls is not None
    context_of(tls)
    for wrong in ({}, {"ssl.key.password": "canary-wrong"}):
        unusable = ClientSecurity.of({**given, **wrong}).tls
        assert unusable is not None
        with pytest.raises(OperatorError, match=r"is ssl\.key\.password right") as caught:
            context_of(unusable)
        assert "canary" not in str(caught.value)


def test_repr_shows_no_secret() -> None:
    found = ClientSecurity.of(
        {
            **SASL,
            "security.protocol": "SASL_SSL",
            "sasl.username": "alice",
            "sasl.password": "canary-password",
            "ssl.key.password": "canary-key",
        }
    )
    assert "alice" in repr(found)
    assert "canary" not in repr(found)
    assert "canary" not in repr(Pem(text="canary"))


def test_bytes_that_are_no_utf_8_are_refused_without_the_password() -> None:
    """From the environment, or typed: Python's own error would show the message with the
    password."""
    given = {**SASL, "sasl.username": "bob\udcff", "sasl.password": "canary"}
    with pytest.raises(OperatorError, match=r"^sasl\.username is not UTF-8$"):
        ClientSecurity.of(given)
    with pytest.raises(OperatorError, match=r"^the password is not UTF-8$"):
        ClientSecurity.of({**SASL, "sasl.username": "bob"}, lambda _: "canary\udcff")
