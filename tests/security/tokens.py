"""An issuer's keys, their key set, and tokens that are right unless a test changes them."""

from __future__ import annotations

import hmac
import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from joserfc.jwk import ECKey, RSAKey
from joserfc.jws import JWSRegistry, serialize_compact

NOW_S = 1_800_000_000.0
AUDIENCE, ISSUER = "kbroker", "https://issuer.example.com"


def token_settings(keys_url: str) -> dict[str, str]:
    """Of a broker that takes the tokens of this issuer."""
    return {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": keys_url,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": ISSUER,
    }


@cache
def rsa(kid: str) -> RSAKey:
    return RSAKey.generate_key(2048, {"kid": kid}, private=True)


@cache
def ec(kid: str, curve: str = "P-256") -> ECKey:
    return ECKey.generate_key(curve, {"kid": kid}, private=True)


def public(key: Any, **changed: Any) -> dict[str, Any]:
    return {**key.as_dict(private=False), **changed}


def key_set(*rows: Mapping[str, Any]) -> bytes:
    return json.dumps({"keys": rows}).encode()


def claims(now_s: float = NOW_S, **changed: Any) -> dict[str, Any]:
    """`None`: the claim is left out."""
    found = {"sub": "alice", "aud": AUDIENCE, "iss": ISSUER, "iat": int(now_s), "exp": int(now_s) + 300}
    return {name: value for name, value in {**found, **changed}.items() if value is not None}


def signed(key: Any, payload: Mapping[str, Any] | bytes, algorithm: str = "RS256", **header: Any) -> str:
    """A token. `header`: changes it; kid=None leaves the key id out."""
    whole = {"alg": algorithm, "kid": key.kid, **header}
    whole = {name: value for name, value in whole.items() if value is not None}
    content = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    registry = JWSRegistry(algorithms=[algorithm], strict_check_header=False)
    return serialize_compact(whole, content, key, registry=registry)


def signed_with_public_key(key: RSAKey, payload: Mapping[str, Any]) -> str:
    """The classic forgery: the public key, which everybody has, as the secret of an HMAC."""
    content = f"{encoded({'alg': 'HS256', 'kid': key.kid})}.{encoded(payload)}"
    mac = hmac.digest(key.as_pem(private=False), content.encode(), "sha256")
    return f"{content}.{encoded(mac)}"


def unsigned(payload: Mapping[str, Any], header: Mapping[str, Any], signature: str = "") -> str:
    return ".".join((*map(encoded, (header, payload)), signature))


def encoded(value: Mapping[str, Any] | bytes | Sequence[Any]) -> str:
    content = value if isinstance(value, bytes) else json.dumps(value).encode()
    return urlsafe_b64encode(content).rstrip(b"=").decode()
