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

import trio

from kbroker.broker.logs.partition import Partition
from kbroker.broker.logs.time_lookup import record_at_time
from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode, KafkaError
from kbroker.settings.altering import reset_duration_ms
from kbroker.share.effects import ShareSettings, StateBatch
from kbroker.share.in_flight import MAX_SPAN
from kbroker.share.parked import Lane, ParkingChange
from kbroker.share.parking import NOWHERE
from kbroker.share.persister import (
    PARKED,
    REJECTED,
    InitializeRequest,
    Persister,
    ReadRequest,
    ReadResult,
    Result,
    TopicPartition,
    WriteRequest,
    begin_anew,
)
from kbroker.share.reasons import ReasonChange
from kbroker.share.record_state import MAX_DELIVERY_COUNT, TERMINAL, RecordState
from kbroker.share.share_partition import SharePartition
from kbroker.share.state_batches import clip

logger = logging.getLogger(__name__)
_UNDECIDED = _UNCHANGED = -1
_BATCHES_A_TURN = 1000
"""Of states, each with its place in the log: some milliseconds."""
_AT_ONCE = 500
"""Parked records dropped in one write."""
_REASONS_AT_ONCE = 250
"""In one read: 2 MiB at most."""


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


class Load:
    """The load of one share-partition. `turns`: of all loads of the broker."""

    def __init__(self, persister: Persister, group_id: str, partition: Partition, turns: LoadTurns) -> None:
        self._persister = persister
        self._group_id = group_id
        self._partition = partition
        self._turns = turns
        self._key = TopicPartition(*partition.log)
        self._name = f"{group_id}:{partition.topic_name}-{partition.log.partition}"

    async def run(
        self, settings: ShareSettings, reset_policy: Callable[[], str], is_forgotten: Callable[[], bool]
    ) -> tuple[SharePartition, int, int]:
        """The engine, how many records are parked, and the offset below which no record is kept.
        `is_forgotten()`: whether the state was altered or deleted since it was read, so that it
        must not be written.

        Raises KafkaError with the persister's code, OFFSET_NOT_AVAILABLE while a reset by duration
        finds no record, and UNKNOWN_SERVER_ERROR for inconsistent state."""
        partition = self._partition
        if not self._group_id:  # The persister returns no row for it.
            raise KafkaError(ErrorCode.unknown_server_error, "The group id must not be empty.")
        await self._turns.take()
        state = await self._read()
        self._turns.spend(state)
        start_offset = state.start_offset
        if start_offset == _UNDECIDED:
            start_offset = await _reset_offset(partition, reset_policy())
        # An alteration need not have raised the state epoch, which would fence the write below.
        if is_forgotten():
            raise KafkaError(ErrorCode.fenced_state_epoch, "The state was altered while it was being loaded.")
        begins_at = partition.log_start_offset if start_offset < 0 else start_offset
        state = replace(state, batches=_fitted(state.batches, begins_at))
        batches = state.batches
        if state.waiting:
            state = await self._drop_what_is_gone(state)
        if state.start_offset == _UNDECIDED:
            await self._write_start(state, start_offset, batches)
        elif start_offset < 0:  # The persister means the beginning.
            start_offset = partition.log_start_offset
        elif (end_offset := self._end_of_what_was_written(state)) is not None and (
            start_offset > end_offset or any(batch.last_offset >= end_offset for batch in batches)
        ):
            start_offset, batches = await self._cut(state, end_offset)
        await self._drop_void_reasons(state, batches)
        await self._turns.take()
        self._turns.spend(state)
        engine = self._engine_of(settings, state, start_offset, batches)
        return engine, state.waiting, await self._kept_from(state.waiting)

    async def _read(self) -> ReadResult:
        request = ReadRequest(self._key, self._partition.leader_epoch)
        (state,) = await self._persister.read(self._group_id, [request])
        _check(state)
        return state

    async def _write(
        self,
        state: ReadResult,
        start_offset: int,
        complete: int = _UNCHANGED,
        batches: Sequence[StateBatch] = (),
        parking: Sequence[ParkingChange] = (),
        waiting: int = 0,
        reasons: Sequence[ReasonChange] = (),
    ) -> None:
        request = WriteRequest(
            self._key,
            state.state_epoch,
            self._partition.leader_epoch,
            start_offset,
            complete,
            batches,
            parking,
            waiting,
            reasons,
        )
        _check((await self._persister.write(self._group_id, [request]))[0])

    def _engine_of(
        self, settings: ShareSettings, state: ReadResult, start_offset: int, batches: Sequence[StateBatch]
    ) -> SharePartition:
        try:
            return SharePartition.load(
                settings,
                start_offset=start_offset,
                state_batches=batches,
                state_epoch=state.state_epoch,
                leader_epoch=self._partition.leader_epoch,
            )
        except ValueError as error:
            logger.error("share-partition %s cannot be loaded: %s", self._name, error)
            raise KafkaError(ErrorCode.unknown_server_error, str(error)) from error

    async def _kept_from(self, waiting: int) -> int:
        """The first parked record is the first that may be kept."""
        rows = self._persister.waiting_rows
        if rows is None or not waiting:
            return NOWHERE
        found = await rows.read_from(self._group_id, self._key, PARKED, 0, None, 1)
        return found[0].offset if found and found[0].kept else NOWHERE

    def _end_of_what_was_written(self, state: ReadResult) -> int | None:
        """The log's end when the leader epoch that wrote the state ended; None: no state was
        written."""
        if state.written_in is None:
            return None
        entries = self._partition.epochs.entries
        later = [entry.start_offset for entry in entries if entry.epoch > state.written_in]
        return min([*later, self._partition.high_watermark])

    async def _drop_what_is_gone(self, state: ReadResult) -> ReadResult:
        """Drop parked records that have left the log: a power cut took them, or its start has
        passed them. This precedes every other cut, which would lose the epoch that wrote the
        state."""
        end_offset = self._end_of_what_was_written(state)
        if end_offset is not None:
            state = await self._drop_parked(state, end_offset, None)
        before, log_start_offset = state.waiting, self._partition.log_start_offset
        state = await self._drop_parked(state, 0, log_start_offset)
        if before != state.waiting:
            what = "share-partition %s: %d parked records are gone with the log, which begins at %d"
            logger.info(what, self._name, before - state.waiting, log_start_offset)
        return state

    async def _drop_parked(self, state: ReadResult, first: int, end: int | None) -> ReadResult:
        """Drop the parked records at the offsets `first` to `end` - 1; with an open end only those
        parked in an earlier epoch. Kept records that have left the log stay: the log was synced
        before its start passed them."""
        rows, partition = self._persister.waiting_rows, self._partition
        while rows is not None:
            found = await rows.read_from(self._group_id, self._key, PARKED, first, None, _AT_ONCE)
            gone = [
                each
                for each in found
                if (each.leader_epoch < partition.leader_epoch if end is None else each.offset < end)
                and (not each.kept or each.offset >= partition.log_start_offset)
            ]
            waiting = max(0, state.waiting - len(gone))
            if gone:
                parking = [
                    ParkingChange(each.offset, (each.place,), None, b"" if each.kept else None)
                    for each in gone
                ]
                await self._write(state, state.start_offset, parking=parking, waiting=waiting)
                state = replace(state, waiting=waiting)
            if gone and end is None:
                what = "share-partition %s: %d parked records, from %d on, were lost with the log's end"
                logger.warning(what, self._name, len(gone), gone[0].offset)
            if len(found) < _AT_ONCE or (end is not None and found[-1].offset >= end):
                break
            first = found[-1].offset + 1
        return state

    async def _drop_void_reasons(self, state: ReadResult, batches: Sequence[StateBatch]) -> None:
        """Remove the reasons of records that are not ARCHIVING, neither in the window (`batches`)
        nor parked; saved on return. A crash, or a write that failed, may have left them. Another
        record may have such an offset by now, or the same one may be rejected again, without a
        reason."""
        rows, at = self._persister.waiting_rows, 0
        archiving = [batch for batch in batches if batch.state == RecordState.ARCHIVING]
        while rows is not None:
            found = await rows.read_from(self._group_id, self._key, REJECTED, at, None, _REASONS_AT_ONCE)
            void = []
            for offset, _ in found:
                if any(batch.first_offset <= offset <= batch.last_offset for batch in archiving):
                    continue
                parked = await rows.read_from(self._group_id, self._key, PARKED, offset, offset + 1, 1)
                if not parked or parked[0].lane is not Lane.ARCHIVING:
                    void.append(ReasonChange(offset, None))
            if void:
                await self._write(state, _UNCHANGED, reasons=void)
            if len(found) < _REASONS_AT_ONCE:
                break
            at = found[-1].offset + 1

    async def _cut(self, state: ReadResult, end_offset: int) -> tuple[int, tuple[StateBatch, ...]]:
        logger.warning(
            "share-partition %s: state of records from %d on, which the log has lost, is removed (start "
            "offset was %d)",
            self._name, end_offset, state.start_offset,
        )  # fmt: skip
        start_offset = min(state.start_offset, end_offset)
        batches = tuple(
            batch._replace(last_offset=min(batch.last_offset, end_offset - 1))
            for batch in state.batches
            if batch.first_offset < end_offset
        )
        keeps_parked = self._persister.waiting_rows is not None
        request = InitializeRequest(self._key, state.state_epoch, start_offset, keeps_parked=keeps_parked)
        # Stored start offsets never fall, and new batches are merged with stored ones. So the state
        # is recreated, at the same state epoch.
        for result in await self._persister.initialize(self._group_id, begin_anew(request)):
            _check(result)
        await self._read()  # Later writes are of this epoch.
        await self._write_start(state, start_offset, batches)
        return start_offset, batches

    async def _write_start(self, state: ReadResult, start_offset: int, batches: Sequence[StateBatch]) -> None:
        ended = [batch for batch in batches if batch.state in TERMINAL]
        complete = sum(batch.last_offset - batch.first_offset + 1 for batch in ended)
        await self._write(state, start_offset, complete, batches)


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


def _check(result: Result) -> None:
    if result.code is not ErrorCode.none:
        raise KafkaError(result.code, result.message)
