"""The built-in authorizer, which decides as Kafka's StandardAuthorizer does:

    1. super users may do everything
    2. an entry that denies the operation, or ALL, wins
    3. then an entry that allows it, or one that implies it
    4. a resource without any entry is open if `allow.everyone.if.no.acl.found` is set
    5. everything else is denied

Only entries that allow imply others: READ, WRITE, DELETE and ALTER imply DESCRIBE, ALTER_CONFIGS
implies DESCRIBE_CONFIGS, and ALL implies every operation. An entry that denies READ leaves DESCRIBE
as it is.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from kbroker.security.acls import (
    Acl,
    AclTable,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from kbroker.security.principals import Principal, parse_principal
from kbroker.security.spi import Authorizer
from kbroker.settings.hosts import WILDCARD

_ALLOWED_BY: Final = {
    Operation.DESCRIBE: frozenset(
        {
            Operation.ALL,
            Operation.DESCRIBE,
            Operation.READ,
            Operation.WRITE,
            Operation.DELETE,
            Operation.ALTER,
        }
    ),
    Operation.DESCRIBE_CONFIGS: frozenset(
        {Operation.ALL, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS}
    ),
}


def allowed_by(operation: Operation) -> frozenset[Operation]:
    """The operations of entries that allow it."""
    return _ALLOWED_BY.get(operation) or frozenset({Operation.ALL, operation})


def parse_super_users(text: str) -> frozenset[Principal]:
    """Of `super.users`: `User:a;User:b`. Raises ValueError."""
    return frozenset(parse_principal(part.strip()) for part in text.split(";") if part.strip())


class StandardAuthorizer(Authorizer):
    """`opens_unlisted`: allow.everyone.if.no.acl.found."""

    uses_acls = True

    def __init__(self, super_users: Collection[Principal] = (), *, opens_unlisted: bool = False) -> None:
        self._super_users = frozenset(super_users)
        self._opens_unlisted = opens_unlisted
        self._acls = AclTable()

    def acls_changed(self, acls: AclTable) -> None:
        self._acls = acls

    def allows(
        self, principal: Principal, host: str, operation: Operation, kind: ResourceType, name: str
    ) -> bool:
        if principal in self._super_users:
            return True
        subject, allowing = str(principal), allowed_by(operation)
        is_allowed = False
        for acl in self._acls.concerning(kind, name, subject, host):
            if acl.permission is Permission.DENY:
                if acl.operation in (operation, Operation.ALL):
                    return False
            else:
                is_allowed = is_allowed or acl.operation in allowing
        if is_allowed or not self._opens_unlisted:
            return is_allowed
        return next(self._acls.matching(kind, name), None) is None

    def allows_any(self, principal: Principal, host: str, operation: Operation, kind: ResourceType) -> bool:
        """As Kafka's authorizeByResourceType: some entry allows it, and no entry denies it for all
        the names that the first one matches."""
        if principal in self._super_users:
            return True
        if self._opens_unlisted and not any(
            acl.pattern is PatternType.LITERAL for acl in self._acls.matching(kind, WILDCARD)
        ):
            return True  # Some name has no entry.
        subject = str(principal)
        operations = (operation, Operation.ALL)
        return any(
            acl.permission is Permission.ALLOW
            and acl.operation in operations
            and not any(
                other.permission is Permission.DENY and other.operation in operations and _covers(other, acl)
                for other in self._acls.concerning(kind, acl.name, subject, host)
            )
            for acl in self._acls.concerning_any(kind, subject, host)
        )


def _covers(denial: Acl, acl: Acl) -> bool:
    """Whether every name that `acl` matches is denied."""
    if denial.pattern is PatternType.PREFIXED:
        is_all = acl.pattern is PatternType.LITERAL and acl.name == WILDCARD
        return not is_all and acl.name.startswith(denial.name)
    if denial.name == WILDCARD:
        return True
    return acl.pattern is PatternType.LITERAL and acl.name == denial.name
