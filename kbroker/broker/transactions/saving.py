"""Saves what the pure `Transactions` decides, in the order in which it is decided.

With durability `os` some records are synced before they are answered: see `save`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial

from kbroker.broker.commits.deadlines import now_ms
from kbroker.broker.commits.group_commit import GroupCommit
from kbroker.broker.commits.waiting import Decision
from kbroker.broker.logs.partition import Partition
from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode, KafkaError, NoSpace, StoreFailed
from kbroker.formats.transactions import TransactionalLog, TransactionalLogKey, TransactionKey
from kbroker.storage.spi import Change
from kbroker.transactions.coordinator import Moment, Transactions, Transition


def now() -> Moment:
    return Moment(wall_clock_ms(), int(now_ms()))


@contextmanager
def coordinating() -> Iterator[None]:
    """What could not be saved is 15 for clients, which try again."""
    try:
        yield
    except (NoSpace, StoreFailed) as error:
        raise KafkaError(ErrorCode.coordinator_not_available, str(error)) from error


class TransactionSaving:
    """`raise_format`: has earlier versions of kbroker refuse the data directory."""

    def __init__(
        self, coordinator: Transactions, state: GroupCommit[Change], raise_format: Callable[[], None]
    ) -> None:
        self._coordinator = coordinator
        self._state = state
        self._raise_format = raise_format
        self._is_prepared = False

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

    async def save(
        self, transition: Transition, first_logs: Collection[Partition] = (), *, syncs: bool = False
    ) -> None:
        """Durable on return (written, with durability `os`, unless `syncs`).

        - `first_logs`: logs that have had no transaction; they are noted in the same write.
        - `syncs`: synced even with durability `os`.

        Raises KafkaError. If the write was refused, nothing has changed; if the sync failed, the
        store takes no more writes."""
        decision = Decision()
        changes = [_change_of(transition), *map(_note, first_logs)]
        self._state.submit(changes, partial(self._ended, transition, decision))
        with coordinating():
            await decision.wait()
            for partition in first_logs:
                partition.has_transactions = True
            if syncs:
                await self._state.flush()

    def _ended(self, transition: Transition, decision: Decision, error: Exception | None) -> None:
        if error is None:
            self._coordinator.saved(transition, now())
        else:
            self._coordinator.not_saved(transition)
        decision.decide(error)

    def save_complete(self, transition: Transition) -> None:
        """Save a complete transaction with the next write of any kind, without waiting: the id's
        next record is saved after it. If it cannot be saved, or the broker is killed before, the
        next start writes the markers again."""
        self._state.defer([_change_of(transition)])


def _change_of(transition: Transition) -> Change:
    record = transition.record
    return TransactionKey(transition.transactional_id).encode(), None if record is None else record.encode()


def _note(partition: Partition) -> Change:
    return TransactionalLogKey(*partition.log).encode(), TransactionalLog(partition.next_offset).encode()
