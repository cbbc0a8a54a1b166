"""How clients log in on a listener: its settings `sasl.*`."""

from __future__ import annotations

from collections.abc import Mapping

from kbroker.errors import OperatorError
from kbroker.security.jaas import plain_users
from kbroker.settings.altering import BrokerConfig
from kbroker.settings.broker_sasl import SaslSettings
from kbroker.settings.listeners import Listener


def sasl_of(config: BrokerConfig, listener: Listener) -> SaslSettings | None:
    """None for a listener without SASL. Raises OperatorError if its settings do not fit."""
    if not listener.protocol.has_sasl:
        return None
    mechanisms: tuple[str, ...] = config.of_listener(listener.name, "sasl.enabled.mechanisms")
    if not mechanisms:
        raise OperatorError(
            f"listener {listener.name}: sasl.enabled.mechanisms: set it to SCRAM-SHA-256, SCRAM-SHA-512 or "
            "PLAIN, or several of them; `kbroker users` manages the users"
        )
    return SaslSettings(
        mechanisms=mechanisms,
        passwords=_passwords(config, listener) if "PLAIN" in mechanisms else {},
        max_session_ms=config.of_listener(listener.name, "connections.max.reauth.ms"),
        failure_delay_ms=config["connection.failed.authentication.delay.ms"],
        max_receive_bytes=config["sasl.server.max.receive.size"],
    )


def _passwords(config: BrokerConfig, listener: Listener) -> Mapping[str, str]:
    text: str | None = config.of_listener(listener.name, "sasl.jaas.config", "PLAIN")
    try:
        return plain_users(text) if text else {}
    except ValueError as error:
        raise OperatorError(f"listener {listener.name}: sasl.jaas.config: {error}") from None
