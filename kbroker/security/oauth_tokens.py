"""Checks the bearer tokens of SASL/OAUTHBEARER: JSON Web Tokens, signed by the issuer's keys.

The order is that of trust: size and form, then the header, which only chooses among what is allowed
here, then the signature, and only then the claims. Keys that a token names or brings itself (jku,
jwk, x5u, x5c) are not looked at. Times are seconds since 1970, given as arguments.
"""

from __future__ import annotations

import binascii
import re
from base64 import urlsafe_b64decode
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from kbroker.security.oauth_keys import ALGORITHMS, MAX_KEYS, Key
from kbroker.security.strict_json import read_object

MAX_TOKEN_BYTES: Final = 16_384
_FORM: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_MAX_NAME: Final = 1024


class TokenRefused(Exception):
    """The text is for the broker's log. It contains nothing of the token."""


class UnknownKey(TokenRefused):
    """The token names a key that is not among these: perhaps the issuer has a new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """What a token must say, beside being signed.

    - `audiences`: one of them must be the token's. Empty: a token with an audience is refused,
      since it is for others.
    - `issuer`: None: any that has the keys
    - `skew_s`: how much the issuer's clock may differ"""

    audiences: Collection[str] = ()
    issuer: str | None = None
    skew_s: int = 30
    sub_claim: str = "sub"
    scope_claim: str = "scope"


class Bearer(NamedTuple):
    """The bearer of a good token. `lifetime_ms`: how long the token is still good; at least 1."""

    name: str
    lifetime_ms: int


class Signed(NamedTuple):
    """A token in which only the form has been checked."""

    text: str
    algorithm: str
    kid: str | None


def read_token(text: str) -> Signed:
    """Raises TokenRefused."""
    if len(text) > MAX_TOKEN_BYTES:
        raise TokenRefused(f"the token is larger than {MAX_TOKEN_BYTES} bytes")
    if _FORM.fullmatch(text) is None:
        raise TokenRefused("the token is no signed JSON Web Token")
    header = _part(text.partition(".")[0], "header")
    algorithm, kid = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise TokenRefused("the token has an algorithm that is not allowed")
    if "crit" in header or "b64" in header:
        raise TokenRefused("the token has an extension that must be understood")
    if not isinstance(kid, str | None):
        raise TokenRefused("the token has a key id that is no text")
    return Signed(text, algorithm, kid)


def check_token(token: Signed, keys: Sequence[Key], rules: TokenRules, now_s: float) -> Bearer:
    """Raises TokenRefused."""
    if not _is_signed(token, candidates(token, keys)):
        raise TokenRefused("the token has a wrong signature")
    return _check_claims(_part(token.text.split(".")[1], "payload"), rules, now_s)


def candidates(token: Signed, keys: Sequence[Key]) -> Sequence[Key]:
    """The keys that may have signed it; a token without a key id may have any. Raises UnknownKey if
    there is none."""
    named = [key for key in keys if token.kid is None or key.kid == token.kid]
    if not named:
        raise UnknownKey("the token is signed with a key that is not in the key set")
    fitting = [key for key in named if token.algorithm in key.algorithms]
    if not fitting:
        raise TokenRefused("the token has an algorithm that is not allowed for its key")
    return fitting[:MAX_KEYS]


def _is_signed(token: Signed, keys: Sequence[Key]) -> bool:
    from joserfc.errors import JoseError
    from joserfc.jws import JWSRegistry, deserialize_compact

    registry = JWSRegistry(algorithms=[token.algorithm], strict_check_header=False)
    registry.max_header_length = registry.max_payload_length = MAX_TOKEN_BYTES
    for key in keys:
        try:
            deserialize_compact(token.text, key.public, registry=registry, algorithms=[token.algorithm])
        except (JoseError, ValueError):
            continue
        return True
    return False


def _part(text: str, name: str) -> dict[str, Any]:
    try:
        return read_object(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (ValueError, binascii.Error):
        raise TokenRefused(f"the token has a malformed {name}") from None


# -- claims
# --------------------------------------------------------------------------------------------------


def _check_claims(claims: Mapping[str, Any], rules: TokenRules, now_s: float) -> Bearer:
    expires_s = _time(claims, "exp")
    _time(claims, "iat")
    if now_s - rules.skew_s >= expires_s:
        raise TokenRefused("the token has expired")
    if "nbf" in claims and now_s + rules.skew_s < _time(claims, "nbf"):
        raise TokenRefused("the token is not valid yet")
    if rules.issuer is not None and claims.get("iss") != rules.issuer:
        raise TokenRefused("the token has another issuer than sasl.oauthbearer.expected.issuer")
    _check_audience(claims.get("aud"), rules.audiences)
    _check_scope(claims.get(rules.scope_claim))
    # A token that is good only because clocks differ is good for the rest of that difference.
    left_s = expires_s - now_s if expires_s > now_s else expires_s + rules.skew_s - now_s
    return Bearer(_name(claims.get(rules.sub_claim)), max(1, int(min(left_s, 2**31) * 1000)))


def _time(claims: Mapping[str, Any], name: str) -> float:
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
        raise TokenRefused(f"the token has no usable {name}")
    return float(value)


def _check_audience(audience: object, expected: Collection[str]) -> None:
    named = {audience} if isinstance(audience, str) else _texts(audience, "aud")
    if expected and not named & set(expected):
        raise TokenRefused("the token is for another audience than sasl.oauthbearer.expected.audience")
    if named and not expected:
        raise TokenRefused("the token is for an audience, and sasl.oauthbearer.expected.audience is not set")


def _check_scope(scope: object) -> None:
    if not isinstance(scope, str):
        _texts(scope, "scope")


def _texts(values: object, name: str) -> set[str]:
    values = [] if values is None else values
    if not isinstance(values, list) or not all(isinstance(each, str) and each for each in values):
        raise TokenRefused(f"the token has a malformed {name}")
    return set(values)


def _name(value: object) -> str:
    """Names that look alike must not be different principals, so spaces around one are refused."""
    if not isinstance(value, str) or not value or len(value) > _MAX_NAME:
        raise TokenRefused("the token has no usable name (sasl.oauthbearer.sub.claim.name)")
    if value != value.strip() or not value.isprintable():
        raise TokenRefused("the token has a name with control characters, or with spaces around it")
    return value
