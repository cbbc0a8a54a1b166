"""The log of a share-partition whose group has `share.isolation.level` read_committed (KIP-932,
"Reading transactional records").

    end        the last stable offset: an open transaction holds back all records behind it
    batches    those of aborted transactions count as control batches: no member gets them, they
               are passed over, and are finished for the group

A group without the level reads the `Partition` itself, which has the same `high_watermark`, so that
its fetches do no additional work.
"""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.broker.logs.partition import Partition
from kbroker.broker.queues.sliced_batches import Walked, producer_of
from kbroker.formats.batches import TRANSACTIONAL


class CommittedLog:
    __slots__ = ("_partition",)

    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    @property
    def high_watermark(self) -> int:
        """The end, for members of the group."""
        return self._partition.last_stable_offset

    async def load(self) -> None:
        """Before a read: find out which transactions the log has. Raises KafkaError."""
        if self._partition.must_load_transactions:
            await self._partition.load_producers()

    def without_aborted(self, batches: Sequence[Walked]) -> list[Walked]:
        """Batches of aborted transactions are control batches in the result."""
        states = self._partition.producers
        if not batches or states is None or not states.transactions.aborted:
            return list(batches)
        aborted = states.transactions.aborted_in(batches[0][0], batches[-1][1] + 1)
        if not aborted:
            return list(batches)
        found: list[Walked] = []
        for batch in batches:
            base_offset, last_offset, is_control, view, start, end = batch
            attributes, producer_id = producer_of(view, start)
            if attributes & TRANSACTIONAL and any(
                each.producer_id == producer_id and each.first_offset <= base_offset < each.last_offset
                for each in aborted
            ):
                is_control = True
            found.append((base_offset, last_offset, is_control, view, start, end))
        return found
