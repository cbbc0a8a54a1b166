"""Counts the records that retention and DeleteRecords remove before a share group has finished
them.

The group loses those records, without a dead letter. A WARNING and a metric for each group report
it. Only the groups with share state of the topic partition are counted. A loaded share-partition is
counted from memory. For the others the persister returns the progress: none is loaded, and
kbroker's own persisters write nothing for it.

Records are counted before the removal and reported after it, so a record acknowledged in between
counts as lost. A persister that does not answer must not keep a full disk from being cleared: after
some seconds the removal continues, without a count.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Iterable

import trio

from kbroker.broker.logs.partition import Partition
from kbroker.broker.queues.share_partitions import SharePartitions
from kbroker.errors import ErrorCode, KafkaError
from kbroker.metrics import ShareGroupMetrics
from kbroker.settings.queue import QUEUE_RETENTION_MAX_BYTES
from kbroker.share.persister import Persister, ReadRequest, Result, TopicPartition
from kbroker.share.record_state import TERMINAL

logger = logging.getLogger(__name__)

PATIENCE_S = 5.0
"""How long a removal waits for the persister, for all groups together."""
_WHAT_TO_DO = {
    cause: (
        f": it needs more consumers, or the topic a greater {settings}; "
        "kbroker share-groups describe {group} shows whether anybody works in it"
    )
    for cause, settings in (
        ("retention", "retention.ms or retention.bytes"),
        (QUEUE_RETENTION_MAX_BYTES, QUEUE_RETENTION_MAX_BYTES),
    )
}
_NO_LEADER_EPOCH = -1
_UNDECIDED = -1


class RemovedRecords:
    """`groups_of(partition)`: the groups with share state of it."""

    def __init__(
        self,
        persister: Persister,
        share_partitions: SharePartitions,
        groups_of: Callable[[TopicPartition], Iterable[str]],
    ) -> None:
        self._persister = persister
        self._share_partitions = share_partitions
        self._groups_of = groups_of

    async def before_removal(self, partition: Partition, offset: int, cause: str) -> Callable[[], None]:
        """Count the unfinished records below `offset`, which `cause` is about to remove. The caller
        calls the result after the removal. Raises nothing."""
        key = TopicPartition(*partition.log)
        found: dict[str, int] = {}
        groups = dict.fromkeys([*self._groups_of(key), *self._share_partitions.groups_of(key)])
        with trio.move_on_after(PATIENCE_S) as scope:
            for group_id in groups:
                try:
                    found[group_id] = await self._count(group_id, key, partition, offset)
                except KafkaError as error:
                    _not_counted(partition, group_id, cause, str(error))
                except Exception:
                    # The persister may be a plugin: its bugs must not keep the disk full.
                    logger.exception("the persister failed on a share-partition of group %s", group_id)
                    _not_counted(partition, group_id, cause, "the persister failed")
        if scope.cancelled_caught:
            why = f"the persister did not answer within {PATIENCE_S:.0f} s"
            _not_counted(partition, group_id, cause, why)
        return lambda: self._removed(partition, cause, found)

    def _removed(self, partition: Partition, cause: str, found: dict[str, int]) -> None:
        for group_id, records in found.items():
            if records:
                self.report(partition, cause, group_id, records)

    def report(self, partition: Partition, cause: str, group_id: str, records: int) -> None:
        """Add to the metric, and log it: a negative number, which is a miscount, shows there."""
        metrics = self._share_partitions.metrics.setdefault(group_id, ShareGroupMetrics())
        metrics.removed_records += max(0, records)
        what_to_do = _WHAT_TO_DO.get(cause, "").format(group=shlex.quote(group_id))
        logger.warning(
            "%s removed %d records of %s-%d that share group %s was not done with%s",
            cause, records, partition.topic_name, partition.log.partition, group_id, what_to_do,
        )  # fmt: skip

    async def _count(self, group_id: str, key: TopicPartition, partition: Partition, end: int) -> int:
        """How many offsets in [log start, end) the group has not finished."""
        first, persister = partition.log_start_offset, self._persister
        loaded = self._share_partitions.find(group_id, key)
        if loaded is not None and loaded.engine is not None:
            unfinished = loaded.engine.window.unfinished(first, end)
            behind = max(first, loaded.engine.window.unread_from)
            own, rows = persister.own_records, persister.waiting_rows
            if own is not None and unfinished and behind < end:  # The window has passed the others.
                unfinished -= await own.count_own(key, behind, end)
            # In one scan: jobs end between two scans, and their difference would report a loss.
            parked = await rows.count(group_id, key, first, end, kept=False) if rows is not None else 0
            return unfinished + parked
        counted = await persister.count_unfinished(group_id, key, first, end)
        return await self._ask(group_id, key, partition, end) if counted is None else counted

    async def _ask(self, group_id: str, key: TopicPartition, partition: Partition, end: int) -> int:
        """`_count` with KIP-932's five verbs only. `read` may cost a write, so it comes last."""
        (summary,) = await self._persister.read_summary(group_id, [ReadRequest(key, _NO_LEADER_EPOCH)])
        _check(summary)
        first = max(partition.log_start_offset, summary.start_offset)
        if summary.start_offset == _UNDECIDED or first >= end:
            return 0
        if summary.delivery_complete_count == 0:
            return end - first
        (state,) = await self._persister.read(group_id, [ReadRequest(key, partition.leader_epoch)])
        _check(state)
        first = max(first, state.start_offset)
        done = [
            (batch.first_offset, batch.last_offset + 1) for batch in state.batches if batch.state in TERMINAL
        ]
        return max(0, end - first - sum(max(0, min(end, stop) - max(first, start)) for start, stop in done))


def _check(result: Result) -> None:
    if result.code is not ErrorCode.none:
        raise KafkaError(result.code, result.message)


def _not_counted(partition: Partition, group_id: str, cause: str, why: str) -> None:
    logger.warning(
        "%s of %s-%d: what share group %s is not done with could not be counted: %s",
        cause, partition.topic_name, partition.log.partition, group_id, why,
    )  # fmt: skip
