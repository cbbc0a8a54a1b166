"""SaslAuthenticate (36), v0-2: the tokens of a log-in or of a re-authentication.

A refusal is SASL_AUTHENTICATION_FAILED (58), after connection.failed.authentication.delay.ms, and
the connection is closed. The message is Kafka's: for an unknown user the same as for a wrong
password. The session lifetime is 0 (none) in all answers but the last of a log-in. Version 0 does
not tell it, but the session ends all the same.

On a listener without SASL, and after a log-in: ILLEGAL_SASL_STATE (34), and the connection stays.
"""

from __future__ import annotations

from kbroker.api.request import Message, Request
from kbroker.errors import ErrorCode
from kbroker.security.sasl import LATE_AUTHENTICATE, Authenticated, Refused


async def handle(request: Request) -> Message:
    log_in = request.connection.log_in
    if log_in is None:
        return _answer(ErrorCode.illegal_sasl_state, LATE_AUTHENTICATE)
    step = await log_in.authenticate(bytes(request.body.auth_bytes))
    if isinstance(step, Refused):
        return _answer(step.error_code, step.message)
    lifetime_ms = step.lifetime_ms if isinstance(step, Authenticated) else 0
    return _answer(ErrorCode.none, None, step.token, lifetime_ms)


def _answer(code: ErrorCode, message: str | None, token: bytes = b"", lifetime_ms: int = 0) -> Message:
    return {
        "error_code": code,
        "error_message": message,
        "auth_bytes": token,
        "session_lifetime": lifetime_ms,
    }
