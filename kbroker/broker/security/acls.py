"""The ACLs of this broker: loaded at start, changed by a group commit, decided by the authorizer.

A change is in force when it is committed, and answered when it survives a power cut, even with
durability `os`: a right that was withdrawn must not return. From then on every request is decided
by the new entries. Requests that wait keep the answer that they got at their start.

Denied operations are counted, and logged once a minute for each principal, operation and kind of
resource: a client that retries must not flood the log.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

import trio

from kbroker import plugins
from kbroker.broker.commits.group_commit import GroupCommit
from kbroker.broker.commits.waiting import Decision
from kbroker.broker.security.acl_lines import log_changes, log_loaded, noun
from kbroker.errors import OperatorError
from kbroker.formats.security_values import AclKey, StoredAcl
from kbroker.formats.state import read_entries
from kbroker.security.acls import (
    Acl,
    AclFilter,
    AclTable,
    Operation,
    ResourceType,
    loaded,
    stored,
)
from kbroker.security.authorizer import StandardAuthorizer, parse_super_users
from kbroker.security.principals import Principal
from kbroker.security.rights import Rights, SharedMemory
from kbroker.security.spi import Authorizer, AuthorizerContext
from kbroker.seldom import Seldom
from kbroker.settings.altering import BrokerConfig
from kbroker.settings.hosts import canonical_host
from kbroker.storage.spi import Change, StateStore

logger = logging.getLogger(__name__)
_LOG_INTERVAL_S = 60.0
_ACLS_A_TURN: Final = 1024


class AclsStatistics(NamedTuple):
    """`acls`: entries; `principals`: with a connection, one for each address."""

    acls: int
    principals: int


class Acls:
    """`raise_format`: has earlier versions of kbroker refuse the data directory.

    - `version`: rises with each change of what clients may do
    - `denied`: denied operations since the start, by operation and kind of resource
    """

    def __init__(
        self,
        config: BrokerConfig,
        state_store: StateStore,
        state: GroupCommit[Change],
        raise_format: Callable[[], None],
    ) -> None:
        self._store = state_store
        self._state = state
        self._raise_format = raise_format
        self._is_prepared = False
        self._changing = trio.Lock()
        self._table = AclTable()
        self._rights: WeakValueDictionary[tuple[Principal, str], Rights] = WeakValueDictionary()
        self._memory = SharedMemory()
        self._seldom = Seldom(_LOG_INTERVAL_S)
        self._denied: Counter[tuple[Operation, ResourceType]] = Counter()
        self.version = 0
        self._authorizer = _authorizer_of(config, self._forget)

    def statistics(self) -> AclsStatistics:
        return AclsStatistics(len(self._table), len(self._rights))

    @property
    def denied(self) -> Mapping[tuple[Operation, ResourceType], int]:
        return self._denied

    @property
    def has_authorizer(self) -> bool:
        return self._authorizer is not None

    @property
    def is_on(self) -> bool:
        """Whether there is an authorizer that decides by these entries."""
        return self._authorizer is not None and self._authorizer.uses_acls

    @property
    def _is_judged(self) -> bool:
        return isinstance(self._authorizer, StandardAuthorizer)

    def load(self) -> None:
        """Load the stored entries, at start. Raises ValueError for one that cannot be read: without
        it the others might allow too much."""
        for _, value in read_entries(self._store.scan(AclKey.namespace)):
            assert isinstance(value, StoredAcl)
            self._table.add(loaded(value))
        self._changed()
        if self.is_on:
            log_loaded(self._table, is_judged=self._is_judged)
        elif self._table:
            logger.warning(
                "%d ACLs are stored, but authorizer.class.name is not set: they have no effect",
                len(self._table),
            )

    def rights_of(self, principal: Principal, host: str) -> Rights | None:
        """Of connections of the principal from this address. None: there is no authorizer, and
        every client may do everything."""
        if self._authorizer is None:
            return None
        key = principal, canonical_host(host)
        rights = self._rights.get(key)
        if rights is None:
            self._rights[key] = rights = Rights(*key, self._authorizer, self._note_denied, self._memory)
        return rights

    # --- changes ---

    async def matching(self, wanted: AclFilter) -> list[Acl]:
        """The entries that the filter selects, sorted. Others have turns meanwhile: an entry that
        changes may be in the list or not."""
        candidates = self._table.candidates(wanted)
        runs = [sorted(filter(wanted.selects, candidates[:_ACLS_A_TURN]))]
        for at in range(_ACLS_A_TURN, len(candidates), _ACLS_A_TURN):
            await trio.lowlevel.checkpoint()
            runs.append(sorted(filter(wanted.selects, candidates[at : at + _ACLS_A_TURN])))
        while len(runs) > 1:
            await trio.lowlevel.checkpoint()
            runs.append(sorted(runs.pop(0) + runs.pop(0)))
        return runs[0]

    async def create(self, acls: Iterable[Acl]) -> None:
        """Add the entries that do not exist. Durable and in force on return. Raises NoSpace and
        StoreFailed, with nothing changed."""
        async with self._changing:
            await self._save(added=[acl for acl in dict.fromkeys(acls) if acl not in self._table])

    async def delete(self, filters: Sequence[AclFilter], most: int) -> list[list[Acl]] | None:
        """Remove the entries that each filter selects, and return them. The rest is as in create.
        None: they are more than `most`, and none was removed."""
        async with self._changing:
            selected = []
            for each in filters:
                selected.append(await self.matching(each))
                await trio.lowlevel.checkpoint()  # Filters without a name look at every entry.
            removed = list(dict.fromkeys(acl for acls in selected for acl in acls))
            if len(removed) > most:
                return None
            await self._save(removed=removed)
            return selected

    async def _save(self, added: Sequence[Acl] = (), removed: Sequence[Acl] = ()) -> None:
        changes: list[Change] = []
        for acls, is_kept in ((added, True), (removed, False)):
            for acl in acls:
                value = stored(acl)
                changes.append((AclKey.of(value).encode(), value.encode() if is_kept else None))
        if not changes:
            return
        # The client may hang up meanwhile. The next change must know the outcome of this one.
        with trio.CancelScope(shield=True):
            if not self._is_prepared:
                await self._state.perform(self._raise_format)
                self._is_prepared = True
            decision = Decision()
            self._state.submit(changes, partial(self._saved, added, removed, decision))
            await decision.wait()
            await self._state.flush()
        log_changes(added, removed, is_judged=self._is_judged)

    def _saved(
        self, added: Sequence[Acl], removed: Sequence[Acl], decision: Decision, error: Exception | None
    ) -> None:
        if error is None:
            for acl in added:
                self._table.add(acl)
            for acl in removed:
                self._table.remove(acl)
            self._changed()
        decision.decide(error)

    def _changed(self) -> None:
        if self._authorizer is not None:
            self._authorizer.acls_changed(self._table)
        self._forget()

    def _forget(self) -> None:
        self.version += 1
        for rights in list(self._rights.values()):
            rights.forget()

    # --- denied operations ---

    def _note_denied(self, rights: Rights, operation: Operation, kind: ResourceType, name: str) -> None:
        self._denied[operation, kind] += 1
        times = self._seldom.times((rights.principal, operation, kind), trio.current_time())
        if times:
            logger.info(
                "denied %s from %s the operation %s on %s %s%s",
                rights.principal, rights.host, operation.name, noun(kind), name,
                f" ({times} denied since the last such line)" if times > 1 else "",
            )  # fmt: skip


def _authorizer_of(config: BrokerConfig, changed: Callable[[], None]) -> Authorizer | None:
    """Raises OperatorError for a plugin that is not an authorizer."""
    name: str = config["authorizer.class.name"]
    if not name:
        return None
    factory = plugins.authorizer_factory(name)
    if factory is None:
        return StandardAuthorizer(
            parse_super_users(config["super.users"]), opens_unlisted=config["allow.everyone.if.no.acl.found"]
        )
    authorizer: object = plugins.opening(factory, _same)(AuthorizerContext(config, changed))
    if not isinstance(authorizer, Authorizer):
        raise OperatorError(
            f"authorizer.class.name={name}: it returns a value of the type {type(authorizer).__name__}, "
            "and not an Authorizer (kbroker.security.spi)"
        )
    return authorizer


def _same(made: object) -> object:
    return made
