"""Which segments a pass may rewrite, and whether it is due."""

from __future__ import annotations

import pytest

from kbroker.compaction.choice import Cleanable, CompactionSettings, cleanable
from kbroker.storage.spi import SegmentInfo

NOW_MS = 1_000_000
FOREVER_MS = (1 << 63) - 1
SEGMENTS = [SegmentInfo(first, first + 10, 100, NOW_MS - 1000 + first) for first in (0, 10, 20, 30)]
FIRST_MS = {each.base_offset: NOW_MS - 2000 + each.base_offset for each in SEGMENTS}
SETTINGS = CompactionSettings(0.5, 0, FOREVER_MS, 0)


def choose(
    settings: CompactionSettings = SETTINGS, *, cleaned_to: int = 0, protected_from: int = 40
) -> Cleanable:
    return cleanable(
        SEGMENTS, settings, cleaned_to=cleaned_to, protected_from=protected_from, now_ms=NOW_MS,
        first_time_ms=lambda segment: FIRST_MS[segment.base_offset],
    )  # fmt: skip


def test_all_but_the_active_segment() -> None:
    found = choose()
    assert (found.segments, found.first_dirty, found.end_offset) == (SEGMENTS[:3], 0, 30)
    assert (found.clean_bytes, found.dirty_bytes, found.dirty_ratio) == (0, 300, 1.0)
    assert found.is_due(SETTINGS, NOW_MS)


@pytest.mark.parametrize(("protected_from", "end"), [(30, 30), (29, 20), (10, 10), (9, 0), (0, 0)])
def test_a_segment_with_a_protected_record_stays(protected_from: int, end: int) -> None:
    assert choose(protected_from=protected_from).end_offset == end


@pytest.mark.parametrize(("lag_ms", "end"), [(0, 30), (980, 30), (981, 20), (1000, 10), (1001, 0)])
def test_a_young_segment_stays(lag_ms: int, end: int) -> None:
    assert choose(SETTINGS._replace(min_lag_ms=lag_ms)).end_offset == end


@pytest.mark.parametrize(
    ("cleaned_to", "dirty_bytes", "is_due"),
    [(0, 300, True), (10, 200, True), (15, 200, True), (20, 100, False), (30, 0, False)],
)
def test_more_than_the_ratio_must_be_new(cleaned_to: int, dirty_bytes: int, is_due: bool) -> None:
    found = choose(cleaned_to=cleaned_to)
    assert (found.first_dirty, found.dirty_bytes) == (cleaned_to, dirty_bytes)
    assert found.is_due(SETTINGS, NOW_MS) == is_due
    assert found.is_due(SETTINGS._replace(min_cleanable_dirty_ratio=0), NOW_MS) == (dirty_bytes > 0)


def test_an_old_segment_is_due_in_any_case() -> None:
    """By the time of its first batch, whatever follows in it."""
    for lag_ms, is_due in ((1979, True), (1980, False)):
        settings = SETTINGS._replace(max_lag_ms=lag_ms)
        found = choose(settings, cleaned_to=20)
        assert found.oldest_dirty_ms == NOW_MS - 1980
        assert found.is_due(settings, NOW_MS) == is_due


def test_the_oldest_of_the_new_segments_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FIRST_MS, 20, NOW_MS - 5000)
    monkeypatch.setitem(FIRST_MS, 10, -1)  # without a time
    assert choose(SETTINGS._replace(max_lag_ms=100), cleaned_to=10).oldest_dirty_ms == NOW_MS - 5000
    assert choose(SETTINGS._replace(max_lag_ms=100), cleaned_to=30).oldest_dirty_ms == -1


def test_without_a_maximum_lag_no_batch_is_read() -> None:
    assert choose(cleaned_to=20).oldest_dirty_ms == -1


@pytest.mark.parametrize("cleaned_to", [-1, 41, 10**9])
def test_a_stop_outside_of_the_log_counts_as_none(cleaned_to: int) -> None:
    assert choose(cleaned_to=cleaned_to).first_dirty == 0


def test_a_log_of_one_segment_is_never_due() -> None:
    found = cleanable(
        SEGMENTS[3:],
        SETTINGS,
        cleaned_to=0,
        protected_from=40,
        now_ms=NOW_MS,
        first_time_ms=lambda segment: 1,
    )
    assert (found.segments, found.end_offset, found.is_due(SETTINGS, NOW_MS)) == ([], 30, False)
