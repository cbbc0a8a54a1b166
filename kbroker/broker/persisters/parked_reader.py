"""The waiting rows of the state store, read in bounded pieces, for the persisters that keep them
there.

A piece is read in a thread, because its pages may have to come from a slow disk. Only a store that
is in memory is read on the loop. The result is the saved records of the present generation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar, TypeVarTuple, Unpack

import trio

from kbroker.errors import ErrorCode, KafkaError, StoreFailed
from kbroker.formats.parked_records import (
    BLOCKS_KEY,
    BY_OFFSET,
    KEPT_RECORD,
    NO_GENERATION,
    REASON,
    by_key_key,
    by_offset_key,
    end_of,
    is_kept,
    kept_key,
    kept_record,
    offset_of_key,
    place_key,
    place_of_key,
    reason_key,
    record_by_offset,
    record_in_lane,
    rejection_reason,
)
from kbroker.share.parked import Lane, Parked
from kbroker.share.persister import KEPT, PARKED, REJECTED, Kept, Rejected, Rows, TopicPartition, WaitingRows
from kbroker.share.reasons import Reason
from kbroker.share_state.coordinator import ShareStateCoordinator
from kbroker.share_state.parked import parked_of, prefix_of
from kbroker.storage.spi import StateReader

PIECE = 1000
"""Entries in one read: a millisecond or two, from memory."""
_KEYS_AT_ONCE = 250
"""Keys in one look-up: 20 µs each, more where records are found."""
_MOST = (1 << 63) - 1
Entries = list[tuple[bytes, bytes]]
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class _Kind(NamedTuple):
    """Of rows in the order of offsets: their kind of key, and one row from its offset and value.
    Both functions raise ValueError."""

    number: int
    key: Callable[[bytes, int], bytes]
    row: Callable[[int, bytes], Any]


_KINDS: Final[dict[Rows[Any], _Kind]] = {
    PARKED: _Kind(BY_OFFSET, by_offset_key, lambda offset, value: parked_of(record_by_offset(offset, value))),
    KEPT: _Kind(KEPT_RECORD, kept_key, lambda offset, value: Kept(offset, kept_record(value).batch)),
    REJECTED: _Kind(
        REASON, reason_key, lambda offset, value: Rejected(offset, Reason(*rejection_reason(value)))
    ),
}


class ParkedReader(WaitingRows):
    """For a store that `keeps_keys_on_disk`."""

    def __init__(self, store: StateReader, coordinator: ShareStateCoordinator) -> None:
        self._store = store
        self._may_block = store.may_block
        self._coordinator = coordinator
        self._below: dict[tuple[str, TopicPartition], tuple[int, int, int, int]] = {}
        """Results of `count` since the last write: generation, number of waiting records, offset,
        number below that."""

    async def read_due(
        self, group_id: str, partition: TopicPartition, lane: Lane, after: tuple[int, int], limit: int
    ) -> list[Parked]:
        prefix = self.prefix(group_id, partition)
        if prefix is None:
            return []
        due_ms, offset = after
        lane_prefix = prefix + bytes((lane,))
        first = lane_prefix if due_ms < 0 else place_key(prefix, lane, due_ms, offset) + b"\0"
        if due_ms >= 0 > offset:
            first = place_key(prefix, lane, due_ms, 0)
        entries = await self._read(first, end_of(lane_prefix), limit)
        with _readable():
            return [parked_of(record_in_lane(lane, *place_of_key(key), value)) for key, value in entries]

    async def read_from(
        self, group_id: str, partition: TopicPartition, rows: Rows[T], first: int, end: int | None, limit: int
    ) -> list[T]:
        prefix = self.prefix(group_id, partition)
        if prefix is None:
            return []
        number, key_of, row_of = _KINDS[rows]
        end_key = end_of(prefix + bytes((number,))) if end is None else key_of(prefix, max(0, end))
        entries = await self._read(key_of(prefix, max(0, first)), end_key, limit)
        with _readable():
            return [row_of(offset_of_key(key), value) for key, value in entries]

    async def count(
        self,
        group_id: str,
        partition: TopicPartition,
        first: int,
        end: int | None,
        *,
        kept: bool | None = None,
    ) -> int:
        """A count from an offset to the end is derived from the few records below it that are not
        kept. That number is remembered, because callers count again and again from a start offset
        that retention moves up."""
        prefix = self.prefix(group_id, partition)
        if prefix is not None and kept:
            return await self._count(prefix, first, end, kept=kept)
        waiting = self._coordinator.waiting(group_id, partition)
        if prefix is None or not waiting:
            self._below.pop((group_id, partition), None)
            return 0
        if end is not None or kept is not None:
            return await self._count(prefix, first, end, kept=kept)
        if first <= 0:
            return waiting
        generation, key = self._coordinator.generation(group_id, partition), (group_id, partition)
        known = self._below.get(key)
        if known is not None and known[:2] == (generation, waiting) and known[2] <= first:
            below = known[3] + await self._count(prefix, known[2], first, kept=False)
        else:
            below = await self._count(prefix, 0, first, kept=False)
        self._below[key] = generation, waiting, first, below
        return max(0, waiting - below)

    def written(self, group_id: str, partition: TopicPartition) -> None:
        """Parked records were changed: forget the result of `count`."""
        self._below.pop((group_id, partition), None)

    async def has_ended(self, group_id: str, partition: TopicPartition, generation: int) -> bool:
        return generation not in self._coordinator.generations_in_use(group_id, partition)

    async def _count(self, prefix: bytes, first: int, end: int | None, *, kept: bool | None = None) -> int:
        """`kept`: count only records that are kept, or only others."""
        number, at = 0, by_offset_key(prefix, max(0, first))
        end_key = end_of(prefix + bytes((BY_OFFSET,))) if end is None else by_offset_key(prefix, max(0, end))
        while at < end_key:
            entries = await self._read(at, end_key, PIECE)
            number += len(entries) if kept is None else sum(is_kept(value) is kept for _, value in entries)
            if len(entries) < PIECE:
                break
            at = entries[-1][0] + b"\0"
        return number

    async def read_keys(
        self, group_id: str, partition: TopicPartition, key_hashes: Iterable[int]
    ) -> dict[int, list[int]]:
        """Entries that the record itself does not confirm are left over from a kill, and are
        ignored."""
        prefix, store = self.prefix(group_id, partition), self._store
        wanted = sorted(set(key_hashes))
        if prefix is None or not wanted:
            return {}

        def look(some: list[int]) -> dict[int, list[int]]:
            found: dict[int, list[int]] = {}
            for key_hash in some:
                ends = by_key_key(prefix, key_hash, 0), by_key_key(prefix, key_hash, _MOST)
                offsets = [offset_of_key(key) for key, _ in store.scan_range(*ends)]
                if blocking := [
                    offset for offset in offsets if blocks(store.get(by_offset_key(prefix, offset)), key_hash)
                ]:
                    found[key_hash] = blocking
            return found

        found: dict[int, list[int]] = {}
        with _readable():
            for i in range(0, len(wanted), _KEYS_AT_ONCE):
                found |= await self._look(look, wanted[i : i + _KEYS_AT_ONCE])
        return found

    def prefix(self, group_id: str, partition: TopicPartition) -> bytes | None:
        """The prefix of its generation's keys; None: nothing is parked. Raises KafkaError."""
        generation = self._coordinator.generation(group_id, partition)
        return None if generation == NO_GENERATION else prefix_of(group_id, partition, generation)

    async def _read(self, first: bytes, end: bytes, limit: int) -> Entries:
        """At most `limit` entries of a range. Raises KafkaError."""

        def look(first: bytes, number: int) -> Entries:
            return list(islice(self._store.scan_range(first, end), number))

        found: Entries = []
        with _readable():
            while len(found) < limit:
                number = min(PIECE, limit - len(found))
                piece = await self._look(look, first, number)
                found += piece
                if len(piece) < number:
                    break
                first = piece[-1][0] + b"\0"
        return found

    async def _look(self, look: Callable[[Unpack[Ts]], T], *arguments: *Ts) -> T:
        """Look in a thread, if the store may block. A checkpoint."""
        if self._may_block:
            return await trio.to_thread.run_sync(look, *arguments)
        found = look(*arguments)
        await trio.lowlevel.checkpoint()
        return found


def blocks(value: bytes | None, key_hash: int) -> bool:
    """Whether a record's value of kind 1 shows that this key waits for it. Raises ValueError."""
    if value is None:
        return False
    record = record_by_offset(0, value)
    return record.lane == BLOCKS_KEY and record.key_hash == key_hash


@contextmanager
def _readable() -> Iterator[None]:
    """Raises KafkaError where the store fails, or what it has cannot be parsed."""
    try:
        yield
    except StoreFailed as error:
        raise KafkaError(ErrorCode.unknown_server_error, str(error)) from error
    except ValueError as error:
        raise KafkaError(
            ErrorCode.unknown_server_error, f"A parked record cannot be read: {error}"
        ) from error
