"""Saves what the pure `Transactions` decides, in the order in which it is decided.

With durability `os` some records are synced all the same: see `save` and `begin`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Final

from kbroker.broker.commits.deadlines import now_ms
from kbroker.broker.commits.group_commit import GroupCommit
from kbroker.broker.commits.waiting import Decision, OnDone, Pending
from kbroker.broker.logs.partition import Partition
from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode, KafkaError, NoSpace, StoreFailed
from kbroker.formats.transactions import TransactionalLog, TransactionalLogKey, TransactionKey
from kbroker.storage.spi import Change
from kbroker.transactions.coordinator import Moment, Transactions, Transition

logger = logging.getLogger(__name__)


def now() -> Moment:
    return Moment(wall_clock_ms(), int(now_ms()))


class _Coordinating:
    """Not a generator, which takes three times as many calls."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        if isinstance(error, NoSpace | StoreFailed):
            raise KafkaError(ErrorCode.coordinator_not_available, str(error)) from error


_COORDINATING: Final = _Coordinating()


def coordinating() -> AbstractContextManager[None]:
    """What could not be saved is 15 for clients, which try again."""
    return _COORDINATING


class TransactionSaving:
    """`raise_format`: has earlier versions of kbroker refuse the data directory."""

    def __init__(
        self, coordinator: Transactions, state: GroupCommit[Change], raise_format: Callable[[], None]
    ) -> None:
        self._coordinator = coordinator
        self._state = state
        self._raise_format = raise_format
        self._is_prepared = False
        self._beginning: dict[str, Decision] = {}
        """Ids whose transaction is saved and not synced yet, with durability `os`."""
        self._marking: dict[str, Decision] = {}
        """Ids whose last markers are written and not synced yet."""

    @property
    def has_failed(self) -> bool:
        """The state store takes no writes any more."""
        return self._state.failed

    async def prepare(self) -> None:
        """Call it before an id is saved. Raises KafkaError."""
        if not self._is_prepared:
            with coordinating():
                await self._state.perform(self._raise_format)
            self._is_prepared = True

    async def save(self, transition: Transition, *, syncs: bool = False) -> None:
        """Durable on return (written, with durability `os`, unless `syncs`). Cancelling has no
        effect.

        Raises KafkaError. If the write was refused, nothing has changed; if the sync failed, the
        store takes no more writes."""
        await self._write(transition, ())
        if syncs:
            with coordinating():
                await self._state.flush()

    async def begin(self, transition: Transition, first_logs: Collection[Partition]) -> None:
        """`save`, and with durability `os` a sync that begins without being waited for: see
        `begun`. `first_logs` have had no transaction; they are noted in the same write."""
        await self._write(transition, first_logs)
        transactional_id = transition.transactional_id
        decision = self._beginning[transactional_id] = Decision()
        self._state.flush_then(partial(self._synced, transactional_id, decision, first_logs))

    def _synced(
        self,
        transactional_id: str,
        decision: Decision,
        first_logs: Collection[Partition],
        error: Exception | None,
    ) -> None:
        if error is None:
            for partition in first_logs:
                partition.has_transactions = True
            if self._beginning.get(transactional_id) is decision:
                del self._beginning[transactional_id]
        decision.decide(error)

    async def begun(self, transactional_id: str) -> None:
        """Returns when a power cut takes nothing that `begin` has saved. Call it before a log or a
        group takes anything of the transaction. Raises KafkaError."""
        if (decision := self._beginning.get(transactional_id)) is not None:
            with coordinating():
                await decision.wait()

    async def remove(self, expired: Sequence[Transition]) -> None:
        """Save the removal of these ids, all in the same groups: each of them is busy until then.
        Durable on return (written, with durability `os`). Cancelling has no effect.

        Raises KafkaError after the last write. Ids whose removal was refused stay as they were, and
        so do those whose last markers are not synced yet."""
        pending = Pending(start=self._state.start)
        refused: list[Exception] = []

        def ended(transition: Transition, error: Exception | None) -> None:
            self._told(transition, error)
            if error is not None:
                refused.append(error)
            pending.part_done()

        for each in expired:
            if each.transactional_id in self._marking:
                self._coordinator.not_saved(each)
            else:
                pending.parts += 1
                self._state.enqueue([_change_of(each)], partial(ended, each))
        await pending.wait(to_the_end=True)
        with coordinating():
            for error in refused[:1]:
                raise error

    async def _write(self, transition: Transition, first_logs: Collection[Partition]) -> None:
        saved = Decision()
        try:
            with coordinating():
                if (marked := self._marking.get(transition.transactional_id)) is not None:
                    await marked.wait(to_the_end=True)
        except KafkaError:
            self._coordinator.not_saved(transition)
            raise
        changes = [_change_of(transition), *map(_note, first_logs)]
        self._state.enqueue(changes, partial(self._ended, transition, saved))
        self._state.start()
        with coordinating():
            await saved.wait(to_the_end=True)

    def _ended(self, transition: Transition, saved: Decision, error: Exception | None) -> None:
        self._told(transition, error)
        saved.decide(error)

    def _told(self, transition: Transition, error: Exception | None) -> None:
        if error is None:
            self._coordinator.saved(transition, now())
        else:
            self._coordinator.not_saved(transition)

    def save_complete(self, transition: Transition, sync: Callable[[OnDone], None]) -> None:
        """Save a complete transaction with the next write of any kind after `sync`
        (GroupCommit.flush_then) of its markers, without waiting. The id's next record is saved
        after it. If it cannot be saved, or the broker is killed before, the next start writes the
        markers again."""
        decision = self._marking[transition.transactional_id] = Decision()
        sync(partial(self._marked, transition, decision))

    def _marked(self, transition: Transition, decision: Decision, error: Exception | None) -> None:
        if error is None:
            self._state.defer([_change_of(transition)])
            del self._marking[transition.transactional_id]
        else:  # It stays, so that nothing is saved on top of the decision.
            logger.warning(
                "the transaction of %s is decided; the next start writes its markers: %s",
                transition.transactional_id,
                error,
            )
        decision.decide(error)


def _change_of(transition: Transition) -> Change:
    record = transition.record
    return TransactionKey(transition.transactional_id).encode(), None if record is None else record.encode()


def _note(partition: Partition) -> Change:
    return TransactionalLogKey(*partition.log).encode(), TransactionalLog(partition.next_offset).encode()
