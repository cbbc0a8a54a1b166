"""The users of this broker: their SCRAM credentials in the state, loaded at start.

Save, then apply: a changed credential is in force when its record is committed. A log-in that is
under way fails if the credential with which it began is no longer the user's: otherwise a client
could outlive its user by keeping one half done. Sessions of a deleted user, or with a former
password, end at their next re-authentication, or at once by Sessions.disconnect.

A user that does not exist gets a credential too, made from its name and a stored secret, so that a
client cannot tell by the answers, nor by the time that they take, which users exist. It resembles
the credentials that most users have.
"""

from __future__ import annotations

import hmac
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import trio

from kbroker.broker.commits.group_commit import GroupCommit
from kbroker.broker.commits.waiting import Decision
from kbroker.errors import ErrorCode, KafkaError, NoSpace, StoreFailed
from kbroker.formats.security_values import (
    MAX_USER_NAME_BYTES,
    SCRAM_SECRET_BYTES,
    ScramCredential,
    ScramKey,
    ScramMechanism,
    ScramSecret,
)
from kbroker.formats.state import SCRAM_SECRET, read_entries
from kbroker.security.exchange import Found
from kbroker.security.scram import DEFAULT_ITERATIONS, DIGESTS, MAX_ITERATIONS, MIN_ITERATIONS, credential_of
from kbroker.storage.spi import Change, StateStore

SALT_BYTES: Final = 16
_MAX_SALT_BYTES: Final = 1024
_MAX_DIGEST_BYTES: Final = 64


class _Look(NamedTuple):
    """How the credentials of most users look. Kafka's tools make salts of letters and digits."""

    iterations: int
    salt_bytes: int
    is_alphanumeric: bool


class CredentialsStatistics(NamedTuple):
    users: int
    credentials: int


class Upsertion(NamedTuple):
    """A new credential as a client sends it; any of the fields may be wrong."""

    user: str
    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes

    def __repr__(self) -> str:
        return f"Upsertion({self.user!r}, {self.mechanism})"


class Deletion(NamedTuple):
    user: str
    mechanism: int


class Credentials:
    """`raise_format`: has earlier versions of kbroker refuse the data directory."""

    def __init__(
        self, store: StateStore, commits: GroupCommit[Change], raise_format: Callable[[], None]
    ) -> None:
        self._store = store
        self._commits = commits
        self._raise_format = raise_format
        self._users: dict[str, dict[ScramMechanism, ScramCredential]] = {}
        self._looks: dict[ScramMechanism, Counter[_Look]] = {each: Counter() for each in ScramMechanism}
        self._secret = secrets.token_bytes(SCRAM_SECRET_BYTES)
        """Stored with the first credential: a restart must not change made-up salts."""
        self._is_secret_stored = False
        self._altering = trio.Lock()

    def statistics(self) -> CredentialsStatistics:
        return CredentialsStatistics(len(self._users), sum(map(len, self._users.values())))

    def load(self) -> None:
        """At the start. Raises ValueError for a damaged value."""
        found = self._store.get(SCRAM_SECRET.encode())
        if found is not None:
            self._secret, self._is_secret_stored = ScramSecret.decode(found).secret, True
        for key, value in read_entries(self._store.scan(ScramKey.namespace)):
            assert isinstance(key, ScramKey)
            assert isinstance(value, ScramCredential)
            self._put(key, value)

    # -- for log-ins
    # ----------------------------------------------------------------------------------------------

    def for_scram(self, name: str, mechanism: ScramMechanism) -> Found:
        made_up = self._made_up(name, mechanism)
        stored = self._users.get(name, {}).get(mechanism)
        return Found(mechanism, made_up if stored is None else stored, stored is not None)

    def for_password(self, name: str) -> Found:
        """By the first mechanism that the user has."""
        mechanism = next(iter(sorted(self._users.get(name, ()))), self._usual_mechanism())
        return self.for_scram(name, mechanism)

    def _usual_mechanism(self) -> ScramMechanism:
        return max(ScramMechanism, key=lambda each: (self._looks[each].total(), -each))

    def _made_up(self, name: str, mechanism: ScramMechanism) -> ScramCredential:
        looks = self._looks[mechanism].most_common(1)
        look = looks[0][0] if looks else _Look(DEFAULT_ITERATIONS, SALT_BYTES, is_alphanumeric=False)
        subject = bytes((mechanism,)) + name.encode()
        salt = b""
        while len(salt) < look.salt_bytes:
            salt += hmac.digest(self._secret, b"salt" + bytes((len(salt) & 0xFF,)) + subject, "sha512")
        salt = salt[: look.salt_bytes]
        if look.is_alphanumeric:
            salt = bytes(b"0123456789abcdefghijklmnopqrstuvwxyz"[each % 36] for each in salt)
        key = hmac.digest(self._secret, b"key" + subject, DIGESTS[mechanism])
        return ScramCredential(salt, look.iterations, key, key)

    # -- for administration
    # ----------------------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        return not self._users

    def __contains__(self, user: str) -> bool:
        return user in self._users

    def described(self, user: str) -> Mapping[ScramMechanism, int]:
        """The iterations by mechanism; empty for an unknown user."""
        return {each: found.iterations for each, found in sorted(self._users.get(user, {}).items())}

    def names(self) -> Sequence[str]:
        return sorted(self._users)

    async def alter(self, changes: Sequence[Upsertion | Deletion]) -> Sequence[KafkaError | None]:
        """The outcome of each change, in order; None: it is durable and in force (with durability
        `os`, written)."""
        outcomes: list[KafkaError | None] = []
        saved: list[tuple[ScramKey, ScramCredential | None]] = []
        async with self._altering:
            for change in changes:
                try:
                    saved.append(self._checked(change))
                    outcomes.append(None)
                except KafkaError as error:
                    outcomes.append(error)
            try:
                await self._save(saved)
            except (NoSpace, StoreFailed) as error:
                failure = KafkaError(ErrorCode.kafka_storage_error, str(error))
                return [each or failure for each in outcomes]
        return outcomes

    def _checked(self, change: Upsertion | Deletion) -> tuple[ScramKey, ScramCredential | None]:
        """Raises KafkaError, with Kafka's words where it has some."""
        key = ScramKey(_mechanism(change.mechanism), _name(change.user))
        if isinstance(change, Deletion):
            if key.mechanism not in self._users.get(key.user, {}):
                raise KafkaError(
                    ErrorCode.resource_not_found, "Attempt to delete a user credential that does not exist"
                )
            return key, None
        if change.iterations < MIN_ITERATIONS:
            raise KafkaError(ErrorCode.unacceptable_credential, "Too few iterations")
        if change.iterations > MAX_ITERATIONS:
            raise KafkaError(ErrorCode.unacceptable_credential, "Too many iterations")
        if not 0 < len(change.salt) <= _MAX_SALT_BYTES:
            raise KafkaError(
                ErrorCode.unacceptable_credential, f"The salt must have 1 to {_MAX_SALT_BYTES} bytes"
            )
        if not 0 < len(change.salted_password) <= _MAX_DIGEST_BYTES:
            raise KafkaError(ErrorCode.unacceptable_credential, "The salted password must be a digest")
        digest = DIGESTS[key.mechanism]
        return key, credential_of(change.salted_password, change.salt, change.iterations, digest)

    async def _save(self, saved: Sequence[tuple[ScramKey, ScramCredential | None]]) -> None:
        """Raises NoSpace or StoreFailed, and then nothing has changed (or the store takes no more
        writes)."""
        if not saved:
            return
        await self._commits.perform(self._raise_format)
        changes = [(key.encode(), None if value is None else value.encode()) for key, value in saved]
        if not self._is_secret_stored:
            changes.append((SCRAM_SECRET.encode(), ScramSecret(self._secret).encode()))
        decision = Decision()
        self._commits.submit(changes, partial(self._ended, saved, decision))
        await decision.wait()

    def _ended(
        self,
        saved: Sequence[tuple[ScramKey, ScramCredential | None]],
        decision: Decision,
        error: Exception | None,
    ) -> None:
        if error is None:
            self._is_secret_stored = True
            for key, value in saved:
                self._put(key, value)
        decision.decide(error)

    def _put(self, key: ScramKey, value: ScramCredential | None) -> None:
        found = self._users.setdefault(key.user, {})
        looks = self._looks[key.mechanism]
        if (before := found.pop(key.mechanism, None)) is not None:
            looks[_look(before)] -= 1
            looks += Counter()  # Drops what has come to zero.
        if value is not None:
            found[key.mechanism] = value
            looks[_look(value)] += 1
        if not found:
            del self._users[key.user]


def _look(credential: ScramCredential) -> _Look:
    return _Look(credential.iterations, len(credential.salt), credential.salt.isalnum())


def _mechanism(number: int) -> ScramMechanism:
    if number not in ScramMechanism.__members__.values():
        raise KafkaError(ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism")
    return ScramMechanism(number)


def _name(user: str) -> str:
    if not user:
        raise KafkaError(ErrorCode.unacceptable_credential, "Username must not be empty")
    if len(user.encode()) > MAX_USER_NAME_BYTES:
        raise KafkaError(
            ErrorCode.unacceptable_credential, f"Username must not have more than {MAX_USER_NAME_BYTES} bytes"
        )
    return user


def repeated(users: Iterable[str]) -> frozenset[str]:
    """The users that are named more than once."""
    return frozenset(user for user, times in Counter(users).items() if times > 1)
