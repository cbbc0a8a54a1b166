"""The log of a share-partition whose group has `share.isolation.level` read_committed (KIP-932,
"Reading transactional records").

    end        the last stable offset: an open transaction holds back all records behind it
    batches    those of aborted transactions count as control batches: no member gets them, they
               are passed over, and are finished for the group

A group without the level uses the `Partition` and `walk` themselves, under the same names, so that
its fetches do no additional work.
"""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.broker.logs.partition import Partition
from kbroker.broker.queues.sliced_batches import Walked, producer_of, walk
from kbroker.formats.batches import TRANSACTIONAL
from kbroker.formats.transactions import AbortedTransaction


class CommittedLog:
    __slots__ = ("_partition",)

    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    @property
    def high_watermark(self) -> int:
        """The end, for members of the group."""
        return self._partition.last_stable_offset

    async def load(self) -> bool:
        """Before a read: find out which transactions the log has. False: that was known. Raises
        KafkaError."""
        if not self._partition.must_load_transactions:
            return False
        await self._partition.load_producers()
        return True

    def walk(
        self, views: Sequence[memoryview], fetch_offset: int, wanted: int, end_offset: int
    ) -> list[Walked]:
        """As sliced_batches.walk; batches of aborted transactions are control batches."""
        batches, states = walk(views, fetch_offset, wanted, end_offset), self._partition.producers
        if not batches or states is None or not states.transactions.aborted:
            return batches
        aborted = states.transactions.aborted_in(batches[0][0], batches[-1][1] + 1)
        return [self._marked(batch, aborted) for batch in batches] if aborted else batches

    @staticmethod
    def _marked(batch: Walked, aborted: Sequence[AbortedTransaction]) -> Walked:
        base_offset, last_offset, _, view, start, end = batch
        attributes, producer_id, _ = producer_of(view, start)
        if is_aborted(attributes, producer_id, base_offset, aborted):
            return base_offset, last_offset, True, view, start, end
        return batch


def is_aborted(
    attributes: int, producer_id: int, base_offset: int, aborted: Sequence[AbortedTransaction]
) -> bool:
    """Whether the batch with these fields belongs to one of these transactions."""
    return bool(attributes & TRANSACTIONAL) and any(
        each.producer_id == producer_id and each.first_offset <= base_offset < each.last_offset
        for each in aborted
    )
