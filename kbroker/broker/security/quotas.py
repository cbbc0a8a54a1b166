"""The quotas of this broker: loaded at start, changed by a group commit, and the rates of clients
that they limit.

A change is in force when it is committed, for the next request of every client. Rates are in memory
only: after a restart every client begins without a past. `are_set` and `limit_addresses` say
whether there is anything to measure, so that a broker without quotas does nothing.

A directory with quotas keeps its format version: earlier versions of kbroker skip them, and serve
clients as fast as they can. No record and no right depends on a quota.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import trio

from kbroker.broker.commits.deadlines import now_ms
from kbroker.broker.commits.group_commit import GroupCommit
from kbroker.broker.commits.waiting import Decision
from kbroker.errors import ErrorCode, KafkaError, NoSpace, StoreFailed
from kbroker.formats.security_values import QuotaKey, StoredQuota
from kbroker.formats.state import read_entries
from kbroker.metrics import QuotaMetrics
from kbroker.security.metering import Meter, Metering
from kbroker.security.principals import Principal
from kbroker.security.quotas import (
    BadQuota,
    Entity,
    EntityFilter,
    QuotaTable,
    check_value,
    entity_of,
    keys_of,
)
from kbroker.security.rates import Rates, Windows, throttle_ms
from kbroker.settings.altering import BrokerConfig
from kbroker.settings.hosts import canonical_host
from kbroker.storage.spi import Change, StateStore

logger = logging.getLogger(__name__)


class QuotasStatistics(NamedTuple):
    """`entities`: with a quota. `rates`: of clients that were active lately; `addresses`: those
    that have connected lately."""

    entities: int
    rates: int
    addresses: int


class Alteration(NamedTuple):
    """`values`: the new ones by key; None removes one."""

    entity: Entity
    values: Mapping[str, float | None]


class Quotas:
    def __init__(
        self, config: BrokerConfig, store: StateStore, state: GroupCommit[Change], metrics: QuotaMetrics
    ) -> None:
        self._store = store
        self._state = state
        self.metrics = metrics
        self._table = QuotaTable()
        windows = Windows(config["quota.window.num"], config["quota.window.size.seconds"] * 1000)
        self._meter = Meter(self._table, windows)
        self._addresses: Rates[str] = Rates(windows)
        self._altering = trio.Lock()
        self.are_set = False
        self.limit_addresses = False

    def statistics(self) -> QuotasStatistics:
        return QuotasStatistics(len(self._table), len(self._meter), len(self._addresses))

    def load(self) -> None:
        """At the start. Raises ValueError for a damaged value."""
        for _, value in read_entries(self._store.scan(QuotaKey.namespace)):
            assert isinstance(value, StoredQuota)
            self._table.put(entity_of(value.entity), value.values)
        self._changed()

    # -- for requests

    def metering(self, principal: Principal, client_id: str | None) -> Metering:
        return Metering(self._meter, principal.name, client_id or "")

    def admits(self, host: str) -> bool:
        """Whether the address may open one more connection now, by its connection_creation_rate. It
        is counted if it may."""
        limit = self._table.of_address(host)
        if limit is None:
            return True
        now = now_ms()
        rate = self._addresses.of(canonical_host(host), now)
        rate.record(1.0, now)
        if throttle_ms(rate, limit, now) == 0:
            return True
        rate.record(-1.0, now)
        return False

    # -- for administrators

    def selected(self, wanted: EntityFilter) -> Iterator[tuple[Entity, Mapping[str, float]] | None]:
        """None for an entity that is not selected. Quotas may change between two of them."""
        for entity, values in tuple(self._table):
            yield (entity, values) if wanted.selects(entity) else None

    async def alter(
        self, alterations: Sequence[Alteration], *, validate_only: bool
    ) -> list[KafkaError | None]:
        """One result for each; no entity may be named twice. A refused alteration changes nothing,
        and does not affect the others. Those are stored together, and in force on return; if they
        cannot be stored, each has KAFKA_STORAGE_ERROR, and nothing has changed."""
        async with self._altering:
            results: list[KafkaError | None] = []
            changed: dict[Entity, dict[str, float]] = {}
            for entity, values in alterations:
                try:
                    changed[entity] = _altered(self._table.values_of(entity), entity, values)
                except BadQuota as error:
                    results.append(KafkaError(ErrorCode.invalid_request, str(error)))
                else:
                    results.append(None)
            if not validate_only:
                try:
                    await self._save(changed)
                except (NoSpace, StoreFailed) as error:
                    failed = KafkaError(ErrorCode.kafka_storage_error, str(error))
                    results = [failed if each is None else each for each in results]
            return results

    async def _save(self, wanted: Mapping[Entity, Mapping[str, float]]) -> None:
        """Raises NoSpace and StoreFailed."""
        changed = {
            entity: values for entity, values in wanted.items() if values != self._table.values_of(entity)
        }
        if not changed:
            return
        changes = [stored_change(entity, values) for entity, values in changed.items()]
        # The client may hang up meanwhile. The next change must know the outcome of this one.
        with trio.CancelScope(shield=True):
            decision = Decision()
            self._state.submit(changes, partial(self._saved, changed, decision))
            await decision.wait()

    def _saved(
        self,
        changed: Mapping[Entity, Mapping[str, float]],
        decision: Decision,
        error: Exception | None,
    ) -> None:
        if error is None:
            for entity, values in changed.items():
                self._table.put(entity, values)
                logger.info("quotas of %s: %s", _told(entity), dict(values) or "none")
            self._changed()
        decision.decide(error)

    def _changed(self) -> None:
        self.are_set = self._table.limits_clients
        self.limit_addresses = self._table.limits_addresses


def stored_change(entity: Entity, values: Mapping[str, float]) -> Change:
    """The change that stores the quotas of an entity; without values it removes them."""
    names = dict(entity)
    return QuotaKey.of(names).encode(), StoredQuota(names, dict(values)).encode() if values else None


def _altered(
    present: Mapping[str, float], entity: Entity, values: Mapping[str, float | None]
) -> dict[str, float]:
    """Raises BadQuota. A stored quota can be removed, also if it would be refused now."""
    is_removal = bool(present) and set(values.values()) <= {None}
    keys = () if is_removal else keys_of(entity)
    altered = dict(present)
    for key, value in values.items():
        if value is None:
            altered.pop(key, None)
        else:
            check_value(keys, key, value)
            altered[key] = value
    return altered


def _told(entity: Entity) -> str:
    return ", ".join(f"{kind} {'(default)' if name is None else name}" for kind, name in entity)
