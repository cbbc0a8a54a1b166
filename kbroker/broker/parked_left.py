"""What is left of a share-partition's parked records, asked of the persister: for lag, for views and for what a log start takes."""

from __future__ import annotations

import logging

from kbroker.errors import KafkaError
from kbroker.share.lag import NOTHING_PARKED, ParkedLeft
from kbroker.share.parked import Lane
from kbroker.share.persister import ParksRecords, Persister, TopicPartition

logger = logging.getLogger(__name__)


def parks_of(persister: Persister) -> ParksRecords | None:
    return persister if isinstance(persister, ParksRecords) and persister.parks_records else None


async def parked_left(
    persister: Persister, group_id: str, partition: TopicPartition, log_start_offset: int, *, with_due: bool = False
) -> ParkedLeft:
    """By what is saved; nothing where it cannot be told, which the log says. Raises nothing: the persister may
    be a plugin. `with_due`: with the time at which the next one is due, which costs a look into each lane."""
    parks = parks_of(persister)
    if parks is None:
        return NOTHING_PARKED
    try:
        number = await parks.count_parked(group_id, partition, log_start_offset, None)
        first = await parks.parked_from(group_id, partition, log_start_offset, 1) if number else ()
        if not first:
            return NOTHING_PARKED
        due = [await parks.read_parked(group_id, partition, lane, (-1, -1), 1) for lane in Lane] if with_due else ()
        return ParkedLeft(number, first[0].offset, min((found[0].due_ms for found in due if found), default=None))
    except KafkaError as error:
        logger.warning("what is parked of group %s on %s-%d is not known: %s", group_id, *partition, error)
    except Exception:
        logger.exception("the persister failed on a share-partition of group %s", group_id)
    return NOTHING_PARKED
