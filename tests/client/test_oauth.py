"""kbroker's own client logs in with tokens: from an issuer, and from a file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kbroker.client.oauth import TokenSource
from kbroker.client.rpc import Connection
from kbroker.client.security import ClientSecurity, Login
from kbroker.client.unreachable import NotAuthenticated
from kbroker.errors import OperatorError
from kbroker.security.oauth import OAUTHBEARER
from kbroker.security.oauth_tokens import TokenRules
from kbroker.security.principals import user
from kbroker.security.sasl_settings import TokenSettings
from tests.client.certificates import make_certificates
from tests.security.tokens import AUDIENCE, ISSUER
from tests.server.issuer import CLIENT_ID, CLIENT_SECRET, Issuer, open_issuer
from tests.server.sasl_world import SETTINGS, SaslBroker, open_sasl_broker

BASE = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": OAUTHBEARER}
URL = "sasl.oauthbearer.token.endpoint.url"
TOPICS = {"topics": None, "allow_auto_topic_creation": False}


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Issuer]:
    files = make_certificates(tmp_path_factory.mktemp("certificates"))
    with pytest.MonkeyPatch.context() as patch, open_issuer(files.server) as found:
        patch.setenv("SSL_CERT_FILE", str(files.ca))
        yield found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, issuer: Issuer) -> Iterator[SaslBroker]:
    rules = TokenRules(audiences=(AUDIENCE,), issuer=ISSUER)
    tokens = TokenSettings(url=issuer.url("keys"), rules=rules)
    settings = replace(SETTINGS, mechanisms=(OAUTHBEARER,), tokens=tokens)
    with open_sasl_broker(tmp_path_factory.mktemp("broker"), settings) as opened:
        yield opened


def connect(world: SaslBroker, **given: str) -> Connection:
    names = {f"sasl.oauthbearer.{name.replace('_', '.')}": value for name, value in given.items()}
    return Connection(*world.address, timeout_s=60, security=ClientSecurity.of({**BASE, **names}))


def test_a_token_for_a_secret(world: SaslBroker, issuer: Issuer) -> None:
    given = {
        "token_endpoint_url": issuer.url("token"),
        "client_id": CLIENT_ID,
        "client_secret": CLIENT_SECRET,
    }
    with connect(world, **given, scope="read write") as connection:
        assert connection.call("metadata", 7, **TOPICS).brokers
        assert user(CLIENT_ID) in world.broker.security.sessions._by_principal
    assert issuer.forms[-1] == {"grant_type": ["client_credentials"], "scope": ["read write"]}
    with pytest.raises(NotAuthenticated, match=r"no token: .* status 401") as caught:
        connect(world, **{**given, "client_secret": "canary-wrong"})
    assert "canary" not in str(caught.value)


def test_a_token_in_a_file(world: SaslBroker, issuer: Issuer, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(issuer.token() + "\n")
    with connect(world, token_endpoint_url=file.as_uri()) as connection:
        assert connection.call("metadata", 7, **TOPICS).brokers
    for content, reason in (
        (issuer.token(aud="other"), "invalid_token"),
        ("a b", "no token"),
        ("", "no token"),
    ):
        file.write_text(content)
        with pytest.raises(NotAuthenticated, match=reason) as caught:
            connect(world, token_endpoint_url=file.as_uri())
        assert not content or content not in str(caught.value)


def test_a_login_is_renewed_with_a_new_token(
    world: SaslBroker, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(issuer, "lifetime_s", 2)
    given = {
        "token_endpoint_url": issuer.url("token"),
        "client_id": CLIENT_ID,
        "client_secret": CLIENT_SECRET,
    }
    renewals = world.broker.metrics.sasl.renewals
    with connect(world, **given) as connection:
        while not renewals.get(OAUTHBEARER):
            connection.call("metadata", 7, **TOPICS)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({}, f"{URL} is missing"),
        ({URL: "http://issuer.example.com/token"}, "must begin with https://"),
        ({URL: "https://u:canary@issuer.example.com"}, "must not have a user name"),
        ({URL: "https://issuer.example.com"}, "client.id is missing"),
        ({URL: "https://a.example.com", "sasl.oauthbearer.client.id": "a"}, "client.secret is missing"),
    ],
)  # fmt: skip
def test_settings_that_are_refused(given: dict[str, str], line: str) -> None:
    with pytest.raises(OperatorError, match=line) as caught:
        ClientSecurity.of({**BASE, **given})
    assert "canary" not in str(caught.value)


def test_the_settings_of_librdkafka(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    found = ClientSecurity.of(
        {
            **BASE,
            URL: "https://issuer.example.com/token",
            "sasl.oauthbearer.client.credentials.client.id": "a",
            "sasl.oauthbearer.client.credentials.client.secret": "canary",
        }
    )
    assert found.login == Login(
        OAUTHBEARER, "a", "", TokenSource("https://issuer.example.com/token", "a", "canary")
    )
    assert "canary" not in repr(found)
    expected = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": OAUTHBEARER,
        "sasl.oauthbearer.method": "oidc",
        URL: "https://issuer.example.com/token",
        "sasl.oauthbearer.client.id": "a",
        "sasl.oauthbearer.client.secret": "canary",
    }
    assert found.library_settings() == expected
    monkeypatch.setenv("SSL_CERT_FILE", "/ca.pem")
    assert found.library_settings() == {**expected, "https.ca.location": "/ca.pem"}
    with pytest.raises(OperatorError, match="needs an https: URL"):
        ClientSecurity.of({**BASE, URL: "file:///token"}).library_settings()
