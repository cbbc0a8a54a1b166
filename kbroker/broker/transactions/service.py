"""The requests of transactional producers, from the decision of the pure `Transactions` to the
answer.

A transaction begins when its record is saved (and synced, with durability `os`); only then do logs
take its batches. ending.py has the order of its end. With durability `os` a power cut may take a
transaction that has not ended, and what its producer thinks is stored: recovery.py aborts those.

Clients get 15 if a record could not be saved, and 14 until recovery is done.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection

import trio

from kbroker.broker.logs.partition import Partition
from kbroker.broker.logs.producer_ids import ProducerIdSource
from kbroker.broker.transactions.ending import TransactionEnding
from kbroker.broker.transactions.saving import TransactionSaving, coordinating, now
from kbroker.errors import ErrorCode, KafkaError, NoSpace, StoreFailed
from kbroker.formats.transactions import TransactionPartition, TransactionState
from kbroker.settings.altering import BrokerConfig
from kbroker.transactions.coordinator import (
    ProducerEpoch,
    Transactions,
    TransactionSettings,
    TransactionsStatistics,
)

logger = logging.getLogger(__name__)


def transaction_settings(config: BrokerConfig) -> TransactionSettings:
    return TransactionSettings(config["transaction.max.timeout.ms"], config["transactional.id.expiration.ms"])


class TransactionService:
    def __init__(
        self,
        config: BrokerConfig,
        coordinator: Transactions,
        producer_ids: ProducerIdSource,
        saving: TransactionSaving,
        ending: TransactionEnding,
    ) -> None:
        self.coordinator = coordinator
        self.ending = ending
        self._is_ready = False
        self._config = config
        self._producer_ids = producer_ids
        self._saving = saving

    def statistics(self) -> TransactionsStatistics:
        return self.coordinator.statistics()

    @property
    def is_ready(self) -> bool:
        """Whether recovery is done."""
        return self._is_ready

    def recovered(self) -> None:
        self._is_ready = True

    # --- requests ---

    async def init(
        self, transactional_id: str, timeout_ms: int, expected: ProducerEpoch
    ) -> tuple[ErrorCode, ProducerEpoch]:
        """InitProducerId. The epoch is durable on return, even with durability `os`: two producers
        must never have the same one. Raises KafkaError."""
        self._check_ready()
        await self._saving.prepare()
        with coordinating():
            await self._producer_ids.reserve()
        decision = self.coordinator.init(transactional_id, timeout_ms, expected, now())
        if decision.transition is not None and decision.transition.ends:
            await self.ending.end(decision.transition)
        elif decision.transition is not None:
            await self._saving.save(decision.transition, syncs=True)
        return decision.code, decision.producer

    async def add(
        self,
        transactional_id: str,
        producer: ProducerEpoch,
        partitions: Collection[Partition],
        groups: Collection[str],
        version: int,
    ) -> ErrorCode:
        """Logs and consumer groups become part of the transaction; saved on return, and with
        durability `os` synced when `begun` returns. Raises KafkaError."""
        self._check_ready()
        logs = [TransactionPartition(*each.log) for each in partitions]
        decision = self.coordinator.add(transactional_id, producer, logs, groups, version, now())
        if decision.transition is not None:
            before = decision.transition.before
            begins = before is None or before.state is not TransactionState.ONGOING
            first = [each for each in partitions if not each.has_transactions]
            if begins or first:
                await self._saving.begin(decision.transition, first)
            else:
                await self._saving.save(decision.transition)
        return decision.code

    async def begun(self, transactional_id: str) -> None:
        """Must have returned before a log takes a batch of the transaction, or a group an offset: a
        power cut takes no logs or groups that were added before. Raises KafkaError."""
        await self._saving.begun(transactional_id)

    def verify(self, transactional_id: str, producer: ProducerEpoch, part: Partition | str) -> ErrorCode:
        """Whether the log may take a batch of the transaction in this step, or the group an
        offset."""
        if not self._is_ready:
            return ErrorCode.coordinator_load_in_progress
        found = part if isinstance(part, str) else TransactionPartition(*part.log)
        return self.coordinator.verify(transactional_id, producer, found)

    async def end(
        self, transactional_id: str, producer: ProducerEpoch, *, is_commit: bool, version: int
    ) -> tuple[ErrorCode, ProducerEpoch]:
        """EndTxn: the transaction is committed or aborted on return, and its markers are nearly
        always written. Raises KafkaError."""
        self._check_ready()
        with coordinating():
            await self._producer_ids.reserve()
        decision = self.coordinator.end(
            transactional_id, producer, is_commit=is_commit, version=version, now=now()
        )
        if decision.transition is not None:
            await self.ending.end(decision.transition)
        return decision.code, decision.producer

    def _check_ready(self) -> None:
        if not self._is_ready:
            raise KafkaError(ErrorCode.coordinator_load_in_progress)

    # --- time ---

    async def run(self) -> None:
        """Abort transactions that last too long, and forget ids that are not used any more."""
        abort_s = self._config["transaction.abort.timed.out.transaction.cleanup.interval.ms"] / 1000
        expire_s = self._config["transaction.remove.expired.transaction.cleanup.interval.ms"] / 1000
        self.ending.start(_each, abort_s, self._abort_timed_out)
        self.ending.start(_each, expire_s, self._remove_expired)

    async def reserve_producer_ids(self) -> None:
        """For the ids that need one when they are fenced in this step. Raises NoSpace,
        StoreFailed."""
        # Another id may be exhausted while this waits.
        while (count := self.coordinator.exhausted()) > self._producer_ids.left:
            await self._producer_ids.reserve(count)

    async def _abort_timed_out(self) -> None:
        await self.reserve_producer_ids()
        for transition in self.coordinator.abort_timed_out(now()):
            logger.info("the transaction of %s lasts too long, and is aborted", transition.transactional_id)
            self.ending.abort(transition)

    async def _remove_expired(self) -> None:
        await self._saving.remove(self.coordinator.remove_expired(now()))


async def _each(interval_s: float, act: Callable[[], Awaitable[None]]) -> None:
    while True:
        await trio.sleep(interval_s)
        try:
            await act()
        except (NoSpace, StoreFailed, KafkaError) as error:
            logger.warning("transactions were not looked at: %s", error)
