"""DescribeUserScramCredentials (50), v0: mechanisms and iterations of users, never salts or keys.

A client without DESCRIBE on the cluster is refused; Kafka sends it no answer at all.

No users, or an empty list, means all. An unknown user is RESOURCE_NOT_FOUND (91), one that is named
twice DUPLICATE_RESOURCE (92).
"""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.api.authorization import allows_on_cluster, refusal
from kbroker.api.request import Message, Request
from kbroker.broker.security.credentials import Credentials, repeated
from kbroker.errors import ErrorCode
from kbroker.security.acls import Operation, ResourceType


def handle(request: Request) -> Message:
    if not allows_on_cluster(request, Operation.DESCRIBE):
        refused = refusal(ResourceType.CLUSTER)
        return {"error_code": refused.code, "error_message": refused.message, "results": ()}
    credentials = request.broker.security.credentials
    wanted: Sequence[str] = [each.name for each in request.body.users or ()] or credentials.names()
    twice = repeated(wanted)
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "results": (_row(credentials, user, twice=user in twice) for user in dict.fromkeys(wanted)),
    }


def _row(credentials: Credentials, user: str, *, twice: bool) -> Message:
    code, message, rows = ErrorCode.none, None, credentials.described(user)
    if twice:
        code, rows = ErrorCode.duplicate_resource, {}
        message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
    elif not rows:
        code = ErrorCode.resource_not_found
        message = f"Attempt to describe a user credential that does not exist: {user}"
    return {
        "user": user,
        "error_code": code,
        "error_message": message,
        "credential_infos": [
            {"mechanism": mechanism, "iterations": iterations} for mechanism, iterations in rows.items()
        ],
    }
