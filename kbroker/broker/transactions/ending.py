"""Ends transactions, in an order that survives a crash between any two steps:

    1. the logs of the transaction are synced
    2. PREPARE_* is saved and synced: from here on the transaction ends, whatever happens
    3. each log gets its marker, and is synced; the offsets of groups are committed or dropped
    4. COMPLETE_* is saved with the next write of the state store, without waiting

With durability `os` an end is answered when its markers are written, and their sync follows. The
next save for the id waits for it (saving.py).

It holds with both durabilities, since logs and state are two stores. A start that finds PREPARE_*
repeats step 3, which changes nothing where it is done. Without the order a power cut might keep a
decision and lose records (docs/decisions/0020-the-end-of-a-transaction.md).

The task of the request carries an end out, and cannot be cancelled meanwhile. An end that takes
longer than a commit gets a task of its own, and continues when its client hangs up.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from kbroker.broker.commits.background import Background
from kbroker.broker.commits.group_commit import GroupCommit
from kbroker.broker.commits.waiting import Decision
from kbroker.broker.logs.topics import Topics
from kbroker.broker.transactions.markers import Markers
from kbroker.broker.transactions.saving import TransactionSaving, coordinating, now
from kbroker.errors import KafkaError, NoSpace, StoreFailed
from kbroker.formats.transactions import TransactionRecord, TransactionState
from kbroker.metrics import SECONDS, Histogram
from kbroker.storage.spi import StampedBatch
from kbroker.transactions.coordinator import Transactions, Transition

logger = logging.getLogger(__name__)

_RETRY_S: Final = 1.0
_ANSWER_WITHIN_S: Final = 5.0
"""An end is answered after its markers, but no later than this: it is decided already."""

EndOffsets = Callable[[int, bool], Awaitable[bool]]
"""Commits or drops the offsets of a producer's transaction, by producer id and whether it is
committed; saved when it returns. False: they could not be saved."""


class TransactionEnding:
    def __init__(
        self,
        coordinator: Transactions,
        saving: TransactionSaving,
        markers: Markers,
        end_offsets: EndOffsets,
        topics: Topics,
        logs: GroupCommit[StampedBatch],
        background: Background,
    ) -> None:
        self.markers = markers
        self.end_offsets = end_offsets
        self.start = background.start
        self.seconds = Histogram(SECONDS)
        """From the decision until the markers and the offsets of groups are stored."""
        self._coordinator = coordinator
        self._saving = saving
        self._topics = topics
        self._logs = logs

    async def end(self, transition: Transition) -> None:
        """Returns when the transaction has ended, or is bound to. Raises KafkaError if it has
        not."""
        await self._decide(transition)
        transactional_id = transition.transactional_id
        if await self._finished_at_once(transactional_id):
            return
        is_complete = trio.Event()
        self.start(self._finish_and_tell, transactional_id, is_complete)
        with trio.move_on_after(_ANSWER_WITHIN_S):
            await is_complete.wait()

    def abort(self, transition: Transition) -> Decision:
        """As `end`, without waiting. Returns whether the transaction is bound to end."""
        is_decided = Decision()
        self.start(self._abort, transition, is_decided)
        return is_decided

    async def _abort(self, transition: Transition, is_decided: Decision) -> None:
        try:
            await self._decide(transition)
        except KafkaError as error:
            is_decided.decide(error)
            return
        is_decided.decide(None)
        await self.finish(transition.transactional_id)

    async def _decide(self, transition: Transition) -> None:
        """Steps 1 and 2. Cancelling has no effect. Raises KafkaError."""
        assert transition.record is not None
        with coordinating():
            try:
                await self._sync_logs(transition.record)
            except (NoSpace, StoreFailed):
                self._coordinator.not_saved(transition)
                raise
        await self._saving.save(transition, syncs=True)

    async def _sync_logs(self, record: TransactionRecord) -> None:
        """On return a power cut takes no record of the transaction."""
        logs = (self._topics.partition(*each) for each in record.partitions)
        if not all(each is None or each.settled for each in logs):
            await self._logs.perform(_nothing)  # After all writes that are under way.
        await self._logs.flush()

    async def _finished_at_once(self, transactional_id: str) -> bool:
        """Steps 3 and 4 in the task of the request, if they take no longer than a commit, as they
        nearly always do. Cancelling has no effect."""
        record = self._coordinator.record(transactional_id)
        assert record is not None
        began_s = trio.current_time()
        try:
            if record.groups or not await self.markers.write_at_once(record):
                return False
        except StoreFailed as error:
            _report(transactional_id, error)
            return True
        self._complete(transactional_id, began_s)
        return True

    async def _finish_and_tell(self, transactional_id: str, is_complete: trio.Event) -> None:
        await self.finish(transactional_id)
        is_complete.set()

    async def finish(self, transactional_id: str) -> None:
        """Steps 3 and 4, for an id in a prepared state."""
        record = self._coordinator.record(transactional_id)
        assert record is not None
        began_s = trio.current_time()
        try:
            await self.markers.write(record)
            await self._end_offsets(record)
        except StoreFailed as error:
            _report(transactional_id, error)
        else:
            self._complete(transactional_id, began_s)

    def _complete(self, transactional_id: str, began_s: float) -> None:
        """Step 4, after a sync of the markers."""
        self.seconds.observe(trio.current_time() - began_s)
        transition = self._coordinator.complete(transactional_id, now())
        self._saving.save_complete(transition, self._logs.flush_then)

    async def _end_offsets(self, record: TransactionRecord) -> None:
        """Raises StoreFailed."""
        is_commit = record.state is TransactionState.PREPARE_COMMIT
        while not await self.end_offsets(record.producer_id, is_commit):
            if self._saving.has_failed:
                raise StoreFailed("the offsets of the transaction cannot be saved")
            await trio.sleep(_RETRY_S)


def _report(transactional_id: str, error: StoreFailed) -> None:
    logger.warning(
        "the transaction of %s is decided; the next start writes its markers: %s", transactional_id, error
    )


def _nothing() -> None:
    pass
