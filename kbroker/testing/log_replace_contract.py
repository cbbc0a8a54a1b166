"""The part of the LogStore contract about replaced segments: what is read of them, and what else
may happen to the log meanwhile and afterwards.

LogStoreContract includes these tests. Engines without `replaces` skip them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest

from kbroker.formats.batches import iter_headers
from kbroker.storage.spi import LogReader, LogSettings, LogStore, LogStoreFactory, StampedBatch
from kbroker.testing.log_store_model import (
    EVERYTHING,
    LOG,
    OTHER,
    SETTINGS,
    base_offsets,
    batch,
    check_segments,
    everything,
    joined,
    read_all,
    replace,
    sized_batch,
    smaller,
)
from kbroker.testing.opened_engine import OpenedEngine

PER_SEGMENT = 3
SEGMENTS = 4
END = SEGMENTS * PER_SEGMENT * 10


def ten_records(base_offset: int) -> StampedBatch:
    return batch(base_offset, 10, timestamp_ms=base_offset, value=b"%05d" % base_offset)


WRITTEN = [ten_records(offset) for offset in range(0, END, 10)]


def in_segment(number: int) -> list[StampedBatch]:
    return WRITTEN[number * PER_SEGMENT : (number + 1) * PER_SEGMENT]


def with_segment(number: int, contents: Sequence[StampedBatch]) -> list[StampedBatch]:
    """All batches after the contents of a segment were replaced."""
    behind = WRITTEN[(number + 1) * PER_SEGMENT :]
    return [*WRITTEN[: number * PER_SEGMENT], *contents, *behind]


class LogReplaceContract(OpenedEngine[LogStore, LogReader]):
    factory: ClassVar[LogStoreFactory]

    @pytest.fixture
    def segmented(self, store: LogStore) -> LogStore:
        """A store with LOG in SEGMENTS segments of PER_SEGMENT batches of ten records."""
        if not store.replaces:
            pytest.skip("this engine cannot replace segments")
        store.create(LOG, LogSettings(segment_bytes=PER_SEGMENT * len(WRITTEN[0].data)))
        for first in range(0, len(WRITTEN), 2):
            store.write(WRITTEN[first : first + 2], now_ms=first)
        assert [each.base_offset for each in store.segments(LOG)] == list(range(0, END, 30))
        return store

    def check(self, reader: LogReader, expected: Sequence[StampedBatch], end: int = END) -> None:
        """Assert that the log has these batches, from 0 to `end`: as read from every offset."""
        assert reader.bounds(LOG) == (0, end)
        check_segments(reader, replaced=True)
        for offset in range(0, end + 1, 5):
            for end_offset in (offset, offset + 15, EVERYTHING):
                found = [each for each in expected if offset <= each.last_offset]
                found = [each for each in found if each.base_offset < end_offset]
                assert read_all(reader, offset=offset, end_offset=end_offset) == joined(found), offset
                for max_bytes in (0, 1, EVERYTHING):
                    least = read_all(reader, offset=offset, end_offset=end_offset, max_bytes=max_bytes)
                    assert bool(least) == bool(found), "the next batch may be in another segment"
        for timestamp_ms in (0, 25, 35, 55, END - 10, END):
            first = next((each for each in expected if each.max_timestamp_ms >= timestamp_ms), None)
            found_at = reader.find_by_timestamp(LOG, timestamp_ms)
            assert found_at == (None if first is None else first.base_offset), timestamp_ms

    @pytest.mark.parametrize("number", range(SEGMENTS - 1))
    @pytest.mark.parametrize("kept", range(1 << PER_SEGMENT))
    def test_a_replaced_segment_keeps_its_place(
        self, segmented: LogStore, directory: Path, number: int, kept: int
    ) -> None:
        contents = [each for bit, each in enumerate(in_segment(number)) if kept >> bit & 1]
        replace(segmented, LOG, number * 30, contents, in_steps=kept % 2 == 0)
        self.check(segmented, with_segment(number, contents))
        newest_ms = max((each.max_timestamp_ms for each in contents), default=-1)
        expected = (number * 30, number * 30 + 30, len(joined(contents)), newest_ms)
        assert segmented.segments(LOG)[number] == expected
        with self.reopened(segmented, directory) as again:
            self.check(again, with_segment(number, contents))
            assert again.segments(LOG)[number] == expected
            again.create(LOG, SETTINGS)
            again.write([ten_records(END)], now_ms=0)
            self.check(again, [*with_segment(number, contents), ten_records(END)], END + 10)

    @pytest.mark.parametrize("change", [smaller, lambda old: sized_batch(old.base_offset, 5000)])
    def test_batches_may_have_another_size(
        self, segmented: LogStore, directory: Path, change: Callable[[StampedBatch], StampedBatch]
    ) -> None:
        contents = [change(each) for each in in_segment(1)]
        replace(segmented, LOG, 30, contents)
        assert read_all(segmented) == joined(with_segment(1, contents))
        with self.reopened(segmented, directory) as again:
            assert read_all(again) == joined(with_segment(1, contents))
            check_segments(again, replaced=True)

    def test_other_bytes_of_the_same_size(self, segmented: LogStore, directory: Path) -> None:
        first, second, third = in_segment(1)
        contents = [batch(30, 10, timestamp_ms=30, value=b"other"), *in_segment(1)[1:]]
        other = [
            batch(30, 10, timestamp_ms=30, value=b"x" * 9),
            batch(40, 10, timestamp_ms=40, value=b"x"),
            third,
        ]
        assert len(joined(contents)) == len(joined(other)) == len(joined([first, second, third]))
        for each in (contents, other):
            replace(segmented, LOG, 30, each)
            self.check(segmented, with_segment(1, each))
        with self.reopened(segmented, directory) as again:
            self.check(again, with_segment(1, other))

    def test_everything_but_the_active_segment_may_go(self, segmented: LogStore, directory: Path) -> None:
        for number in range(SEGMENTS - 1):
            replace(segmented, LOG, number * 30, [])
        self.check(segmented, in_segment(SEGMENTS - 1))
        with self.reopened(segmented, directory) as again:
            self.check(again, in_segment(SEGMENTS - 1))
            replace(again, LOG, 30, [])
            self.check(again, in_segment(SEGMENTS - 1))

    def test_only_sealed_segments_are_replaced(self, segmented: LogStore) -> None:
        for base_offset in ((SEGMENTS - 1) * 30, 10, END):
            with pytest.raises(ValueError, match=str(base_offset)):
                segmented.replacing(LOG, base_offset)
        with pytest.raises(KeyError):
            segmented.replacing(OTHER, 0)
        self.check(segmented, WRITTEN)

    def test_pieces_must_fit_the_segment(self, segmented: LogStore) -> None:
        first, second, third = in_segment(1)
        replacement = segmented.replacing(LOG, 30)
        replacement.add(40, [first])
        wrong = [
            (30, []),
            (50, [first]),
            (50, [third]),
            (60, [third, second]),
            (70, []),
            (50, [second, second]),
        ]
        for end, batches in wrong:
            with pytest.raises(ValueError, match="is not between"):
                replacement.add(end, batches)
        replacement.add(50, [second])
        for step in (replacement.prepare, replacement.finish):
            with pytest.raises(ValueError, match="50"):
                step()
        replacement.add(60, [])
        replacement.prepare()
        replacement.finish()
        self.check(segmented, with_segment(1, [first, second]))

    def test_any_buffer_is_taken(self, segmented: LogStore) -> None:
        scratch = bytearray(ten_records(30).data)
        contents = [ten_records(30)._replace(data=scratch), ten_records(50)]
        replacement = segmented.replacing(LOG, 30)
        replacement.add(40, contents[:1])
        scratch[:] = bytes(len(scratch))
        replacement.add(60, [contents[1]._replace(data=memoryview(bytes(contents[1].data)))])
        replacement.prepare()
        replacement.finish()
        self.check(segmented, with_segment(1, [ten_records(30), ten_records(50)]))

    @pytest.mark.parametrize("added", range(PER_SEGMENT + 1))
    def test_an_abandoned_one_leaves_a_boundary(
        self, segmented: LogStore, directory: Path, added: int
    ) -> None:
        replacement = segmented.replacing(LOG, 30)
        for each in in_segment(1)[:added]:
            replacement.add(each.last_offset + 1, [smaller(each)])
        replacement.abandon()
        replacement.abandon()
        new = [smaller(each) for each in in_segment(1)]
        possible = [with_segment(1, [*new[:at], *in_segment(1)[at:]]) for at in (0, added)]
        found = read_all(segmented)
        (expected,) = {tuple(each) for each in possible if joined(each) == found}
        self.check(segmented, expected)
        with self.reopened(segmented, directory) as again:
            self.check(again, expected)
            replace(again, LOG, 30, [])
            self.check(again, with_segment(1, []))

    # What else happens to the log

    def test_the_log_is_written_meanwhile(self, segmented: LogStore, directory: Path) -> None:
        replacement = segmented.replacing(LOG, 60)
        replacement.add(70, [])
        segmented.write([ten_records(END)], now_ms=0)
        segmented.sync()
        replacement.add(90, [ten_records(80)])
        replacement.prepare()
        segmented.write([ten_records(END + 10)], now_ms=0)
        replacement.finish()
        expected = [*with_segment(2, [ten_records(80)]), ten_records(END), ten_records(END + 10)]
        self.check(segmented, expected, END + 20)
        with self.reopened(segmented, directory) as again:
            self.check(again, expected, END + 20)

    @pytest.mark.parametrize("removal", ["trim", "drop", "truncate", "cut", "recreate"])
    @pytest.mark.parametrize("steps", range(3))
    def test_the_segment_is_removed_meanwhile(
        self, segmented: LogStore, directory: Path, removal: str, steps: int
    ) -> None:
        replacement = segmented.replacing(LOG, 30)
        todo = [lambda: replacement.add(40, []), lambda: replacement.add(60, []), replacement.prepare]
        for step in todo[:steps]:
            step()
        match removal:
            case "trim":
                segmented.trim(LOG, 60)
            case "truncate":
                segmented.truncate(LOG, 30)
            case "cut":
                segmented.truncate(LOG, 50)
                segmented.write([ten_records(offset) for offset in range(50, 100, 10)], now_ms=0)
            case _:
                segmented.drop(LOG)
        if removal == "recreate":
            segmented.create(LOG, LogSettings(segment_bytes=PER_SEGMENT * len(WRITTEN[0].data)))
            segmented.write(WRITTEN, now_ms=0)
        before = everything(segmented, LOG) if removal != "drop" else None
        for step in [*todo[steps:], replacement.finish, replacement.abandon]:
            step()
        if removal == "drop":
            assert list(segmented.logs()) == []
            return
        assert everything(segmented, LOG) == before
        with self.reopened(segmented, directory) as again:
            assert everything(again, LOG) == before
            check_segments(again, replaced=True)

    @pytest.mark.parametrize("kept", range(1 << PER_SEGMENT))
    def test_truncate_in_replaced_segments(self, segmented: LogStore, directory: Path, kept: int) -> None:
        contents = [each for bit, each in enumerate(in_segment(2)) if kept >> bit & 1]
        replace(segmented, LOG, 60, contents, in_steps=True)
        replace(segmented, LOG, 30, [])
        for new_end in (90, 80, 70, 60, 50, 30, 20, 0):
            segmented.truncate(LOG, new_end)
            expected = [*in_segment(0), *contents]
            left = [each for each in expected if each.base_offset < new_end]
            self.check(segmented, left, new_end)
        segmented.write([ten_records(0)], now_ms=0)
        with self.reopened(segmented, directory) as again:
            self.check(again, [ten_records(0)], 10)

    @pytest.mark.parametrize("new_end", [90, 80, 70, 60, 50, 40, 30])
    def test_writes_after_a_truncation_of_replaced_segments(
        self, segmented: LogStore, directory: Path, new_end: int
    ) -> None:
        replace(segmented, LOG, 60, [ten_records(70)])
        replace(segmented, LOG, 30, [])
        segmented.truncate(LOG, new_end)
        left = [each for each in [*in_segment(0), ten_records(70)] if each.base_offset < new_end]
        with self.reopened(segmented, directory) as again:
            self.check(again, left, new_end)
            again.create(LOG, SETTINGS)
            again.write([ten_records(new_end)], now_ms=0)
            self.check(again, [*left, ten_records(new_end)], new_end + 10)
            with self.reopened(again, directory) as third:
                self.check(third, [*left, ten_records(new_end)], new_end + 10)

    def test_trim_of_replaced_segments(self, segmented: LogStore, directory: Path) -> None:
        replace(segmented, LOG, 0, [])
        replace(segmented, LOG, 30, [ten_records(40)])
        segmented.trim(LOG, 29)
        assert segmented.bounds(LOG) == (0, END)
        segmented.trim(LOG, 30)
        assert segmented.bounds(LOG) == (30, END)
        replace(segmented, LOG, 30, [])
        segmented.trim(LOG, 60)
        with self.reopened(segmented, directory) as again:
            assert again.bounds(LOG) == (60, END)
            assert read_all(again) == joined(WRITTEN[6:])
            check_segments(again, replaced=True)

    # Readers

    def test_views_survive_a_replacement(self, segmented: LogStore) -> None:
        segmented.sync()
        views = segmented.read(LOG, 0, max_bytes=EVERYTHING, end_offset=EVERYTHING)
        for number in range(SEGMENTS - 1):
            replace(segmented, LOG, number * 30, [smaller(each) for each in in_segment(number)])
        assert b"".join(views) == joined(WRITTEN)

    def test_a_reader_follows_replacements(self, segmented: LogStore, directory: Path) -> None:
        segmented.sync()
        with self.reading(directory) as reader:
            self.check(reader, WRITTEN)
            contents = in_segment(1)
            while contents:
                contents = contents[1:]
                replace(segmented, LOG, 30, contents, in_steps=True)
                assert everything(reader, LOG) == everything(segmented, LOG)
            replace(segmented, LOG, 0, [])
            segmented.write([ten_records(END)], now_ms=0)
            segmented.sync()
            self.check(reader, [*WRITTEN[6:], ten_records(END)], END + 10)

    def test_reads_beside_replacements(self, segmented: LogStore) -> None:
        """Another thread sees for each batch the old or the new bytes, and misses none."""
        possible = [{bytes(each.data), bytes(smaller(each).data)} for each in WRITTEN]
        problems: list[object] = []
        stop = False

        def read_on() -> None:
            while not stop and not problems:
                pieces = batches_in(read_all(segmented))
                if [base for base, _ in pieces] != [each.base_offset for each in WRITTEN]:
                    problems.append(pieces)
                for (_, data), either in zip(pieces, possible, strict=False):
                    if data not in either:
                        problems.append(data)
                if segmented.find_by_timestamp(LOG, 45) != 50:
                    problems.append("timestamp")

        thread = Thread(target=read_on)
        thread.start()
        for turn in range(20):
            for number in range(SEGMENTS - 1):
                new = [smaller(each) if turn % 2 else each for each in in_segment(number)]
                replace(segmented, LOG, number * 30, new, in_steps=turn % 4 > 1)
        stop = True
        thread.join()
        assert problems == []

    def test_a_replacement_beside_writes(self, segmented: LogStore) -> None:
        """Where the engine allows it, another thread adds while this one writes."""
        replacement = segmented.replacing(LOG, 0)
        if not replacement.add_beside_write:
            replacement.abandon()
            pytest.skip("this engine replaces where it writes")

        def add() -> None:
            for each in in_segment(0):
                replacement.add(each.last_offset + 1, [smaller(each)])
            replacement.prepare()

        thread = Thread(target=add)
        thread.start()
        fresh = [ten_records(END + 10 * number) for number in range(100)]
        for each in fresh:
            segmented.write([each], now_ms=0)
        segmented.sync()
        thread.join()
        replacement.finish()
        expected = [*with_segment(0, [smaller(each) for each in in_segment(0)]), *fresh]
        assert read_all(segmented) == joined(expected)

    @pytest.mark.parametrize("step", [1, 4, 20])
    def test_large_batches(self, store: LogStore, directory: Path, step: int) -> None:
        if not store.replaces:
            pytest.skip("this engine cannot replace segments")
        written = [sized_batch(offset, 100_000, timestamp_ms=offset) for offset in range(20)]
        store.create(LOG, LogSettings(segment_bytes=len(joined(written))))
        for first in range(0, 20, 7):
            store.write(written[first : first + 7], now_ms=0)
        store.write([batch(20, timestamp_ms=20)], now_ms=0)
        kept = [each for each in written if each.base_offset % 3]
        replacement = store.replacing(LOG, 0)
        for end in range(step, 21, step):
            replacement.add(end, [each for each in kept if end - step <= each.base_offset < end])
        replacement.prepare()
        replacement.finish()
        expected = [*kept, batch(20, timestamp_ms=20)]
        with self.reopened(store, directory) as again:
            for offset in range(21):
                found = [each for each in expected if each.base_offset >= offset]
                assert read_all(again, offset=offset) == joined(found)
                assert again.find_by_timestamp(LOG, offset) == found[0].base_offset
                assert base_offsets(read_all(again, offset=offset, max_bytes=1)) == [found[0].base_offset]
            check_segments(again, replaced=True)

    @pytest.mark.parametrize("written_at_once", [1, 7])
    @pytest.mark.parametrize("step", [3, 10, 20])
    def test_pieces_do_what_one_call_would_do(
        self, store: LogStore, directory: Path, step: int, written_at_once: int
    ) -> None:
        if not store.replaces:
            pytest.skip("this engine cannot replace segments")
        written = [sized_batch(offset, 100_000, timestamp_ms=offset) for offset in range(20)]
        store.create(LOG, LogSettings(segment_bytes=len(joined(written))))
        for first in range(0, 20, written_at_once):
            store.write(written[first : first + written_at_once], now_ms=0)
        store.write([batch(20, timestamp_ms=20)], now_ms=0)
        kept = [smaller(each) if each.base_offset % 2 else each for each in written if each.base_offset % 5]
        replacement, start = store.replacing(LOG, 0), 0
        for end in sorted({*range(step, 20, step), 20}):
            of_step = [each for each in kept if start <= each.base_offset < end]
            pieces = replacement.pieces(end, of_step)
            assert [each for _, batches in pieces for each in batches] == of_step
            assert sorted({piece_end for piece_end, _ in pieces}) == [piece_end for piece_end, _ in pieces]
            assert pieces[-1][0] == end
            for piece_end, batches in pieces:
                replacement.add(piece_end, batches)
            start = end
        replacement.prepare()
        replacement.finish()
        expected = [*kept, batch(20, timestamp_ms=20)]
        with self.reopened(store, directory) as again:
            assert read_all(again) == joined(expected)
            check_segments(again, replaced=True)

    def test_pieces_of_a_segment_that_was_removed(self, segmented: LogStore) -> None:
        replacement = segmented.replacing(LOG, 0)
        segmented.trim(LOG, 30)
        for end, batches in replacement.pieces(30, in_segment(0)):
            replacement.add(end, batches)
        replacement.prepare()
        replacement.finish()
        assert segmented.bounds(LOG) == (30, END)


def batches_in(data: bytes) -> list[tuple[int, bytes]]:
    """(base offset, bytes) of each batch."""
    return [(each.base_offset, data[at : at + each.size_bytes]) for at, each in iter_headers(data)]
