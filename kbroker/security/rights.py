"""What one principal at one address may do, as handlers query it: with a memory, so that a request
costs one dictionary look-up for each topic.

Connections of the same principal and address share one object. A change of the ACLs or of the
authorizer empties the memory. It is also emptied when it is full, since clients choose the names.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from kbroker.security.acls import SUPPORTED, Operation, ResourceType
from kbroker.security.principals import Principal
from kbroker.security.spi import Authorizer

logger = logging.getLogger(__name__)

OnDenied: TypeAlias = Callable[["Rights", Operation, ResourceType, str], None]
MAX_KNOWN: Final = 10_000


class Rights:
    """`on_denied(rights, operation, kind, name)` is called for each denied operation."""

    __slots__ = ("__weakref__", "_any", "_authorizer", "_known", "_on_denied", "host", "principal", "version")

    def __init__(self, principal: Principal, host: str, authorizer: Authorizer, on_denied: OnDenied) -> None:
        self.principal = principal
        self.host = host
        self.version = 0
        """Rises whenever the answers may be other ones."""
        self._authorizer = authorizer
        self._on_denied = on_denied
        self._known: dict[tuple[Operation, ResourceType, str], bool] = {}
        self._any: dict[tuple[Operation, ResourceType], bool] = {}

    def allows(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Whether the client may do what it asks for. A denial is reported."""
        try:
            is_allowed = self._known[operation, kind, name]
        except KeyError:
            is_allowed = self._decide(operation, kind, name)
        if not is_allowed:
            self._on_denied(self, operation, kind, name)
        return is_allowed

    def has(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """The same without a report: for names that the client has not asked for, and where
        another right is enough."""
        try:
            return self._known[operation, kind, name]
        except KeyError:
            return self._decide(operation, kind, name)

    def allows_any_topic(self, operation: Operation) -> bool:
        """Whether the client may do it on some topic, which need not exist. Reports nothing."""
        key = operation, ResourceType.TOPIC
        known = self._any.get(key)
        if known is None:
            try:
                known = self._authorizer.allows_any(self.principal, self.host, *key)
            except Exception:
                self._log_failure()
                return False
            self._any[key] = known
        return known

    def operations(self, kind: ResourceType, name: str) -> int:
        """The operations that the client may do, of those that the kind has: bit n is the operation
        with the number n (KIP-430). Reports nothing."""
        return sum(1 << operation for operation in SUPPORTED[kind] if self.has(operation, kind, name))

    def forget(self) -> None:
        """Ask the authorizer again from now on."""
        self.version += 1
        self._known.clear()
        self._any.clear()

    @property
    def known(self) -> Mapping[tuple[Operation, ResourceType, str], bool]:
        """The remembered answers."""
        return self._known

    def _decide(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        try:
            is_allowed = self._authorizer.allows(self.principal, self.host, operation, kind, name)
        except Exception:  # It may be a plugin.
            self._log_failure()
            return False
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[operation, kind, name] = is_allowed
        return is_allowed

    def _log_failure(self) -> None:
        logger.exception("the authorizer failed, so %s was denied an operation", self.principal)
