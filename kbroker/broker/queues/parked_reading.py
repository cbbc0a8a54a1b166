"""Reads the parked records that are due next, for the share-partitions in memory, and removes those
that the log has lost.

The engine (share/parking.py) says which records it needs. At most one task works for a
share-partition, and ends when the engine has enough.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from kbroker.broker.commits.background import Background
from kbroker.broker.commits.deadlines import now_ms
from kbroker.broker.logs.partition import Partition
from kbroker.broker.queues.loaded import LoadedSharePartition
from kbroker.broker.queues.parked_left import kept_batch
from kbroker.clock import wall_clock_ms
from kbroker.errors import KafkaError
from kbroker.share import log_start, scanning
from kbroker.share.effects import Persist
from kbroker.share.parked import Parked
from kbroker.share.parked_order import READ_AT_ONCE
from kbroker.share.parking import NOWHERE, Parking
from kbroker.share.persister import PARKED, Persister
from kbroker.share.share_partition import SharePartition

logger = logging.getLogger(__name__)
_RETRY_S = 1.0


class ParkedReading:
    """`must_save` is the method of Saving. `changed` and `retire` are methods of SharePartitions:
    follow up a read, and drop a share-partition that has retired."""

    def __init__(
        self,
        persister: Persister,
        background: Background,
        must_save: Callable[[LoadedSharePartition, Persist | None], Awaitable[None]],
        changed: Callable[[LoadedSharePartition], None],
        retire: Callable[[LoadedSharePartition], None],
    ) -> None:
        self._rows = persister.waiting_rows
        self._background = background
        self._must_save = must_save
        self._changed = changed
        self._retire = retire
        self._life_ahead_ms = wall_clock_ms() - now_ms()
        self._at_work: set[LoadedSharePartition] = set()

    @property
    def is_possible(self) -> bool:
        """Whether the persister keeps parked records. Otherwise records wait in the window."""
        return self._rows is not None

    def prepare(
        self, engine: SharePartition, waiting: int, *, kept_from: int = NOWHERE, must: bool = False
    ) -> None:
        """Let an engine park records. One that parks nothing, and never did, is left as it is.

        - `waiting`: how many records the persister has parked
        - `kept_from`: no record below that offset is kept
        - `must`: prepare it in any case"""
        if engine.parking is None and self.is_possible and (must or waiting or engine.settings.parks):
            engine.parking = Parking(
                waiting,
                leader_epoch=engine.saves.leader_epoch,
                life_ahead_ms=self._life_ahead_ms,
                now_ms=now_ms(),
            )
            engine.parking.kept_from = kept_from
            engine.parking.make_ready(now_ms(), wall_clock_ms())  # It learns the time.
        scanning.keep_order(engine)

    async def record_of(self, loaded: LoadedSharePartition, offset: int) -> bytes | None:
        """The kept bytes of a parked record. Raises KafkaError."""
        return None if self._rows is None else await kept_batch(self._rows, *loaded.key, offset)

    def see_to(self, loaded: LoadedSharePartition) -> None:
        """After a change: read and sweep if that is due."""
        parking = None if loaded.engine is None else loaded.engine.parking
        if (
            parking is not None
            and loaded not in self._at_work
            and (parking.needs_sweep or parking.wants_read)
        ):
            self._at_work.add(loaded)
            self._background.start(self._work, loaded)

    async def _work(self, loaded: LoadedSharePartition) -> None:
        engine = loaded.engine
        assert engine is not None
        assert engine.parking is not None
        try:
            while not loaded.gone and (engine.parking.needs_sweep or engine.parking.wants_read):
                try:
                    if engine.parking.needs_sweep:
                        await self.sweep(loaded, engine, engine.parking)
                    await self._read(loaded, engine, engine.parking)
                except KafkaError as error:
                    logger.warning(
                        "parked records of share-partition %s cannot be read: %s", loaded.key, error
                    )
                    await trio.sleep(_RETRY_S)
        finally:
            self._at_work.discard(loaded)
        self._retire(loaded)

    async def _read(self, loaded: LoadedSharePartition, engine: SharePartition, parking: Parking) -> None:
        """Raises KafkaError."""
        assert self._rows is not None
        group_id, partition = loaded.key
        while not loaded.gone and (wanted := parking.begin_read()) is not None:
            lane, after = wanted
            try:
                found = await self._rows.read_due(group_id, partition, lane, after, READ_AT_ONCE)
            except BaseException:
                parking.fail_read(lane)
                raise
            if not loaded.gone:
                parking.end_read(lane, found, engine.settings, partial(is_lost, loaded.partition))
                self._changed(loaded)

    async def sweep(self, loaded: LoadedSharePartition, engine: SharePartition, parking: Parking) -> None:
        """Remove parked records below the log's start, except kept ones; saved on return. Raises
        KafkaError."""
        assert self._rows is not None
        group_id, partition = loaded.key
        parking.needs_sweep = False
        at, is_last = 0, False
        try:
            while not (is_last or loaded.gone or at >= parking.floor):
                look = log_start.begin_look(engine)
                try:
                    found = await self._rows.read_from(group_id, partition, PARKED, at, None, READ_AT_ONCE)
                    persist = None if loaded.gone else log_start.sweep(engine, found, look)
                finally:
                    parking.end_look(look)
                is_last = len(found) < READ_AT_ONCE
                at = found[-1].offset + 1 if found else at
                await self._must_save(loaded, persist)
        except BaseException:
            parking.needs_sweep = True
            raise


def is_lost(partition: Partition, parked: Parked) -> bool:
    """Whether a power cut took the record from the log: a later broker life began to append at or
    below its offset. A kept record that has left the log was synced there before the log's start
    passed it."""
    if parked.kept and parked.offset < partition.log_start_offset:
        return False
    return any(
        epoch.epoch > parked.leader_epoch and epoch.start_offset <= parked.offset
        for epoch in partition.epochs.entries
    )
