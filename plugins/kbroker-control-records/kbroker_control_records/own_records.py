"""What retention, lag and housekeeping need to know of control records: kbroker's OwnRecords.

A log's start does not pass a checkpoint before a newer one is written.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

from kbroker.broker.commits.group_commit import GroupCommit
from kbroker.broker.logs.topics import Topics
from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode, KafkaError, NoSpace, StoreFailed
from kbroker.share.persister import OwnRecords, Result, TopicPartition
from kbroker.share_state.coordinator import ShareStateCoordinator
from kbroker.share_state.housekeeping import SharePartitionKey, is_cold
from kbroker.share_state.loading import ShareState
from kbroker.share_state.outcome import ShareStateOutcome
from kbroker.storage.spi import Change
from kbroker_control_records.logs import ControlLogs
from kbroker_control_records.partition import ControlPartition

logger = logging.getLogger(__name__)


class ControlRecords(OwnRecords):
    """`save`: the persister's, which appends a decision's control records."""

    def __init__(
        self,
        topics: Topics,
        state: GroupCommit[Change],
        logs: ControlLogs,
        coordinator: ShareStateCoordinator,
        save: Callable[[ShareStateOutcome[Result]], Awaitable[list[Result]]],
    ) -> None:
        self._reserve = topics.reserve
        self._state = state
        self._logs = logs
        self._coordinator = coordinator
        self._save = save

    async def count_own(self, partition: TopicPartition, first: int, end: int) -> int:
        return await self._logs.count_own(partition, first, end)

    async def before_log_start_moves(self, key: TopicPartition, offset: int) -> None:
        """Rewrites the checkpoints that would be removed.

        A full disk must not prevent retention from making room, so the space set aside for
        deletions is used."""
        partition = self._logs.partition(key)
        control = None if partition is None else self._logs.control(partition)
        if partition is None or control is None or not control.has_state:
            return
        try:
            await control.load()
        except KafkaError as error:
            logger.error(
                "%s-%d: share state that cannot be read is lost: %s",
                partition.topic_name,
                partition.log.partition,
                error,
            )
            return
        group_ids = control.chains.below(offset)
        try:
            await self._rewrite(control, group_ids)
        except NoSpace:
            self._reserve.give_up()
            await self._rewrite(control, group_ids)

    async def _rewrite(self, control: ControlPartition, group_ids: Sequence[str]) -> None:
        if not group_ids:
            return
        await self._logs.open([] if control.is_open else [control])
        key = TopicPartition(*control.partition.log)
        keys = [SharePartitionKey(group_id, key) for group_id in group_ids]
        for each in keys:
            await self._logs.prepare(each.group_id, [key])
        for result in await self._save(self._coordinator.states.snapshot(keys, now_ms=wall_clock_ms())):
            if result.code is ErrorCode.coordinator_not_available:
                raise NoSpace(result.message)
            if result.code is not ErrorCode.none:
                logger.error(
                    "%s: share state that cannot be read is removed with the log: %s",
                    control.partition.topic_name,
                    result.message,
                )

    async def keep_house(self, now_ms: int, interval_ms: int) -> list[Result]:
        """Make cold snapshots, renew hints, and forget deleted topics."""
        for key in self._logs.deleted():
            self._logs.forget(key)
            # The state was removed together with the log.
            self._coordinator.states.confirm(self._coordinator.states.topic_deleted(key.topic_id))
        cold = self._coordinator.states.cold(now_ms=now_ms, interval_ms=interval_ms)
        results = await self._snapshot_cold(cold, now_ms, interval_ms)
        changes = self._logs.renewed_hints()
        if changes:
            try:
                await self._state.commit(changes)
            except (NoSpace, StoreFailed) as error:
                logger.warning("hints to control records were not saved: %s", error)
        return results

    async def _snapshot_cold(
        self, keys: Sequence[SharePartitionKey], now_ms: int, interval_ms: int
    ) -> list[Result]:
        def wanted(state: ShareState) -> bool:
            return is_cold(state, now_ms=now_ms, interval_ms=interval_ms)

        results: list[Result] = []
        for key in keys:
            outcome = self._coordinator.states.snapshot([key], now_ms=now_ms, wanted=wanted)
            results += await self._save(outcome)
        return results
