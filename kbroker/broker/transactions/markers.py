"""Writes the markers of a transaction that has ended: one for each of its logs.

A log that cannot take its marker (the disk is full, its producers cannot be read) is tried again
until it can, since consumers with read_committed wait for it. A log that is gone needs none. Nor
does one whose producer has a newer epoch: a newer producer has ended the transaction there.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from typing import Final

import trio

from kbroker.broker.commits.waiting import OnDone, Pending
from kbroker.broker.logs.partition import Partition
from kbroker.broker.logs.topics import Topics
from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode, KafkaError, NoSpace
from kbroker.formats.batches import ProducerInfo
from kbroker.formats.transactions import (
    MarkerType,
    TransactionPartition,
    TransactionRecord,
    TransactionState,
)

logger = logging.getLogger(__name__)

_RETRY_S, _MOST_RETRY_S = 0.1, 10.0
_REPORT_EVERY_S: Final = 60.0


async def append_marker(
    partition: Partition,
    kind: MarkerType,
    producer: ProducerInfo,
    coordinator_epoch: int,
    version: int,
    on_done: OnDone,
    *,
    is_own: bool = False,
    only_queues: bool = False,
) -> None:
    """Partition.append_marker, with the state of the log's producers loaded. Raises KafkaError.

    - `is_own`: this broker is the only coordinator, so the log takes the marker even if an
      administrator has written one with a greater coordinator epoch.
    - `only_queues`: the caller starts the group commit before it waits."""
    states = partition.producers or await partition.load_producers()
    if is_own:
        coordinator_epoch = max(coordinator_epoch, states.coordinator_epoch(producer.producer_id))
    append = partition.enqueue_marker if only_queues else partition.append_marker
    append(
        kind,
        producer,
        coordinator_epoch=coordinator_epoch,
        version=version,
        now_ms=wall_clock_ms(),
        on_done=on_done,
    )


class Markers:
    """- `coordinator_epoch`: of every marker. It rises with each start, as Kafka's does with each
      election.
    - `start_commit`: GroupCommit.start of the logs
    - `written`: the number of markers since the start"""

    def __init__(self, topics: Topics, coordinator_epoch: int, start_commit: Callable[[], None]) -> None:
        self.coordinator_epoch = coordinator_epoch
        self.written = 0
        self._topics = topics
        self._start_commit = start_commit
        self._next_report = -math.inf

    async def write(self, record: TransactionRecord) -> None:
        """The markers of a transaction in a prepared state. Durable on return (written, with
        durability `os`). Raises StoreFailed."""
        left: Iterable[TransactionPartition] = sorted(record.partitions)
        retry_s = _RETRY_S
        while left := await self._try(record, left):
            await trio.sleep(retry_s)
            retry_s = min(2 * retry_s, _MOST_RETRY_S)

    async def write_at_once(self, record: TransactionRecord) -> bool:
        """As `write`, if it takes no longer than a commit. False: some markers are missing, or all
        of them. Cancelling has no effect. Raises StoreFailed."""
        found = (self._topics.partition(*each) for each in record.partitions)
        if any(each is not None and each.producers is None for each in found):
            return False
        return not await self._try(record, sorted(record.partitions))

    async def _try(
        self, record: TransactionRecord, logs: Iterable[TransactionPartition]
    ) -> list[TransactionPartition]:
        """Returns the logs that could not take their marker."""
        is_commit = record.state is TransactionState.PREPARE_COMMIT
        kind = MarkerType.COMMIT if is_commit else MarkerType.ABORT
        producer = ProducerInfo(record.producer_id, record.producer_epoch, -1)
        pending = Pending(start=self._start_commit)
        refused: list[tuple[Partition, Exception]] = []

        for log in logs:
            partition = self._topics.partition(*log)
            if partition is None or partition.deleted:
                continue

            def on_done(error: Exception | None, partition: Partition = partition) -> None:
                if error is not None:
                    refused.append((partition, error))
                else:
                    self.written += 1
                pending.part_done()

            pending.parts += 1
            try:
                epoch, version = self.coordinator_epoch, record.version
                await append_marker(
                    partition, kind, producer, epoch, version, on_done, is_own=True, only_queues=True
                )
            except KafkaError as error:
                pending.parts -= 1
                if error.code is not ErrorCode.invalid_producer_epoch and not partition.deleted:
                    refused.append((partition, error))
        await pending.wait(to_the_end=True)
        for partition, why in refused:
            if not isinstance(why, NoSpace | KafkaError):
                raise why
            self._report(partition, record.producer_id, why)
        return [TransactionPartition(*partition.log) for partition, _ in refused]

    def _report(self, partition: Partition, producer_id: int, error: Exception) -> None:
        if trio.current_time() >= self._next_report:
            self._next_report = trio.current_time() + _REPORT_EVERY_S
            logger.error(
                "%s-%d: the end of the transaction of producer %d has to wait: %s",
                partition.topic_name,
                partition.log.partition,
                producer_id,
                error,
            )
