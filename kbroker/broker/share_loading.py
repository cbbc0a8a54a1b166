"""Loading a share-partition: its state from the Persister, its start from the group's reset policy, both fitted to the log.

Better than Kafka in two points. A start offset that the reset policy decides is saved at once, so that a restart before the first
acknowledgement does not skip records (share.auto.offset.reset=latest). And state that lies beyond the log's end, which a power
cut with durability `os` may leave, is cut: otherwise new records at those offsets would count as done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from kbroker.broker.partition import Partition
from kbroker.broker.time_lookup import record_at_time
from kbroker.clock import wall_clock_ms
from kbroker.config import reset_duration_ms
from kbroker.errors import ErrorCode, KafkaError
from kbroker.share.effects import ShareSettings, StateBatch
from kbroker.share.persister import InitializeRequest, Persister, ReadRequest, ReadResult, Result, TopicPartition, WriteRequest
from kbroker.share.share_partition import SharePartition

logger = logging.getLogger(__name__)
_UNDECIDED = -1


async def load_share_partition(
    persister: Persister, group_id: str, partition: Partition, settings: ShareSettings, reset_policy: Callable[[], str]
) -> SharePartition:
    """Raises KafkaError with the persister's code, OFFSET_NOT_AVAILABLE while a reset by duration finds no record, and
    UNKNOWN_SERVER_ERROR for state that makes no sense."""
    key = TopicPartition(partition.log.topic_id, partition.log.partition)
    state = (await persister.read(group_id, [ReadRequest(key, partition.leader_epoch)]))[0]
    _check(state)
    start_offset, batches = state.start_offset, state.batches
    if start_offset == _UNDECIDED:
        start_offset = await _reset_offset(partition, reset_policy())
        await _write_start(persister, group_id, partition, key, state, start_offset, batches)
    elif _reaches_beyond(state, partition.high_watermark):
        start_offset, batches = await _cut(persister, group_id, partition, key, state)
    try:
        engine = SharePartition.load(
            settings, start_offset=start_offset, state_batches=batches, state_epoch=state.state_epoch, leader_epoch=partition.leader_epoch
        )
    except ValueError as error:
        logger.error("share-partition %s:%s-%d cannot be loaded: %s", group_id, partition.topic_name, key.partition, error)
        raise KafkaError(ErrorCode.unknown_server_error, str(error)) from error
    return engine


async def _reset_offset(partition: Partition, policy: str) -> int:
    """Where a share-partition begins that has no start offset (group config share.auto.offset.reset)."""
    if policy == "earliest":
        return partition.log_start_offset
    if policy == "latest":
        return partition.high_watermark
    found = await record_at_time(partition, wall_clock_ms() - reset_duration_ms(policy))
    if found is None:
        raise KafkaError(ErrorCode.offset_not_available, f"no record is as young as {policy} asks for")
    return found[0]


def _reaches_beyond(state: ReadResult, end_offset: int) -> bool:
    return state.start_offset > end_offset or any(batch.last_offset >= end_offset for batch in state.batches)


async def _cut(
    persister: Persister, group_id: str, partition: Partition, key: TopicPartition, state: ReadResult
) -> tuple[int, tuple[StateBatch, ...]]:
    end_offset = partition.high_watermark
    logger.warning(
        "share-partition %s:%s-%d: state beyond the log's end %d is cut (start offset was %d)",
        group_id, partition.topic_name, key.partition, end_offset, state.start_offset,
    )  # fmt: skip
    start_offset = min(state.start_offset, end_offset)
    batches = tuple(
        batch._replace(last_offset=min(batch.last_offset, end_offset - 1)) for batch in state.batches if batch.first_offset < end_offset
    )
    # Stored start offsets only ever rise and stored batches are merged with, so begin anew at the same state epoch. To initialize
    # with the start that is stored already does nothing, hence the first of the two; one call is one commit.
    anew = [InitializeRequest(key, state.state_epoch, offset) for offset in (_UNDECIDED, start_offset)]
    for result in await persister.initialize(group_id, anew):
        _check(result)
    await _write_start(persister, group_id, partition, key, state, start_offset, batches)
    return start_offset, batches


async def _write_start(
    persister: Persister,
    group_id: str,
    partition: Partition,
    key: TopicPartition,
    state: ReadResult,
    start_offset: int,
    batches: Sequence[StateBatch],
) -> None:
    complete = sum(batch.last_offset - batch.first_offset + 1 for batch in batches if batch.state in (2, 4))
    request = WriteRequest(key, state.state_epoch, partition.leader_epoch, start_offset, complete, batches)
    _check((await persister.write(group_id, [request]))[0])


def _check(result: Result) -> None:
    if result.code is not ErrorCode.none:
        raise KafkaError(result.code, result.message)
