"""One pass over one log: read the keys that are new, then rewrite the segments that lose records.

Each step reads about a MiB in a thread and works on it there. The pass waits between two steps, and
after each piece that it writes. So it takes at most a part of the processor and of the disk's
throughput, and the commits of others get in between.

A segment of which all records stay is only read. Other readers see the old segment or the new one.
A pass that is cut off at any point has done no harm: the next one begins again at the same offset.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Final, NamedTuple, TypeVar

import trio

from kbroker.broker.commits.group_commit import GroupCommit
from kbroker.broker.logs.partition import Partition
from kbroker.broker.logs.producer_state import ProducerStates
from kbroker.compaction.batch_cleaning import CleaningPass, LastOfProducer, PassRules
from kbroker.compaction.choice import Cleanable
from kbroker.compaction.mapping import add_keys
from kbroker.compaction.offset_map import OffsetMap
from kbroker.compaction.transactions import SeenTransactions
from kbroker.formats.batches import BatchHeader, Buffer, crc_is_valid, iter_headers, read_header
from kbroker.formats.compression import CorruptPayload
from kbroker.storage.spi import LogStore, Replacement, SegmentInfo, StampedBatch

Answer = TypeVar("Answer")

STEP_BYTES: Final = 1 << 20
"""A step reads about so much, or one larger batch."""
_MOST_OF_THE_TIME = 0.5
"""The part of the time that a pass works; it waits for the rest."""
_thread: Final = trio.CapacityLimiter(1)
"""One step at a time in the whole broker."""


class LogRemoved(Exception):
    """The log, or the part that a pass works on, was removed meanwhile; or its topic is not
    compacted any more."""


class PassResult(NamedTuple):
    """`cleaned_to`: the next pass takes the records from there on as new. `bytes_before` and
    `bytes_after`: sizes of the segments of the pass."""

    cleaned_to: int
    bytes_before: int
    bytes_after: int
    removed_records: int
    rewritten_segments: int


class PassLimits(NamedTuple):
    """- `map_bytes`: memory for the offset map
    - `bytes_per_second`: what a pass reads, at most
    - `check_room`: raises NoSpace if a pass must write no more"""

    map_bytes: int
    bytes_per_second: float
    check_room: Callable[[], None]


class _Step(NamedTuple):
    """What becomes of the batches before `end_offset`."""

    end_offset: int
    batches: Sequence[StampedBatch]
    is_changed: bool


class LogPass:
    def __init__(
        self,
        partition: Partition,
        store: LogStore,
        commits: GroupCommit[StampedBatch],
        cleanable: Cleanable,
        limits: PassLimits,
        before_markers_go: Callable[[Sequence[int]], Awaitable[None]],
    ) -> None:
        """`before_markers_go` gets the offsets of markers whose transaction has no batch left.

        `read_bytes`: so far."""
        self._before_markers_go = before_markers_go
        self._partition, self._store, self._commits = partition, store, commits
        self._log = partition.log
        self._cleanable, self._limits = cleanable, limits
        dirty_offsets = cleanable.end_offset - cleanable.first_dirty
        self._latest = OffsetMap(limits.map_bytes, dirty_offsets)
        self._latest.end_offset = cleanable.first_dirty
        self.read_bytes = 0
        self._rewritten = 0

    async def run(self, now_ms: int, delete_retention_ms: int) -> PassResult:
        """Raises LogRemoved, KafkaError, NoSpace, StoreFailed, and CorruptPayload for a batch that
        cannot be read. Each segment then has its old or its new contents, and both are valid."""
        # With durability `os`: a power cut must not take a new value, and the pass the old one.
        await self._commits.flush()
        states = await self._partition.load_producers()
        start, end = self._cleanable.segments[0].base_offset, self._cleanable.end_offset
        aborted = list(states.transactions.aborted_in(start, end))
        await self._read_keys(SeenTransactions(aborted))
        rules = PassRules(now_ms, delete_retention_ms, end, _last_of_producers(states))
        cleaning = CleaningPass(rules, self._latest, SeenTransactions(aborted))
        segments = [each for each in self._cleanable.segments if each.base_offset < self._latest.end_offset]
        for segment in segments:
            await self._clean(segment, cleaning)
        if self._partition.deleted:
            raise LogRemoved
        after = {each.base_offset: each.size_bytes for each in self._partition.segments()}
        return PassResult(
            self._latest.end_offset,
            sum(each.size_bytes for each in segments),
            sum(after.get(each.base_offset, 0) for each in segments),
            cleaning.removed_records,
            self._rewritten,
        )

    # -- the new keys
    # ----------------------------------------------------------------------------------------------

    async def _read_keys(self, seen: SeenTransactions) -> None:
        """Fill the map up to the end of the range, or until it is full."""
        end, offset = self._cleanable.end_offset, self._cleanable.first_dirty
        while offset < end:
            reached = await self._step(partial(self._map, offset, end, seen))
            if reached is None:
                break
            offset = reached
        if self._latest.end_offset == self._cleanable.first_dirty:
            raise CorruptPayload(
                f"the batch at offset {offset} has more keys than the map, which has "
                f"log.cleaner.dedupe.buffer.size {self._limits.map_bytes}"
            )

    def _map(self, offset: int, end: int, seen: SeenTransactions) -> int | None:
        """Runs in a thread. Where the next step begins; None if the map is full."""
        began = offset
        for view, position, header in self._batches(offset, end):
            if header.last_offset < self._cleanable.first_dirty:
                continue
            if not add_keys(self._latest, seen, view, position):
                return None
            offset = header.last_offset + 1
        if offset > began:
            return offset
        self._latest.end_offset = end  # A hole up to the end.
        return end

    # -- the segments
    # ----------------------------------------------------------------------------------------------

    async def _clean(self, segment: SegmentInfo, cleaning: CleaningPass) -> None:
        replacement: Replacement | None = None
        offset = segment.base_offset
        try:
            while offset < segment.end_offset:
                step = await self._step(partial(self._take, offset, segment.end_offset, cleaning.clean))
                if cleaning.empty_markers:
                    await self._before_markers_go(cleaning.empty_markers)
                    cleaning.empty_markers.clear()
                if step.is_changed and replacement is None:
                    replacement = await self._commits.perform(
                        lambda: self._store.replacing(self._log, segment.base_offset)
                    )
                    await self._copy(replacement, segment.base_offset, offset)
                if replacement is not None:
                    await self._write(replacement, step)
                offset = step.end_offset
            if replacement is not None:
                await self._beside(replacement, replacement.prepare)
                await self._commits.perform(replacement.finish)
                self._rewritten += 1
        except (KeyError, ValueError) as error:
            if isinstance(error, CorruptPayload) or not self._is_gone(segment):
                raise
            raise LogRemoved from error
        finally:
            if replacement is not None:
                with trio.CancelScope(shield=True):
                    await self._beside(replacement, replacement.abandon)

    def _is_gone(self, segment: SegmentInfo) -> bool:
        if self._partition.deleted:
            return True
        return all(each.base_offset != segment.base_offset for each in self._partition.segments())

    def _take(self, offset: int, end: int, decide: Callable[[memoryview], Buffer | None]) -> _Step:
        """Runs in a thread. `decide`: what becomes of a batch."""
        batches: list[StampedBatch] = []
        is_changed, reached = False, end
        for view, position, header in self._batches(offset, end):
            own = view[position : position + header.size_bytes]
            data = decide(own)
            is_changed |= data is not own
            if data is not None:
                batches.append(self._stamped(data))
            reached = header.last_offset + 1
        return _Step(reached, batches, is_changed)

    async def _copy(self, replacement: Replacement, offset: int, end: int) -> None:
        """Add the batches before the first changed step, which stay as they are."""
        while offset < end:
            step = await self._step(partial(self._take, offset, end, lambda batch: batch))
            await self._write(replacement, step)
            offset = step.end_offset

    async def _write(self, replacement: Replacement, step: _Step) -> None:
        """Piece by piece. The pass waits after each as long as the engine took, so that writes of
        others get in between, and find the disk idle."""
        self._limits.check_room()
        share = partial(replacement.pieces, step.end_offset, step.batches)
        for end, batches in await trio.to_thread.run_sync(share, limiter=_thread):
            began_s = perf_counter()
            await self._beside(replacement, partial(replacement.add, end, batches))
            if not replacement.add_beside_write:  # Else the sync of a commit would bring it to disk.
                await self._commits.perform(self._store.sync)
            await trio.sleep(_wait_after(perf_counter() - began_s))

    async def _beside(self, replacement: Replacement, call: Callable[[], None]) -> None:
        """Run where the engine permits it: in a thread, else in the store's."""
        if replacement.add_beside_write:
            await trio.to_thread.run_sync(call, limiter=_thread)
        else:
            await self._commits.perform(call)

    # -- steps
    # ----------------------------------------------------------------------------------------------

    async def _step(self, work: Callable[[], Answer]) -> Answer:
        began_s, before = perf_counter(), self.read_bytes
        try:
            answer = await trio.to_thread.run_sync(work, limiter=_thread)
        except KeyError as error:
            raise LogRemoved from error
        took_s = perf_counter() - began_s
        read_bytes = self.read_bytes - before
        await trio.sleep(max(_wait_after(took_s), read_bytes / self._limits.bytes_per_second - took_s))
        return answer

    def _batches(self, offset: int, end: int) -> Iterator[tuple[memoryview, int, BatchHeader]]:
        """About STEP_BYTES of batches from `offset` on. Raises CorruptPayload for a wrong CRC."""
        if self._partition.deleted or not self._partition.topic.rules.needs_keys:
            raise LogRemoved
        for view in self._store.read(self._log, offset, max_bytes=STEP_BYTES, end_offset=end):
            covered = 0
            for position, header in iter_headers(view):
                if not crc_is_valid(view, position, header):
                    raise CorruptPayload(f"the batch at offset {header.base_offset} is damaged")
                self.read_bytes += header.size_bytes
                yield view, position, header
                covered = position + header.size_bytes
            if covered < len(view):
                raise CorruptPayload(f"what is stored behind offset {offset} is not a record batch")

    def _stamped(self, data: Buffer) -> StampedBatch:
        header = read_header(data)
        return StampedBatch(self._log, header.base_offset, header.last_offset, header.max_timestamp_ms, data)


def _wait_after(took_s: float) -> float:
    return took_s / _MOST_OF_THE_TIME - took_s


def _last_of_producers(states: ProducerStates) -> Mapping[int, LastOfProducer]:
    return {
        each.producer_id: LastOfProducer(
            each.batches[-1].last_offset if each.batches else None, each.producer_epoch
        )
        for each in states.confirmed()
    }
