"""Quotas: what an entity may use, filters that select entities, and which quota holds for a client.

An entity is a user, a client id, both together, or an IP address. A name of None is the default: it
stands for every name that has no entry of its own. The names of types and keys are Kafka's, and so
are the messages of refusals.

A quota is shared by everything that it is found for: a quota of a user by all connections of that
user, one of a client id by all users with it, one of both by the pair. So every user that only the
default concerns has a rate of its own.

This module measures nothing: rates.py does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Final, NamedTuple, TypeAlias, TypeVar

from kbroker.settings.hosts import canonical_host, is_address

K = TypeVar("K")
P = TypeVar("P")
USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
TYPES: Final = (USER, CLIENT_ID, IP)

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

Entity: TypeAlias = tuple[tuple[str, str | None], ...]
"""(type, name), sorted by type: one name for each type."""

_LONG_MAX: Final = (1 << 63) - 1
_INT_MAX: Final = (1 << 31) - 1
_INTEGRAL: Final = {
    PRODUCER_BYTE_RATE: (_LONG_MAX, "a LONG"),
    CONSUMER_BYTE_RATE: (_LONG_MAX, "a LONG"),
    CONNECTION_CREATION_RATE: (_INT_MAX, "an INT"),
}
_FRACTION: Final = 1e-6
_KEYS_OF_CLIENTS: Final = (
    PRODUCER_BYTE_RATE,
    CONSUMER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    CONTROLLER_MUTATION_RATE,
)
_KEYS_OF_ADDRESSES: Final = (CONNECTION_CREATION_RATE,)
_NOT_ENFORCED: Final = (
    "kbroker does not limit how fast topics are created and deleted: controller_mutation_rate "
    "is not supported"
)


class BadQuota(ValueError):
    """An entity, a key or a value that cannot have a quota; the text is for the client."""


class UnsupportedEntityType(BadQuota):
    """A filter for a type that does not exist."""


def entity_of(names: Mapping[str, str | None]) -> Entity:
    return tuple(sorted(names.items()))


def keys_of(entity: Entity) -> tuple[str, ...]:
    """The keys that the entity may have. Raises BadQuota for one that cannot have quotas."""
    for kind, name in entity:
        if kind not in TYPES:
            raise BadQuota(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise BadQuota(f"Empty {kind} not supported")
    names = dict(entity)
    if not names:
        raise BadQuota("Invalid empty client quota entity")
    if IP not in names:
        return _KEYS_OF_CLIENTS
    if len(names) > 1:
        raise BadQuota(
            "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"
        )
    address = names[IP]
    if address is not None and not is_address(address):
        raise BadQuota(f"{address} is not a valid IP or resolvable host.")
    return _KEYS_OF_ADDRESSES


def check_value(keys: Iterable[str], key: str, value: float) -> None:
    """Raises BadQuota if the entity, whose keys these are, cannot have this value."""
    if key not in keys:
        raise BadQuota(f"Invalid configuration key {key}")
    if not value > 0:  # Also for NaN.
        raise BadQuota(f"Quota {key} must be greater than 0")
    if key == CONTROLLER_MUTATION_RATE:
        raise BadQuota(_NOT_ENFORCED)
    if key in _INTEGRAL:
        most, noun = _INTEGRAL[key]
        if value > most:
            raise BadQuota(f"Proposed value for {key} is too large for {noun}.")
        if value % 1.0 > _FRACTION:
            raise BadQuota(f"{key} cannot be a fractional value.")
    elif math.isinf(value):
        raise BadQuota(f"Quota {key} must be a finite number")


# -- filters
# --------------------------------------------------------------------------------------------------

EXACT: Final = 0
DEFAULT: Final = 1
SPECIFIED: Final = 2


class Component(NamedTuple):
    """A condition of a filter: the entity has a name of this type. `match_type` EXACT: that of
    `match`; DEFAULT: the default; SPECIFIED: any, the default too."""

    kind: str
    match_type: int
    match: str | None = None


class EntityFilter:
    """Selects entities that fulfil all components. `strict`: and have no other types. Raises
    BadQuota."""

    def __init__(self, components: Iterable[Component], *, strict: bool) -> None:
        self._exact: dict[str, str | None] = {}
        self._any: set[str] = set()
        self._strict = strict
        for component in components:
            self._add(component)
        kinds = self._exact.keys() | self._any
        if IP in kinds and len(kinds) > 1:
            raise BadQuota(
                "Invalid entity filter component combination. IP filter component should not be used with "
                "user or clientId filter component."
            )

    def _add(self, component: Component) -> None:
        kind, match_type, match = component
        if not kind:
            raise BadQuota("Invalid empty entity type.")
        if kind in self._exact or kind in self._any:
            raise BadQuota(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in TYPES:
            raise UnsupportedEntityType(f"Unsupported entity type {kind}")
        if match_type == EXACT:
            if match is None:
                raise BadQuota("Request specified MATCH_TYPE_EXACT, but set match string to null.")
            self._exact[kind] = match
        elif match_type in (DEFAULT, SPECIFIED):
            if match is not None:
                name = "DEFAULT" if match_type == DEFAULT else "SPECIFIED"
                raise BadQuota(f"Request specified MATCH_TYPE_{name}, but also specified a match string.")
            if match_type == DEFAULT:
                self._exact[kind] = None
            else:
                self._any.add(kind)
        else:
            raise BadQuota(f"Unknown match type {match_type}")

    def selects(self, entity: Entity) -> bool:
        names = dict(entity)
        if self._strict and len(names) != len(self._exact) + len(self._any):
            return False
        return self._any <= names.keys() and all(
            kind in names and names[kind] == name for kind, name in self._exact.items()
        )


# -- which quota holds
# --------------------------------------------------------------------------------------------------

_LONGEST_ID: Final = 64
_ABSENT: Final = ""
"""In place of a name: the entity has no name of this type. No name is empty."""


class Owner(NamedTuple):
    """The clients that share a rate: those of a user, of a client id, or of a pair. "": it does
    not matter. A rate is kept for each owner, and clients choose their ids: of a long one the
    digest counts."""

    user: str
    client_id: str


class Quota(NamedTuple):
    limit: float
    owner: Owner


class QuotaTable:
    """All quotas. Falsy if there are none."""

    def __init__(self) -> None:
        self._values: dict[Entity, dict[str, float]] = {}
        self._of_clients: dict[str, dict[tuple[str | None, str | None], float]] = {}
        self._of_addresses: dict[str | None, dict[Entity, float]] = {}
        """Two spellings of an address are two entities; the one that was set last holds."""

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[tuple[Entity, Mapping[str, float]]]:
        return iter(self._values.items())

    def values_of(self, entity: Entity) -> Mapping[str, float]:
        return self._values.get(entity, {})

    def put(self, entity: Entity, values: Mapping[str, float]) -> None:
        """Replace the quotas of an entity; without values it has none."""
        names = dict(entity)
        before = self._values.pop(entity, {})
        if values:
            self._values[entity] = dict(values)
        if IP in names:
            address = _address(names[IP])
            _drop(self._of_addresses, address, entity)
            for value in values.values():
                self._of_addresses.setdefault(address, {})[entity] = value
            return
        place = names.get(USER, _ABSENT), names.get(CLIENT_ID, _ABSENT)
        for key in before:
            _drop(self._of_clients, key, place)
        for key, value in values.items():
            self._of_clients.setdefault(key, {})[place] = value

    @property
    def limits_clients(self) -> bool:
        return bool(self._of_clients)

    @property
    def limits_addresses(self) -> bool:
        return bool(self._of_addresses)

    def of_client(self, key: str, user: str, client_id: str) -> Quota | None:
        """The quota that holds for a client, by Kafka's order: the user with the client id comes
        before the user, the user before the default user, and users before client ids. An empty
        client id has only quotas of users."""
        limits = self._of_clients.get(key)
        if not limits:
            return None
        owner_id = client_id if len(client_id) <= _LONGEST_ID else _digest(client_id)
        for name in (user, None):
            if client_id:
                for asked in (client_id, None):
                    if (limit := limits.get((name, asked))) is not None:
                        return Quota(limit, Owner(user, owner_id))
            if (limit := limits.get((name, _ABSENT))) is not None:
                return Quota(limit, Owner(user, _ABSENT))
        if client_id:
            for asked in (client_id, None):
                if (limit := limits.get((_ABSENT, asked))) is not None:
                    return Quota(limit, Owner(_ABSENT, owner_id))
        return None

    def of_address(self, host: str) -> float | None:
        """connection_creation_rate of an address: its own, or the default's."""
        limits = self._of_addresses
        found = limits.get(_address(host)) or limits.get(None)
        return next(reversed(found.values())) if found else None


def _drop(groups: dict[K, dict[P, float]], key: K, place: P) -> None:
    """Without effect if it is not there. No group is left empty."""
    if group := groups.get(key):
        group.pop(place, None)
        if not group:
            del groups[key]


def _digest(client_id: str) -> str:
    return blake2b(client_id.encode(), digest_size=16).hexdigest()


def _address(host: str | None) -> str | None:
    return None if host is None else canonical_host(host)
