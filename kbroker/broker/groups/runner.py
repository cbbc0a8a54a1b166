"""The one way from a decision about a group to the disk, for groups of every type.

    outcome = coordinator.join(request, ticket, now_ms=...)   decides; memory shows it at once
    runner.submit(outcome, request)                           in the same step, without an await

    saved       carry out the effects in their order, then answer the request with the reply
    not saved   refuse the request and all requests that the effects would have answered, withdraw
                the other effects, and have the coordinator restore each group

Both happen in the step in which the commit ends, before anything else is decided. An outcome
without changes is carried out at once, unless another one is still being saved: the decision may
depend on that one, so it queues behind it. So no client sees a change that a failed save undoes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Generic, TypeVar, cast
from uuid import UUID

import trio

from kbroker.broker.commits.background import Background
from kbroker.broker.commits.group_commit import GroupCommit
from kbroker.broker.commits.session_clock import SessionClock
from kbroker.broker.commits.waiting import Pending, Waiter
from kbroker.broker.connection import ClientConnection
from kbroker.broker.logs.topics import Topics
from kbroker.errors import ErrorCode, KafkaError, StoreFailed
from kbroker.formats.state import group_prefix
from kbroker.groups.outcome import Answer, Coordinator, Effect, Outcome, Ticket
from kbroker.storage.spi import Change, StateStore

logger = logging.getLogger(__name__)
R = TypeVar("R")
C = TypeVar("C", bound=Coordinator)

_NOT_AVAILABLE: Final = object()
"""Used instead of a reply: the change could not be saved, or the broker stops."""


class PendingRequest(Ticket):
    """A client's request. It waits for its save (`pending`) or for other members (`waiter`)."""

    __slots__ = ("pending", "reply", "waiter")

    def __init__(self) -> None:
        self.pending = Pending(1)
        self.waiter = Waiter()
        self.reply: object = None

    def answer(self, reply: object) -> None:
        """The first answer stands: a request that was refused stays refused."""
        if self.pending.parts:
            self.reply = reply
            self.pending.part_done()
            self.waiter.wake()


class DecisionRunner(Generic[C]):
    """Saves and carries out the decisions of `coordinator`, and runs its timers.

    - `clock`: the one with which `coordinator` was created
    - `before_timers`: if set, called before the coordinator looks at its timers"""

    def __init__(
        self,
        coordinator: C,
        topics: Topics,
        store: StateStore,
        commits: GroupCommit[Change],
        clock: SessionClock,
        background: Background,
    ) -> None:
        self.coordinator = coordinator
        self.clock = clock
        self.background = background
        self.before_timers: Callable[[], Awaitable[None]] | None = None
        self._topics = topics
        self._store = store
        self._commits = commits
        self._waiting: set[PendingRequest] = set()
        self._saving = 0
        self._sleeper: trio.CancelScope | None = None
        self._sleeps_until_ms = math.inf
        self._closing = False
        background.start(self._run)

    @property
    def waiting(self) -> int:
        """Requests that wait for other members."""
        return len(self._waiting)

    # --- asking ---

    async def ask(
        self, decide: Callable[[Ticket, int], Outcome[R]], connection: ClientConnection | None = None
    ) -> R:
        """Return the reply of `decide(ticket, now_ms)` once its changes are saved. A decision
        without a reply waits on `connection` until another decision answers the ticket.

        Raises COORDINATOR_NOT_AVAILABLE if the changes could not be saved or the broker stops,
        whatever KafkaError `decide` raises, and PeerGone."""
        request = PendingRequest()
        outcome = decide(request, self.clock.now_ms())
        self.submit(outcome, request)
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

    async def save(self, outcome: Outcome[object], on_saved: Callable[[], None] | None = None) -> bool:
        """True when the outcome's changes are saved; `on_saved` ran in the same step. False if they
        could not be saved: the coordinator has restored its groups."""
        if not (outcome.changes or outcome.effects or on_saved or self._saving):
            self._wake_for_timers()
            return True
        request = PendingRequest()
        self.submit(replace(outcome, reply=True), request, on_saved)
        await request.pending.wait()
        return request.reply is True

    def submit(
        self,
        outcome: Outcome[object],
        request: PendingRequest | None = None,
        on_saved: Callable[[], None] | None = None,
    ) -> None:
        """Queue the changes; the rest follows in the step in which they are saved."""
        if not (outcome.changes or outcome.effects or request or on_saved):
            return
        if outcome.changes or self._saving:
            self._saving += 1
            self._commits.submit(outcome.changes, partial(self._decided, outcome, request, on_saved))
        else:
            self._saved(outcome, request, on_saved)
        self._wake_for_timers()

    def refuse_waiting(self) -> None:
        """Refuse the waiting requests when the broker stops. Their clients look for the coordinator
        again, and find this broker after its restart."""
        self._closing = True
        for request in tuple(self._waiting):
            request.answer(_NOT_AVAILABLE)

    async def topic_deleted(self, topic_id: UUID) -> None:
        """Remove a deleted topic from the groups."""
        if not await self.save(self.coordinator.topic_deleted(topic_id)):
            logger.warning("groups still have topic %s: it is removed at the next start", topic_id)

    # --- when a save ends ---

    def _decided(
        self,
        outcome: Outcome[object],
        request: PendingRequest | None,
        on_saved: Callable[[], None] | None,
        error: Exception | None,
    ) -> None:
        self._saving -= 1
        if error is None:
            self._saved(outcome, request, on_saved)
        else:
            self._not_saved(outcome, request)

    def _saved(
        self, outcome: Outcome[object], request: PendingRequest | None, on_saved: Callable[[], None] | None
    ) -> None:
        if on_saved is not None:
            on_saved()
        self._carry_out(outcome.effects)
        if request is not None and outcome.reply is not None:
            request.answer(outcome.reply)

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Answer):
                cast(PendingRequest, effect.ticket).answer(effect.reply)
            else:
                self.submit(self.coordinator.effect_saved(effect, now_ms=self.clock.now_ms()))

    def _not_saved(self, outcome: Outcome[object], request: PendingRequest | None) -> None:
        if request is not None:
            request.answer(_NOT_AVAILABLE)
        for effect in outcome.effects:
            if isinstance(effect, Answer):
                cast(PendingRequest, effect.ticket).answer(_NOT_AVAILABLE)
            else:
                self.coordinator.effect_not_saved(effect)
        for group_id in outcome.group_ids:
            self._put_right(group_id)

    def _put_right(self, group_id: str) -> None:
        try:
            records = list(self._store.scan(group_prefix(group_id)))
        # The store accepts no more writes either: the group stays as it is until the restart.
        except StoreFailed as error:
            logger.warning("group %s could not be reloaded after a failed save: %s", group_id, error)
            return
        outcome = self.coordinator.not_saved(group_id, records, now_ms=self.clock.now_ms())
        assert not outcome.changes, "the outcome of a failed save has no changes"
        self._carry_out(outcome.effects)
        self._wake_for_timers()

    # --- time ---

    async def _run(self) -> None:
        """Remove topics whose deletion was finished by recovery, then run the coordinator's timers
        (sessions, rebalances and others)."""
        for topic_id in self.coordinator.topic_ids():
            if self._topics.by_id(topic_id) is None:
                await self.topic_deleted(topic_id)
        while True:
            deadline_ms = self.coordinator.next_deadline_ms()
            self._sleeps_until_ms = math.inf if deadline_ms is None else deadline_ms
            with trio.CancelScope(
                deadline=math.inf if deadline_ms is None else self.clock.trio_time(deadline_ms)
            ) as self._sleeper:
                await trio.sleep_forever()
            self._sleeper = None
            if self.before_timers is not None:
                await self.before_timers()
            self.submit(self.coordinator.expire(self.clock.now_ms()))
            await trio.lowlevel.checkpoint()

    def _wake_for_timers(self) -> None:
        """The last decision may have set an earlier deadline than the timers sleep until."""
        deadline_ms = self.coordinator.next_deadline_ms()
        # Compared first, since setting a scope's deadline takes many calls.
        if deadline_ms is None or deadline_ms >= self._sleeps_until_ms:
            return
        if self._sleeper is not None:
            self._sleeps_until_ms = deadline_ms
            self._sleeper.deadline = self.clock.trio_time(deadline_ms)
