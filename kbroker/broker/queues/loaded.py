"""A share-partition in this broker's memory, with the fetches that wait for it.

The parts of queues/ that work on it import this module, and it imports none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import trio

from kbroker.broker.commits.waiting import Waiter, Waiters
from kbroker.broker.logs.partition import Partition
from kbroker.broker.queues.opened_batches import PlainBatches
from kbroker.broker.queues.sliced_batches import Walked, producer_of, walk
from kbroker.errors import KafkaError
from kbroker.formats.batches import TRANSACTIONAL
from kbroker.formats.transactions import AbortedTransaction
from kbroker.metrics import ShareGroupMetrics
from kbroker.share import offers
from kbroker.share.effects import Persist, ShareSettings
from kbroker.share.persister import TopicPartition
from kbroker.share.share_partition import SharePartition

Key: TypeAlias = tuple[str, TopicPartition]
"""Group and topic partition."""
Turn: TypeAlias = "tuple[LoadedSharePartition, SharePartition, int | None]"
"""A share-partition with records, its engine, and the offset to acquire from. None: parked ones
have their turn."""


class CommittedLog:
    """The log of a share-partition whose group has `share.isolation.level` read_committed (KIP-932,
    "Reading transactional records").

        end        the last stable offset: an open transaction holds back all records behind it
        batches    those of aborted transactions count as control batches: no member gets them, they
                   are passed over, and are finished for the group

    A group without the level uses the `Partition` and `walk` themselves, under the same names, so
    that its fetches do no additional work."""

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


class Filter:
    """What keeps records from the members of a group. The defaults keep nothing back."""

    def choose(self, turns: list[Turn]) -> list[Turn]:
        """Of the share-partitions with records, those to deliver from."""
        return turns

    async def prepare(self, loaded: LoadedSharePartition) -> bool:
        """Called before the log is read. True if this has waited, so that others may have had a
        turn. Raises KafkaError."""
        return False

    def blocks(self, engine: SharePartition) -> bool:
        """Whether no record of it may be delivered now."""
        return False

    async def inspect(
        self,
        loaded: LoadedSharePartition,
        engine: SharePartition,
        batches: list[Walked],
        parked: Sequence[int] | None,
    ) -> bool:
        """Takes out of `batches`, which were read, what cannot be acquired now. `parked`: the
        parked records of these batches that are to be acquired; None: records of the front window
        are. True: the fetch has to look again."""
        return False


class LoadedSharePartition:
    """`engine` is None while the state is loading. `error` is the reason why it could not be
    loaded. `retiring`: the group has no sessions, so the share-partition leaves the memory as soon
    as it is settled."""

    __slots__ = (
        "__weakref__", "committed", "engine", "error", "expires_ms", "filters", "gone", "is_parked_turn",
        "key", "metrics", "partition", "plain", "plan_ends", "retiring", "scanner", "scheduled_ms", "settled",
        "to_save", "turns", "visible", "void_reasons", "waiters", "walk",
    )  # fmt: skip

    def __init__(self, key: Key, partition: Partition) -> None:
        self.key = key
        self.partition = partition
        self.committed: CommittedLog | None = None
        """Set if the group has read_committed."""
        self.visible: Partition | CommittedLog = partition
        """Members get records below its `high_watermark`."""
        self.walk = walk
        """The batches of a read, as the members see them."""
        self.filters: Sequence[Filter] = ()
        self.engine: SharePartition | None = None
        self.metrics: ShareGroupMetrics | None = None
        self.error: KafkaError | None = None
        self.expires_ms: int | None = None
        """When the first age of the oldest batch starts, as expiry.py found; None: not known."""
        self.gone = False
        self.retiring = False
        self.waiters = Waiters()
        self.turns = Turns(self)
        self.plan_ends: trio.Event | None = None
        """Set when the fetch that chooses parked records now has read them."""
        self.plain: PlainBatches = {}
        self.scanner: Waiter | None = None
        """Wakes the task that inspects records before members get them (scanner.py)."""
        self.is_parked_turn = True
        """If both are available, members get parked and other records in turn."""
        self.scheduled_ms = float("inf")
        self.to_save: list[Persist] = []
        """Changes that no client waits for, and that no write has included yet."""
        self.void_reasons: set[int] = set()
        """Offsets whose reason (share/reasons.py) the next write removes: a failed write may have
        left it, or the dead letter is written."""
        self.settled = Waiters()
        """Wait for the end of any write, or for the share-partition to leave the memory."""

    def use(self, engine: SharePartition, settings: ShareSettings) -> None:
        """The group's settings, for the next fetches and locks."""
        engine.use(settings)
        if settings.read_committed is (self.committed is None):
            self.committed = CommittedLog(self.partition) if settings.read_committed else None
            self.visible = self.committed or self.partition
            self.walk = walk if self.committed is None else self.committed.walk


class Turns(Waiter):
    """Fetches of members with a prefetch limit that wait for one share-partition, notified in the
    order in which they arrived.

    Each of them takes a record or two. If n records become available, it is enough that n fetches
    look. Waking all of them would cost hundreds of workers a look for each job, and the fastest
    workers would take most jobs.

    This waiter stands for all of them among the waiters of the share-partition and of its log."""

    __slots__ = ("_loaded", "order")

    def __init__(self, loaded: LoadedSharePartition) -> None:
        super().__init__()
        self._loaded = loaded
        self.order: dict[Waiter, Callable[[], int]] = {}
        """Waiting fetches, each with a function that returns how much room its member has."""

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
        """Wake as many fetches as there are records for, the longest waiting first. A fetch that
        was woken and took nothing calls this again after it has left."""
        loaded = self._loaded
        if loaded.gone or loaded.engine is None or loaded.partition.deleted:
            self.wake_everybody()
            return
        free = offers.acquirable(loaded.engine, loaded.visible.high_watermark)
        for waiter, room in list(self.order.items()):
            if free <= 0:
                return
            if (taken := room()) > 0:
                free -= taken
                waiter.wake()

    def wake_everybody(self) -> None:
        for waiter in list(self.order):
            waiter.wake()


class DeadLetterHooks:
    """The events that the writer of dead letters is notified of (dead_letters.py), always in the
    step in which they happen. These methods ignore them."""

    def before_save(self, loaded: LoadedSharePartition) -> None: ...
    def wake(self, loaded: LoadedSharePartition) -> None: ...
    def loaded(self, loaded: LoadedSharePartition) -> None: ...
    def forget_group(self, group_id: str) -> None: ...
    def forget_topic(self, topic: Sequence[Partition]) -> None: ...
