"""The part of the LogStore contract about segments and removals: when a log rolls, trim(),
truncate(), and views that outlive both.

LogStoreContract includes these tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from kbroker.storage.spi import LogReader, LogSettings, LogStore, LogStoreFactory, StampedBatch
from kbroker.testing.log_store_model import (
    EVERYTHING,
    LOG,
    SETTINGS,
    batch,
    check_segments,
    joined,
    read_all,
    sized_batch,
)
from kbroker.testing.opened_engine import OpenedEngine


class LogRemovalContract(OpenedEngine[LogStore, LogReader]):
    factory: ClassVar[LogStoreFactory]

    # Rolling to a new segment

    def test_roll_by_size(self, store: LogStore) -> None:
        size = len(sized_batch(0, 200).data)
        store.create(LOG, LogSettings(segment_bytes=3 * size))
        store.write([sized_batch(offset, 200) for offset in range(8)], now_ms=0)
        check_segments(store)
        segments = store.segments(LOG)
        assert len(segments) >= 3
        assert all(segment.size_bytes <= 3 * size for segment in segments)

    def test_a_larger_batch_has_a_segment_of_its_own(self, store: LogStore) -> None:
        store.create(LOG, LogSettings(segment_bytes=300))
        store.write([sized_batch(0, 1000), sized_batch(1, 1000), sized_batch(2, 100)], now_ms=0)
        check_segments(store)
        assert [segment.base_offset for segment in store.segments(LOG)] == [0, 1, 2]

    def test_roll_by_time(self, store: LogStore) -> None:
        store.create(LOG, LogSettings(segment_ms=1000))
        store.write([batch(0, timestamp_ms=5000)], now_ms=5000)
        store.write([batch(1, timestamp_ms=5500)], now_ms=5500)
        assert len(store.segments(LOG)) == 1
        store.write([batch(2, timestamp_ms=6500)], now_ms=6500)
        assert [segment.base_offset for segment in store.segments(LOG)] == [0, 2]
        store.write([batch(3, timestamp_ms=7000)], now_ms=7000)
        assert [segment.base_offset for segment in store.segments(LOG)] == [0, 2]
        check_segments(store)

    def test_records_times_decide_about_their_segment(self, store: LogStore, directory: Path) -> None:
        """As in Kafka: the age of a segment begins with the time of its first batch, whatever the
        broker's clock says. Without that time, the clock decides."""
        store.create(LOG, LogSettings(segment_ms=1000))
        store.write([batch(0, timestamp_ms=5000), batch(1, timestamp_ms=6000)], now_ms=0)
        store.write([batch(2, timestamp_ms=0)], now_ms=100_000)
        assert [segment.base_offset for segment in store.segments(LOG)] == [0]
        late = [batch(3, timestamp_ms=6001), batch(4, timestamp_ms=7001), batch(5, timestamp_ms=7002)]
        store.write(late, now_ms=100_000)
        assert [segment.base_offset for segment in store.segments(LOG)] == [0, 3, 5]
        store.write([batch(6, timestamp_ms=-1)], now_ms=200_000)
        assert [segment.base_offset for segment in store.segments(LOG)] == [0, 3, 5]
        with self.reopened(store, directory) as again:
            again.create(LOG, LogSettings(segment_ms=1000))
            again.write([batch(7, timestamp_ms=8002)], now_ms=300_000)
            assert [segment.base_offset for segment in again.segments(LOG)] == [0, 3, 5]
            again.write([batch(8, timestamp_ms=8003)], now_ms=300_000)
            assert [segment.base_offset for segment in again.segments(LOG)] == [0, 3, 5, 8]
            check_segments(again)

    def test_the_clock_decides_where_records_have_no_time(self, store: LogStore) -> None:
        store.create(LOG, LogSettings(segment_ms=1000))
        for offset, now_ms in enumerate((0, 1000, 1001)):
            store.write([batch(offset, timestamp_ms=-1)], now_ms=now_ms)
        assert [segment.base_offset for segment in store.segments(LOG)] == [0, 2]
        store.write([batch(3, timestamp_ms=9_000_000)], now_ms=2001)
        assert [segment.base_offset for segment in store.segments(LOG)] == [0, 2]

    def test_an_empty_segment_does_not_roll(self, store: LogStore) -> None:
        store.create(LOG, LogSettings(segment_bytes=10, segment_ms=1))
        store.write([batch(0)], now_ms=1_000_000)
        assert [segment.base_offset for segment in store.segments(LOG)] == [0]

    def test_changed_settings_apply_from_the_next_write(self, store: LogStore, directory: Path) -> None:
        store.create(LOG, SETTINGS)
        store.write([sized_batch(0, 200), sized_batch(1, 200)], now_ms=0)
        assert len(store.segments(LOG)) == 1
        store.create(LOG, LogSettings(segment_bytes=300))
        store.write([sized_batch(2, 200)], now_ms=0)
        assert [segment.base_offset for segment in store.segments(LOG)] == [0, 2]
        store.create(LOG, SETTINGS)
        store.write([sized_batch(3, 200), sized_batch(4, 200)], now_ms=0)
        assert [segment.base_offset for segment in store.segments(LOG)] == [0, 2]
        with self.reopened(store, directory) as again:
            again.create(LOG, LogSettings(segment_bytes=300))
            again.write([sized_batch(5, 200)], now_ms=0)
            assert [segment.base_offset for segment in again.segments(LOG)] == [0, 2, 5]
            check_segments(again)

    # Trim and truncate

    def rolled(self, store: LogStore, count: int = 6) -> list[StampedBatch]:
        """`count` segments of one batch of ten records each."""
        store.create(LOG, LogSettings(segment_bytes=1))
        written = [batch(offset, 10, timestamp_ms=offset) for offset in range(0, count * 10, 10)]
        store.write(written, now_ms=0)
        assert len(store.segments(LOG)) == count
        return written

    @pytest.mark.parametrize(
        ("new_start", "left"), [(0, 0), (9, 0), (10, 1), (11, 1), (29, 2), (30, 3), (50, 5)]
    )
    def test_trim_removes_whole_segments_below(
        self, store: LogStore, directory: Path, new_start: int, left: int
    ) -> None:
        written = self.rolled(store)
        store.trim(LOG, new_start)
        assert store.bounds(LOG) == (left * 10, 60)
        assert read_all(store) == joined(written[left:])
        assert read_all(store, offset=left * 10) == joined(written[left:])
        check_segments(store)
        with self.reopened(store, directory) as again:
            assert again.bounds(LOG) == (left * 10, 60)
            assert read_all(again) == joined(written[left:])
            check_segments(again)

    @pytest.mark.parametrize("new_start", [60, 1000])
    def test_trim_of_everything_leaves_an_empty_segment_at_the_end(
        self, store: LogStore, directory: Path, new_start: int
    ) -> None:
        self.rolled(store)
        store.trim(LOG, new_start)
        assert store.bounds(LOG) == (60, 60)
        assert [tuple(segment) for segment in store.segments(LOG)] == [(60, 60, 0, -1)]
        assert read_all(store) == b""
        store.trim(LOG, new_start)
        assert store.bounds(LOG) == (60, 60)
        with self.reopened(store, directory) as again:
            assert again.bounds(LOG) == (60, 60)
            again.create(LOG, SETTINGS)
            again.write([batch(60, 2)], now_ms=0)
            assert again.bounds(LOG) == (60, 62)
            assert read_all(again) == batch(60, 2).data

    def test_trim_of_an_empty_log(self, store: LogStore) -> None:
        store.create(LOG, SETTINGS)
        store.trim(LOG, 100)
        assert store.bounds(LOG) == (0, 0)

    def test_trim_never_cuts_the_active_segment(self, store: LogStore) -> None:
        store.create(LOG, SETTINGS)
        store.write([batch(0, 10), batch(10, 10)], now_ms=0)
        store.trim(LOG, 15)
        assert store.bounds(LOG) == (0, 20)
        store.trim(LOG, 20)
        assert store.bounds(LOG) == (20, 20)

    @pytest.mark.parametrize("new_end", [10, 20, 30, 40, 50])
    @pytest.mark.parametrize("segment_bytes", [1, 300, 1 << 20])
    def test_truncate(self, store: LogStore, directory: Path, new_end: int, segment_bytes: int) -> None:
        store.create(LOG, LogSettings(segment_bytes=segment_bytes))
        written = [batch(offset, 10, timestamp_ms=offset) for offset in range(0, 60, 10)]
        store.write(written, now_ms=0)
        store.sync()
        store.truncate(LOG, new_end)
        kept = written[: new_end // 10]
        assert store.bounds(LOG) == (0, new_end)
        assert read_all(store) == joined(kept)
        assert store.find_by_timestamp(LOG, new_end) is None
        check_segments(store)
        again_written = batch(new_end, 5, timestamp_ms=7)
        store.write([again_written], now_ms=0)
        with self.reopened(store, directory) as again:
            assert again.bounds(LOG) == (0, new_end + 5)
            assert read_all(again) == joined([*kept, again_written])
            check_segments(again)

    @pytest.mark.parametrize("segment_bytes", [1, 1 << 20])
    def test_truncate_to_the_start_leaves_an_empty_log(
        self, store: LogStore, directory: Path, segment_bytes: int
    ) -> None:
        store.create(LOG, LogSettings(segment_bytes=segment_bytes))
        store.write([batch(5, 5), batch(10, 10), batch(20, 10)], now_ms=0)
        store.truncate(LOG, 5)
        assert store.bounds(LOG) == (5, 5)
        assert read_all(store) == b""
        check_segments(store)
        with self.reopened(store, directory) as again:
            assert again.bounds(LOG) == (5, 5)
            again.create(LOG, SETTINGS)
            again.write([batch(5, 2)], now_ms=0)
            assert read_all(again) == batch(5, 2).data

    def test_truncate_at_or_past_the_end_changes_nothing(self, store: LogStore) -> None:
        written = self.rolled(store)
        store.truncate(LOG, 60)
        store.truncate(LOG, 70)
        assert store.bounds(LOG) == (0, 60)
        assert read_all(store) == joined(written)

    # Views stay valid after their records are removed

    def views(self, store: LogStore) -> tuple[Sequence[memoryview], bytes]:
        written = self.rolled(store)
        store.sync()
        views = store.read(LOG, 0, max_bytes=EVERYTHING, end_offset=EVERYTHING)
        return views, joined(written)

    def test_views_survive_drop(self, store: LogStore) -> None:
        views, expected = self.views(store)
        store.drop(LOG)
        store.create(LOG, SETTINGS)
        store.write([batch(0, 3)], now_ms=0)
        assert b"".join(views) == expected

    def test_views_survive_trim(self, store: LogStore) -> None:
        views, expected = self.views(store)
        store.trim(LOG, 60)
        store.write([batch(60, 3)], now_ms=0)
        assert b"".join(views) == expected

    @pytest.mark.parametrize("segment_bytes", [1, 300, 1 << 20])
    def test_views_survive_truncate(self, store: LogStore, segment_bytes: int) -> None:
        store.create(LOG, LogSettings(segment_bytes=segment_bytes))
        written = [batch(offset, 10) for offset in range(0, 60, 10)]
        store.write(written, now_ms=0)
        views = store.read(LOG, 0, max_bytes=EVERYTHING, end_offset=EVERYTHING)
        store.truncate(LOG, 20)
        store.write(
            [batch(offset, 10, value=b"other content altogether") for offset in range(20, 60, 10)], now_ms=0
        )
        assert b"".join(views) == joined(written)

    def test_views_survive_close_and_later_writes(self, directory: Path) -> None:
        with self.opened(directory) as store:
            views, expected = self.views(store)
            store.write([batch(60, 10)], now_ms=0)
            store.sync()
        with self.opened(directory):
            assert b"".join(views) == expected
