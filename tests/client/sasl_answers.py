"""Answers of a fake broker that authenticates: by the broker's own side of SCRAM, and by PLAIN."""

from __future__ import annotations

from typing import Any

from kio.schema.index import api_key_map, schema_name_map

from kbroker.errors import ErrorCode
from kbroker.formats.security_values import ScramMechanism
from kbroker.security.exchange import AuthenticationFailed, Found
from kbroker.security.scram import DIGESTS, ScramServer, new_credential

API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE, METADATA = 18, 17, 36, 3
_MECHANISMS = {"SCRAM-SHA-256": ScramMechanism.SHA_256, "SCRAM-SHA-512": ScramMechanism.SHA_512}
REFUSAL = "Authentication failed: Invalid username or password"


class SaslAnswers:
    """One listener with SASL, for one client at a time. It hangs up on a client that asks for
    anything but ApiVersions before it has logged in.

    - `lifetime_ms`: how long each log-in lasts
    - `logins`: the users that have logged in
    """

    def __init__(
        self,
        user: str = "alice",
        password: str = "secret",
        offered: tuple[str, ...] = ("PLAIN", *_MECHANISMS),
        lifetime_ms: int = 0,
    ) -> None:
        self.logins: list[str] = []
        self.forged_signature = False
        self.handshake_code = ErrorCode.none
        self._user, self._password, self._offered, self._lifetime_ms = user, password, offered, lifetime_ms
        self._mechanism = ""
        self._server: ScramServer | None = None
        self._is_in = False

    def __call__(self, key: int, version: int, request: Any) -> dict[str, Any] | None:
        match key:
            case 18:
                return {"error_code": ErrorCode.none, "api_keys": _rows()}
            case 17:
                return self._handshake(request.mechanism)
            case 36:
                return self._authenticate(request.auth_bytes)
            case 3 if self._is_in:
                return {"brokers": [], "topics": [], "error_code": ErrorCode.none}
        return None

    def _handshake(self, mechanism: str) -> dict[str, Any]:
        self._mechanism, self._server, self._is_in = mechanism, None, False
        code = self.handshake_code
        if mechanism not in self._offered:
            code = ErrorCode.unsupported_sasl_mechanism
        return {"error_code": code, "mechanisms": self._offered}

    def _authenticate(self, token: bytes) -> dict[str, Any]:
        try:
            answer = self._plain(token) if self._mechanism == "PLAIN" else self._scram(token)
        except AuthenticationFailed as error:
            return _answer(code=ErrorCode.sasl_authentication_failed, message=str(error))
        return _answer(answer, lifetime_ms=self._lifetime_ms if self._is_in else 0)

    def _plain(self, token: bytes) -> bytes:
        if token != f"\0{self._user}\0{self._password}".encode():
            raise AuthenticationFailed(REFUSAL)
        self._admit()
        return b""

    def _scram(self, token: bytes) -> bytes:
        mechanism = _MECHANISMS[self._mechanism]
        if self._server is None:
            credential = new_credential(self._password, b"salt" * 5, 4096, mechanism)

            def find(name: str) -> Found:
                return Found(mechanism, credential, name == self._user)

            self._server = ScramServer(DIGESTS[mechanism], find, "server", REFUSAL)
        reply = self._server.respond(token)
        if reply.user is None:
            return reply.token
        self._admit()
        return b"v=" + b"A" * 44 if self.forged_signature else reply.token

    def _admit(self) -> None:
        self._is_in = True
        self.logins.append(self._user)


def _answer(
    token: bytes = b"",
    *,
    code: ErrorCode = ErrorCode.none,
    message: str | None = None,
    lifetime_ms: int = 0,
) -> dict[str, Any]:
    return {
        "error_code": code,
        "error_message": message,
        "auth_bytes": token,
        "session_lifetime": lifetime_ms,
    }


def _rows() -> list[dict[str, int]]:
    keys = (API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE, METADATA)
    return [
        {"api_key": key, "min_version": 0, "max_version": max(schema_name_map[api_key_map[key]])}
        for key in keys
    ]
