"""Users, ACL entries and quotas of a stored data directory (from format 4 on), and what a broker
that opens it must return of them: one description for writer and test."""

from __future__ import annotations

from typing import Any

from kbroker.client import acl_admin, quota_admin, user_admin
from kbroker.formats.security_values import ScramMechanism
from kbroker.security.acls import (
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from kbroker.testing.broker import RunningBroker

AUTHORIZED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
PASSWORDS = {"alice": "a password, kept", "böb": "pässwörd, kept"}
_ITERATIONS = 4096


def secure(broker: RunningBroker) -> None:
    """Each user has one mechanism; entries of both patterns and permissions; a quota of a user, of
    all clients, and one that was removed again."""
    mechanisms = dict(zip(PASSWORDS, ScramMechanism, strict=True))
    with broker.connect() as connection:
        for user, password in PASSWORDS.items():
            user_admin.set_credential(connection, user, mechanisms[user], password, _ITERATIONS)
        rows = [
            (ResourceType.TOPIC, PatternType.LITERAL, "log", "User:alice", Operation.READ, Permission.ALLOW),
            (ResourceType.TOPIC, PatternType.PREFIXED, "lo", "User:böb", Operation.ALL, Permission.DENY),
            (ResourceType.GROUP, PatternType.LITERAL, "*", "User:*", Operation.DESCRIBE, Permission.ALLOW),
        ]
        acls = [
            Acl(kind, pattern, name, principal, "*", operation, permission)
            for kind, pattern, name, principal, operation, permission in rows
        ]
        assert acl_admin.create(connection, acls) == [None] * len(acls)
        quota_admin.alter(connection, [("user", "alice")], {"producer_byte_rate": 1e6})
        quota_admin.alter(connection, [("client-id", None)], {"request_percentage": 50.0})
        quota_admin.alter(connection, [("user", None)], {"consumer_byte_rate": 1e6})
        quota_admin.alter(connection, [("user", None)], {"consumer_byte_rate": None})


def look_at_security(broker: RunningBroker) -> dict[str, Any]:
    """As JSON; changes nothing. The broker has the settings AUTHORIZED."""
    with broker.connect() as connection:
        credentials = user_admin.list_credentials(connection)
        return {
            "users": [[row.user, row.mechanism.name, row.iterations] for row in credentials],
            "acls": [[str(part) for part in acl] for acl in acl_admin.describe(connection, AclFilter())],
            "quotas": sorted(
                [[list(each) for each in row.entity], dict(row.values)]
                for row in quota_admin.describe(connection)
            ),
        }
