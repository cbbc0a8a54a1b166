"""Looks up in the persister which keys wait for parked records (share/key_order.py).

Memory holds the parked records that come next; a million others may be only in the store. The keys
of all records that join the window are then looked up there. A record may be finished during the
lookup. So the order of keys is notified when a lookup begins and ends, and drops the records that
were finished in between.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

from kbroker.broker.queues.loaded import LoadedSharePartition
from kbroker.formats.record_keys import BatchKeys
from kbroker.share import scanning
from kbroker.share.key_order import KeyOrder
from kbroker.share.ordering import Keys
from kbroker.share.persister import Persister
from kbroker.share.share_partition import SharePartition


class KeyLookup:
    def __init__(self, persister: Persister) -> None:
        self._rows = persister.waiting_rows

    @asynccontextmanager
    async def of(self, loaded: LoadedSharePartition, order: KeyOrder | None) -> AsyncIterator[Lookup]:
        """Without `order`, the lookup finds nothing."""
        if order is None:
            yield Lookup(self, loaded, None)
            return
        order.begin_lookup()
        try:
            yield Lookup(self, loaded, order)
        finally:
            order.end_lookup()

    async def of_due(self, loaded: LoadedSharePartition, engine: SharePartition) -> bool:
        """Let parked records that are due join the window. True: there were some. Raises
        KafkaError."""
        order = engine.key_order
        if order is None or not order.asked or not order.has_learnt:
            return False
        asked = dict(order.asked)
        async with self.of(loaded, order):
            found = await self.find(loaded, engine, asked.values())
            if not loaded.gone and engine.key_order is order:
                scanning.keys_found(engine, list(asked), found)
        return True

    async def find(
        self, loaded: LoadedSharePartition, engine: SharePartition, hashes: Iterable[int]
    ) -> Mapping[int, Sequence[int]]:
        """By hash, the parked records for which a key waits; empty if memory has them all. Raises
        KafkaError."""
        if self._rows is None or engine.parking is None or engine.parking.knows_redeliveries:
            return {}
        return await self._rows.read_keys(*loaded.key, hashes)


class Lookup:
    """The lookups of one turn of a scan. `keys`: the result of ask()."""

    def __init__(self, lookup: KeyLookup, loaded: LoadedSharePartition, order: KeyOrder | None) -> None:
        self.order = order
        self.keys: Keys | None = None
        self._lookup = lookup
        self._loaded = loaded

    async def ask(self, engine: SharePartition, batches: Sequence[BatchKeys], first: int, last: int) -> None:
        """Look up the keys of the offsets first..last. Raises KafkaError."""
        if self.order is None:
            return
        hashes: dict[int, int] = {}
        for batch in batches:
            hashes |= batch.between(first, last)
        self.keys = Keys(hashes, await self._lookup.find(self._loaded, engine, set(hashes.values())), last)
