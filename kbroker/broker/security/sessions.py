"""The connections of each user, so that an administrator can end them at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from kbroker.security.principals import Principal

End: TypeAlias = Callable[[], None]
"""Ends a connection. It must not wait."""


@dataclass(frozen=True, slots=True)
class SessionsStatistics:
    sessions: int
    principals: int


class Sessions:
    """Connections that have authenticated, as long as they are open."""

    def __init__(self) -> None:
        self._by_principal: dict[Principal, dict[int, End]] = {}

    def statistics(self) -> SessionsStatistics:
        return SessionsStatistics(sum(map(len, self._by_principal.values())), len(self._by_principal))

    def add(self, principal: Principal, connection_id: int, end: End) -> None:
        self._by_principal.setdefault(principal, {})[connection_id] = end

    def remove(self, principal: Principal, connection_id: int) -> None:
        """Nothing happens if it is not there."""
        found = self._by_principal.get(principal, {})
        found.pop(connection_id, None)
        if not found:
            self._by_principal.pop(principal, None)

    def disconnect(self, principal: Principal) -> int:
        """End all connections of the principal. Returns how many."""
        found = list(self._by_principal.get(principal, {}).values())
        for end in found:
            end()
        return len(found)
