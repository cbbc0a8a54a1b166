"""Users in the StateStore: their SCRAM credentials, ACLs and quotas.

    scram/      mechanism (1), user name                            ScramCredential: JSON
    meta/scram_secret                                               ScramSecret: JSON
    acl/        id (16)                                             StoredAcl: JSON
    quota/      id (16)                                             StoredQuota: JSON

No password is stored, and none can be computed from a credential, except by guessing. A program
that reads a credential can still pretend to be the broker: the data directory must be closed to
others, and no error and no `repr` contains a key.

This module must not know how a credential is made or checked (kbroker/security/scram.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from hashlib import blake2b
from typing import Final, Self
from uuid import UUID

from .state_keys import LaterKey, Rest, StateKey
from .state_values import JsonValue, dump_json

SCRAM_SECRET_BYTES: Final = 32
MAX_USER_NAME_BYTES: Final = 255
"""As UTF-8. The key is then shorter than state.MAX_KEY_BYTES."""


class ScramMechanism(IntEnum):
    """Kafka's numbers."""

    SHA_256 = 1
    SHA_512 = 2


class _SecretValue(JsonValue):
    """Bytes are stored as hexadecimal text."""

    __slots__ = ()

    def encode(self) -> bytes:
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return dump_json(
            {name: value.hex() if isinstance(value, bytes) else value for name, value in found.items()}
        )

    @classmethod
    def decode(cls, value: bytes) -> Self:
        try:
            found = json.loads(value)
            return cls(
                **{
                    each.name: bytes.fromhex(found[each.name])
                    if each.type == "bytes"
                    else int(found[each.name])
                    for each in fields(cls)
                }
            )
        except (ValueError, TypeError, KeyError):
            raise ValueError(f"not a {cls.__name__} ({len(value)} bytes)") from None


@dataclass(frozen=True, slots=True)
class ScramCredential(_SecretValue):
    """One user's credential for one mechanism (RFC 5802: StoredKey and ServerKey)."""

    salt: bytes
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ScramSecret(_SecretValue):
    """meta/scram_secret: what the salts of users that do not exist are made from."""

    secret: bytes = field(repr=False)


class ScramKey(StateKey):
    mechanism: ScramMechanism
    user: Rest
    namespace = b"scram/"
    decode_value = staticmethod(ScramCredential.decode)

    @classmethod
    def _parse(cls, body: bytes) -> Self:
        if body[0] not in ScramMechanism.__members__.values():
            raise LaterKey
        return cls(ScramMechanism(body[0]), body[1:].decode())


@dataclass(frozen=True, slots=True)
class StoredAcl(JsonValue):
    """An ACL entry.

    - `resource_type` 2 to 7, `pattern_type` 3 (literal) or 4 (prefixed), `name`: the resources
    - `principal`: exact, or `User:*`; `host`: an address, a range of addresses, or `*`
    - `operation` 2 to 15; `permission` 2 (deny) or 3 (allow)
    """

    resource_type: int
    pattern_type: int
    name: str
    principal: str
    host: str
    operation: int
    permission: int


class AclKey(StateKey):
    acl_id: UUID
    namespace = b"acl/"
    decode_value = staticmethod(StoredAcl.decode)

    @classmethod
    def of(cls, acl: StoredAcl) -> Self:
        return cls(UUID(bytes=blake2b(acl.encode(), digest_size=16).digest()))


@dataclass(frozen=True, slots=True)
class StoredQuota(JsonValue):
    """The quotas of an entity.

    - `entity`: names by type (`user`, `client-id`, `ip`); null: the default
    - `values`: numbers by Kafka's keys, such as `producer_byte_rate`
    """

    entity: Mapping[str, str | None]
    values: Mapping[str, float]


class QuotaKey(StateKey):
    quota_id: UUID
    namespace = b"quota/"
    decode_value = staticmethod(StoredQuota.decode)

    @classmethod
    def of(cls, entity: Mapping[str, str | None]) -> Self:
        """Names may be longer than a key."""
        names = dump_json(dict(sorted(entity.items())))
        return cls(UUID(bytes=blake2b(names, digest_size=16).digest()))
