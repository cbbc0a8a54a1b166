"""SASL on a listener, from the broker's settings."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from kbroker.broker.security.token_keys import read_key_set
from kbroker.client.fetching import FetchFailed, url_fault
from kbroker.errors import OperatorError
from kbroker.formats.security_values import ScramMechanism
from kbroker.security.oauth import OAUTHBEARER
from kbroker.security.oauth_tokens import TokenRules
from kbroker.security.sasl import PLAIN
from kbroker.security.sasl_settings import SaslSettings, TokenSettings
from kbroker.security.scram import DEFAULT_ITERATIONS, new_credential
from kbroker.settings.altering import BrokerConfig
from kbroker.settings.jaas import plain_users
from kbroker.settings.listeners import Listener

logger = logging.getLogger(__name__)

_URL: Final = "sasl.oauthbearer.jwks.endpoint.url"

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
            f"listener {name}: sasl.enabled.mechanisms: set it to SCRAM-SHA-256, SCRAM-SHA-512, PLAIN or "
            "OAUTHBEARER, or several of them; `kbroker users` manages the users"
        )
    if PLAIN in mechanisms and not listener.protocol.has_tls:
        logger.warning(
            "listener %s takes passwords in clear (PLAIN without TLS): use SASL_SSL, or SCRAM-SHA-256",
            listener,
        )
    if OAUTHBEARER in mechanisms and not listener.protocol.has_tls:
        logger.warning("listener %s takes tokens in clear (OAUTHBEARER without TLS): use SASL_SSL", listener)
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
        tokens=_tokens(config, listener) if OAUTHBEARER in mechanisms else None,
        max_session_ms=max(0, config.of_listener(name, "connections.max.reauth.ms")),
        failure_delay_ms=config.of_listener(name, "connection.failed.authentication.delay.ms"),
        max_receive_bytes=config.of_listener(name, "sasl.server.max.receive.size"),
    )


def _tokens(config: BrokerConfig, listener: Listener) -> TokenSettings:
    """Raises OperatorError."""
    setting = partial(config.of_listener, listener.name, mechanism=OAUTHBEARER)
    url: str = setting(_URL) or ""
    _check_url(url, listener)
    try:
        import joserfc.jws  # noqa: F401
    except ImportError as error:
        raise OperatorError("OAUTHBEARER needs `pip install joserfc`") from error
    if url.startswith("file:"):
        try:
            read_key_set(url)
        except (FetchFailed, ValueError) as error:
            raise OperatorError(f"listener {listener.name}: {_URL}: {error}") from error
    return TokenSettings(
        url=url,
        rules=_rules(setting, listener),
        refresh_s=setting("sasl.oauthbearer.jwks.endpoint.refresh.ms") / 1000,
        retry_backoff_s=setting("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms") / 1000,
        retry_backoff_max_s=setting("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms") / 1000,
    )


def _check_url(url: str, listener: Listener) -> None:
    if not url:
        raise OperatorError(
            f"listener {listener.name}: {_URL}: set it to the https: or file: URL of the issuer's key "
            "set; OAUTHBEARER takes signed tokens only"
        )
    if (fault := url_fault(url)) is not None:
        raise OperatorError(f"listener {listener.name}: {_URL}: {fault}")


def _rules(setting: Callable[[str], Any], listener: Listener) -> TokenRules:
    audience, issuer = "sasl.oauthbearer.expected.audience", "sasl.oauthbearer.expected.issuer"
    if unset := [name for name in (audience, issuer) if not setting(name)]:
        logger.warning(
            "listener %s may take tokens that are not meant for it: set %s", listener, " and ".join(unset)
        )
    return TokenRules(
        audiences=setting(audience),
        issuer=setting(issuer) or None,
        skew_s=setting("sasl.oauthbearer.clock.skew.seconds"),
        sub_claim=setting("sasl.oauthbearer.sub.claim.name"),
        scope_claim=setting("sasl.oauthbearer.scope.claim.name"),
    )
