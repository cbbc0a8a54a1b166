"""What the four requests for delegation tokens (KIP-48) share: there are none, as in a Kafka
without `delegation.token.secret.key`."""

from __future__ import annotations

from kbroker.api.request import Request
from kbroker.errors import ErrorCode
from kbroker.security.principals import ANONYMOUS


def refusal_code(request: Request) -> ErrorCode:
    """64 for a client that has not logged in, which could not have a token in Kafka either, and 61
    for any other."""
    if request.connection.principal == ANONYMOUS:
        return ErrorCode.delegation_token_request_not_allowed
    return ErrorCode.delegation_token_auth_disabled
