"""retention.ms and retention.bytes, as in Kafka, for topics with cleanup.policy=delete: whole
segments are removed from the front, by their newest timestamp and their size. An active segment
that is too old is removed as well.

The log start offset is committed before anything is removed. The same task resumes deletions that a
full disk has interrupted, and reserves space again (space_reserve.py).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import trio

from kbroker.broker.logs.partition import Partition
from kbroker.broker.logs.topics import Topic, Topics
from kbroker.broker.queues.held_logs import (
    NOTHING_HELD,
    HeldLogs,
    has_removable,
    holdings_of,
    queue_log_start,
)
from kbroker.broker.queues.kept_records import KeptRecords
from kbroker.clock import wall_clock_ms
from kbroker.errors import KafkaError, NoSpace, StoreFailed
from kbroker.settings.altering import TopicConfig
from kbroker.settings.queue import QUEUE_RETENTION, QUEUE_RETENTION_MAX_BYTES
from kbroker.settings.topic_configs import CLEANUP_POLICY
from kbroker.storage.spi import SegmentInfo
from kbroker.turns import ROWS_A_TURN

logger = logging.getLogger(__name__)
WORK_QUEUE_CHECK_S = 2.0


def new_log_start(
    segments: Sequence[SegmentInfo], *, retention_ms: int, retention_bytes: int, now_ms: int, visible_end: int
) -> int:
    """The log start offset that the settings require, never above `visible_end`. -1 for either
    setting: no limit.

    A segment without a timestamp (-1: only control batches, or records without one) is removed with
    the next one. The active segment is never removed for its size (Kafka does not roll for size).
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


async def apply_retention(
    topics: Topics,
    partition: Partition,
    config: TopicConfig,
    held_logs: HeldLogs | None = None,
    kept: KeptRecords | None = None,
) -> bool:
    """Move one partition's log start as its topic's configs require. True if it moved.

    Control records of the broker's own do not move it: they would be written again at the end,
    again and again. Raises KafkaError if the logs that share groups hold are unknown; then nothing
    moves.
    """
    if partition.control_from is not None and partition.log_start_offset >= partition.control_from:
        return False
    if "delete" not in config[CLEANUP_POLICY]:
        return False
    segments = await partition.load_segments()
    if not segments:
        return False
    start = new_log_start(
        segments,
        retention_ms=config["retention.ms"],
        retention_bytes=config["retention.bytes"],
        now_ms=wall_clock_ms(),
        visible_end=partition.high_watermark,
    )
    mode = config[QUEUE_RETENTION]
    holdings, removes_finished = NOTHING_HELD, mode == "workqueue"
    if (
        mode != "time"
        and held_logs is not None
        and (start > partition.log_start_offset or has_removable(segments))
    ):
        if kept is not None:
            await kept.make_way(partition, segments, None if removes_finished else start)
        holders = await held_logs.holders(partition)
        visible_end = partition.high_watermark
        holdings = holdings_of(segments, start, holders, visible_end, removes_finished=removes_finished)
        held_from = min((visible_end, *holders.values())) if holders else None
        start = queue_log_start(segments, start, held_from, removes_finished=removes_finished)
        start = max(
            start, _least_start(segments, config[QUEUE_RETENTION_MAX_BYTES], partition.high_watermark)
        )
    if held_logs is not None:
        held_logs.note(partition, holdings)
    has_moved = start > partition.log_start_offset
    if has_moved:
        logger.info("retention: %s-%d now starts at %d", partition.topic_name, partition.log.partition, start)
        await topics.move_log_start(partition, start, to_free_space=True)
    partition.retention_checks += 1
    return has_moved


def _least_start(segments: Sequence[SegmentInfo], max_bytes: int, visible_end: int) -> int:
    """The least log start, even if share groups hold older records: they may hold at most
    `max_bytes`."""
    return new_log_start(
        segments, retention_ms=-1, retention_bytes=max_bytes, now_ms=0, visible_end=visible_end
    )


async def run_retention(
    topics: Topics, check_interval_ms: int, held_logs: HeldLogs | None = None, kept: KeptRecords | None = None
) -> None:
    """The broker's retention task (log.retention.check.interval.ms). Work queues are checked more
    often, so that finished records are removed soon."""
    next_check = trio.current_time() + check_interval_ms / 1000
    while True:
        await trio.sleep(min(WORK_QUEUE_CHECK_S, max(0, next_check - trio.current_time())))
        is_check = trio.current_time() >= next_check
        if is_check:
            next_check = trio.current_time() + check_interval_ms / 1000
            await _catch_up(topics)
        for number, topic in enumerate(topics, start=1):
            if number % ROWS_A_TURN == 0:
                await trio.lowlevel.checkpoint()
            if is_check or topic.config[QUEUE_RETENTION] == "workqueue":
                await _apply_to(topics, topic, held_logs, kept)


async def _apply_to(
    topics: Topics, topic: Topic, held_logs: HeldLogs | None, kept: KeptRecords | None
) -> None:
    for partition in topic.partitions:
        if partition.deleted:
            continue
        try:
            await apply_retention(topics, partition, topic.config, held_logs, kept)
        except (KafkaError, NoSpace, StoreFailed) as error:
            logger.warning("retention of %s-%d has to wait: %s", topic.name, partition.log.partition, error)


async def _catch_up(topics: Topics) -> None:
    try:
        await topics.catch_up()
    except (NoSpace, StoreFailed) as error:
        logger.warning("the deletion of a topic has to wait: %s", error)
    topics.reserve.take()
