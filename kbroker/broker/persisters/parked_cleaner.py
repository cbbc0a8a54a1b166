"""Removes parked records of generations that have ended (share_state/parked.py).

A state that is recreated or deleted drops its generation in its own commit, which may leave a
million keys. They are removed here, some hundred at a time with a rest in between, so that the loop
is never busy and no write waits for long. A share-partition is checked when its generation ends.
All are checked some seconds after the start, because a crash may have come between, and at
intervals. Each check costs one seek: valid records are not read.

A generation is removed only if its share-partition has another one, both in its saved state and in
the decided state that is not saved yet. A generation in neither of them never returns. A new
generation is in the decided state before any record is stored under it.
"""

from __future__ import annotations

import logging
from itertools import islice
from typing import NamedTuple

import trio

from kbroker.broker.commits.group_commit import GroupCommit
from kbroker.errors import KafkaError, NoSpace, StoreFailed
from kbroker.formats.parked_records import ParkedKey, Shelf, end_of, shelf_of
from kbroker.share.persister import TopicPartition, WaitingRows
from kbroker.share_state.parked import prefix_of
from kbroker.storage.spi import Change, StateReader

logger = logging.getLogger(__name__)

AT_ONCE = 250
_FIRST_S = 5.0
"""When the first check of all begins: in its first seconds, a broker is busy loading
share-partitions."""
_REST_S = 0.002


class ParkedCleanerStatistics(NamedTuple):
    """`removed`: number of removed keys. `generations`: number of removed generations. `failures`:
    rounds that ended early."""

    removed: int
    generations: int
    failures: int


class ParkedCleaner:
    """`interval_s`: how often all share-partitions are checked."""

    def __init__(
        self,
        rows: WaitingRows | None,
        store: StateReader,
        commits: GroupCommit[Change],
        *,
        interval_s: float,
    ) -> None:
        self._rows = rows
        self._keys = store if store.keeps_keys_on_disk else None
        self._commits = commits
        self._interval_s = interval_s
        self._wanted: dict[bytes, None] = {}
        self._woken = trio.Event()
        self._removed = self._generations = self._failures = 0

    def statistics(self) -> ParkedCleanerStatistics:
        return ParkedCleanerStatistics(self._removed, self._generations, self._failures)

    def ended(self, key: tuple[str, TopicPartition], generation: int) -> None:
        """The end of a generation is saved: have `run` check it soon."""
        self.look_at(prefix_of(*key, generation))

    def look_at(self, prefix: bytes) -> None:
        """Have `run` check the keys under a prefix soon."""
        self._wanted[prefix] = None
        self._woken.set()

    async def run(self) -> None:
        next_round = trio.current_time() + _FIRST_S
        while self._keys is not None:
            with trio.move_on_at(next_round):
                await self._woken.wait()
            self._woken = trio.Event()
            if trio.current_time() >= next_round:
                self._wanted = {ParkedKey.namespace: None}
                next_round = trio.current_time() + self._interval_s
            await self.work()

    async def work(self, prefix: bytes | None = None) -> None:
        """Check `prefix`, or all wanted prefixes. Raises nothing."""
        wanted = self._wanted if prefix is None else {prefix: None}
        while wanted:
            first = next(iter(wanted))
            try:
                await self._look_at(first)
            except (NoSpace, StoreFailed) as error:
                self._failures += 1
                logger.warning("parked records of ended generations are not removed now: %s", error)
                wanted.clear()  # The next round checks all.
                return
            wanted.pop(first, None)

    async def _look_at(self, prefix: bytes) -> None:
        at, end = prefix, end_of(prefix)
        while (keys := await self._read(at, end, 1)) != []:
            try:
                shelf = shelf_of(keys[0])
            except ValueError as error:
                logger.warning("key skipped: %s", error)
                at = keys[0] + b"\0"
                continue
            if await self._has_ended(shelf):
                await self._remove(shelf)
            at = end_of(shelf.prefix)
            await trio.lowlevel.checkpoint()

    async def _has_ended(self, shelf: Shelf) -> bool:
        """Whether the generation has ended; False if that is unknown. A persister without waiting
        rows uses none of those that another one has left."""
        if self._rows is None:
            return True
        partition = TopicPartition(shelf.topic_id, shelf.partition)
        try:
            return await self._rows.has_ended(shelf.group_id, partition, shelf.generation)
        except KafkaError as error:
            logger.warning("group %s on %s-%d: %s", shelf.group_id, shelf.topic_id, shelf.partition, error)
            return False

    async def _remove(self, shelf: Shelf) -> None:
        at, end = shelf.prefix, end_of(shelf.prefix)
        while keys := await self._read(at, end, AT_ONCE):
            await self._commits.commit([(key, None) for key in keys])
            self._removed += len(keys)
            at = keys[-1] + b"\0"
            await trio.sleep(_REST_S)
        self._generations += 1

    async def _read(self, first: bytes, end: bytes, limit: int) -> list[bytes]:
        keys = self._keys
        return [] if keys is None else await trio.to_thread.run_sync(_keys_of, keys, first, end, limit)


def _keys_of(keys: StateReader, first: bytes, end: bytes, limit: int) -> list[bytes]:
    return [key for key, _ in islice(keys.scan_range(first, end), limit)]
