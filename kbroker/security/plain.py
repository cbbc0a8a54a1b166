"""SASL/PLAIN (RFC 4616): one token, [authzid] NUL user NUL password.

The password is compared with the user's SCRAM credential, so that a user has one credential only
and no password is stored. That takes a PBKDF2, which the caller carries out, for unknown users too.
"""

from __future__ import annotations

from collections.abc import Callable

from kbroker.security.exchange import AuthenticationFailed, Derivation, Found, Reply
from kbroker.security.scram import DIGESTS, OTHER_AUTHZID, is_password

_WRONG = "Authentication failed: Invalid username or password"


class PlainServer:
    """The broker's side. `find`: the user's credential, known or made up."""

    def __init__(self, find: Callable[[str], Found]) -> None:
        self._find = find
        self._authzid = ""
        self._user = ""
        self._found: Found | None = None

    def respond(self, token: bytes) -> Derivation:
        if self._found is not None:
            raise AuthenticationFailed(_WRONG)
        count = token.count(b"\0") + 1
        if count != 3:
            raise AuthenticationFailed(f"Invalid SASL/PLAIN response: expected 3 tokens, got {count}")
        parts = token.split(b"\0")
        try:
            self._authzid, self._user = parts[0].decode(), parts[1].decode()
            parts[2].decode()
        except UnicodeDecodeError:
            raise AuthenticationFailed(_WRONG) from None
        if not self._user:
            raise AuthenticationFailed("Authentication failed: username not specified")
        if not parts[2]:
            raise AuthenticationFailed("Authentication failed: password not specified")
        found = self._found = self._find(self._user)
        credential = found.credential
        return Derivation(parts[2], credential.salt, credential.iterations, DIGESTS[found.mechanism])

    def derived(self, salted_password: bytes) -> Reply:
        found = self._found
        assert found is not None
        is_right = is_password(found.credential, salted_password, DIGESTS[found.mechanism])
        # The user may have been deleted, or the password changed, in the meantime.
        is_current = self._find(self._user) == found
        if not (is_right and found.is_known and is_current):
            raise AuthenticationFailed(_WRONG)
        if self._authzid and self._authzid != self._user:
            raise AuthenticationFailed(OTHER_AUTHZID)
        return Reply(b"", self._user)
