"""The broker's settings of SASL/OAUTHBEARER: Kafka's names. All may be set for one listener
(settings/per_listener.py)."""

from __future__ import annotations

from functools import partial
from typing import Final

from kbroker.settings.definition import ConfigDef, ConfigType, Value

_of_a_listener = partial(ConfigDef, per_listener=True)
_PREFIX: Final = "sasl.oauthbearer."


def _url_fault(value: Value) -> str | None:
    """The server checks the rest at its start."""
    assert isinstance(value, str)
    is_known = not value or value.startswith(("https://", "file:///"))
    return None if is_known else "It must begin with https:// or file:///"


def _claim_fault(value: Value) -> str | None:
    return None if value else "It must not be empty"


OAUTH_CONFIGS: Final = (
    _of_a_listener(
        name=f"{_PREFIX}jwks.endpoint.url",
        type=ConfigType.STRING,
        default=None,
        fault=_url_fault,
        doc="The key set (JWKS) of the issuer of tokens: an https: or file: URL. Redirects are not "
        "followed. TLS trusts the authorities of the operating system, or of SSL_CERT_FILE in the "
        "environment.",
    ),
    _of_a_listener(
        name=f"{_PREFIX}jwks.endpoint.refresh.ms",
        type=ConfigType.LONG,
        default="3600000",
        minimum=1000,
        doc="After this time the key set is read again. A token with an unknown key has it read sooner, at "
        "most every 10 seconds.",
    ),
    _of_a_listener(
        name=f"{_PREFIX}jwks.endpoint.retry.backoff.ms",
        type=ConfigType.LONG,
        default="100",
        minimum=1,
        doc="Pause before the key set is read again after a failure. It doubles with each failure.",
    ),
    _of_a_listener(
        name=f"{_PREFIX}jwks.endpoint.retry.backoff.max.ms",
        type=ConfigType.LONG,
        default="10000",
        minimum=1,
        doc="The longest of these pauses.",
    ),
    _of_a_listener(
        name=f"{_PREFIX}expected.audience",
        type=ConfigType.LIST,
        default="",
        doc="A token must be for one of these audiences (claim aud), separated by commas. If empty, only "
        "tokens without an audience are taken.",
    ),
    _of_a_listener(
        name=f"{_PREFIX}expected.issuer",
        type=ConfigType.STRING,
        default=None,
        doc="A token must be from this issuer (claim iss).",
    ),
    _of_a_listener(
        name=f"{_PREFIX}clock.skew.seconds",
        type=ConfigType.INT,
        default="30",
        minimum=0,
        maximum=3600,
        doc="How much the clock of the issuer may differ.",
    ),
    _of_a_listener(
        name=f"{_PREFIX}sub.claim.name",
        type=ConfigType.STRING,
        default="sub",
        fault=_claim_fault,
        doc="The claim with the name of the principal.",
    ),
    _of_a_listener(
        name=f"{_PREFIX}scope.claim.name",
        type=ConfigType.STRING,
        default="scope",
        fault=_claim_fault,
        doc="The claim with the scope. It must be a text or a list of texts; rights do not depend on it.",
    ),
)
