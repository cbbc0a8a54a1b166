"""The connections of each user, so that an administrator can end them at once.

Browsers that have logged in at the admin endpoint are not connections. They compare `disconnected`
with the number that it had at their log-in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from kbroker.security.principals import Principal

End: TypeAlias = Callable[[bool], None]
"""Ends a connection, at once, or (True) after the answer to the request that it is serving. It must
not wait."""


@dataclass(frozen=True, slots=True)
class SessionsStatistics:
    sessions: int
    principals: int


class Sessions:
    """Connections that have authenticated, as long as they are open."""

    def __init__(self) -> None:
        self._by_principal: dict[Principal, dict[int, End]] = {}
        self.disconnected: Counter[Principal] = Counter()
        """How often `disconnect` was called for a principal."""

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

    def disconnect(self, principal: Principal, requested_by: int | None = None) -> int:
        """End all connections of the principal. Returns how many. `requested_by`: the connection
        that still gets an answer, if it is one of them."""
        self.disconnected[principal] += 1
        found = list(self._by_principal.get(principal, {}).items())
        for connection_id, end in found:
            end(connection_id == requested_by)
        return len(found)
