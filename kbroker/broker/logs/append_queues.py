"""Queues for produced batches that must wait for a thread before they get their offsets. Four
reasons:

- The topic has kbroker.payload.check, and the payload is too large to be opened on the loop
  (formats/turns.py), or is to be stored as one frame.
- The timestamps of its records must be looked at, and it is too large for that as well.
- The topic has a compression.type, and the batch another codec.
- The batch is the first of an idempotent producer since the start, and the partition must load the
  state of its producers.

Later batches for the same partition wait behind it, in the order of arrival. So the sequence
numbers of an idempotent producer and the order for consumers hold. Other partitions and connections
proceed as during a commit.

    queue of a partition    | large batch | small one | large one |    one task, ends with the queue
                                  └─ in a thread

A waiting batch has no offset and is neither stored nor added to the producer state.
Partition.append checks the topic, the disk and the store when its turn comes, as for any new batch.
If the broker stops first, nothing has been promised to the client. Two batches are checked in
threads at once; each takes up to twice 64 MiB for the decompressed payload.

It must not know the checks (payload_check.py) or what a Produce request is.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, Protocol

import trio

from kbroker.broker.commits.background import Background
from kbroker.broker.logs.partition import Appended, Partition, ProducersNotLoaded
from kbroker.broker.logs.payload_check import RecordRules, check_quickly
from kbroker.broker.logs.recompression import must_recompress, stored_form
from kbroker.broker.logs.validation import BadBatch, MustOpen, validate
from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.batches import BatchHeader
from kbroker.formats.turns import Turn

logger = logging.getLogger(__name__)

_CHECKS_AT_ONCE = 2
_threads: Final = trio.CapacityLimiter(_CHECKS_AT_ONCE)


class Producing(Protocol):
    """The request's part that waits for one batch. `appended` or `refused` is called once for a
    batch that had to wait, `done` as by Partition.append.

    - `transactional`: whether the batch may belong to a transaction
    - `turn`: what may still be opened while the request is handled
    - `check`: called again in the step of the append if the batch had to wait; raises KafkaError if
      the log must not take it"""

    @property
    def transactional(self) -> bool: ...
    @property
    def turn(self) -> Turn: ...
    def check(self, partition: Partition, header: BatchHeader) -> None: ...
    def done(self, error: Exception | None) -> None: ...
    def appended(self, partition: Partition, appended: Appended) -> None: ...
    def refused(self, partition: Partition, error: KafkaError, size_bytes: int) -> None: ...


class _Waiting(NamedTuple):
    """- `is_checked`: whether its payload is checked
    - `times_at_ms`: when it arrived, if its timestamps are checked"""

    batch: memoryview
    header: BatchHeader
    is_checked: bool
    times_at_ms: int | None
    producing: Producing


class AppendQueuesStatistics(NamedTuple):
    partitions: int
    batches: int


class AppendQueues:
    """`queues`: of the partitions with waiting batches; every Produce checks whether it is
    empty."""

    def __init__(self, background: Background) -> None:
        self.queues: dict[Partition, deque[_Waiting]] = {}
        self._background = background

    def statistics(self) -> AppendQueuesStatistics:
        return AppendQueuesStatistics(len(self.queues), sum(map(len, self.queues.values())))

    def append(
        self,
        partition: Partition,
        records: bytes | memoryview | None,
        now_ms: int,
        producing: Producing,
    ) -> Appended | None:
        """As Partition.enqueue, with the check that the topic asks for, and without
        ProducersNotLoaded and MustOpen. None: the batch waits, and `producing` is notified. Raises
        KafkaError for a batch that is refused at once."""
        if partition.deleted:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        rules, turn = partition.topic.rules, producing.turn
        times_at_ms = None
        try:
            header = validate(records, rules, now_ms, transactional=producing.transactional, turn=turn)
        except MustOpen as unopened:
            header, times_at_ms = unopened.header, now_ms
        assert records is not None
        view = memoryview(records)[: header.size_bytes]
        is_checked, queue = rules.check_payload, self.queues.get(partition)
        if (
            queue is None
            and times_at_ms is None
            and not must_recompress(header, rules)
            and (not is_checked or check_quickly(view, header, turn, _record_rules(partition)))
        ):
            with suppress(ProducersNotLoaded):
                return partition.enqueue(records, now_ms, producing.done, header=header)
        # Read-only bytes belong to a buffer that is reused as soon as this task waits.
        batch = memoryview(bytearray(view)) if view.readonly else view
        waiting = _Waiting(batch, header, is_checked, times_at_ms, producing)
        if queue is None:
            queue = self.queues[partition] = deque((waiting,))
            self._background.start(self._work_off, partition, queue)
        else:
            queue.append(waiting)
        return None

    async def _work_off(self, partition: Partition, queue: deque[_Waiting]) -> None:
        turn = Turn()
        turn.end()  # The first batch waits for a thread; a task for each partition may begin at once.
        try:
            while queue:
                waiting = queue[0]
                try:
                    checked = await _checked(waiting, partition, turn)
                    if checked.header.has_producer and partition.producers is None:
                        await partition.load_producers()
                        turn.renew()
                    self._append(partition, checked)
                except KafkaError as error:
                    waiting.producing.refused(partition, error, len(waiting.batch))
                except Exception as error:
                    # Only this batch is affected (no memory, a store that cannot be read). Raising
                    # it here would end the broker.
                    logger.exception(
                        "a batch for %s-%d cannot be appended", partition.topic_name, partition.log.partition
                    )
                    refusal = KafkaError(ErrorCode.unknown_server_error, str(error))
                    waiting.producing.refused(partition, refusal, len(waiting.batch))
                queue.popleft()
        finally:
            del self.queues[partition]

    @staticmethod
    def _append(partition: Partition, waiting: _Waiting) -> None:
        header, producing = waiting.header, waiting.producing
        producing.check(partition, header)
        appended = partition.append(waiting.batch, wall_clock_ms(), producing.done, header=header)
        producing.appended(partition, appended)


def _record_rules(partition: Partition) -> RecordRules:
    rules = partition.topic.rules
    keys_of = f"{partition.topic_name}-{partition.log.partition}" if rules.needs_keys else ""
    return RecordRules(keys_of, rules.max_record_bytes)


async def _checked(waiting: _Waiting, partition: Partition, turn: Turn) -> _Waiting:
    """The batch as it is to be stored. Raises BadBatch."""
    batch, header, is_checked = waiting.batch, waiting.header, waiting.is_checked
    times_at_ms = waiting.times_at_ms
    rules, of_records = partition.topic.rules, _record_rules(partition)
    if (
        times_at_ms is None
        and not must_recompress(header, rules)
        and (not is_checked or check_quickly(batch, header, turn, of_records))
    ):
        return waiting
    work = partial(
        stored_form, batch, header, rules, of_records, is_checked=is_checked, times_at_ms=times_at_ms
    )
    stored = await trio.to_thread.run_sync(work, limiter=_threads)
    turn.renew()
    if isinstance(stored, BadBatch):
        raise stored
    batch, header = stored
    return waiting._replace(batch=batch, header=header)
