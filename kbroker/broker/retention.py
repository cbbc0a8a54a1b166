"""retention.ms and retention.bytes, as in Kafka: whole segments go from the front, decided by their newest timestamp and their
size; the active segment goes as well when it is too old. The log start offset is committed before anything is removed. The same
task looks whether there is room again for deletions that a full disk has cut off, and to set space aside (space_reserve.py).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import trio

from kbroker.broker.partition import Partition
from kbroker.broker.topics import Topics
from kbroker.clock import wall_clock_ms
from kbroker.config import TopicConfig
from kbroker.errors import KafkaError, NoSpace, StoreFailed
from kbroker.storage.spi import SegmentInfo

logger = logging.getLogger(__name__)


def new_log_start(segments: Sequence[SegmentInfo], *, retention_ms: int, retention_bytes: int, now_ms: int, visible_end: int) -> int:
    """The log start offset that retention asks for. -1 for either setting: no limit. Never above `visible_end`.

    A segment without a timestamp (-1: control batches alone, or what producers gave none) goes with the one behind it. By size, the
    active segment always stays (Kafka does not roll for size).
    """
    start = segments[0].base_offset
    for segment in segments:
        if segment.max_timestamp_ms < 0 and segment.end_offset > segment.base_offset:
            continue
        too_old = retention_ms >= 0 and 0 <= segment.max_timestamp_ms < now_ms - retention_ms
        if not too_old or segment.end_offset > visible_end or segment.end_offset == segment.base_offset:
            break
        start = segment.end_offset
    if retention_bytes < 0:
        return start
    excess = sum(segment.size_bytes for segment in segments) - retention_bytes
    for segment in segments[:-1]:
        excess -= segment.size_bytes
        if excess < 0 or segment.end_offset > visible_end:
            break
        start = max(start, segment.end_offset)
    return start


async def apply_retention(topics: Topics, partition: Partition, config: TopicConfig) -> bool:
    """Move one partition's log start as its topic's configs say. True if it moved. What the broker itself keeps in the log is no reason
    to move it: that would be written anew behind it, again and again."""
    if partition.control_from is not None and partition.log_start_offset >= partition.control_from:
        return False
    start = new_log_start(
        partition.segments(),
        retention_ms=config["retention.ms"],
        retention_bytes=config["retention.bytes"],
        now_ms=wall_clock_ms(),
        visible_end=partition.high_watermark,
    )
    if start <= partition.log_start_offset:
        return False
    logger.info("retention: %s-%d now starts at %d", partition.topic_name, partition.log.partition, start)
    await topics.move_log_start(partition, start, to_free_space=True)
    return True


async def run_retention(topics: Topics, check_interval_ms: int) -> None:
    """The broker's retention task (log.retention.check.interval.ms)."""
    while True:
        await trio.sleep(check_interval_ms / 1000)
        await _catch_up(topics)
        for topic in topics:
            for partition in topic.partitions:
                if partition.deleted:
                    continue
                try:
                    await apply_retention(topics, partition, topic.config)
                except (KafkaError, NoSpace, StoreFailed) as error:
                    logger.warning("retention of %s-%d has to wait: %s", topic.name, partition.log.partition, error)


async def _catch_up(topics: Topics) -> None:
    try:
        await topics.catch_up()
    except (NoSpace, StoreFailed) as error:
        logger.warning("the deletion of a topic has to wait: %s", error)
    topics.reserve.take()
