"""Carries out what is decided about classic groups, consumer groups and their offsets: saves
changes, gives answers to those who wait, runs the timers.

A decision is made and submitted in one step. If it cannot be saved, what it changed in memory is
put right in the same step, and whoever asked is told that the coordinator is not available: clients
look for it again and repeat what they wanted.

A request that waits (JoinGroup for the other members, SyncGroup for the leader) costs its
connection's task and a cancel scope. When its client hangs up the member stays until its session
ends, as in Kafka; the answer that comes then is dropped.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar, cast
from uuid import UUID

import trio

from kbroker.broker.commits.group_commit import GroupCommit
from kbroker.broker.commits.session_clock import SessionClock
from kbroker.broker.commits.waiting import Pending, Waiter
from kbroker.broker.configs import Configs
from kbroker.broker.connection import Connection
from kbroker.broker.logs.topics import Topics
from kbroker.errors import ErrorCode, KafkaError, StoreFailed
from kbroker.formats.state import GroupKey, GroupOffsetKey, group_prefix
from kbroker.groups.outcome import Answer, ApplyOffsets, Effect, GenerationSaved, Outcome, Ticket
from kbroker.groups.routing import Groups, GroupsStatistics
from kbroker.storage.spi import Change, StateStore

logger = logging.getLogger(__name__)
R = TypeVar("R")


class _Request(Ticket):
    """A request of a client's: it waits for its save (`pending`), or for other members
    (`waiter`)."""

    __slots__ = ("pending", "reply", "waiter")

    def __init__(self) -> None:
        self.pending = Pending(1)
        self.waiter = Waiter()
        self.reply: object = None

    def answer(self, reply: object) -> None:
        """The first answer counts: what was refused because it could not be saved stays refused."""
        if self.pending.parts:
            self.reply = reply
            self.pending.part_done()
            self.waiter.wake()


_NOT_AVAILABLE: Final = object()
"""In the place of a reply: the change could not be saved, or the broker stops."""


@dataclass(frozen=True, slots=True)
class ConsumerGroupsStatistics:
    """`waiting`: requests that wait for other members."""

    groups: GroupsStatistics
    waiting: int


class ConsumerGroups:
    """The broker's side of the pure Groups. `configs`: a deleted group's settings go with it.
    `clock`: the one that `groups` was made with."""

    def __init__(
        self,
        groups: Groups,
        topics: Topics,
        configs: Configs,
        store: StateStore,
        commits: GroupCommit[Change],
        clock: SessionClock,
        *,
        expiry_interval_s: float,
    ) -> None:
        self.groups = groups
        self._topics = topics
        self._configs = configs
        self._store = store
        self._commits = commits
        self._expiry_interval_s = expiry_interval_s
        self._clock = clock
        self._waiting: set[_Request] = set()
        self._saving = 0
        self._sleeper: trio.CancelScope | None = None
        self._closing = False

    def statistics(self) -> ConsumerGroupsStatistics:
        return ConsumerGroupsStatistics(self.groups.statistics(), len(self._waiting))

    def load(self) -> None:
        """Take in the stored groups and offsets. Topics that are gone (a deletion that recovery
        finished) are told on the first `run`."""
        now_ms = self._clock.now_ms()
        self.groups.load(
            self._store.scan(GroupKey.namespace), self._store.scan(GroupOffsetKey.namespace), now_ms=now_ms
        )

    # -- asking
    # ----------------------------------------------------------------------------------------------

    async def ask(
        self, decide: Callable[[Ticket, int], Outcome[R]], connection: Connection | None = None
    ) -> R:
        """What `decide(ticket, now_ms)` replies, its changes saved, or what that ticket is answered
        with later: who may have to wait gives the `connection`. Raises KafkaError
        COORDINATOR_NOT_AVAILABLE if the changes could not be saved, or it would wait while the
        broker stops; whatever KafkaError `decide` raises; and PeerGone."""
        request = _Request()
        outcome = decide(request, self._clock.now_ms())
        self._carry_out(outcome, request)
        if outcome.reply is None and connection is not None:
            if self._closing:
                request.answer(_NOT_AVAILABLE)
            self._waiting.add(request)
            try:
                await connection.park(request.waiter, math.inf)
            finally:
                self._waiting.discard(request)
        else:
            await request.pending.wait()
        if request.reply is _NOT_AVAILABLE:
            raise KafkaError(
                ErrorCode.coordinator_not_available, "The change could not be saved, or the broker stops."
            )
        return cast(R, request.reply)

    def wake_all(self) -> None:
        """The broker stops: whoever waits is told to look for another coordinator, and finds this
        one after its restart."""
        self._closing = True
        for request in tuple(self._waiting):
            request.answer(_NOT_AVAILABLE)

    def _carry_out(
        self,
        outcome: Outcome[object],
        request: _Request | None = None,
        on_saved: Callable[[], None] | None = None,
    ) -> None:
        """Submit the changes; the rest follows in the step in which they count. Nothing to save: at
        once, but behind what is still being saved, since a decision may rest on it: nobody is told
        what a failed save then takes back."""
        if not (outcome.changes or outcome.effects or request or on_saved):
            return

        def saved() -> None:
            if on_saved is not None:
                on_saved()
            self._give(outcome.effects)
            if request is not None and outcome.reply is not None:
                request.answer(outcome.reply)

        def done(error: Exception | None) -> None:
            self._saving -= 1
            if error is None:
                saved()
                return
            if request is not None:
                request.answer(_NOT_AVAILABLE)
            for effect in outcome.effects:
                match effect:
                    case Answer(ticket, _):
                        cast(_Request, ticket).answer(_NOT_AVAILABLE)
                    case ApplyOffsets():
                        self.groups.offsets.not_saved(effect)
            for group_id in outcome.group_ids:
                self._not_saved(group_id)

        if outcome.changes or self._saving:
            self._saving += 1
            self._commits.submit(outcome.changes, done)
        else:
            saved()
        self._wake_for_timers()

    def _give(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Answer(ticket, reply):
                    cast(_Request, ticket).answer(reply)
                case ApplyOffsets():
                    self.groups.offsets.apply(effect)
                case GenerationSaved():
                    self._carry_out(self.groups.classic.saved(effect, now_ms=self._clock.now_ms()))

    def _not_saved(self, group_id: str) -> None:
        try:
            records = list(self._store.scan(group_prefix(group_id)))
        # Nothing is saved any more either: the group stays as it is until the restart.
        except StoreFailed as error:
            logger.warning("group %s could not be read again after a failed save: %s", group_id, error)
            return
        outcome = self.groups.not_saved(group_id, records, now_ms=self._clock.now_ms())
        assert not outcome.changes, "what follows from a failed save is not saved"
        self._give(outcome.effects)
        self._wake_for_timers()

    # -- administration
    # ----------------------------------------------------------------------------------------------

    async def delete_group(self, group_id: str) -> ErrorCode:
        """DeleteGroups for one group that is no share group: its records, offsets and settings, in
        one commit."""
        async with self._configs.altering:  # Nobody alters its settings meanwhile.
            outcome = self.groups.delete(group_id)
            if outcome.reply is not ErrorCode.none:
                assert outcome.reply is not None
                return outcome.reply
            settings = self._configs.removal_of_group(group_id)
            request = _Request()
            all_of_it = replace(outcome, changes=(*outcome.changes, *settings))
            self._carry_out(all_of_it, request, lambda: self._configs.group_removed(group_id))
            await request.pending.wait()
            return ErrorCode.coordinator_not_available if request.reply is _NOT_AVAILABLE else ErrorCode.none

    async def topic_deleted(self, topic_id: UUID) -> None:
        """Groups forget the offsets of a topic that is gone."""
        outcome = self.groups.topic_deleted(topic_id)
        request = _Request()
        self._carry_out(Outcome(outcome.changes, True, outcome.effects, outcome.group_ids), request)
        await request.pending.wait()
        if request.reply is _NOT_AVAILABLE:
            logger.warning(
                "offsets of topic %s could not be removed: tried again at the next start", topic_id
            )

    # -- time
    # ----------------------------------------------------------------------------------------------

    async def run_timers(self) -> None:
        """Sessions, rebalances, whatever else the groups wait for."""
        for topic_id in self.groups.offsets.topic_ids():
            if self._topics.by_id(topic_id) is None:
                await self.topic_deleted(topic_id)
        while True:
            deadline_ms = self.groups.next_deadline_ms()
            with trio.CancelScope(
                deadline=math.inf if deadline_ms is None else self._clock.trio_time(deadline_ms)
            ) as self._sleeper:
                await trio.sleep_forever()
            self._sleeper = None
            self._carry_out(self.groups.expire(self._clock.now_ms()))
            await trio.lowlevel.checkpoint()

    def _wake_for_timers(self) -> None:
        """What was decided may have set an earlier deadline than the one that is slept until."""
        deadline_ms = self.groups.next_deadline_ms()
        if self._sleeper is not None and deadline_ms is not None:
            self._sleeper.deadline = min(self._sleeper.deadline, self._clock.trio_time(deadline_ms))

    async def run_expiry(self) -> None:
        """Offsets that are old, groups that are empty."""
        while True:
            await trio.sleep(self._expiry_interval_s)
            for group_id in self.groups.group_ids():
                self._carry_out(self.groups.expire_offsets(group_id, now_ms=self._clock.now_ms()))
                await trio.lowlevel.checkpoint()
