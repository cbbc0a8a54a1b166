"""Where `kbroker users` finds users: a running broker, or a data directory whose broker is stopped.

The second is for the first user, without which nobody can log in, and for an administrator who is
locked out. It takes the lock of the directory, so a running broker refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kbroker.cli.params import Bootstrap, connect
from kbroker.client import user_admin
from kbroker.client.user_admin import ListedCredential
from kbroker.errors import NoSpace, OperatorError, StoreFailed
from kbroker.formats.security_values import ScramKey, ScramMechanism
from kbroker.formats.state import parse_key
from kbroker.security.scram import new_credential
from kbroker.storage.data_dir import SECURITY_FORMAT, DataDirectory

if TYPE_CHECKING:
    from kbroker.client.rpc import Connection
    from kbroker.storage.spi import Change, StateStore


class Users(Protocol):
    """Every change is durable on return."""

    def listed(self) -> list[ListedCredential]: ...

    def set(self, user: str, mechanism: ScramMechanism, password: str, iterations: int) -> None:
        """Create a credential, or replace it."""

    def delete(self, user: str, mechanism: ScramMechanism) -> None: ...


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


class UsersOfDirectory:
    """Methods raise what StateStore raises."""

    def __init__(self, directory: DataDirectory, store: StateStore) -> None:
        self._directory = directory
        self._store = store

    def listed(self) -> list[ListedCredential]:
        found = []
        for encoded, value in self._store.scan(ScramKey.namespace):
            key = parse_key(encoded)
            if isinstance(key, ScramKey):
                found.append(ListedCredential(key.user, key.mechanism, key.decode_value(value).iterations))
        return sorted(found)

    def set(self, user: str, mechanism: ScramMechanism, password: str, iterations: int) -> None:
        credential = new_credential(password, user_admin.new_salt(), iterations, mechanism)
        self._write((ScramKey(mechanism, user).encode(), credential.encode()))

    def delete(self, user: str, mechanism: ScramMechanism) -> None:
        self._write((ScramKey(mechanism, user).encode(), None))

    def _write(self, change: Change) -> None:
        self._directory.raise_format(SECURITY_FORMAT)
        self._store.write([change])
        self._store.sync()


@contextmanager
def users_at(
    bootstrap: Bootstrap, data_dir: Path | None, new_engines: tuple[str, str] | None = None
) -> Iterator[Users]:
    """The users of the broker, or of a data directory. `new_engines`: log and state engine of a
    directory that no broker has used yet; None: refuse such a one. Raises OperatorError."""
    if data_dir is None:
        with connect(bootstrap) as connection:
            yield UsersOfBroker(connection)
        return
    with _stopped(data_dir, new_engines) as (directory, store):
        yield UsersOfDirectory(directory, store)


@contextmanager
def _stopped(
    data_dir: Path, new_engines: tuple[str, str] | None
) -> Iterator[tuple[DataDirectory, StateStore]]:
    from kbroker import plugins

    engines = new_engines
    if engines is None or (data_dir / "kbroker.json").exists():
        with DataDirectory.inspect(data_dir) as found:
            engines = found.description.log_engine, found.description.state_engine
    if "memory" in engines:
        raise OperatorError(f"{data_dir} is of the memory engine, which keeps no users over a restart")
    plugins.log_store_factory(engines[0])
    factory = plugins.state_store_factory(engines[1])
    with DataDirectory.open(data_dir, *engines) as directory:
        store: StateStore = _usable(data_dir, lambda: factory.open(directory.state_path, {}, 0))
        with closing(store):
            try:
                yield directory, store
            except (NoSpace, StoreFailed, OSError, ValueError) as error:
                raise _failed(data_dir, error) from error


def _usable(data_dir: Path, opened: Callable[[], StateStore]) -> StateStore:
    try:
        return opened()
    except (NoSpace, StoreFailed, OSError, ValueError) as error:
        raise _failed(data_dir, error) from error


def _failed(data_dir: Path, error: Exception) -> OperatorError:
    return OperatorError(f"cannot use the data in {data_dir}: {' '.join(str(error).split())}")
