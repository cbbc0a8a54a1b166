"""What one principal at one address may do, as handlers query it: with a memory, so that a request
costs one dictionary look-up for each topic.

Connections of the same principal and address share one object. A change of the ACLs or of the
authorizer empties the memory. Clients choose the names, so it is bounded in bytes, each alone and
all together (`SharedMemory`), and emptied when it is full. Names that are too long to exist are not
remembered.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias
from weakref import WeakSet

from kbroker.security.acls import SUPPORTED, Operation, ResourceType
from kbroker.security.principals import Principal
from kbroker.security.spi import Authorizer

logger = logging.getLogger(__name__)

OnDenied: TypeAlias = Callable[["Rights", Operation, ResourceType, str], None]
MAX_BYTES: Final = 16 << 20
"""Of one object: some 50 000 names."""
MAX_SHARED_BYTES: Final = 64 << 20
_LONGEST_NAME: Final = 249
"""Of a topic. Longer names of groups and transactional ids are decided again each time."""
_ENTRY_BYTES: Final = 200


class SharedMemory:
    """What all objects together remember."""

    def __init__(self) -> None:
        self._rights: WeakSet[Rights] = WeakSet()
        self._added_bytes = 0
        """Since the last look at all objects."""

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self._rights)

    def join(self, rights: Rights) -> None:
        self._rights.add(rights)

    def added(self, size_bytes: int) -> None:
        """Have those that remember most forget it, once an eighth of the bound was added."""
        self._added_bytes += size_bytes
        if self._added_bytes <= MAX_SHARED_BYTES // 8:
            return
        self._added_bytes = 0
        total = self.bytes
        for each in sorted(self._rights, key=lambda rights: rights.bytes, reverse=True):
            if total <= MAX_SHARED_BYTES // 8 * 7:
                return
            total -= each.bytes
            each.forget_names()


class Rights:
    """`on_denied(rights, operation, kind, name)` is called for each denied operation. `bytes`: what
    it remembers."""

    __slots__ = (
        "__weakref__", "_any", "_authorizer", "_known", "_memory", "_on_denied", "bytes", "host",
        "principal", "version",
    )  # fmt: skip

    def __init__(
        self,
        principal: Principal,
        host: str,
        authorizer: Authorizer,
        on_denied: OnDenied,
        memory: SharedMemory,
    ) -> None:
        self.principal = principal
        self.host = host
        self.version = 0
        """Rises whenever the answers may be other ones."""
        self._authorizer = authorizer
        self._on_denied = on_denied
        self._memory = memory
        self.bytes = 0
        memory.join(self)
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
        self.forget_names()
        self._any.clear()

    def forget_names(self) -> None:
        """Only to save memory: the answers are the same."""
        self._known.clear()
        self.bytes = 0

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
        if len(name) <= _LONGEST_NAME:
            if self.bytes >= MAX_BYTES:
                self.forget_names()
            size_bytes = _ENTRY_BYTES + sys.getsizeof(name)
            self._known[operation, kind, name] = is_allowed
            self.bytes += size_bytes
            self._memory.added(size_bytes)
        return is_allowed

    def _log_failure(self) -> None:
        logger.exception("the authorizer failed, so %s was denied an operation", self.principal)
