"""The waiting rows of the `control-records` persister: those of the state store, each read after
the share-partition's control records are loaded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from kbroker.broker.commits.group_commit import GroupCommit
from kbroker.broker.persisters.parked_reader import ParkedReader
from kbroker.share.parked import Lane, Parked
from kbroker.share.persister import Rows, TopicPartition, WaitingRows
from kbroker.storage.spi import StampedBatch
from kbroker_control_records.logs import ControlLogs
from kbroker_control_records.parking import ControlParking

T = TypeVar("T")


class ControlRows(WaitingRows):
    """`commits` are those of the logs, which have the ends of generations."""

    def __init__(
        self,
        reader: ParkedReader,
        parking: ControlParking,
        logs: ControlLogs,
        commits: GroupCommit[StampedBatch],
    ) -> None:
        self._reader = reader
        self._parking = parking
        self._logs = logs
        self._commits = commits

    async def read_due(
        self, group_id: str, partition: TopicPartition, lane: Lane, after: tuple[int, int], limit: int
    ) -> list[Parked]:
        await self._logs.prepare_one(group_id, partition)
        return await self._parking.in_lane(group_id, partition, lane, after, limit)

    async def read_from(
        self, group_id: str, partition: TopicPartition, rows: Rows[T], first: int, end: int | None, limit: int
    ) -> list[T]:
        await self._logs.prepare_one(group_id, partition)
        return await self._reader.read_from(group_id, partition, rows, first, end, limit)

    async def read_keys(
        self, group_id: str, partition: TopicPartition, key_hashes: Iterable[int]
    ) -> dict[int, list[int]]:
        await self._logs.prepare_one(group_id, partition)
        return await self._reader.read_keys(group_id, partition, key_hashes)

    async def count(
        self,
        group_id: str,
        partition: TopicPartition,
        first: int,
        end: int | None,
        *,
        kept: bool | None = None,
    ) -> int:
        await self._logs.prepare_one(group_id, partition)
        return await self._reader.count(group_id, partition, first, end, kept=kept)

    async def has_ended(self, group_id: str, partition: TopicPartition, generation: int) -> bool:
        if self._logs.partition(partition) is not None:  # Otherwise its topic is deleted.
            await self._logs.prepare_one(group_id, partition)
            if not await self._reader.has_ended(group_id, partition, generation):
                return False
        await self._commits.flush()
        return True
