"""Both SPIs in dicts: the reference implementation, for tests and for reading.

It shows in two hundred lines what the real engines must do; their contract and model tests compare
them with it. Nothing here is durable. The process keeps the contents under the directory's path. So
a reader of the same directory sees the writer's data, and a reopened store has its old contents.
This module must not know about files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kbroker.storage.keyvalue.key_ranges import RECORD_BYTES, Entries, piece_of, scan_in_pieces
from kbroker.storage.keyvalue.memory_map import MemoryMap
from kbroker.storage.spi import (
    AddedRange,
    Change,
    LogBounds,
    LogId,
    LogSettings,
    LogStore,
    LogStoreFactory,
    Replacement,
    SegmentInfo,
    StampedBatch,
    StateStore,
    StateStoreFactory,
)


@dataclass(slots=True)
class _Segment:
    """`batches` is replaced where others are removed, so that readers may keep it."""

    base_offset: int
    end_offset: int
    batches: list[StampedBatch] = field(default_factory=list)
    size_bytes: int = 0
    first_write_ms: int = 0

    @classmethod
    def empty(cls, offset: int) -> _Segment:
        return cls(offset, offset)

    def must_roll(self, batch: StampedBatch, settings: LogSettings, now_ms: int) -> bool:
        """Kafka's rule: before a batch that would make the segment too large, or whose time is too
        far from that of the first one. Without such a time the broker's clock decides."""
        if not self.batches:
            return False
        if self.size_bytes + len(batch.data) > settings.segment_bytes:
            return True
        if (first_ms := self.batches[0].max_timestamp_ms) >= 0:
            return batch.max_timestamp_ms - first_ms > settings.segment_ms
        return now_ms - self.first_write_ms > settings.segment_ms

    def append(self, batch: StampedBatch, now_ms: int) -> None:
        if not self.batches:
            self.base_offset, self.first_write_ms = batch.base_offset, now_ms
        self.batches.append(batch)
        self.size_bytes += len(batch.data)
        self.end_offset = batch.last_offset + 1

    def hold(self, batches: list[StampedBatch]) -> None:
        self.batches = batches
        self.size_bytes = sum(len(batch.data) for batch in batches)

    def info(self) -> SegmentInfo:
        newest_ms = max((batch.max_timestamp_ms for batch in self.batches), default=-1)
        return SegmentInfo(self.base_offset, self.end_offset, self.size_bytes, newest_ms)


@dataclass(slots=True)
class _Log:
    settings: LogSettings
    segments: list[_Segment] = field(default_factory=lambda: [_Segment.empty(0)])

    def batches(self) -> list[StampedBatch]:
        return [batch for segment in tuple(self.segments) for batch in tuple(segment.batches)]


@dataclass(frozen=True, slots=True)
class MemoryLogStatistics:
    logs: int
    bytes: int


class MemoryLogStore(LogStore):
    """Reads return one memoryview per batch."""

    may_block = False
    write_in_thread = False
    write_beside_sync = True
    replaces = True

    def __init__(self, contents: dict[LogId, _Log]) -> None:
        self._logs = contents

    def logs(self) -> Sequence[LogId]:
        return tuple(self._logs)

    def bounds(self, log: LogId) -> LogBounds:
        segments = self._logs[log].segments
        return LogBounds(segments[0].base_offset, segments[-1].end_offset)

    def segments(self, log: LogId) -> Sequence[SegmentInfo]:
        return [segment.info() for segment in self._logs[log].segments]

    def read(self, log: LogId, offset: int, *, max_bytes: int, end_offset: int) -> Sequence[memoryview]:
        found: list[memoryview] = []
        size = 0
        for batch in self._logs[log].batches():
            if batch.last_offset < offset:
                continue
            size += len(batch.data)
            if batch.base_offset >= end_offset or (found and size > max_bytes):
                break
            found.append(memoryview(batch.data))
        return found

    def find_by_timestamp(self, log: LogId, timestamp_ms: int) -> int | None:
        batches = self._logs[log].batches()
        return next((batch.base_offset for batch in batches if batch.max_timestamp_ms >= timestamp_ms), None)

    def create(self, log: LogId, settings: LogSettings) -> None:
        if log in self._logs:
            self._logs[log].settings = settings
        else:
            self._logs[log] = _Log(settings)

    def drop(self, log: LogId) -> None:
        self._logs.pop(log, None)

    def trim(self, log: LogId, new_start: int) -> None:
        segments = self._logs[log].segments
        end_offset = segments[-1].end_offset
        kept = [segment for segment in segments if segment.end_offset > new_start]
        self._logs[log].segments = kept or [_Segment.empty(end_offset)]

    def truncate(self, log: LogId, new_end: int) -> None:
        state = self._logs[log]
        start_offset, end_offset = self.bounds(log)
        if new_end >= end_offset:
            return
        kept = [each for each in state.segments if each.base_offset < new_end]
        if kept:
            last = kept[-1]
            last.hold([batch for batch in last.batches if batch.base_offset < new_end])
            # without batches it still holds the place of the offsets up to `new_end`
            last.end_offset = last.batches[-1].last_offset + 1 if last.batches else new_end
        state.segments = kept or [_Segment.empty(start_offset)]
        if state.segments[-1].end_offset < new_end or (kept and not kept[-1].batches):
            state.segments.append(_Segment.empty(new_end))

    def write(self, batches: Sequence[StampedBatch], *, now_ms: int) -> None:
        states = [self._logs[batch.log] for batch in batches]
        for batch, state in zip(batches, states, strict=True):
            assert batch.base_offset >= state.segments[-1].end_offset, "the offsets of a log must rise"
            if state.segments[-1].must_roll(batch, state.settings, now_ms):
                state.segments.append(_Segment.empty(batch.base_offset))
            state.segments[-1].append(batch._replace(data=bytes(batch.data)), now_ms)

    def sync(self) -> None:
        """Nothing to do: there is nothing below memory."""

    def replacing(self, log: LogId, base_offset: int) -> Replacement:
        *sealed, _ = self._logs[log].segments
        found = [segment for segment in sealed if segment.base_offset == base_offset]
        if not found:
            raise ValueError(f"{log} has no sealed segment at {base_offset}")
        return _Replacement(found[0])

    def least_free_bytes(self) -> int:
        return 0

    def close(self) -> None:
        """Contents stay for the next store on the same directory."""

    def statistics(self) -> MemoryLogStatistics:
        return MemoryLogStatistics(
            len(self._logs), sum(info.size_bytes for log in self._logs for info in self.segments(log))
        )


class _Replacement(Replacement):
    """A removed segment has its batches still, and a cut one has others."""

    add_beside_write = True

    def __init__(self, segment: _Segment) -> None:
        self._segment = segment
        self._old = segment.batches
        self._range = AddedRange(segment.base_offset, segment.end_offset)
        self._batches: list[StampedBatch] = []

    def add(self, end: int, batches: Sequence[StampedBatch]) -> None:
        self._range.add(end, batches)
        self._batches += [batch._replace(data=bytes(batch.data)) for batch in batches]

    def prepare(self) -> None:
        self._range.check_complete()

    def finish(self) -> None:
        self._range.check_complete()
        if self._segment.batches is self._old:
            self._segment.hold(self._batches)

    def abandon(self) -> None:
        self._batches = []


@dataclass(frozen=True, slots=True)
class MemoryStateStatistics:
    keys: int
    bytes: int


class MemoryStateStore(StateStore):
    """A snapshot is a copy. Keys of ON_DISK are in memory like all others."""

    may_block = False
    keeps_keys_on_disk = True
    write_in_thread = False
    write_beside_sync = True

    def __init__(self, contents: dict[bytes, bytes] | MemoryMap) -> None:
        """Other stores over the same contents have the same map."""
        self._map = contents if isinstance(contents, MemoryMap) else MemoryMap(contents)

    def get(self, key: bytes) -> bytes | None:
        return self._map.get(key)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._map.scan(prefix)

    def scan_range(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return scan_in_pieces(self._piece, first, end)

    def _piece(self, first: bytes, end: bytes, count: int) -> tuple[Entries, bytes | None]:
        return piece_of(self._map.entries(first, end, count), count)

    @contextmanager
    def snapshot(self) -> Iterator[MemoryStateStore]:
        yield MemoryStateStore(self._map.copy())

    def write(self, changes: Sequence[Change]) -> None:
        self._map.apply(changes)

    def sync(self) -> None:
        """Nothing to do: there is nothing below memory."""

    def least_free_bytes(self) -> int:
        return 0

    def close(self) -> None:
        """Contents stay for the next store on the same directory."""

    def statistics(self) -> MemoryStateStatistics:
        return MemoryStateStatistics(len(self._map), self._map.live_bytes - RECORD_BYTES * len(self._map))


_all_logs: dict[Path, dict[LogId, _Log]] = {}
_all_states: dict[Path, MemoryMap] = {}


def _open_log(
    directory: Path, options: Mapping[str, str] | None = None, owner_epoch: int = 0
) -> MemoryLogStore:
    directory.mkdir(parents=True, exist_ok=True)
    return MemoryLogStore(_all_logs.setdefault(directory.resolve(), {}))


def _open_state(
    directory: Path, options: Mapping[str, str] | None = None, owner_epoch: int = 0
) -> MemoryStateStore:
    directory.mkdir(parents=True, exist_ok=True)
    return MemoryStateStore(_all_states.setdefault(directory.resolve(), MemoryMap()))


LOG_STORE = LogStoreFactory(open=_open_log, open_reader=_open_log)
STATE_STORE = StateStoreFactory(open=_open_state, open_reader=_open_state)
