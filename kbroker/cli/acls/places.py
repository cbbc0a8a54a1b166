"""Where `kbroker acls` finds entries: a running broker, or the data directory of a stopped one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kbroker.cli.params import Bootstrap
from kbroker.cli.stopped_state import StoppedState, at_place
from kbroker.client import acl_admin
from kbroker.errors import KafkaError
from kbroker.formats.security_values import AclKey, StoredAcl
from kbroker.security.acls import Acl, AclFilter, loaded, stored

if TYPE_CHECKING:
    from kbroker.client.rpc import Connection


class Entries(Protocol):
    """Every change is durable on return."""

    def matching(self, chosen: Sequence[AclFilter]) -> list[Acl]:
        """The entries that one of the filters selects, sorted."""

    def create(self, acls: Sequence[Acl]) -> list[KafkaError | None]:
        """Add those that do not exist. One result for each."""

    def delete(self, acls: Sequence[Acl]) -> list[KafkaError | None]:
        """One result for each."""


class EntriesOfBroker:
    """Methods raise KafkaError and BrokerUnreachable."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def matching(self, chosen: Sequence[AclFilter]) -> list[Acl]:
        return sorted({acl for each in chosen for acl in acl_admin.describe(self._connection, each)})

    def create(self, acls: Sequence[Acl]) -> list[KafkaError | None]:
        return acl_admin.create(self._connection, acls)

    def delete(self, acls: Sequence[Acl]) -> list[KafkaError | None]:
        return acl_admin.delete(self._connection, acls)


class EntriesOfDirectory:
    """Methods raise what StateStore raises, and ValueError for an entry that cannot be read."""

    def __init__(self, state: StoppedState) -> None:
        self._state = state

    def matching(self, chosen: Sequence[AclFilter]) -> list[Acl]:
        acls = [loaded(StoredAcl.decode(value)) for _, value in self._state.scan(AclKey.namespace)]
        return sorted(acl for acl in acls if any(each.selects(acl) for each in chosen))

    def create(self, acls: Sequence[Acl]) -> list[KafkaError | None]:
        values = [stored(acl) for acl in acls]
        self._state.write([(AclKey.of(each).encode(), each.encode()) for each in values])
        return [None] * len(acls)

    def delete(self, acls: Sequence[Acl]) -> list[KafkaError | None]:
        self._state.write([(AclKey.of(stored(acl)).encode(), None) for acl in acls])
        return [None] * len(acls)


def entries_at(bootstrap: Bootstrap, data_dir: Path | None) -> AbstractContextManager[Entries]:
    """The entries of the broker, or of a data directory that a broker has used. Errors: as in
    at_place."""
    return at_place(bootstrap, data_dir, EntriesOfBroker, EntriesOfDirectory)
