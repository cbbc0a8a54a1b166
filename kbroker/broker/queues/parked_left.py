"""Queries the persister for the parked records of a share-partition: for lag, for views, and for
the records that a new log start removes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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


async def first_parked(
    rows: WaitingRows,
    group_id: str,
    partition: TopicPartition,
    offset: int,
    is_wanted: Callable[[Parked], bool],
) -> Parked | None:
    """The lowest parked record from `offset` on that is wanted. Read in pieces; the first one is
    small, and usually enough. Raises KafkaError."""
    limit = 1
    while found := await rows.read_from(group_id, partition, PARKED, offset, None, limit):
        first = next(filter(is_wanted, found), None)
        if first is not None or len(found) < limit:
            return first
        offset, limit = found[-1].offset + 1, _AT_ONCE
    return None


@contextmanager
def _reported(group_id: str, partition: TopicPartition, what: str = "parked records") -> Iterator[None]:
    """Log errors of the persister, which may be a plugin, and raise none."""
    try:
        yield
    except KafkaError as error:
        logger.warning("%s of group %s on %s-%d cannot be read: %s", what, group_id, *partition, error)
    except Exception:
        logger.exception("the persister failed on a share-partition of group %s", group_id)


async def kept_sent_ms(
    persister: Persister, group_id: str, partition: TopicPartition, offset: int
) -> int | None:
    """The timestamp of a record that is kept beside the log (ms since 1970). None: it is not kept,
    or cannot be read, which is logged. Raises nothing."""
    rows, sent_ms = persister.waiting_rows, None
    with _reported(group_id, partition, "a kept record"):
        record = None if rows is None else await kept_batch(rows, group_id, partition, offset)
        sent_ms = None if record is None else read_header(record).base_timestamp_ms
    return sent_ms


async def due_parked(
    persister: Persister, group_id: str, partition: TopicPartition, now_ms: int
) -> tuple[int, int | None]:
    """Of the saved parked records, how many are due at `now_ms` (ms since 1970; at most
    COUNTED_DUE of each lane), and when the next of the others is due. Records that a member holds
    are among the due ones. Raises nothing, as parked_left()."""
    rows, due, times = persister.waiting_rows, 0, list[int]()
    with _reported(group_id, partition):
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
    return due, min(times, default=None)


async def parked_left(
    persister: Persister,
    group_id: str,
    partition: TopicPartition,
    log_start_offset: int,
    *,
    with_due: bool = False,
) -> ParkedLeft:
    """The saved parked records. If they cannot be read, none, and a log line. Raises nothing.
    `with_due`: include the next due time, which costs a read of each lane."""
    rows = persister.waiting_rows
    left = NOTHING_PARKED
    with _reported(group_id, partition):
        number = 0 if rows is None else await rows.count(group_id, partition, log_start_offset, None)
        if rows is None or not number:
            return NOTHING_PARKED
        first = await first_parked(
            rows, group_id, partition, 0, lambda each: each.kept or each.offset >= log_start_offset
        )
        if first is None:
            return NOTHING_PARKED
        lanes = Lane if with_due else ()
        due = [await rows.read_due(group_id, partition, lane, (-1, -1), 1) for lane in lanes]
        times = [found[0].due_ms for found in due if found]
        left = ParkedLeft(number, first.offset, min(times, default=None))
    return left
