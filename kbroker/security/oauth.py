"""SASL/OAUTHBEARER (RFC 7628): the messages of a client and of the broker.

    n,[a=AUTHZID],\\x01auth=Bearer TOKEN\\x01[KEY=VALUE\\x01 ...]\\x01

A good token is answered with an empty message, as Kafka's. A bad one is answered with a JSON
status, which is no failure yet: the client sends \\x01, and only then it is refused. The check of
the token is an effect, which the caller carries out, as it may have to fetch keys.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from kbroker.security.exchange import AuthenticationFailed, Reply
from kbroker.security.oauth_tokens import MAX_TOKEN_BYTES, Bearer
from kbroker.security.scram import OTHER_AUTHZID

OAUTHBEARER: Final = "OAUTHBEARER"
INVALID_TOKEN: Final = '{"status":"invalid_token"}'
ACKNOWLEDGED: Final = b"\x01"
"""The client's answer to the status of a bad token."""
_MAX_MESSAGE_BYTES: Final = 4 * MAX_TOKEN_BYTES
"""With the pairs beside the token."""
_MALFORMED: Final = (
    "Authentication failed during authentication due to invalid credentials with SASL mechanism "
    f"{OAUTHBEARER}"
)
_PAIR: Final = r"[A-Za-z]+=[\x21-\x7E \t\r\n]+\x01"
_FIRST: Final = re.compile(rf"n,(?:a=((?:[^=,\x00]|=2C|=3D)+))?,\x01((?:{_PAIR})+)\x01")
_BEARER: Final = re.compile(r"bearer +([-_~+/.a-zA-Z0-9]+=*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TokenCheck:
    """Wanted: the bearer of this token, or None if it is not good."""

    token: str = field(repr=False)


class BearerServer:
    """The broker's side."""

    def __init__(self) -> None:
        self._authzid: str | None = None
        self._has_token = False
        self._is_refused = False

    def respond(self, message: bytes) -> TokenCheck:
        """Raises AuthenticationFailed. There is one attempt: Kafka's second one on the same
        connection would escape the delay of failed log-ins."""
        if self._is_refused:
            raise AuthenticationFailed(INVALID_TOKEN)
        if self._has_token:
            raise AuthenticationFailed(_MALFORMED)
        self._has_token = True
        self._authzid, token = _read(message)
        return TokenCheck(token)

    def checked(self, bearer: Bearer | None) -> Reply:
        """The result of the TokenCheck. Raises AuthenticationFailed."""
        if bearer is None:
            self._is_refused = True
            return Reply(INVALID_TOKEN.encode())
        if self._authzid is not None and self._authzid != bearer.name:
            raise AuthenticationFailed(OTHER_AUTHZID)
        return Reply(b"", bearer.name, bearer.lifetime_ms)


def _read(message: bytes) -> tuple[str | None, str]:
    """The authorization id and the token of a first message."""
    try:
        found = _FIRST.fullmatch(message.decode()) if len(message) <= _MAX_MESSAGE_BYTES else None
    except UnicodeDecodeError:
        found = None
    if found is None:
        raise AuthenticationFailed(_MALFORMED)
    pairs = [pair.split("=", 1) for pair in found[2][:-1].split("\x01")]
    values = dict(pairs)
    bearer = _BEARER.fullmatch(values.get("auth", ""))
    if len(values) != len(pairs) or bearer is None:
        raise AuthenticationFailed(_MALFORMED)
    authzid = found[1]
    return authzid and authzid.replace("=2C", ",").replace("=3D", "="), bearer[1]


def first_message(token: str) -> bytes:
    """The client's side."""
    return f"n,,\x01auth=Bearer {token}\x01\x01".encode()
