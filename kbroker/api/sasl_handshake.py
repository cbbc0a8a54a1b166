"""SaslHandshake (17), v0-1: chooses the mechanism of a log-in.

Answers the mechanisms of the listener; for one that is not among them with
UNSUPPORTED_SASL_MECHANISM (33), after which the connection is closed. After version 0 the tokens
come without a request around them.

On a listener without SASL, and after a log-in that has no end: ILLEGAL_SASL_STATE (34), and the
connection stays.
"""

from __future__ import annotations

from kbroker.api.request import Message, Request
from kbroker.errors import ErrorCode


async def handle(request: Request) -> Message:
    log_in = request.connection.log_in
    if log_in is None:
        return {"error_code": ErrorCode.illegal_sasl_state, "mechanisms": ()}
    answer = await log_in.handshake(request.version, request.body.mechanism)
    return {"error_code": answer.error_code, "mechanisms": answer.mechanisms}
