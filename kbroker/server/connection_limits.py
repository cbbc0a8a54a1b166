"""Which connections a server accepts: bounds on all of them, and on those of one address.

Connections take open files, which the storage engine needs too. An engine that cannot open a file
refuses writes, and some engines take no more until a restart. So connections get at most half of
the files that the process may have open, whatever max.connections says: otherwise strangers could
stop the broker.
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Callable

from kbroker.errors import OperatorError
from kbroker.settings.altering import BrokerConfig
from kbroker.settings.broker_listeners import per_ip_overrides
from kbroker.settings.hosts import canonical_host

LEAST_FILES = 64
"""Half of them are for connections. Without any, a broker has some 30."""


def check_open_files() -> None:
    """Raises OperatorError if the process may open too few files for a broker."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < LEAST_FILES:
        raise OperatorError(
            f"this process may open {most} files, a broker needs {LEAST_FILES}: raise the limit (ulimit -n)"
        )


def most_for_open_files() -> float:
    """How many connections the limit of open files allows."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return float("inf") if files == resource.RLIM_INFINITY else max(1, files // 2)


class ConnectionLimits:
    """Hosts are addresses in canonical spelling. `admits`: whether the quota of an address lets it
    open one more connection now."""

    def __init__(self, config: BrokerConfig, admits: Callable[[str], bool]) -> None:
        self._config = config
        self._admits = admits
        self._most: int = config["max.connections"]
        self._most_for_files = most_for_open_files()
        self._open = 0
        self._by_host: Counter[str] = Counter()
        self._overrides: tuple[str, ...] = ()
        self._most_of: dict[str, int] = {}
        """The meaning of `_overrides`."""

    def add(self, host: str) -> None:
        self._open += 1
        self._by_host[host] += 1

    def remove(self, host: str) -> None:
        self._open -= 1
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]

    def exceeded(self, host: str) -> str | None:
        """The limit that one more connection of `host` would exceed, in words for the log."""
        if self._open >= self._most:
            return f"max.connections={self._most} are open"
        if self._open >= self._most_for_files:
            return (
                f"{self._open} connections are open, half of the open files that this process may have "
                "(ulimit -n)"
            )
        if not self._admits(host):
            return "it opens them faster than its quota allows (connection_creation_rate)"
        most = self._most_per_ip(host)
        if self._by_host[host] >= most:
            return f"{most} of its connections are open (max.connections.per.ip)"
        return None

    def _most_per_ip(self, host: str) -> int:
        overrides: tuple[str, ...] = self._config["max.connections.per.ip.overrides"]
        if overrides is not self._overrides:  # A comparison would look at each.
            most_of = per_ip_overrides(overrides)
            self._most_of = {canonical_host(address): most for address, most in most_of.items()}
            self._overrides = overrides
        most: int = self._config["max.connections.per.ip"]
        return self._most_of.get(host, most)
