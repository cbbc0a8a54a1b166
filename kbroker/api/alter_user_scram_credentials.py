"""AlterUserScramCredentials (51), v0: creates, replaces and deletes credentials of users.

The client sends SaltedPassword; only StoredKey and ServerKey are stored. A row for each user, in
the order of the request, when its change is durable. Codes: 93 for an empty name and for iterations
outside 4096..16384, 33 for an unknown mechanism, 92 for a user that is named twice, 91 for the
deletion of a missing credential.

kbroker's own: a deletion with mechanism 127 deletes nothing, and ends the connections of the user
at once (`kbroker users ... --disconnect`). It is answered 91 if there are none. If the request's
own connection is one of them, it is answered first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kbroker.api.authorization import allows_on_cluster, refusal
from kbroker.api.request import Message, Request
from kbroker.broker.security.credentials import Deletion, Upsertion, repeated
from kbroker.broker.security.service import Security
from kbroker.errors import ErrorCode, KafkaError
from kbroker.security.acls import Operation, ResourceType
from kbroker.security.principals import user as principal_of
from kbroker.security.sasl import DISCONNECT

_TWICE: Final = "A user credential cannot be altered twice in the same request"


async def handle(request: Request) -> Message:
    security = request.broker.security
    changes = _changes(request)
    if not allows_on_cluster(request, Operation.ALTER):
        refused = refusal(ResourceType.CLUSTER)
        return {"results": [_row(user, refused) for user in dict.fromkeys(each.user for each in changes)]}
    twice = repeated(each.user for each in changes)
    outcomes: dict[str, KafkaError | None] = {
        user: KafkaError(ErrorCode.duplicate_resource, _TWICE) for user in twice
    }
    once = [each for each in changes if each.user not in twice]
    altered = [each for each in once if each.mechanism != DISCONNECT or isinstance(each, Upsertion)]
    found = await security.credentials.alter(altered)
    outcomes |= {each.user: outcome for each, outcome in zip(altered, found, strict=True)}
    own_id = request.connection.id
    outcomes |= {
        each.user: _disconnected(security, each.user, own_id) for each in once if each not in altered
    }
    return {"results": [_row(user, outcomes[user]) for user in dict.fromkeys(each.user for each in changes)]}


def _changes(request: Request) -> Sequence[Upsertion | Deletion]:
    return [
        *(Deletion(each.name, each.mechanism) for each in request.body.deletions),
        *(
            Upsertion(
                each.name, each.mechanism, each.iterations, bytes(each.salt), bytes(each.salted_password)
            )
            for each in request.body.upsertions
        ),
    ]


def _disconnected(security: Security, user: str, own_id: int) -> KafkaError | None:
    if security.sessions.disconnect(principal_of(user), own_id):
        return None
    return KafkaError(ErrorCode.resource_not_found, "The user has no open connection")


def _row(user: str, error: KafkaError | None) -> Message:
    return {
        "user": user,
        "error_code": ErrorCode.none if error is None else error.code,
        "error_message": None if error is None else error.message,
    }
