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
from dataclasses import dataclass
from itertools import islice

import trio

from kbroker.broker.commits.group_commit import GroupCommit
from kbroker.errors import KafkaError, NoSpace, StoreFailed
from kbroker.formats.parked_records import ParkedKey, Shelf, end_of, shelf_of
from kbroker.share.persister import Persister, TopicPartition
from kbroker.share_state.parked import prefix_of
from kbroker.storage.spi import Change, StateReader

logger = logging.getLogger(__name__)

AT_ONCE = 250
_FIRST_S = 5.0
"""When the first check of all begins: in its first seconds, a broker is busy loading
share-partitions."""
_REST_S = 0.002


@dataclass(frozen=True, slots=True)
class ParkedCleanerStatistics:
    """`removed`: number of removed keys. `generations`: number of removed generations. `failures`:
    rounds that ended early."""

    removed: int
    generations: int
    failures: int


class ParkedCleaner:
    """`interval_s`: how often all share-partitions are checked."""

    def __init__(
        self, persister: Persister, store: StateReader, commits: GroupCommit[Change], *, interval_s: float
    ) -> None:
        self._persister = persister
        self._keys = store if store.keeps_keys_on_disk else None
        self._commits = commits
        self._interval_s = interval_s
        self._wanted: dict[bytes, None] = {}
        self._woken = trio.Event()
        self._removed = self._generations = self._failures = 0
        persister.tell_ended(self._ended)

    def statistics(self) -> ParkedCleanerStatistics:
        return ParkedCleanerStatistics(self._removed, self._generations, self._failures)

    def _ended(self, key: tuple[str, TopicPartition], generation: int) -> None:
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
            if not await self._is_in_use(shelf):
                await self._remove(shelf)
            at = end_of(shelf.prefix)
            await trio.lowlevel.checkpoint()

    async def _is_in_use(self, shelf: Shelf) -> bool:
        """Whether the generation is in use; also True if that is unknown."""
        try:
            found = await self._persister.parked_generations(
                shelf.group_id, TopicPartition(shelf.topic_id, shelf.partition)
            )
        except KafkaError as error:
            logger.warning("group %s on %s-%d: %s", shelf.group_id, shelf.topic_id, shelf.partition, error)
            return True
        return shelf.generation in found

    async def _remove(self, shelf: Shelf) -> None:
        await self._persister.sync_ends()
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
