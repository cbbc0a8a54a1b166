"""ExpireDelegationToken (40), v1-2: refused (delegation_tokens.py). Every client may send it."""

from __future__ import annotations

from kbroker.api.delegation_tokens import refusal_code
from kbroker.api.request import Message, Request


def handle(request: Request) -> Message:
    return {"error_code": refusal_code(request), "expiry_timestamp": 0}
