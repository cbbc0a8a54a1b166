"""Asks the persister which keys wait for parked records (share/key_order.py).

Memory has the parked records that come next, and a million others may be in the store alone. Where
that is so, the keys of all records that join are looked up there. A record may end while the store
is asked: the lookup tells the order of keys when it begins and ends, and the order drops what ended
in between.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

from kbroker.broker.queues.loaded import LoadedSharePartition
from kbroker.formats.record_keys import BatchKeys
from kbroker.share.key_order import KeyOrder
from kbroker.share.ordering import Keys
from kbroker.share.persister import Persister
from kbroker.share.share_partition import SharePartition


class KeyLookup:
    def __init__(self, persister: Persister) -> None:
        self._persister = persister if persister.finds_parked_keys else None

    @property
    def is_possible(self) -> bool:
        return self._persister is not None

    @asynccontextmanager
    async def of(self, loaded: LoadedSharePartition, order: KeyOrder | None) -> AsyncIterator[Lookup]:
        """`order` None: nothing is asked."""
        if order is None:
            yield Lookup(self, loaded, None)
            return
        order.begin_lookup()
        try:
            yield Lookup(self, loaded, order)
        finally:
            order.end_lookup()

    async def of_due(self, loaded: LoadedSharePartition, engine: SharePartition) -> bool:
        """Parked records that are due join. Whether there were any. Raises KafkaError."""
        order = engine.key_order
        if order is None or not order.asked or not order.has_learnt:
            return False
        asked = dict(order.asked)
        async with self.of(loaded, order):
            found = await self.find(loaded, engine, asked.values())
            if not loaded.gone and engine.key_order is order:
                engine.keys_found(list(asked), found)
        return True

    async def find(
        self, loaded: LoadedSharePartition, engine: SharePartition, hashes: Iterable[int]
    ) -> Mapping[int, Sequence[int]]:
        """By hash, the parked records that keep it waiting; none where memory has them all. Raises
        KafkaError."""
        if self._persister is None or engine.parking is None or engine.parking.knows_redeliveries:
            return {}
        return await self._persister.parked_of_keys(*loaded.key, hashes)


class Lookup:
    """One turn of a scan. `keys`: what ask() found."""

    def __init__(self, lookup: KeyLookup, loaded: LoadedSharePartition, order: KeyOrder | None) -> None:
        self.order = order
        self.keys: Keys | None = None
        self._lookup = lookup
        self._loaded = loaded

    async def ask(self, engine: SharePartition, batches: Sequence[BatchKeys], first: int, last: int) -> None:
        """For the keys of the offsets first..last. Raises KafkaError."""
        if self.order is None:
            return
        hashes: dict[int, int] = {}
        for batch in batches:
            hashes |= batch.between(first, last)
        self.keys = Keys(hashes, await self._lookup.find(self._loaded, engine, set(hashes.values())), last)
