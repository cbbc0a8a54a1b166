"""Requests about users: the SCRAM credentials that a broker has.

A password does not leave this process: the broker gets what SCRAM derives from it, which is enough
to check a log-in, and not enough to log in elsewhere. Plain functions over a Connection, as in
admin.py.
"""

from __future__ import annotations

import secrets
from typing import Any, Final, NamedTuple

from kbroker.client.answers import check, reason
from kbroker.client.rpc import Connection
from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.security_values import ScramMechanism
from kbroker.security.sasl import DISCONNECT
from kbroker.security.scram import DIGESTS, salt_password

SALT_BYTES: Final = 24


class ListedCredential(NamedTuple):
    user: str
    mechanism: ScramMechanism
    iterations: int


def list_credentials(connection: Connection) -> list[ListedCredential]:
    """All of them, by user. Raises KafkaError."""
    answer = connection.call("describe_user_scram_credentials", users=None)
    check(answer.error_code, reason(answer.error_code, answer.error_message), needs="describe")
    for row in answer.results:
        if row.error_code is not ErrorCode.resource_not_found:
            check(row.error_code, f"{row.user}: {reason(row.error_code, row.error_message)}")
    return sorted(
        ListedCredential(row.user, ScramMechanism(each.mechanism), each.iterations)
        for row in answer.results
        for each in row.credential_infos
        if each.mechanism in ScramMechanism.__members__.values()
    )


def set_credential(
    connection: Connection, user: str, mechanism: ScramMechanism, password: str, iterations: int
) -> None:
    """Create it, or replace it. Durable on return. Raises KafkaError."""
    salt = new_salt()
    row = {
        "name": user,
        "mechanism": mechanism.value,
        "iterations": iterations,
        "salt": salt,
        "salted_password": salt_password(password.encode(), salt, iterations, DIGESTS[mechanism]),
    }
    _alter(connection, upsertions=[row])


def delete_credential(connection: Connection, user: str, mechanism: ScramMechanism) -> None:
    """Durable on return. Raises KafkaError, for instance resource_not_found."""
    _alter(connection, deletions=[{"name": user, "mechanism": mechanism.value}])


def disconnect(connection: Connection, user: str) -> bool:
    """End all connections of the user. False: there were none. If this connection is one of them,
    the broker ends it behind its answer. Raises KafkaError."""
    try:
        _alter(connection, deletions=[{"name": user, "mechanism": DISCONNECT}])
    except KafkaError as error:
        if error.code is ErrorCode.unsupported_sasl_mechanism:
            raise KafkaError(error.code, "only kbroker can end the connections of a user") from error
        if error.code is not ErrorCode.resource_not_found:
            raise
        return False
    return True


def new_salt() -> bytes:
    return secrets.token_bytes(SALT_BYTES)


def _alter(connection: Connection, **rows: list[dict[str, Any]]) -> None:
    """One row a request: Kafka refuses two for one user."""
    answer = connection.call("alter_user_scram_credentials", **{"deletions": [], "upsertions": [], **rows})
    for row in answer.results:
        check(row.error_code, reason(row.error_code, row.error_message), needs="alter")
