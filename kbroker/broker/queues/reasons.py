"""The reasons of rejections (share/reasons.py) that a persister keeps: which of them hold when a
share-partition is loaded, and those of the records whose dead letters are written.

A crash, or a write that failed, may leave the reason of a record that is not ARCHIVING. Another
record may have its offset by now, or the same one may be rejected again, without a reason. So such
reasons are removed before the share-partition is used.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from kbroker.errors import ErrorCode, KafkaError
from kbroker.share.effects import StateBatch
from kbroker.share.parked import Lane
from kbroker.share.persister import (
    PARKED,
    REJECTED,
    Persister,
    ReadResult,
    TopicPartition,
    WaitingRows,
    WriteRequest,
)
from kbroker.share.reasons import Reason, ReasonChange
from kbroker.share.record_state import RecordState

logger = logging.getLogger(__name__)

_AT_ONCE = 250
"""Reasons in one read: 2 MiB at most."""
_UNCHANGED = -1


async def drop_void_reasons(
    persister: Persister, group_id: str, state: ReadResult, leader_epoch: int, batches: Sequence[StateBatch]
) -> None:
    """Remove the reasons of records that are not ARCHIVING, in the window (`batches`) or parked;
    saved on return. Raises KafkaError."""
    rows, partition = persister.waiting_rows, state.partition
    if rows is None:
        return
    archiving = [batch for batch in batches if batch.state == RecordState.ARCHIVING]
    at = 0
    while found := await rows.read_from(group_id, partition, REJECTED, at, None, _AT_ONCE):
        at = found[-1].offset + 1
        void = []
        for offset, _ in found:
            is_here = any(batch.first_offset <= offset <= batch.last_offset for batch in archiving)
            if not is_here and not await _is_parked(rows, group_id, partition, offset):
                void.append(ReasonChange(offset, None))
        if void:
            request = WriteRequest(
                partition, state.state_epoch, leader_epoch, _UNCHANGED, _UNCHANGED, (), reasons=void
            )
            (result,) = await persister.write(group_id, [request])
            if result.code is not ErrorCode.none:
                raise KafkaError(result.code, result.message)
        if len(found) < _AT_ONCE:
            break


async def _is_parked(rows: WaitingRows, group_id: str, partition: TopicPartition, offset: int) -> bool:
    found = await rows.read_from(group_id, partition, PARKED, offset, offset + 1, 1)
    return bool(found) and found[0].lane is Lane.ARCHIVING


async def reasons_of(
    persister: Persister, group_id: str, partition: TopicPartition, offsets: Sequence[int]
) -> dict[int, Reason]:
    """The reasons of the records at these rising offsets. Raises KafkaError."""
    rows, wanted, found = persister.waiting_rows, frozenset(offsets), dict[int, Reason]()
    at, end = (offsets[0], offsets[-1] + 1) if rows is not None and offsets else (0, 0)
    while rows is not None and at < end:
        some = await rows.read_from(group_id, partition, REJECTED, at, end, _AT_ONCE)
        found.update((offset, reason) for offset, reason in some if offset in wanted)
        if len(some) < _AT_ONCE:
            break
        at = some[-1].offset + 1
    return found


async def with_reasons(
    persister: Persister, group_id: str, partition: TopicPartition, offsets: Collection[int]
) -> frozenset[int]:
    """Those of the offsets that have a reason. If they cannot be read, none: the reasons then stay
    until the share-partition is loaded again."""
    try:
        return frozenset(await reasons_of(persister, group_id, partition, sorted(offsets)))
    except KafkaError as error:
        logger.warning(
            "reasons of dead letters that are written were not removed, the next start does it: %s", error
        )
        return frozenset()
