"""One partition, as a transactional producer and a coordinator use it."""

from __future__ import annotations

import trio

from kbroker.broker.logs.partition import Partition
from kbroker.broker.logs.validation import validate
from kbroker.clock import wall_clock_ms
from kbroker.formats.batches import TRANSACTIONAL, ProducerInfo, Record, build_batch
from kbroker.formats.transactions import AbortedTransaction, MarkerType


class Log:
    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self._next: dict[tuple[int, int], int] = {}

    async def send(
        self,
        producer_id: int,
        *,
        epoch: int = 0,
        sequence: int | None = None,
        transactional: bool = True,
        timestamp_ms: int | None = None,
        headers: tuple[tuple[str, bytes | None], ...] = (),
    ) -> int:
        """The offset of one record."""
        if sequence is None:
            sequence = self._next.get((producer_id, epoch), 0)
        data = build_batch(
            [Record(0, wall_clock_ms() if timestamp_ms is None else timestamp_ms, None, b"x" * 50, headers)],
            producer=ProducerInfo(producer_id, epoch, sequence),
            attributes=TRANSACTIONAL if transactional else 0,
        )
        header = validate(data, self.partition.topic.rules, wall_clock_ms(), transactional=True)
        done, failed = trio.Event(), []

        def on_done(error: Exception | None) -> None:
            failed.append(error)
            done.set()

        appended = self.partition.append(data, wall_clock_ms(), on_done, header=header)
        self._next[producer_id, epoch] = sequence + 1
        await done.wait()
        assert failed == [None]
        return appended.base_offset

    async def end(
        self, producer_id: int, kind: MarkerType, *, epoch: int = 0, coordinator: int = 0, version: int = 1
    ) -> int:
        done, failed = trio.Event(), []

        def on_done(error: Exception | None) -> None:
            failed.append(error)
            done.set()

        offset = self.partition.append_marker(
            kind,
            ProducerInfo(producer_id, epoch, -1),
            coordinator_epoch=coordinator,
            version=version,
            now_ms=wall_clock_ms(),
            on_done=on_done,
        )
        await done.wait()
        assert failed == [None]
        return offset

    @property
    def stable(self) -> int:
        return self.partition.last_stable_offset

    def aborted(self, first: int = 0, end: int = 1 << 62) -> list[AbortedTransaction]:
        assert self.partition.producers is not None
        return list(self.partition.producers.transactions.aborted_in(first, end))
