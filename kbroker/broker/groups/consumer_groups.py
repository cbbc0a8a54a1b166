"""The broker's side of classic groups, consumer groups and their offsets.

A request that waits (JoinGroup for the other members, SyncGroup for the leader) costs its
connection's task and a cancel scope. When its client hangs up, the member stays until its session
ends, as in Kafka; the late answer is dropped.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import trio

from kbroker.broker.configs import Configs
from kbroker.broker.groups.deletion import decide_deletion
from kbroker.broker.groups.expressions import ExpressionService
from kbroker.broker.groups.runner import DecisionRunner
from kbroker.errors import ErrorCode
from kbroker.formats.state import GroupKey, GroupOffsetKey, PendingOffsetKey
from kbroker.groups.routing import Groups, GroupsStatistics
from kbroker.storage.spi import StateStore


class ConsumerGroupServiceStatistics(NamedTuple):
    """`waiting`: requests that wait for other members."""

    groups: GroupsStatistics
    waiting: int


class ConsumerGroupService:
    """Carries out the decisions of the pure `Groups`. `configs`: where a deleted group's settings
    are removed."""

    def __init__(self, runner: DecisionRunner[Groups], configs: Configs, *, expiry_interval_s: float) -> None:
        self.groups = runner.coordinator
        self.expressions = ExpressionService(self.groups.consumer)
        self.ask = runner.ask
        self.refuse_waiting = runner.refuse_waiting
        self.topic_deleted = runner.topic_deleted
        self._runner = runner
        self._configs = configs
        self._expiry_interval_s = expiry_interval_s
        runner.before_timers = self._prepare_timers
        runner.background.start(self._run_expiry)

    def statistics(self) -> ConsumerGroupServiceStatistics:
        return ConsumerGroupServiceStatistics(self.groups.statistics(), self._runner.waiting)

    def load(self, store: StateStore) -> None:
        """Load the stored groups and offsets."""
        self.groups.load(
            store.scan(GroupKey.namespace),
            store.scan(GroupOffsetKey.namespace),
            store.scan(PendingOffsetKey.namespace),
            now_ms=self._runner.clock.now_ms(),
        )

    async def end_transaction(self, producer_id: int, is_commit: bool) -> bool:
        """Commit or drop the offsets of a producer's transaction; saved on return. False if they
        could not be saved."""
        outcome = self.groups.end_transaction(producer_id, is_commit=is_commit)
        # Most transactions have none, and need not wait for the saves of other groups.
        return not outcome.changes or await self._runner.save(outcome)

    async def delete_group(self, group_id: str) -> ErrorCode:
        """DeleteGroups for a group other than a share group: deletes its records, offsets and
        settings in one commit."""
        decide = partial(self.groups.delete, group_id)
        outcome = await decide_deletion(decide, group_id, self._runner, self._configs)
        assert outcome.reply is not None
        return outcome.reply

    async def _prepare_timers(self) -> None:
        """A member that is late leaves, and the others get its partitions."""
        timers = self.groups.consumer.rebalances.timers
        for group_id in {name.group_id for name in timers.may_be_due(self._runner.clock.now_ms())}:
            await self.expressions.prepare(group_id, None, None)

    async def _run_expiry(self) -> None:
        """Remove old offsets, and groups that have neither members nor offsets left."""
        while True:
            await trio.sleep(self._expiry_interval_s)
            for group_id in self.groups.group_ids():
                self._runner.submit(self.groups.expire_offsets(group_id, now_ms=self._runner.clock.now_ms()))
                await trio.lowlevel.checkpoint()
