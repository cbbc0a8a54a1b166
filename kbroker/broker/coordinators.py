"""Carries out what the group coordinator decides: saves its changes, initialises and deletes share state, runs session timers.

The coordinator shows its decisions in memory at once; here they are submitted in the same step and, if the save fails, taken back
in the same step for every group concerned. Whoever waits for an initialisation waits here, with patience and no longer: the
persister may be a slow plugin. What it answers later is taken in by a task of the broker's, and the member's next heartbeat shows it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

import trio

from kbroker.broker.deadlines import now_ms as monotonic_ms
from kbroker.broker.group_commit import GroupCommit
from kbroker.broker.share_groups import ShareGroups
from kbroker.broker.topics import Topics
from kbroker.broker.waiting import Pending
from kbroker.clock import wall_clock_ms
from kbroker.coordinator.share_group import ShareGroupCoordinator
from kbroker.coordinator.share_group_api import (
    DeleteShareState,
    HeartbeatReply,
    HeartbeatRequest,
    InitializeSharePartitions,
    Outcome,
    ShareGroupStatistics,
)
from kbroker.errors import ErrorCode, StoreFailed
from kbroker.share.persister import Persister, Result
from kbroker.state_records import GroupKey, group_prefix
from kbroker.storage.spi import Change, StateStore

logger = logging.getLogger(__name__)
R = TypeVar("R")

JOIN_PATIENCE_S = 5.0
"""How long a joining member waits for its share-partitions before it gets what there is."""
_SESSION_CHECK_S = 1.0
_SAVE_FAILED = HeartbeatReply(ErrorCode.coordinator_not_available)
_BEING_DELETED = HeartbeatReply(ErrorCode.coordinator_load_in_progress)
"""Clients back off and come again."""


class SessionClock:
    """Wall-clock milliseconds at the start, monotonic from there: sessions must not end because somebody set the clock."""

    def __init__(self) -> None:
        self._offset_ms = wall_clock_ms() - monotonic_ms()

    def now_ms(self) -> int:
        return int(monotonic_ms() + self._offset_ms)


@dataclass(frozen=True, slots=True)
class GroupCoordinatorStatistics:
    """`initializations`: those that the persister has not answered; `being_deleted`: groups."""

    groups: ShareGroupStatistics
    initializations: int
    being_deleted: int


class GroupCoordinator:
    """The broker's side of the pure ShareGroupCoordinator."""

    def __init__(
        self,
        coordinator: ShareGroupCoordinator,
        topics: Topics,
        persister: Persister,
        share_groups: ShareGroups,
        store: StateStore,
        commits: GroupCommit[Change],
    ) -> None:
        self.coordinator = coordinator
        self._topics = topics
        self._persister = persister
        self._share_groups = share_groups
        self._store = store
        self._commits = commits
        self._clock = SessionClock()
        self._initialized: dict[str, trio.Event] = {}
        self._being_deleted: set[str] = set()
        self._asking: Counter[str] = Counter()  # initialisations that the persister has not answered
        self._nursery: trio.Nursery | None = None

    def statistics(self) -> GroupCoordinatorStatistics:
        return GroupCoordinatorStatistics(self.coordinator.statistics(), self._asking.total(), len(self._being_deleted))

    def load(self) -> None:
        """Take in the stored groups. Topics that are gone (a deletion that recovery finished) are told on the first `run`."""
        self.coordinator.load(self._store.scan(GroupKey.namespace), now_ms=self._clock.now_ms())

    def work_in(self, nursery: trio.Nursery) -> None:
        """Where the coordinator's own tasks run. Nothing may be asked before."""
        self._nursery = nursery
        nursery.start_soon(self._run)

    async def _run(self) -> None:
        """Session timers, and what a crash left to do."""
        for topic_id in self.coordinator.topic_ids():
            if self._topics.by_id(topic_id) is None:
                await self.topic_deleted(topic_id)
        while True:
            await trio.sleep(_SESSION_CHECK_S)
            deadline_ms = self.coordinator.next_deadline_ms()
            if deadline_ms is not None and deadline_ms <= self._clock.now_ms():
                await self._save(self.coordinator.expire(self._clock.now_ms()))

    async def _save(self, outcome: Outcome[R]) -> bool:
        """Whether the outcome's changes count now. If not, its groups are what the store has."""
        if not outcome.changes:
            return True
        saved = True
        pending = Pending(1)

        def done(error: Exception | None) -> None:
            nonlocal saved
            if error is not None:
                saved = False
                self._reload(outcome.group_ids)
            pending.part_done()

        self._commits.submit(outcome.changes, done)
        await pending.wait()
        return saved

    def _reload(self, group_ids: Sequence[str]) -> None:
        for group_id in group_ids:
            try:
                records = list(self._store.scan(group_prefix(group_id)))
            except StoreFailed as error:  # Nothing is saved any more either: the group stays as it is until the restart.
                logger.warning("group %s could not be read again after a failed save: %s", group_id, error)
                continue
            self.coordinator.reload(group_id, records, now_ms=self._clock.now_ms())

    # -- heartbeats ---------------------------------------------------------------------------------------------------

    async def heartbeat(self, request: HeartbeatRequest) -> HeartbeatReply:
        if request.group_id in self._being_deleted:
            return _BEING_DELETED
        outcome = self.coordinator.heartbeat(request, now_ms=self._clock.now_ms(), topics=self._topics)
        if not await self._save(outcome):
            return _SAVE_FAILED
        if outcome.reply is not None:
            return outcome.reply
        for effect in outcome.effects:
            if isinstance(effect, InitializeSharePartitions):
                assert self._nursery is not None, "work_in() was called"
                self._nursery.start_soon(self._initialize, effect)
        with trio.move_on_after(JOIN_PATIENCE_S):
            while self.coordinator.is_waiting(request.group_id, request.member_id):
                await self._initialized.setdefault(request.group_id, trio.Event()).wait()
        late = self.coordinator.heartbeat_reply(request.group_id, request.member_id, now_ms=self._clock.now_ms())
        if not await self._save(late) or late.reply is None:
            return _SAVE_FAILED
        return late.reply

    async def _initialize(self, effect: InitializeSharePartitions) -> None:
        """However long the persister takes, and whether or not anybody still waits. Cancelled only when the broker stops: the
        partitions are Initializing in the store then, and asked for again."""
        group_id = effect.group_id
        self._asking[group_id] += 1
        try:
            results = await self._persister.initialize(group_id, effect.requests)
        except Exception:
            # It concerns this group alone; raised from here it would end the broker.
            logger.exception("the persister failed to initialise share-partitions of group %s", group_id)
            results = [Result(request.partition, ErrorCode.unknown_server_error) for request in effect.requests]
        finally:
            self._asking -= Counter((group_id,))
        await self._save(self.coordinator.initialized(group_id, results, now_ms=self._clock.now_ms()))
        self._initialized.pop(group_id, trio.Event()).set()

    # -- deletion -----------------------------------------------------------------------------------------------------

    async def delete_group(self, group_id: str) -> ErrorCode:
        """DeleteGroups for one group: its share state first, then its records. Nobody can join meanwhile: the state that a new
        member's share-partitions get must not be what is deleted here. Nor may state come to life afterwards, so a persister that
        has an initialisation to answer is waited for, by the client."""
        if group_id in self._being_deleted or group_id in self._asking:
            return ErrorCode.coordinator_load_in_progress
        self._being_deleted.add(group_id)
        try:
            return await self._delete_group(group_id)
        finally:
            self._being_deleted.discard(group_id)

    async def _delete_group(self, group_id: str) -> ErrorCode:
        outcome = self.coordinator.delete(group_id, self._topics)
        if not await self._save(outcome):
            return ErrorCode.coordinator_not_available
        code = outcome.reply
        for effect in outcome.effects:
            if isinstance(effect, DeleteShareState):
                results = await self._persister.delete(group_id, effect.partitions)
                deleted = self.coordinator.deleted(group_id, results)
                if not await self._save(deleted):
                    return ErrorCode.coordinator_not_available
                code = deleted.reply
        if code is ErrorCode.none:
            self._share_groups.forget_group(group_id)
        assert code is not None
        return code

    async def topic_deleted(self, topic_id: UUID) -> None:
        """Groups forget a topic that is gone."""
        if not await self._save(self.coordinator.topic_deleted(topic_id)):
            logger.warning("groups could not forget topic %s: tried again at the next start", topic_id)
