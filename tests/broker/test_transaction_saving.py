"""Saves of transactions with durability `os`: what waits for which sync."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import trio
import trio.testing

from kbroker.broker.commits.waiting import OnDone
from kbroker.broker.transactions.saving import TransactionSaving, now
from kbroker.errors import ErrorCode, KafkaError, StoreFailed
from kbroker.formats.transactions import TransactionPartition, TransactionState
from kbroker.transactions.coordinator import ProducerEpoch, Transactions, TransactionSettings, Transition
from tests.broker.commits.committing import FakeStore, committing
from tests.transactions.world import (
    COMPLETE_COMMIT,
    EMPTY,
    FIRST,
    ONGOING,
    PREPARE_COMMIT,
    SECOND,
    T,
    a_record,
)

PATIENCE_S = 10
SELDOM_S = 60
"""No sync in the background during a test."""


class _Saves:
    """`synced`: of the markers. The test calls it, as a sync of the logs does."""

    def __init__(self, store: FakeStore, commits: Any, state: TransactionState) -> None:
        self.store = store
        self.coordinator = Transactions(TransactionSettings, lambda: 1000)
        self.coordinator.load([(T, a_record(state, version=1))], now())
        self.saving = TransactionSaving(self.coordinator, commits, lambda: None)
        self.synced: list[OnDone] = []

    def added(self, log: TransactionPartition) -> Transition:
        producer = ProducerEpoch(a_record(EMPTY).producer_id, a_record(EMPTY).producer_epoch)
        transition = self.coordinator.add(T, producer, [log], (), 1, now()).transition
        assert transition is not None
        return transition

    def complete(self) -> None:
        self.saving.save_complete(self.coordinator.complete(T, now()), self.synced.append)

    @property
    def state(self) -> TransactionState:
        record = self.coordinator.record(T)
        assert record is not None
        return record.state

    @property
    def saved(self) -> list[TransactionState]:
        changes = cast(list[tuple[bytes, bytes]], self.store.written)
        decode = type(a_record(EMPTY)).decode
        return [decode(value).state for _, value in changes]


@asynccontextmanager
async def _saves(state: TransactionState) -> AsyncIterator[_Saves]:
    store = FakeStore()
    async with committing(store, beside_sync=True, durability="os", sync_interval_s=SELDOM_S) as commits:
        with trio.fail_after(PATIENCE_S):
            yield _Saves(store, commits, state)


async def test_a_begin_is_answered_before_its_sync_and_begun_after_it() -> None:
    async with _saves(EMPTY) as saves:
        saves.store.gate.clear()
        await saves.saving.begin(saves.added(FIRST), ())
        await saves.store.is_syncing.wait()
        assert (saves.saved, saves.store.synced) == ([ONGOING], [])
        saves.store.gate.set()
        await saves.saving.begun(T)
        assert saves.store.synced == saves.store.written


async def test_begun_waits_for_the_last_of_several_begins() -> None:
    async with _saves(EMPTY) as saves:
        saves.store.gate.clear()
        await saves.saving.begin(saves.added(FIRST), ())
        await saves.store.is_syncing.wait()
        await saves.saving.begin(saves.added(SECOND), ())
        saves.store.gate.set()
        await saves.saving.begun(T)
        assert len(saves.store.synced) == 2


async def test_a_begin_that_cannot_be_synced_never_is_begun() -> None:
    async with _saves(EMPTY) as saves:
        saves.store.fail_sync = StoreFailed("broken")
        await saves.saving.begin(saves.added(FIRST), ())
        for _ in range(2):
            with pytest.raises(KafkaError) as caught:
                await saves.saving.begun(T)
            assert caught.value.code is ErrorCode.coordinator_not_available


async def test_nothing_is_saved_before_the_last_markers_are_synced() -> None:
    async with _saves(PREPARE_COMMIT) as saves, trio.open_nursery() as nursery:
        saves.complete()
        assert saves.state is COMPLETE_COMMIT
        nursery.start_soon(saves.saving.begin, saves.added(FIRST), ())
        await trio.testing.wait_all_tasks_blocked()
        assert saves.saved == []
        saves.synced[0](None)
    assert saves.saved == [COMPLETE_COMMIT, ONGOING]


async def test_nothing_is_saved_after_markers_that_cannot_be_synced() -> None:
    async with _saves(PREPARE_COMMIT) as saves:
        saves.complete()
        saves.synced[0](StoreFailed("broken"))
        for _ in range(2):
            with pytest.raises(KafkaError) as caught:
                await saves.saving.begin(saves.added(FIRST), ())
            assert caught.value.code is ErrorCode.coordinator_not_available
        assert (saves.saved, saves.state) == ([], COMPLETE_COMMIT)
