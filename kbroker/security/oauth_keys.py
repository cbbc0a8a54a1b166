"""The public keys with which tokens are checked, from a JSON Web Key Set (RFC 7517).

Only the public part of RSA and EC keys is taken. Symmetric keys are left out: a token must never be
checked with a key that its checkers could sign with. Needs joserfc and `cryptography`.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kbroker.security.strict_json import read_object

MAX_KEYS: Final = 64
"""More keys than any issuer has. A token without a key id is tried with each that fits it."""
_LEAST_RSA_BITS: Final = 2048
_MOST_RSA_BITS: Final = 8192
"""Larger ones cost too much for each log-in."""
_PUBLIC: Final = {"RSA": ("kty", "n", "e"), "EC": ("kty", "crv", "x", "y")}
_CURVES: Final = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}
RSA_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
ALGORITHMS: Final = frozenset((*RSA_ALGORITHMS, *_CURVES.values()))
"""Those that tokens may use: asymmetric ones only."""


@dataclass(frozen=True, slots=True)
class Key:
    """`public`: joserfc's key. `algorithms`: those that it may check."""

    kid: str | None
    algorithms: frozenset[str]
    public: Any = field(repr=False)


def read_keys(text: bytes) -> tuple[Key, ...]:
    """The usable keys of a key set. Raises ValueError if there is none or the set is malformed."""
    rows = read_object(text).get("keys")
    if not isinstance(rows, list):
        raise ValueError("it is not a key set: it has no list `keys`")
    if len(rows) > MAX_KEYS:
        raise ValueError(f"it has {len(rows)} keys, more than {MAX_KEYS}")
    keys = tuple(key for row in rows if isinstance(row, dict) and (key := _key(row)) is not None)
    if not keys:
        raise ValueError("it has no RSA or EC key for signatures")
    named = [key.kid for key in keys if key.kid is not None]
    if len(set(named)) != len(named):
        raise ValueError("two keys have the same kid")
    return keys


def _key(row: Mapping[str, Any]) -> Key | None:
    """None for a key of another kind, or for another use."""
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, RSAKey

    kind, kid = row.get("kty"), row.get("kid")
    if kind not in ("RSA", "EC") or row.get("use", "sig") != "sig" or not isinstance(kid, str | None):
        return None
    operations = row.get("key_ops", ["verify"])
    if not isinstance(operations, list) or not {"verify", "sign"} & {*map(str, operations)}:
        return None
    public = {name: row[name] for name in _PUBLIC[kind] if name in row}
    try:
        algorithms = _algorithms(public)
        if "alg" in row:
            algorithms &= {row["alg"]} if isinstance(row["alg"], str) else set()
        if not algorithms:
            return None
        key = RSAKey.import_key(public) if kind == "RSA" else ECKey.import_key(public)
        _ = key.public_key  # It is decoded only now.
    except (JoseError, ValueError, TypeError, KeyError):
        return None
    return Key(kid, algorithms, key)


def _algorithms(public: Mapping[str, Any]) -> frozenset[str]:
    if "crv" in public:
        return frozenset({_CURVES[public["crv"]]})
    modulus: str = public["n"]
    bits = int.from_bytes(urlsafe_b64decode(modulus + "=" * (-len(modulus) % 4)), "big").bit_length()
    return frozenset(RSA_ALGORITHMS if _LEAST_RSA_BITS <= bits <= _MOST_RSA_BITS else ())
