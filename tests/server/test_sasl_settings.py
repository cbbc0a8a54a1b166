"""SASL as a configuration file sets it up: per listener, and refused with one line that helps."""

from __future__ import annotations

import logging

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
    for text in ("GSSAPI", "PLAIN,OAUTHBEARER", "scram-sha-256"):
        with pytest.raises(OperatorError, match="String must be one of: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"):
            BrokerConfig.load([f"sasl.enabled.mechanisms={text}"])
