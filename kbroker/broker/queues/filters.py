"""The settings of a group that keep records from its members: each is a Filter (loaded.py).

A ShareFetch asks the filters of a share-partition in order. Most groups have none, and their
fetches do no additional work. Two more are elsewhere, because they decide what a fetch waits for:
the prefetch limit (fetching.py), and the order of keys (kbroker/share/offers.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kbroker.broker.queues.expiry import Expiry, must_wait
from kbroker.broker.queues.loaded import Filter, LoadedSharePartition, Turn
from kbroker.broker.queues.sliced_batches import Walked
from kbroker.share.effects import ShareSettings
from kbroker.share.share_partition import SharePartition


class Paused(Filter):
    """`kbroker.queue.paused`"""

    def choose(self, turns: list[Turn]) -> list[Turn]:
        return []


class Priorities(Filter):
    """`kbroker.queue.priorities`: records of the highest-priority topics among those that have
    some."""

    def __init__(self, priorities: Mapping[str, int]) -> None:
        self._priorities = priorities

    def choose(self, turns: list[Turn]) -> list[Turn]:
        highest = max((self._number(loaded) for loaded, _, _ in turns), default=0)
        return [turn for turn in turns if self._number(turn[0]) == highest]

    def _number(self, loaded: LoadedSharePartition) -> int:
        return self._priorities.get(loaded.partition.topic_name, 0)


class Committed(Filter):
    """`share.isolation.level` read_committed: it is known which transactions the log has."""

    async def prepare(self, loaded: LoadedSharePartition) -> bool:
        return loaded.committed is not None and await loaded.committed.load()


class TimeToLive(Filter):
    """`kbroker.queue.ttl.ms` (expiry.py)"""

    def __init__(self, expiry: Expiry) -> None:
        self._expiry = expiry

    def blocks(self, engine: SharePartition) -> bool:
        return must_wait(engine)

    async def inspect(
        self,
        loaded: LoadedSharePartition,
        engine: SharePartition,
        batches: list[Walked],
        parked: Sequence[int] | None,
    ) -> bool:
        if parked is None:
            return await self._expiry.give_up(loaded, engine, batches)
        return await self._expiry.give_up_parked(loaded, engine, batches, parked)


def filters_of(expiry: Expiry, settings: ShareSettings) -> tuple[Filter, ...]:
    found: list[Filter] = []
    if settings.paused:
        found.append(Paused())
    if settings.priorities:
        found.append(Priorities(dict(settings.priorities)))
    if settings.read_committed:
        found.append(Committed())
    if settings.ttl_ms:
        found.append(TimeToLive(expiry))
    return tuple(found)
