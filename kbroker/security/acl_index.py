"""The ACL entries of one resource pattern, found by the clients that they concern.

A few entries are looked at one by one. Many are found by principal and host: a look-up for each
spelling of the principal, and one for each length of range. So a list of thousands of addresses or
ranges costs a decision no more than a short one. Decisions are made in the broker's loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from kbroker.settings.hosts import (
    WILDCARD,
    AddressRange,
    canonical_host,
    is_range,
    ranges_with,
)

FEW: Final = 16
"""The most entries that are looked at one by one."""
_Key: TypeAlias = tuple[str, str | AddressRange]


class AclEntry(Protocol):
    """An ACL entry (acls.py), as far as it is known here."""

    @property
    def principal(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def range(self) -> AddressRange | None: ...
    def has_host(self, host: str, /) -> bool: ...


E = TypeVar("E", bound=AclEntry)


class PatternEntries(dict[E, None]):
    """Changed by `put` and `drop` only."""

    __slots__ = ("_index",)

    def __init__(self) -> None:
        super().__init__()
        self._index: _ByClient[E] | None = None

    def put(self, acl: E) -> None:
        """Without effect if it is there."""
        if acl in self:
            return
        self[acl] = None
        if self._index is not None:
            self._index.add(acl)
        elif len(self) > FEW:
            self._index = _ByClient(self)

    def drop(self, acl: E) -> None:
        """It is there."""
        del self[acl]
        if self._index is not None:
            self._index.remove(acl)

    def concerning(self, principals: tuple[str, ...], host: str) -> Iterator[E]:
        """The entries for one of the principals at the client's address (canonical)."""
        if self._index is not None:
            return self._index.concerning(principals, host)
        return (acl for acl in self if acl.principal in principals and acl.has_host(host))


class _ByClient(Generic[E]):
    """Entries whose host is no valid range concern nobody, and are left out."""

    __slots__ = ("_acls", "_lengths")

    def __init__(self, acls: Iterable[E]) -> None:
        self._acls: dict[_Key, tuple[E, ...]] = {}
        """Few each: they differ in operation and permission only."""
        self._lengths: dict[str, Counter[tuple[int, int]]] = {}
        """By principal: the versions and free bits that its ranges have."""
        for acl in acls:
            self.add(acl)

    def add(self, acl: E) -> None:
        if (key := _key_of(acl)) is None:
            return
        principal, host = key
        acls = self._acls.get(key, ())
        if not acls and isinstance(host, AddressRange):
            self._lengths.setdefault(principal, Counter())[host.version, host.free_bits] += 1
        self._acls[key] = (*acls, acl)

    def remove(self, acl: E) -> None:
        if (key := _key_of(acl)) is None:
            return
        principal, host = key
        if left := tuple(each for each in self._acls[key] if each != acl):
            self._acls[key] = left
            return
        del self._acls[key]
        if isinstance(host, AddressRange):
            lengths, its = self._lengths[principal], (host.version, host.free_bits)
            lengths[its] -= 1
            if not lengths[its]:
                del lengths[its]
            if not lengths:
                del self._lengths[principal]

    def concerning(self, principals: tuple[str, ...], host: str) -> Iterator[E]:
        for principal in principals:
            yield from self._acls.get((principal, WILDCARD), ())
            yield from self._acls.get((principal, host), ())
            for its in ranges_with(host, self._lengths.get(principal, ())):
                yield from self._acls.get((principal, its), ())


def _key_of(acl: AclEntry) -> _Key | None:
    if not is_range(acl.host):
        return acl.principal, canonical_host(acl.host)
    return None if acl.range is None else (acl.principal, acl.range)
