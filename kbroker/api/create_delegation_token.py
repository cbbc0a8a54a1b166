"""CreateDelegationToken (38), v1-3: refused (delegation_tokens.py), with the owner and the client
as Kafka repeats them. Every client may send it."""

from __future__ import annotations

from kbroker.api.delegation_tokens import refusal_code
from kbroker.api.request import Message, Request


def handle(request: Request) -> Message:
    own = request.connection.principal
    owner = (
        getattr(request.body, "owner_principal_type", None),
        getattr(request.body, "owner_principal_name", None),
    )
    kind, name = owner if all(owner) else own
    return {
        "error_code": refusal_code(request),
        "principal_type": kind,
        "principal_name": name,
        "token_requester_principal_type": own.kind,
        "token_requester_principal_name": own.name,
        "issue_timestamp": 0,
        "expiry_timestamp": 0,
        "max_timestamp": 0,
        "token_id": "",
        "hmac": b"",
    }
