"""Loads a share-partition: its state from the Persister, its start from the group's reset policy,
both fitted to the log.

This is better than Kafka in two points. A start offset that the reset policy decides is saved at
once, so that a restart before the first acknowledgement skips no records
(share.auto.offset.reset=latest). And state of records that a power cut took from the log, which is
possible with durability `os`, is removed. Otherwise new records at these offsets would be taken for
finished.

The leader epoch identifies the broker life that wrote the state. The state can only concern offsets
that the log had when that epoch ended, which is where the first append of a later epoch began. (The
present end would be wrong: producers may have appended long before the group's first consumer.) A
start offset that AlterShareGroupOffsets set beyond the log's end concerns no record, and stays.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import trio

from kbroker.broker.logs.partition import Partition
from kbroker.broker.logs.time_lookup import record_at_time
from kbroker.broker.queues.reasons import drop_void_reasons
from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode, KafkaError
from kbroker.settings.altering import reset_duration_ms
from kbroker.share.effects import ShareSettings, StateBatch
from kbroker.share.in_flight import MAX_SPAN
from kbroker.share.parked import ParkingChange
from kbroker.share.parking import NOWHERE
from kbroker.share.persister import (
    PARKED,
    InitializeRequest,
    Persister,
    ReadRequest,
    ReadResult,
    Result,
    TopicPartition,
    WriteRequest,
    begin_anew,
)
from kbroker.share.record_state import MAX_DELIVERY_COUNT, TERMINAL
from kbroker.share.share_partition import SharePartition
from kbroker.share.state_batches import clip

logger = logging.getLogger(__name__)
_UNDECIDED = -1
_BATCHES_A_TURN = 1000
"""Of states, each with its place in the log: some milliseconds."""
_AT_ONCE = 500
"""Parked records dropped in one write."""


class LoadedState(NamedTuple):
    """`waiting`: how many records are parked. `kept_from`: no record below that offset is kept."""

    engine: SharePartition
    waiting: int
    kept_from: int


class LoadTurns:
    """Lets other clients be served between the loads of large share-partitions. To read a state of
    ten thousand scattered records takes tens of milliseconds, and to put it into memory as well.
    Small ones are loaded in one turn of the loop, so that a fetch finds all of its partitions."""

    def __init__(self) -> None:
        self._lock = trio.Lock()
        self._batches = 0

    async def take(self) -> None:
        """Wait for the others, and then for one turn of the loop, if this turn has done enough."""
        while self._batches >= _BATCHES_A_TURN:
            async with self._lock:
                await trio.lowlevel.checkpoint()
                self._batches = 0

    def spend(self, state: ReadResult) -> None:
        """Note that a state was read, or put into memory."""
        self._batches += 1 + len(state.batches)


async def load_share_partition(
    persister: Persister,
    group_id: str,
    partition: Partition,
    settings: ShareSettings,
    reset_policy: Callable[[], str],
    is_forgotten: Callable[[], bool],
    turns: LoadTurns,
) -> LoadedState:
    """`is_forgotten()`: whether the state was altered or deleted since it was read, so that it must
    not be written. `turns`: of all loads of the broker.

    Raises KafkaError with the persister's code, OFFSET_NOT_AVAILABLE while a reset by duration
    finds no record, and UNKNOWN_SERVER_ERROR for inconsistent state."""
    if not group_id:  # The persister returns no row for it.
        raise KafkaError(ErrorCode.unknown_server_error, "The group id must not be empty.")
    key = TopicPartition(partition.log.topic_id, partition.log.partition)
    await turns.take()
    state = (await persister.read(group_id, [ReadRequest(key, partition.leader_epoch)]))[0]
    turns.spend(state)
    _check(state)
    start_offset = state.start_offset
    if start_offset == _UNDECIDED:
        start_offset = await _reset_offset(partition, reset_policy())
    # An alteration need not have raised the state epoch, which would fence what is written here.
    if is_forgotten():
        raise KafkaError(ErrorCode.fenced_state_epoch, "The state was altered while it was being loaded.")
    state = replace(
        state,
        batches=_fitted(state.batches, partition.log_start_offset if start_offset < 0 else start_offset),
    )
    batches = state.batches
    if state.waiting:
        state = await _drop_what_is_gone(persister, group_id, partition, state)
    if state.start_offset == _UNDECIDED:
        await _write_start(persister, group_id, partition, key, state, start_offset, batches)
    elif start_offset < 0:  # The persister means the beginning.
        start_offset = partition.log_start_offset
    elif (end_offset := _end_of_what_was_written(state, partition)) is not None and _reaches_beyond(
        state, end_offset
    ):
        start_offset, batches = await _cut(persister, group_id, partition, key, state, end_offset)
    await drop_void_reasons(persister, group_id, state, partition.leader_epoch, batches)
    await turns.take()
    turns.spend(state)
    engine = _engine_of(group_id, partition, settings, state, start_offset, batches)
    return LoadedState(engine, state.waiting, await _kept_from(persister, group_id, key, state.waiting))


def _engine_of(
    group_id: str,
    partition: Partition,
    settings: ShareSettings,
    state: ReadResult,
    start_offset: int,
    batches: Sequence[StateBatch],
) -> SharePartition:
    """Raises KafkaError for an inconsistent state."""
    try:
        return SharePartition.load(
            settings,
            start_offset=start_offset,
            state_batches=batches,
            state_epoch=state.state_epoch,
            leader_epoch=partition.leader_epoch,
        )
    except ValueError as error:
        logger.error(
            "share-partition %s:%s-%d cannot be loaded: %s",
            group_id,
            partition.topic_name,
            partition.log.partition,
            error,
        )
        raise KafkaError(ErrorCode.unknown_server_error, str(error)) from error


async def _kept_from(persister: Persister, group_id: str, key: TopicPartition, waiting: int) -> int:
    """The first parked record is the first that may be kept."""
    rows = persister.waiting_rows
    found = await rows.read_from(group_id, key, PARKED, 0, None, 1) if rows is not None and waiting else ()
    return found[0].offset if found and found[0].kept else NOWHERE


async def _reset_offset(partition: Partition, policy: str) -> int:
    """Where a share-partition without a start offset begins (group config
    share.auto.offset.reset)."""
    if policy == "earliest":
        return partition.log_start_offset
    if policy == "latest":
        return partition.high_watermark
    found = await record_at_time(partition, wall_clock_ms() - reset_duration_ms(policy))
    if found is None:
        raise KafkaError(ErrorCode.offset_not_available, f"no record is as young as {policy} asks for")
    return found[0]


def _fitted(batches: Sequence[StateBatch], start_offset: int) -> tuple[StateBatch, ...]:
    """The batches, as far as the window has room for them. The share coordinator accepts no others,
    except while it does not know the start offset; earlier versions accepted all. Records that are
    too far ahead are redelivered, and no delivery count exceeds its limit."""
    if not batches or (
        min(batch.first_offset for batch in batches) >= start_offset
        and max(batch.last_offset for batch in batches) < start_offset + MAX_SPAN
        and max(batch.delivery_count for batch in batches) <= MAX_DELIVERY_COUNT
    ):
        return tuple(batches)
    last_offset = start_offset + MAX_SPAN - 1
    return tuple(
        batch._replace(
            last_offset=min(batch.last_offset, last_offset),
            delivery_count=min(batch.delivery_count, MAX_DELIVERY_COUNT),
        )
        for batch in clip(batches, start_offset)
        if batch.first_offset <= last_offset
    )


def _end_of_what_was_written(state: ReadResult, partition: Partition) -> int | None:
    """The log's end when the leader epoch that wrote the state ended; None: no state was
    written."""
    if state.written_in is None:
        return None
    return min(
        [entry.start_offset for entry in partition.epochs.entries if entry.epoch > state.written_in]
        + [partition.high_watermark]
    )


async def _drop_what_is_gone(
    persister: Persister, group_id: str, partition: Partition, state: ReadResult
) -> ReadResult:
    """Drop parked records that have left the log: a power cut took them, or its start has passed
    them. This precedes every other cut, which would lose the epoch that wrote the state."""
    end_offset = _end_of_what_was_written(state, partition)
    if end_offset is not None:
        state = await _drop_parked(persister, group_id, partition, state, end_offset, None)
    before, log_start_offset = state.waiting, partition.log_start_offset
    state = await _drop_parked(persister, group_id, partition, state, 0, log_start_offset)
    if before != state.waiting:
        logger.info(
            "share-partition %s:%s-%d: %d parked records are gone with the log, which begins at %d",
            group_id, partition.topic_name, partition.log.partition, before - state.waiting, log_start_offset,
        )  # fmt: skip
    return state


async def _drop_parked(
    persister: Persister, group_id: str, partition: Partition, state: ReadResult, first: int, end: int | None
) -> ReadResult:
    """Drop the parked records at the offsets `first` to `end` - 1; with an open end only those
    parked in an earlier epoch. Kept records that have left the log stay: the log was synced before
    its start passed them."""
    rows, key = persister.waiting_rows, state.partition
    while rows is not None:
        found = await rows.read_from(group_id, key, PARKED, first, None, _AT_ONCE)
        gone = [
            each
            for each in found
            if (each.leader_epoch < partition.leader_epoch if end is None else each.offset < end)
        ]
        gone = [each for each in gone if not each.kept or each.offset >= partition.log_start_offset]
        waiting = max(0, state.waiting - len(gone))
        if gone:
            parking = [
                ParkingChange(each.offset, (each.place,), None, b"" if each.kept else None) for each in gone
            ]
            request = WriteRequest(
                key, state.state_epoch, partition.leader_epoch, state.start_offset, -1, (), parking, waiting
            )
            _check((await persister.write(group_id, [request]))[0])
            state = replace(state, waiting=waiting)
            if end is None:
                logger.warning(
                    "share-partition %s:%s-%d: %d parked records, from %d on, were lost with the "
                    "log's end",
                    group_id, partition.topic_name, partition.log.partition, len(gone), gone[0].offset,
                )  # fmt: skip
        if len(found) < _AT_ONCE or (end is not None and found[-1].offset >= end):
            break
        first = found[-1].offset + 1
    return state


def _reaches_beyond(state: ReadResult, end_offset: int) -> bool:
    return state.start_offset > end_offset or any(batch.last_offset >= end_offset for batch in state.batches)


async def _cut(
    persister: Persister,
    group_id: str,
    partition: Partition,
    key: TopicPartition,
    state: ReadResult,
    end_offset: int,
) -> tuple[int, tuple[StateBatch, ...]]:
    logger.warning(
        "share-partition %s:%s-%d: state of records from %d on, which the log has lost, is removed (start "
        "offset was %d)",
        group_id, partition.topic_name, key.partition, end_offset, state.start_offset,
    )  # fmt: skip
    start_offset = min(state.start_offset, end_offset)
    batches = tuple(
        batch._replace(last_offset=min(batch.last_offset, end_offset - 1))
        for batch in state.batches
        if batch.first_offset < end_offset
    )
    keeps_parked = persister.waiting_rows is not None
    request = InitializeRequest(key, state.state_epoch, start_offset, keeps_parked=keeps_parked)
    # Stored start offsets never fall, and new batches are merged with stored ones. So the state is
    # recreated, at the same state epoch.
    for result in await persister.initialize(group_id, begin_anew(request)):
        _check(result)
    # Later writes are of this epoch.
    _check((await persister.read(group_id, [ReadRequest(key, partition.leader_epoch)]))[0])
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
    complete = sum(batch.last_offset - batch.first_offset + 1 for batch in batches if batch.state in TERMINAL)
    request = WriteRequest(key, state.state_epoch, partition.leader_epoch, start_offset, complete, batches)
    _check((await persister.write(group_id, [request]))[0])


def _check(result: Result) -> None:
    if result.code is not ErrorCode.none:
        raise KafkaError(result.code, result.message)
