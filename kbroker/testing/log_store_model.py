"""Runs random operations on a log engine and on the memory store, and compares everything that can
be read.

Also has the helpers of the contract suite: batches to write, and ways to read. This module must not
know any engine but the memory store.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from kbroker.formats.batches import Record, build_batch, iter_headers
from kbroker.storage import memory_store
from kbroker.storage.spi import LogId, LogReader, LogSettings, LogStore, LogStoreFactory, StampedBatch

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

TOPIC = UUID(int=0x1234)
LOG = LogId(TOPIC, 0)
OTHER = LogId(TOPIC, 1)
SETTINGS = LogSettings()
EVERYTHING = 1 << 40


def batch(
    base_offset: int, records: int = 1, *, log: LogId = LOG, timestamp_ms: int = 0, value: bytes | None = None
) -> StampedBatch:
    """A valid batch of `records` records with the timestamp `timestamp_ms`. Unless `value` is
    given, its bytes differ from those of every batch at another offset or partition."""
    content = b"record at %d of %d" % (base_offset, log.partition) if value is None else value
    data = build_batch([Record(0, timestamp_ms, None, content)] * records, base_offset=base_offset)
    return StampedBatch(log, base_offset, base_offset + records - 1, timestamp_ms, data)


def sized_batch(
    base_offset: int, size_bytes: int, *, log: LogId = LOG, timestamp_ms: int = 0
) -> StampedBatch:
    """A valid one-record batch of about `size_bytes` bytes."""
    return batch(
        base_offset,
        log=log,
        timestamp_ms=timestamp_ms,
        value=b"%20d" % base_offset + bytes(max(0, size_bytes - 95)),
    )


def read_all(
    reader: LogReader,
    log: LogId = LOG,
    offset: int = 0,
    max_bytes: int = EVERYTHING,
    end_offset: int = EVERYTHING,
) -> bytes:
    return b"".join(reader.read(log, offset, max_bytes=max_bytes, end_offset=end_offset))


def base_offsets(data: bytes) -> list[int]:
    return [header.base_offset for _, header in iter_headers(data)]


def joined(batches: Iterable[StampedBatch]) -> bytes:
    return b"".join(bytes(each.data) for each in batches)


def everything(reader: LogReader, log: LogId) -> tuple[object, ...]:
    """Everything that a reader can learn about a log, except where segments begin and end."""
    return (
        reader.bounds(log),
        read_all(reader, log),
        [reader.find_by_timestamp(log, ms) for ms in (0, 10, 20, 1000)],
    )


def check_segments(reader: LogReader, log: LogId = LOG, *, replaced: bool = False) -> None:
    """Assert that the segments agree with the log's bounds and content: no gap, no overlap, right
    sizes and newest timestamps. `replaced`: contents of segments were replaced, so segments may
    begin and end with holes, and a replacement that was not finished leaves the old timestamp."""
    segments = reader.segments(log)
    bounds = reader.bounds(log)
    assert segments, "there is always an active segment"
    assert (segments[0].base_offset, segments[-1].end_offset) == bounds
    assert reader.tail_offset(log) == segments[-1].base_offset
    assert sum(segment.size_bytes for segment in segments) == len(read_all(reader, log))
    for before, after in pairwise(segments):
        assert before.base_offset < before.end_offset <= after.base_offset, (
            "only the last segment may be empty"
        )
    for segment in segments:
        data = read_all(reader, log, segment.base_offset, end_offset=segment.end_offset)
        headers = [header for _, header in iter_headers(data)]
        assert segment.size_bytes == len(data)
        newest_ms = max((header.max_timestamp_ms for header in headers), default=-1)
        assert segment.max_timestamp_ms == newest_ms or (replaced and segment.max_timestamp_ms > newest_ms)
        if replaced:
            assert all(segment.base_offset <= each.base_offset for each in headers)
            assert all(each.last_offset < segment.end_offset for each in headers)
        elif headers:
            assert (headers[0].base_offset, headers[-1].last_offset + 1) == (
                segment.base_offset,
                segment.end_offset,
            )


def stored_batches(reader: LogReader, log: LogId, offset: int, end_offset: int) -> list[StampedBatch]:
    """The batches of a range, as they would be written."""
    data = read_all(reader, log, offset, end_offset=end_offset)
    return [
        StampedBatch(
            log, each.base_offset, each.last_offset, each.max_timestamp_ms, data[at : at + each.size_bytes]
        )
        for at, each in iter_headers(data)
    ]


def smaller(old: StampedBatch) -> StampedBatch:
    """A batch for the same offsets with another and mostly shorter content."""
    count = old.last_offset - old.base_offset + 1
    return batch(old.base_offset, count, log=old.log, timestamp_ms=old.max_timestamp_ms, value=b"cleaned")


def replace(
    store: LogStore, log: LogId, base_offset: int, batches: Sequence[StampedBatch], *, in_steps: bool = False
) -> None:
    """Replace the contents of the segment; `in_steps`: a call of add() for each batch."""
    (found,) = (each for each in store.segments(log) if each.base_offset == base_offset)
    replacement = store.replacing(log, base_offset)
    if in_steps:
        for each in batches:
            replacement.add(each.last_offset + 1, [each])
        batches = ()
    replacement.add(found.end_offset, batches)
    replacement.prepare()
    replacement.finish()
    replacement.abandon()


def check_against_memory_store(
    factory: LogStoreFactory, options: Mapping[str, str], *, durable: bool = True
) -> None:
    """Raises AssertionError if the two differ, with the shortest sequence of operations that
    hypothesis finds."""
    from hypothesis import HealthCheck, given, settings

    @settings(
        max_examples=40,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(operations())
    def run(steps: Sequence[tuple[str, int, int]]) -> None:
        with tempfile.TemporaryDirectory() as directory:
            _Model(factory, options, durable, Path(directory)).run(steps)

    run()


def operations() -> SearchStrategy[list[tuple[str, int, int]]]:
    """Lists of (operation, log number, argument)."""
    from hypothesis import strategies as st

    others = ["sync", "trim", "truncate", "drop", "settings_change", "reopen", "reopen"]
    weighted = ["write"] * 6 + others + ["replace"] * 3
    return st.lists(
        st.tuples(st.sampled_from(weighted), st.integers(0, 2), st.integers(0, 30)), min_size=1, max_size=40
    )


class _Model:
    """Runs every step on the engine and on the memory store, then compares them."""

    def __init__(
        self, factory: LogStoreFactory, options: Mapping[str, str], durable: bool, directory: Path
    ) -> None:
        self.factory, self.options, self.durable = factory, options, durable
        self.directory = directory / "engine"
        self.store = factory.open(self.directory, options, 1)
        self.model = memory_store.LOG_STORE.open(directory / "model", {}, 1)
        self.settings: dict[LogId, LogSettings] = {}
        self.replaced: set[LogId] = set()
        self.now_ms = 0

    def run(self, steps: Sequence[tuple[str, int, int]]) -> None:
        try:
            for operation, number, argument in steps:
                log = LogId(TOPIC, number)
                if log not in self.settings:
                    self.both_create(log, LogSettings(segment_bytes=500))
                getattr(self, operation)(log, argument)
                self.now_ms += 10
                self.compare()
            reader = self.factory.open_reader(self.directory)
            for log in self.settings:
                assert everything(reader, log) == everything(self.model, log)
            reader.close()
        finally:
            self.store.close()

    def compare(self) -> None:
        assert sorted(self.store.logs()) == sorted(self.model.logs())
        for log in self.settings:
            assert everything(self.store, log) == everything(self.model, log)
            check_segments(self.store, log, replaced=log in self.replaced)
            start_offset, end_offset = self.model.bounds(log)
            for offset in (start_offset, (start_offset + end_offset) // 2, end_offset - 1):
                for max_bytes in (1, 250, 2000):
                    limits = {"offset": offset, "max_bytes": max_bytes, "end_offset": end_offset - 2}
                    assert read_all(self.store, log, **limits) == read_all(self.model, log, **limits), limits

    def both_create(self, log: LogId, settings: LogSettings) -> None:
        self.settings[log] = settings
        for store in (self.store, self.model):
            store.create(log, settings)

    def write(self, log: LogId, argument: int) -> None:
        """Write up to three batches, sometimes with a hole between them, to this log and another
        one in the same call."""
        fresh: list[StampedBatch] = []
        for target in {log, next(iter(self.settings))}:
            offset = self.model.bounds(target).end_offset
            for number in range(1 + argument % 3):
                offset += argument % 4 == 3
                fresh.append(
                    batch(
                        offset,
                        1 + (argument + number) % 5,
                        log=target,
                        timestamp_ms=(self.now_ms * 7 + number) % 40,
                    )
                )
                offset = fresh[-1].last_offset + 1
        for store in (self.store, self.model):
            store.write(fresh, now_ms=self.now_ms)

    def sync(self, log: LogId, argument: int) -> None:
        self.store.sync()

    def trim(self, log: LogId, argument: int) -> None:
        """Trim at an offset where both stores end a segment, since they may roll at different
        offsets."""
        shared = {segment.end_offset for segment in self.store.segments(log)} & {
            segment.end_offset for segment in self.model.segments(log)
        }
        new_start = sorted(shared)[argument % len(shared)]
        for store in (self.store, self.model):
            store.trim(log, new_start)

    def truncate(self, log: LogId, argument: int) -> None:
        """Truncate to the end of a batch, or to the start of the log."""
        headers = [header for _, header in iter_headers(read_all(self.model, log))]
        ends = [self.model.bounds(log).start_offset, *(header.last_offset + 1 for header in headers)]
        for store in (self.store, self.model):
            store.truncate(log, ends[argument % len(ends)])

    def replace(self, log: LogId, argument: int) -> None:
        """Replace the contents of a segment that both stores have, if the engine can. The bits of
        `argument` choose the batches that stay, and those that become smaller."""
        ours = {(each.base_offset, each.end_offset) for each in self.store.segments(log)[:-1]}
        theirs = {(each.base_offset, each.end_offset) for each in self.model.segments(log)[:-1]}
        shared = sorted(ours & theirs)
        if not shared or not self.store.replaces:
            return
        base_offset, end_offset = shared[argument % len(shared)]
        self.replaced.add(log)
        old = stored_batches(self.model, log, base_offset, end_offset)
        kept = [
            smaller(each) if argument & 4 else each
            for number, each in enumerate(old)
            if argument >> (number % 2) & 1
        ]
        for store in (self.store, self.model):
            replace(store, log, base_offset, kept, in_steps=argument % 3 == 0)

    def drop(self, log: LogId, argument: int) -> None:
        del self.settings[log]
        self.replaced.discard(log)
        for store in (self.store, self.model):
            store.drop(log)

    def settings_change(self, log: LogId, argument: int) -> None:
        self.both_create(log, LogSettings(segment_bytes=100 + argument * 50, segment_ms=100))

    def reopen(self, log: LogId, argument: int) -> None:
        if not self.durable:
            return
        self.store.close()
        self.store = self.factory.open(self.directory, self.options, 2)
        for each, settings in self.settings.items():
            self.store.create(each, settings)
