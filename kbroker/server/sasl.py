"""SASL on a listener, from the broker's settings."""

from __future__ import annotations

import logging
import secrets

from kbroker.errors import OperatorError
from kbroker.formats.security_values import ScramMechanism
from kbroker.security.sasl import PLAIN
from kbroker.security.sasl_settings import SaslSettings
from kbroker.security.scram import DEFAULT_ITERATIONS, new_credential
from kbroker.settings.altering import BrokerConfig
from kbroker.settings.jaas import plain_users
from kbroker.settings.listeners import Listener

logger = logging.getLogger(__name__)

_SALT_BYTES = 16


def sasl_of(config: BrokerConfig, listener: Listener) -> SaslSettings | None:
    """None: a listener without SASL. Slow: it derives the credentials of the users of a JAAS line.
    Raises OperatorError."""
    if not listener.protocol.has_sasl:
        return None
    name = listener.name
    mechanisms: tuple[str, ...] = config.of_listener(name, "sasl.enabled.mechanisms")
    if not mechanisms:
        raise OperatorError(
            f"listener {name}: sasl.enabled.mechanisms: set it to SCRAM-SHA-256, SCRAM-SHA-512 or PLAIN, or "
            "several of them; `kbroker users` manages the users"
        )
    if PLAIN in mechanisms and not listener.protocol.has_tls:
        logger.warning(
            "listener %s takes passwords in clear (PLAIN without TLS): use SASL_SSL, or SCRAM-SHA-256",
            listener,
        )
    jaas: str = config.of_listener(name, "sasl.jaas.config", PLAIN) or ""
    users = {
        user: new_credential(
            password, secrets.token_bytes(_SALT_BYTES), DEFAULT_ITERATIONS, ScramMechanism.SHA_256
        )
        for user, password in plain_users(jaas).items()
    }
    return SaslSettings(
        mechanisms=mechanisms,
        users=users if PLAIN in mechanisms else {},
        max_session_ms=max(0, config.of_listener(name, "connections.max.reauth.ms")),
        failure_delay_ms=config.of_listener(name, "connection.failed.authentication.delay.ms"),
        max_receive_bytes=config.of_listener(name, "sasl.server.max.receive.size"),
    )
