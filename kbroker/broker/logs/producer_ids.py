"""Producer ids for InitProducerId: each is assigned only once in the life of the data directory.

A block of ids is reserved with one commit and assigned from memory; the rest of the block is lost
at a restart. The commit is synced even with durability `os`: an id must not be assigned again after
a power cut.
"""

from __future__ import annotations

from typing import NamedTuple

from kbroker.broker.commits.group_commit import GroupCommit
from kbroker.formats.state import PRODUCER_IDS
from kbroker.formats.state import ProducerIds as ProducerIdsRecord
from kbroker.storage.spi import Change, StateStore

BLOCK_SIZE = 1000


class ProducerIdsStatistics(NamedTuple):
    """Ids in [next_id, reserved) are assigned without a commit."""

    next_id: int
    reserved: int


class ProducerIdSource:
    def __init__(self, store: StateStore, commits: GroupCommit[Change]) -> None:
        value = store.get(PRODUCER_IDS.encode())
        self._next_id = self._reserved = 0 if value is None else ProducerIdsRecord.decode(value).next_id
        self._commits = commits

    def statistics(self) -> ProducerIdsStatistics:
        return ProducerIdsStatistics(self._next_id, self._reserved)

    async def take(self) -> int:
        """A producer id that is never assigned again, even after a power cut. Raises NoSpace,
        StoreFailed."""
        await self.reserve()
        return self.next()

    async def reserve(self, count: int = 1) -> None:
        """`next` may be called so many times in the step in which this returns. Raises NoSpace,
        StoreFailed."""
        while self.left < count:
            block_end = self._next_id + max(BLOCK_SIZE, count)
            await self._commits.commit([(PRODUCER_IDS.encode(), ProducerIdsRecord(block_end).encode())])
            # If two producers had the same id, batches of the second would be taken for repeats.
            await self._commits.flush()
            self._reserved = max(self._reserved, block_end)

    @property
    def left(self) -> int:
        """So many are reserved."""
        return self._reserved - self._next_id

    def next(self) -> int:
        """A reserved producer id."""
        assert self._next_id < self._reserved, "no producer id is reserved"
        self._next_id += 1
        return self._next_id - 1
