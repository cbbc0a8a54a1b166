"""The reasons of rejections (share/reasons.py) that a persister keeps: which of them hold when a
share-partition is loaded, and those of the records whose dead letters are written.

A crash, or a write that failed, may leave the reason of a record that is not ARCHIVING. Another
record may have its offset by now, or the same one may be rejected again, without a reason. So such
reasons are dropped before the share-partition is used.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from kbroker.errors import KafkaError
from kbroker.share.effects import StateBatch
from kbroker.share.parked import Lane
from kbroker.share.persister import Persister, TopicPartition
from kbroker.share.reasons import Reason
from kbroker.share.record_state import RecordState

logger = logging.getLogger(__name__)

_AT_ONCE = 250
"""Reasons in one read: 2 MiB at most."""


async def drop_void_reasons(
    persister: Persister, group_id: str, partition: TopicPartition, batches: Sequence[StateBatch]
) -> None:
    """Drop the reasons of records that are not ARCHIVING, in the window (`batches`) or parked.
    Raises KafkaError."""
    if not persister.keeps_reasons:
        return
    archiving = [batch for batch in batches if batch.state == RecordState.ARCHIVING]
    at = 0
    while found := list(await persister.reasons_from(group_id, partition, at, _AT_ONCE)):
        at = found[-1] + 1
        void = []
        for offset in found:
            is_here = any(batch.first_offset <= offset <= batch.last_offset for batch in archiving)
            if not is_here and not await _is_parked(persister, group_id, partition, offset):
                void.append(offset)
        if void:
            await persister.drop_reasons(group_id, partition, void)
        if len(found) < _AT_ONCE:
            break


async def _is_parked(persister: Persister, group_id: str, partition: TopicPartition, offset: int) -> bool:
    found = await persister.parked_from(group_id, partition, offset, 1)
    return bool(found) and found[0].offset == offset and found[0].lane is Lane.ARCHIVING


async def reasons_of(
    persister: Persister, group_id: str, partition: TopicPartition, offsets: Sequence[int]
) -> dict[int, Reason]:
    """The reasons of the records at these rising offsets. Raises KafkaError."""
    wanted, found = frozenset(offsets), dict[int, Reason]()
    at, end = (offsets[0], offsets[-1] + 1) if persister.keeps_reasons and offsets else (0, 0)
    while at < end:
        some = await persister.reasons_from(group_id, partition, at, min(_AT_ONCE, end - at))
        found.update((offset, reason) for offset, reason in some.items() if offset in wanted)
        if len(some) < min(_AT_ONCE, end - at):
            break
        at = max(some) + 1
    return found


async def drop_reasons(
    persister: Persister, group_id: str, partition: TopicPartition, offsets: Iterable[int]
) -> None:
    """Drop the reasons of records whose dead letters are written. After an error they stay until
    the share-partition is loaded again."""
    try:
        found = await reasons_of(persister, group_id, partition, sorted(offsets))
        if found:
            await persister.drop_reasons(group_id, partition, found)
    except KafkaError as error:
        logger.warning(
            "reasons of dead letters that are written were not removed, the next start does it: %s", error
        )
