"""Browsers that have logged in at the admin HTTP endpoint. They are in memory only, so a restart of
the broker ends them.

The browser has a random value in a cookie, and this process only its hash. A session ends by time,
by logging out, and when the reason for it is gone: the user's password, or the token.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Final, NamedTuple

from kbroker.security.principals import Principal

LIFETIME_S: Final = 8 * 3600
MAX_SESSIONS: Final = 1000
_VALUE_BYTES: Final = 32


class Session(NamedTuple):
    """- `proof`: what the client has proved; see AdminLogIns.is_current
    - `csrf`: a value that pages of this endpoint repeat in each change, and other pages do not know
    - `ends_s`: in trio's time"""

    principal: Principal
    proof: object
    csrf: str
    ends_s: float


class AdminSessions:
    def __init__(self) -> None:
        self._by_hash: dict[bytes, Session] = {}
        """The oldest one first."""

    def __len__(self) -> int:
        return len(self._by_hash)

    def begin(self, principal: Principal, proof: object, now_s: float) -> str:
        """Returns the value of the cookie."""
        for key in [key for key, each in self._by_hash.items() if each.ends_s <= now_s]:
            del self._by_hash[key]
        if len(self._by_hash) >= MAX_SESSIONS:
            del self._by_hash[next(iter(self._by_hash))]
        value = secrets.token_urlsafe(_VALUE_BYTES)
        csrf = secrets.token_urlsafe(_VALUE_BYTES)
        self._by_hash[_hash(value)] = Session(principal, proof, csrf, now_s + LIFETIME_S)
        return value

    def get(self, value: str, now_s: float) -> Session | None:
        session = self._by_hash.get(_hash(value))
        return session if session is not None and now_s < session.ends_s else None

    def end(self, value: str) -> None:
        """Nothing happens if there is none."""
        self._by_hash.pop(_hash(value), None)


def _hash(value: str) -> bytes:
    return hashlib.sha256(value.encode("utf-8", "replace")).digest()
