"""Queries the persister for the parked records of a share-partition: for lag, for views, and for
the records that a new log start removes."""

from __future__ import annotations

import logging
from collections.abc import Callable

from kbroker.errors import KafkaError
from kbroker.formats.batches import read_header
from kbroker.share.lag import NOTHING_PARKED, ParkedLeft
from kbroker.share.parked import Lane, Parked
from kbroker.share.persister import KEPT, PARKED, Persister, TopicPartition, WaitingRows

logger = logging.getLogger(__name__)
_AT_ONCE = 500
_BEHIND_ALL = (1 << 63) - 1
COUNTED_DUE = 10_000
"""A view counts at most so many due records: counting more would take seconds."""


async def kept_batch(
    rows: WaitingRows, group_id: str, partition: TopicPartition, offset: int
) -> bytes | None:
    """The kept bytes of the record at `offset`; None if it is not kept. Raises KafkaError."""
    found = await rows.read_from(group_id, partition, KEPT, offset, offset + 1, 1)
    return found[0].batch if found else None


async def first_left(
    rows: WaitingRows, group_id: str, partition: TopicPartition, log_start_offset: int
) -> Parked | None:
    """The lowest parked record that is in the log or kept. Raises KafkaError."""
    return await _first(
        rows, group_id, partition, 0, lambda each: each.kept or each.offset >= log_start_offset
    )


async def first_holding(
    rows: WaitingRows, group_id: str, partition: TopicPartition, log_start_offset: int
) -> Parked | None:
    """The lowest parked record that only the log has. Raises KafkaError."""
    return await _first(rows, group_id, partition, log_start_offset, lambda each: not each.kept)


async def _first(
    rows: WaitingRows,
    group_id: str,
    partition: TopicPartition,
    offset: int,
    is_wanted: Callable[[Parked], bool],
) -> Parked | None:
    """Read in pieces. The first one is small, and usually enough."""
    limit = 1
    while found := await rows.read_from(group_id, partition, PARKED, offset, None, limit):
        first = next(filter(is_wanted, found), None)
        if first is not None or len(found) < limit:
            return first
        offset, limit = found[-1].offset + 1, _AT_ONCE
    return None


async def kept_sent_ms(
    persister: Persister, group_id: str, partition: TopicPartition, offset: int
) -> int | None:
    """The timestamp of a record that is kept beside the log (ms since 1970). None: it is not kept,
    or cannot be read, which is logged. Raises nothing, as parked_left()."""
    if persister.waiting_rows is None:
        return None
    try:
        record = await kept_batch(persister.waiting_rows, group_id, partition, offset)
        return None if record is None else read_header(record).base_timestamp_ms
    except KafkaError as error:
        logger.warning("a kept record of group %s on %s-%d cannot be read: %s", group_id, *partition, error)
    except Exception:
        logger.exception("the persister failed on a share-partition of group %s", group_id)
    return None


async def due_parked(
    persister: Persister, group_id: str, partition: TopicPartition, now_ms: int
) -> tuple[int, int | None]:
    """Of the saved parked records, how many are due at `now_ms` (ms since 1970; at most
    COUNTED_DUE of each lane), and when the next of the others is due. Records that a member holds
    are among the due ones. Raises nothing, as parked_left()."""
    rows, due, times = persister.waiting_rows, 0, []
    try:
        for lane in (Lane.REDELIVERY, Lane.SCHEDULE) if rows is not None else ():
            assert rows is not None
            after: tuple[int, int] = (-1, -1)
            counted = 0
            while counted < COUNTED_DUE:
                found = await rows.read_due(group_id, partition, lane, after, _AT_ONCE)
                counted += sum(each.due_ms <= now_ms for each in found)
                if len(found) < _AT_ONCE or found[-1].due_ms > now_ms:
                    break
                after = found[-1].due_ms, found[-1].offset
            due += counted
            later = await rows.read_due(group_id, partition, lane, (now_ms, _BEHIND_ALL), 1)
            times += [each.due_ms for each in later]
    except KafkaError as error:
        logger.warning("parked records of group %s on %s-%d cannot be read: %s", group_id, *partition, error)
    except Exception:
        logger.exception("the persister failed on a share-partition of group %s", group_id)
    return due, min(times, default=None)


async def parked_left(
    persister: Persister,
    group_id: str,
    partition: TopicPartition,
    log_start_offset: int,
    *,
    with_due: bool = False,
) -> ParkedLeft:
    """The saved parked records. If they cannot be read, none, and a log line. Raises nothing: the
    persister may be a plugin. `with_due`: include the next due time, which costs a read of each
    lane."""
    rows = persister.waiting_rows
    if rows is None:
        return NOTHING_PARKED
    try:
        number = await rows.count(group_id, partition, log_start_offset, None)
        first = await first_left(rows, group_id, partition, log_start_offset) if number else None
        if first is None:
            return NOTHING_PARKED
        due = (
            [await rows.read_due(group_id, partition, lane, (-1, -1), 1) for lane in Lane] if with_due else ()
        )
        return ParkedLeft(
            number, first.offset, min((found[0].due_ms for found in due if found), default=None)
        )
    except KafkaError as error:
        logger.warning("parked records of group %s on %s-%d cannot be read: %s", group_id, *partition, error)
    except Exception:
        logger.exception("the persister failed on a share-partition of group %s", group_id)
    return NOTHING_PARKED
