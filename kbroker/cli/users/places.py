"""Where `kbroker users` finds users: a running broker, or the data directory of a stopped one."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kbroker.cli.params import Bootstrap, connect
from kbroker.cli.stopped_state import StoppedState, refuse_both_places, stopped_state
from kbroker.client import user_admin
from kbroker.client.user_admin import ListedCredential
from kbroker.formats.security_values import (
    SCRAM_SECRET_BYTES,
    ScramCredential,
    ScramKey,
    ScramMechanism,
    ScramSecret,
)
from kbroker.formats.state import SCRAM_SECRET, read_entries
from kbroker.security.scram import new_credential

if TYPE_CHECKING:
    from kbroker.client.rpc import Connection


class Users(Protocol):
    """Every change is durable on return."""

    def listed(self) -> list[ListedCredential]: ...

    def set(self, user: str, mechanism: ScramMechanism, password: str, iterations: int) -> None:
        """Create a credential, or replace it."""

    def delete(self, user: str, mechanism: ScramMechanism) -> None: ...

    def disconnect(self, user: str) -> bool:
        """End all connections of the user. False: there were none."""


class UsersOfBroker:
    """Methods raise KafkaError and BrokerUnreachable."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def listed(self) -> list[ListedCredential]:
        return user_admin.list_credentials(self._connection)

    def set(self, user: str, mechanism: ScramMechanism, password: str, iterations: int) -> None:
        user_admin.set_credential(self._connection, user, mechanism, password, iterations)

    def delete(self, user: str, mechanism: ScramMechanism) -> None:
        user_admin.delete_credential(self._connection, user, mechanism)

    def disconnect(self, user: str) -> bool:
        return user_admin.disconnect(self._connection, user)


class UsersOfDirectory:
    """Methods raise what StateStore raises."""

    def __init__(self, state: StoppedState) -> None:
        self._state = state

    def listed(self) -> list[ListedCredential]:
        found = []
        for key, value in read_entries(self._state.scan(ScramKey.namespace)):
            assert isinstance(key, ScramKey)
            assert isinstance(value, ScramCredential)
            found.append(ListedCredential(key.user, key.mechanism, value.iterations))
        return sorted(found)

    def set(self, user: str, mechanism: ScramMechanism, password: str, iterations: int) -> None:
        credential = new_credential(password, user_admin.new_salt(), iterations, mechanism)
        changes = [(ScramKey(mechanism, user).encode(), credential.encode())]
        # As a broker does with the first user: without it, made-up salts would differ after each
        # start, and those of real users would not.
        if not self._state.scan(SCRAM_SECRET.encode()):
            secret = ScramSecret(secrets.token_bytes(SCRAM_SECRET_BYTES))
            changes.append((SCRAM_SECRET.encode(), secret.encode()))
        self._state.write(changes)

    def delete(self, user: str, mechanism: ScramMechanism) -> None:
        self._state.write([(ScramKey(mechanism, user).encode(), None)])

    def disconnect(self, user: str) -> bool:
        """No client is connected to a broker that is stopped."""
        return False


@contextmanager
def users_at(
    bootstrap: Bootstrap, data_dir: Path | None, new_engines: tuple[str, str] | None = None
) -> Iterator[Users]:
    """The users of the broker, or of a data directory. `new_engines`: as in stopped_state. Raises
    OperatorError, and UsageError if both places are given."""
    refuse_both_places(data_dir)
    if data_dir is None:
        with connect(bootstrap) as connection:
            yield UsersOfBroker(connection)
        return
    with stopped_state(data_dir, new_engines) as state:
        yield UsersOfDirectory(state)
