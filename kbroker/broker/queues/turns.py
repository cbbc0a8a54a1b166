"""Fetches of members with a prefetch limit that wait for one share-partition: notified in the order
in which they came.

Each of them takes a record or two. If n records become available it is enough that n of them look.
To wake all would cost hundreds of workers a look for each job, and the fastest ones would take
most.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.broker.commits.waiting import Waiter

if TYPE_CHECKING:
    from kbroker.broker.queues.share_partitions import LoadedSharePartition


class Turns(Waiter):
    """Stands for all of them in the sets of waiters of the share-partition and of its log."""

    __slots__ = ("_loaded", "order")

    def __init__(self, loaded: LoadedSharePartition) -> None:
        super().__init__()
        self._loaded = loaded
        self.order: dict[Waiter, Callable[[], int]] = {}
        """Who waits, and how much room that member has."""

    def add(self, waiter: Waiter, room: Callable[[], int]) -> None:
        """`room()`: how many records the waiting member may take now."""
        self.order.setdefault(waiter, room)
        self._loaded.waiters.add(self)
        self._loaded.partition.waiters.add(self)

    def discard(self, waiter: Waiter) -> None:
        self.order.pop(waiter, None)
        if not self.order:
            self._loaded.waiters.discard(self)
            self._loaded.partition.waiters.discard(self)

    def wake(self) -> None:
        """Wake as many as there are records for, the longest waiting first. A fetch that was woken
        and took nothing calls this again when it has left."""
        loaded = self._loaded
        if loaded.gone or loaded.engine is None or loaded.partition.deleted:
            self.wake_everybody()
            return
        free = loaded.engine.acquirable(loaded.partition.high_watermark)
        for waiter, room in list(self.order.items()):
            if free <= 0:
                return
            if (taken := room()) > 0:
                free -= taken
                waiter.wake()

    def wake_everybody(self) -> None:
        for waiter in list(self.order):
            waiter.wake()
