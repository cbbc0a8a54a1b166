"""Opens batches of which a share consumer takes only a part, and remembers them.

Compressed ones, and others of many records, are in one cache for the whole broker. A member that
takes one job of a compressed batch at a time would have it decompressed once for each job. So a
batch is opened once and kept while there is room; the least recently used one is dropped first.

Using a thread costs 0.08 ms of CPU, while opening a batch of ten records costs 0.013 ms, and one
of 100 records and 16 KiB costs 0.06 to 0.11 ms. So small batches are opened on the loop.
Redelivered records, a few from each of many small batches, are then sent in one answer, and no
small batch waits behind two of 64 MiB.

    key      topic id, partition, base offset, CRC: identify the same bytes in all share groups
    bound    setting kbroker.queue.cache.bytes; a larger batch is kept alone. Batches that the loop
             opens get at most a quarter of it, because it costs little to open them again
    opening  small batches at once, as many as a turn of the loop allows (formats/turns.py), and in
             a fetch for a few turns; others in a thread, at most two at a time. Fetches that want
             the same batch meanwhile wait for the same thread
    refused  of a batch that cannot be cut only the key is kept, so that no poll tries it again

Opening walks over every record once. After that the table of places is complete, and the loop never
walks more than a stride. The walk also proves that the payload matches its header, so that no slice
lacks a record.

Of other batches, each share-partition remembers the places in those that were cut last
(`PlainBatches`). They are walked over as far as needed, so no poll walks from a batch's beginning.

This module knows bytes, and neither share-partitions nor clients. sliced_batches.py cuts the
records out of a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

import trio

from kbroker.bounded_cache import ENTRY_BYTES, BoundedCache
from kbroker.broker.queues.record_places import UNWALKABLE, Places, Runs, is_sparse, runs_of_payload
from kbroker.formats.batches import (
    CODEC_AT,
    CODEC_MASK,
    HEADER_SIZE,
    BatchHeader,
    crc_is_valid,
    read_header,
    records_payload,
)
from kbroker.formats.compression import DEFAULT_MAX_BYTES, CorruptPayload, TooLarge
from kbroker.formats.turns import TURN_BYTES, TURN_RECORDS, Turn
from kbroker.storage.spi import LogId

_OPENED_AT_ONCE = 2
_REFUSED_KEPT = 4096
_PLAIN_REMEMBERED = 16
_RUN_BYTES = 120
"""Memory for a run of a sparse batch."""
_TURNS_OF_A_FETCH = 5
"""So that many small batches are opened for one answer, while others have turns between."""
_SMALL_SHARE = 4
_OBJECTS_BYTES = 480
"""Memory for the objects of a cached batch, beside its payload; ENTRY_BYTES of it for the entry."""
_AS_RECORDS = 40
"""The fixed cost of opening a batch on the loop, in records."""
_threads: Final = trio.CapacityLimiter(_OPENED_AT_ONCE)

BatchKey: TypeAlias = tuple[LogId, int, int]
"""Log, base offset, CRC."""


def must_be_opened(header: BatchHeader) -> bool:
    """Whether a part of the batch can be cut out only after it was opened: it is compressed, or
    so long that the walk to its records takes more than a turn of the loop."""
    return bool(header.codec_id) or header.last_offset_delta >= TURN_RECORDS


class Refusal(Enum):
    """Why a batch is sent whole even to clients that take a part of it. Also the label of a
    metric."""

    CRC = "crc"
    TOO_LARGE = "too_large"
    PAYLOAD = "payload"
    RECORDS = "records"


class OpenedBatch(NamedTuple):
    """`runs`: of a sparse batch, the offsets that have records. In the cache, `places` is complete,
    and slices of `payload` are copies: they must not keep it in memory while a slow client reads
    them."""

    payload: bytes | memoryview
    places: Places
    runs: Runs | None = None

    @property
    def size_bytes(self) -> int:
        runs_bytes = 0 if self.runs is None else _RUN_BYTES * len(self.runs)
        return len(self.payload) + self.places.size_bytes + runs_bytes + _OBJECTS_BYTES


PlainBatches: TypeAlias = dict[tuple[int, int], tuple[Places, Runs | None] | None]
"""By base offset and CRC, the last `_PLAIN_REMEMBERED` batches of a share-partition that need not
be opened: 8 bytes for each stride of records, and the runs of sparse ones. None: it cannot be
cut."""


class OpenedBatchesStatistics(NamedTuple):
    """`batches` and `size_bytes` are the present contents; the rest counts since the start. A hit
    is a batch that was cut without waiting, a miss one that had to be opened."""

    batches: int
    size_bytes: int
    hits: int
    misses: int
    refused: dict[str, int]


@dataclass(slots=True, eq=False)
class _Opening:
    """A batch that a thread is opening. `result` stays None if the fetch that began it was
    cancelled before its turn."""

    done: trio.Event = field(default_factory=trio.Event)
    result: OpenedBatch | Refusal | None = None


class OpenedBatches:
    """`max_bytes`: limit for plain payloads and the places in them."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._batches: BoundedCache[BatchKey, OpenedBatch] = BoundedCache(max_bytes, least=1)
        self._small: BoundedCache[BatchKey, OpenedBatch] = BoundedCache(max_bytes // _SMALL_SHARE, least=1)
        self._refused: dict[BatchKey, Refusal] = {}
        self._opening: dict[BatchKey, _Opening] = {}
        self.dense: set[LogId] = set()
        """Logs with a small batch that was too large for the loop when it was decompressed. Others
        may be as well."""
        self._hits = self._misses = 0
        self._refusals = dict.fromkeys(Refusal, 0)

    def find(self, key: BatchKey) -> OpenedBatch | Refusal | None:
        """None: it was never opened, or has left the cache."""
        batch = self._batches.get(key) or self._small.get(key)
        if batch is None:
            return self._refused.get(key)
        self._hits += 1
        return batch

    def open_quickly(self, key: BatchKey, stored: memoryview, max_bytes: int) -> OpenedBatch | Refusal | None:
        """None: it is larger than `max_bytes` when decompressed."""
        result = open_batch(stored, max_bytes=max_bytes)
        if result is Refusal.TOO_LARGE:
            if max_bytes == TURN_BYTES:
                self.dense.add(key[0])
            return None
        self._misses += 1
        self._note(key, result, self._small)
        return result

    async def open(self, key: BatchKey, stored: memoryview) -> OpenedBatch | Refusal:
        """Wait for a thread that opens the stored batch. The caller keeps the result, because
        others may displace it from the cache before the caller's next step. A checkpoint."""
        self._misses += 1
        while True:
            if (batch := self._batches.get(key)) is not None:
                return batch
            opening = self._opening.get(key)
            if opening is None:
                return await self._open(key, stored)
            await opening.done.wait()
            if opening.result is not None:
                return opening.result

    async def _open(self, key: BatchKey, stored: memoryview) -> OpenedBatch | Refusal:
        opening = self._opening[key] = _Opening()
        try:
            opening.result = result = await trio.to_thread.run_sync(open_batch, stored, limiter=_threads)
            self._note(key, result, self._batches)
            return result
        finally:
            del self._opening[key]
            opening.done.set()

    def _note(
        self, key: BatchKey, result: OpenedBatch | Refusal, cache: BoundedCache[BatchKey, OpenedBatch]
    ) -> None:
        if isinstance(result, OpenedBatch):
            cache.put(key, result, result.size_bytes - ENTRY_BYTES)
            self._batches.shrink(self._max_bytes - self._small.bytes)
            return
        while len(self._refused) >= _REFUSED_KEPT:
            del self._refused[next(iter(self._refused))]
        self._refused[key] = result
        self.count_refused(result)

    def count_refused(self, reason: Refusal) -> None:
        """Count a batch that cannot be cut. Called directly for those that are not in this cache;
        their share-partition remembers them."""
        self._refusals[reason] += 1

    def statistics(self) -> OpenedBatchesStatistics:
        refused = {reason.value: count for reason, count in self._refusals.items()}
        return OpenedBatchesStatistics(
            len(self._batches) + len(self._small),
            self._batches.bytes + self._small.bytes,
            self._hits,
            self._misses,
            refused,
        )


class BatchOpener:
    """The cache for one fetch of one share-partition, and its `plain` batches. A batch that the
    fetch has found or opened stays available to it until it waits, even if the cache drops it
    meanwhile."""

    __slots__ = ("_cache", "_found", "_log", "_plain", "_turn", "_turns_left", "must_pause")

    def __init__(self, cache: OpenedBatches, log: LogId, plain: PlainBatches) -> None:
        self._cache = cache
        self._log = log
        self._plain = plain
        self._found: dict[BatchKey, OpenedBatch | Refusal] = {}
        self._turn, self._turns_left = Turn(), _TURNS_OF_A_FETCH
        self.must_pause = False
        """Whether a small batch was not opened because the turn of the loop must end first."""

    async def pause(self) -> None:
        """Let others have a turn, and open more in the next one. Opened batches stay available. A
        checkpoint."""
        await trio.lowlevel.checkpoint()
        self._turns_left -= 1
        self._turn.renew()
        self.must_pause = False

    def find(self, base_offset: int, crc: int) -> OpenedBatch | Refusal | None:
        """None: it has to be opened."""
        key = self._log, base_offset, crc
        found = self._found.get(key)
        if found is None and (found := self._cache.find(key)) is not None:
            self._found[key] = found
        return found

    def open_quickly(self, stored: memoryview) -> OpenedBatch | Refusal | None:
        """Open a batch that was not found, at once. None: it is not small, or the fetch has already
        opened many (`must_pause`)."""
        header, turn, walks = read_header(stored), self._turn, 2 if is_sparse(stored) else 1
        if not turn.allows(header, walks=walks):
            self.must_pause = self._turns_left > 1 and Turn().allows(header, walks=walks)
            return None
        key = self._log, header.base_offset, header.crc
        result = self._cache.open_quickly(key, stored, turn.bytes_left)
        if result is None:
            is_whole_turn = turn.bytes_left == TURN_BYTES
            turn.end()
            self.must_pause = self._turns_left > 1 and not is_whole_turn
            return None
        plain_bytes = len(result.payload) if isinstance(result, OpenedBatch) else turn.bytes_left
        turn.spend(header, plain_bytes, walks * header.record_count + _AS_RECORDS)
        self._found[key] = result
        return result

    def reading_ends(self) -> Callable[[memoryview], bool]:
        """Whether batches after this one need not be read, because this one or those before it use
        up what the fetch may open. For stored batches in the order of their reads."""
        left, turn = self._turns_left * TURN_RECORDS, Turn()

        def ends(stored: memoryview) -> bool:
            nonlocal left
            if not stored[CODEC_AT] & CODEC_MASK:
                return False
            header = read_header(stored)
            left -= header.record_count + _AS_RECORDS
            return left <= 0 or self._log in self._cache.dense or not turn.allows(header)

        return ends

    async def open(self, stored: memoryview) -> None:
        """Wait until it is opened or refused."""
        self._found.clear()  # Keep only one: it may have 64 MiB.
        header = read_header(stored)
        key = self._log, header.base_offset, header.crc
        self._found[key] = await self._cache.open(key, stored)
        self._turn.renew()
        self._turns_left = _TURNS_OF_A_FETCH

    def to_cut(self, stored: memoryview, header: BatchHeader) -> OpenedBatch | None:
        """A batch of which parts can be sent now. None: it is not opened, or cannot be."""
        if must_be_opened(header):
            found = self.find(header.base_offset, header.crc)
            return found if isinstance(found, OpenedBatch) else None
        key, payload = (header.base_offset, header.crc), stored[HEADER_SIZE:]
        if key in self._plain:
            known = self._plain.pop(key)
        else:
            known = None
            if crc_is_valid(stored, 0, header):
                known = Places(), runs_of_payload(bytes(payload), header) if is_sparse(stored) else None
            else:
                self._cache.count_refused(Refusal.CRC)
            while len(self._plain) >= _PLAIN_REMEMBERED:
                del self._plain[next(iter(self._plain))]
        self._plain[key] = known
        return None if known is None else OpenedBatch(payload, *known)

    def cannot_be_walked(self, header: BatchHeader) -> None:
        """Note that a batch from to_cut() does not have the records that it should have."""
        self._plain[header.base_offset, header.crc] = None
        self._cache.count_refused(Refusal.RECORDS)


def open_batch(stored: memoryview, *, max_bytes: int = DEFAULT_MAX_BYTES) -> OpenedBatch | Refusal:
    """Uses up to twice `max_bytes` of memory. With 64 MiB of the smallest records it takes a few
    seconds."""
    header = read_header(stored)
    if not crc_is_valid(stored, 0, header):
        return Refusal.CRC
    try:
        payload = bytes(records_payload(stored, header, max_bytes=max_bytes))
    except TooLarge:
        return Refusal.TOO_LARGE
    except CorruptPayload:
        return Refusal.PAYLOAD
    places = Places()
    try:
        places.walk_all(payload, header.record_count, header.last_offset_delta)
    except UNWALKABLE:
        return Refusal.RECORDS
    return OpenedBatch(payload, places, runs_of_payload(payload, header) if is_sparse(stored) else None)
