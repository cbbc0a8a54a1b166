"""ACL entries, filters that select them, and a table that finds the entries of a resource.

An entry allows or denies one operation to one principal at one address, for the resources that its
pattern matches:

    LITERAL     the resource of that name; `*` is every resource of the kind
    PREFIXED    resources whose names begin with it; `*` is an ordinary character here

The principal is exact, or `User:*`. The host is an address, a range of addresses, or `*`
(settings/hosts.py). All numbers are Kafka's.

This module decides nothing: authorizer.py does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import IntEnum
from functools import cached_property
from itertools import chain
from typing import Final, NamedTuple

from kbroker.formats.security_values import StoredAcl
from kbroker.security.acl_index import PatternEntries
from kbroker.settings.hosts import (
    WILDCARD,
    AddressRange,
    canonical_host,
    is_range,
    is_within,
    parse_range,
)

CLUSTER_NAME: Final = "kafka-cluster"
"""The only resource of the kind CLUSTER."""
ANYONE: Final = "User:*"
_RANGES: Final = "expected an IPv4 address with /0 to /32, or an IPv6 address with /0 to /128"


class ResourceType(IntEnum):
    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """ANY and MATCH occur in filters only. MATCH selects every pattern that applies to the name."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


SUPPORTED: Final = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE, Operation.TWO_PHASE_COMMIT),
}
"""The operations that each kind of resource has. As in Kafka, entries may name others."""


class _Fields(NamedTuple):
    kind: ResourceType
    pattern: PatternType
    name: str
    principal: str
    host: str
    operation: Operation
    permission: Permission


class Acl(_Fields):
    """One entry. `kind`, `pattern` and `name` are the resource pattern."""

    @cached_property
    def range(self) -> AddressRange | None:
        """The range that `host` means; None if it means none. Entries of a table have parsed it."""
        return parse_range(self.host)

    def check_host(self) -> None:
        """Of a new entry. Raises ValueError with Kafka's words."""
        if not self.host:
            raise ValueError("Host pattern cannot be null or empty")
        if is_range(self.host) and self.range is None:
            raise ValueError(f"Invalid CIDR notation '{self.host}': {_RANGES}")

    def is_for(self, principal: str, host: str) -> bool:
        """Whether it concerns this principal at this address (canonical)."""
        return self.principal in (principal, ANYONE) and self.has_host(host)

    def has_host(self, host: str) -> bool:
        """Whether it concerns clients at this address (canonical)."""
        if self.host == WILDCARD:
            return True
        if "/" in self.host:  # is_range, without a call.
            return self.range is not None and is_within(host, self.range)
        return canonical_host(self.host) == host


def stored(acl: Acl) -> StoredAcl:
    """The value of the state storage."""
    return StoredAcl(
        int(acl.kind),
        int(acl.pattern),
        acl.name,
        acl.principal,
        acl.host,
        int(acl.operation),
        int(acl.permission),
    )


def loaded(value: StoredAcl) -> Acl:
    """The reverse of `stored`. Raises ValueError for a number that Kafka does not have."""
    return Acl(
        ResourceType(value.resource_type),
        PatternType(value.pattern_type),
        value.name,
        value.principal,
        value.host,
        Operation(value.operation),
        Permission(value.permission),
    )


class AclFilter(NamedTuple):
    """Selects entries: None and ANY select all."""

    kind: ResourceType = ResourceType.ANY
    pattern: PatternType = PatternType.ANY
    name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def selects(self, acl: Acl) -> bool:
        return (
            self._selects_pattern(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def _selects_pattern(self, acl: Acl) -> bool:
        if self.kind not in (ResourceType.ANY, acl.kind):
            return False
        if self.pattern not in (PatternType.ANY, PatternType.MATCH, acl.pattern):
            return False
        if self.name is None or self.name == acl.name:
            return True
        if self.pattern is not PatternType.MATCH:
            return False
        if acl.pattern is PatternType.PREFIXED:
            return self.name.startswith(acl.name)
        return acl.name == WILDCARD


class AclTable:
    """Entries, found by the resource that they apply to: dictionary look-ups, one for each length
    that prefixes of that kind have. Among many entries of one resource, those for a client are
    found as well (acl_index.py). Ranges of addresses are parsed when entries are added."""

    def __init__(self, acls: Iterable[Acl] = ()) -> None:
        self._literal: dict[tuple[ResourceType, str], PatternEntries[Acl]] = {}
        self._prefixed: dict[tuple[ResourceType, str], PatternEntries[Acl]] = {}
        self._lengths: dict[ResourceType, Counter[int]] = {}
        self._sorted_lengths: dict[ResourceType, tuple[int, ...]] = {}
        self._count = 0
        for acl in acls:
            self.add(acl)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Acl]:
        return chain.from_iterable(chain(self._literal.values(), self._prefixed.values()))

    def __contains__(self, acl: Acl) -> bool:
        return acl in self._patterns(acl).get((acl.kind, acl.name), ())

    def add(self, acl: Acl) -> None:
        """Without effect if the table has it."""
        acls = self._patterns(acl).setdefault((acl.kind, acl.name), PatternEntries())
        if acl in acls:
            return
        if acl.pattern is PatternType.PREFIXED and not acls:
            self._count_length(acl, 1)
        acls.put(acl)
        if is_range(acl.host):
            _ = acl.range
        self._count += 1

    def remove(self, acl: Acl) -> None:
        """Without effect if the table lacks it."""
        if acl not in self:
            return
        patterns, key = self._patterns(acl), (acl.kind, acl.name)
        patterns[key].drop(acl)
        self._count -= 1
        if not patterns[key]:
            del patterns[key]
            if acl.pattern is PatternType.PREFIXED:
                self._count_length(acl, -1)

    def matching(self, kind: ResourceType, name: str) -> Iterator[Acl]:
        """The entries of all principals whose patterns match the resource."""
        return chain.from_iterable(self._matching_patterns(kind, name))

    def concerning(self, kind: ResourceType, name: str, principal: str, host: str) -> Iterator[Acl]:
        """Those of `matching` that are for this principal at this address (canonical). With many
        entries for other clients it costs no more."""
        principals = _names_of(principal)
        for entries in self._matching_patterns(kind, name):
            yield from entries.concerning(principals, host)

    def concerning_any(self, kind: ResourceType, principal: str, host: str) -> Iterator[Acl]:
        """The same for all patterns of the kind."""
        principals = _names_of(principal)
        for (its, _), entries in chain(self._literal.items(), self._prefixed.items()):
            if its is kind:
                yield from entries.concerning(principals, host)

    def _matching_patterns(self, kind: ResourceType, name: str) -> Iterator[PatternEntries[Acl]]:
        if entries := self._literal.get((kind, name)):
            yield entries
        if name != WILDCARD and (entries := self._literal.get((kind, WILDCARD))):
            yield entries
        for length in self._sorted_lengths.get(kind, ()):
            if length > len(name):
                break
            if entries := self._prefixed.get((kind, name[:length])):
                yield entries

    def candidates(self, wanted: AclFilter) -> list[Acl]:
        """The entries that the filter may select, and others. One that names a resource costs
        look-ups only."""
        return list(self if wanted.name is None else self._named(wanted, wanted.name))

    def _named(self, wanted: AclFilter, name: str) -> Iterator[Acl]:
        for kind in ResourceType if wanted.kind is ResourceType.ANY else (wanted.kind,):
            if wanted.pattern is PatternType.MATCH:
                yield from self.matching(kind, name)
            else:
                yield from self._literal.get((kind, name), ())
                yield from self._prefixed.get((kind, name), ())

    def _patterns(self, acl: Acl) -> dict[tuple[ResourceType, str], PatternEntries[Acl]]:
        return self._prefixed if acl.pattern is PatternType.PREFIXED else self._literal

    def _count_length(self, acl: Acl, by: int) -> None:
        lengths = self._lengths.setdefault(acl.kind, Counter())
        lengths[len(acl.name)] += by
        self._sorted_lengths[acl.kind] = tuple(sorted(each for each, count in lengths.items() if count))


def _names_of(principal: str) -> tuple[str, ...]:
    return (principal,) if principal == ANYONE else (principal, ANYONE)
