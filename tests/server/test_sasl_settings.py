"""SASL as a configuration file sets it up: per listener, and refused with one line that helps."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from kbroker.errors import OperatorError
from kbroker.security.scram import is_password, salt_password
from kbroker.server.sasl import sasl_of
from kbroker.settings.altering import BrokerConfig, Scope, describe
from kbroker.settings.listeners import configured_listeners

JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="canary";'
LISTENERS = {
    "listeners": "INSIDE://127.0.0.1:9092,OUTSIDE://127.0.0.1:9093,PLAINTEXT://127.0.0.1:9094",
    "listener.security.protocol.map": "INSIDE:SASL_PLAINTEXT,OUTSIDE:SASL_SSL,PLAINTEXT:PLAINTEXT",
}


def test_each_listener_has_its_own(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    config = BrokerConfig(
        {
            **LISTENERS,
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.inside.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
            "listener.name.inside.plain.sasl.jaas.config": JAAS,
            "connections.max.reauth.ms": "-1",
            "listener.name.outside.connections.max.reauth.ms": "3600000",
            "sasl.server.max.receive.size": "1000",
            "listener.name.outside.connection.failed.authentication.delay.ms": "7",
        }
    )
    inside, outside, plain = (sasl_of(config, listener) for listener in configured_listeners(config))
    assert plain is None
    assert inside is not None
    assert outside is not None
    assert inside.mechanisms == ("PLAIN", "SCRAM-SHA-256")
    assert (inside.max_session_ms, inside.failure_delay_ms, inside.max_receive_bytes) == (0, 100, 1000)
    (credential,) = inside.users.values()
    salted = salt_password(b"canary", credential.salt, credential.iterations, "sha256")
    assert is_password(credential, salted, "sha256")
    assert (outside.mechanisms, outside.users) == (("SCRAM-SHA-512",), {})
    assert (outside.max_session_ms, outside.failure_delay_ms) == (3_600_000, 7)
    assert [each for each in caplog.messages if "passwords in clear" in each and "INSIDE" in each]
    assert len(caplog.messages) == 1


def test_a_listener_without_mechanisms_does_not_start() -> None:
    config = BrokerConfig(LISTENERS)
    with pytest.raises(OperatorError, match=r"listener INSIDE: sasl\.enabled\.mechanisms: set it to SCRAM"):
        sasl_of(config, configured_listeners(config)[0])


@pytest.mark.parametrize("name", ["sasl.jaas.config", "listener.name.inside.plain.sasl.jaas.config"])
def test_a_jaas_line_is_never_shown(name: str) -> None:
    config = BrokerConfig({**LISTENERS, name: JAAS})
    rows = describe(Scope.BROKER, {}, config)
    assert "canary" not in repr(rows)
    with pytest.raises(OperatorError, match=r"\[hidden\]") as caught:
        BrokerConfig.load([f"{name}={JAAS.rstrip(';')}"])
    assert "canary" not in str(caught.value)
    assert "canary" in repr(config.static)
    config.forget("sasl.jaas.config")
    assert "canary" not in repr(vars(config))
    config.set_dynamic({}, {})
    assert "canary" not in repr(vars(config))


def test_an_unknown_mechanism_is_refused() -> None:
    for text in ("GSSAPI", "PLAIN,oauthbearer", "scram-sha-256"):
        with pytest.raises(OperatorError, match="String must be one of: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"):
            BrokerConfig.load([f"sasl.enabled.mechanisms={text}"])


def test_tokens_need_a_key_set(tmp_path: Path) -> None:
    name = "sasl.oauthbearer.jwks.endpoint.url"
    base = {**LISTENERS, "sasl.enabled.mechanisms": "OAUTHBEARER"}
    missing = (tmp_path / "keys.json").as_uri()
    for given, line in (
        ({}, f"{name}: set it to"),
        ({name: missing}, "cannot read .*: No such file"),
        ({name: "https://user@issuer.example.com"}, f"{name}: it must not have a user name"),
    ):
        config = BrokerConfig({**base, **given})
        with pytest.raises(OperatorError, match=line):
            sasl_of(config, configured_listeners(config)[0])
    for url in ("http://issuer.example.com/keys", "file:keys", "keys"):
        with pytest.raises(OperatorError, match="It must begin with https:// or file:///"):
            BrokerConfig.load([f"{name}={url}"])


def test_tokens_of_a_listener(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    prefix = "listener.name.inside.oauthbearer.sasl.oauthbearer"
    config = BrokerConfig(
        {
            **LISTENERS,
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": "https://issuer.example.com/keys",
            "sasl.oauthbearer.jwks.endpoint.refresh.ms": "60000",
            f"{prefix}.expected.audience": "a,b",
            f"{prefix}.expected.issuer": "https://issuer.example.com",
            f"{prefix}.sub.claim.name": "client_id",
            "listener.name.inside.oauthbearer.sasl.jaas.config": "org.apache.kafka.common.security."
            "oauthbearer.OAuthBearerLoginModule required;",
        }
    )
    inside, outside, _ = (sasl_of(config, listener) for listener in configured_listeners(config))
    assert inside is not None
    assert inside.tokens is not None
    assert (inside.tokens.refresh_s, inside.tokens.retry_backoff_max_s) == (60, 10)
    rules = inside.tokens.rules
    assert (rules.audiences, rules.issuer, rules.sub_claim) == (
        ("a", "b"),
        "https://issuer.example.com",
        "client_id",
    )
    assert outside is not None
    assert [line.split(":")[0].split(" ")[1] for line in caplog.messages if "in clear" in line] == ["INSIDE"]
    assert [line for line in caplog.messages if "not meant for it" in line and "OUTSIDE" in line]
    assert len(caplog.messages) == 2


def test_tokens_need_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("joserfc", "joserfc.jws"):
        monkeypatch.setitem(sys.modules, module, None)
    config = BrokerConfig(
        {
            **LISTENERS,
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": "https://issuer.example.com/keys",
        }
    )
    with pytest.raises(OperatorError, match=r"^OAUTHBEARER needs `pip install joserfc`$"):
        sasl_of(config, configured_listeners(config)[0])
