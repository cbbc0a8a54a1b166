"""Which segments a pass may rewrite, and whether it is due."""

from __future__ import annotations

import pytest

from kbroker.compaction.choice import Cleanable, CompactionSettings, cleanable
from kbroker.storage.spi import SegmentInfo

NOW_MS = 1_000_000
FOREVER_MS = (1 << 63) - 1
SEGMENTS = [SegmentInfo(first, first + 10, 100, NOW_MS - 1000 + first) for first in (0, 10, 20, 30)]
SETTINGS = CompactionSettings(0.5, 0, FOREVER_MS, 0)


def choose(
    settings: CompactionSettings = SETTINGS, *, cleaned_to: int = 0, protected_from: int = 40
) -> Cleanable:
    return cleanable(SEGMENTS, settings, cleaned_to=cleaned_to, protected_from=protected_from, now_ms=NOW_MS)


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
    found = choose(cleaned_to=20)
    assert found.oldest_dirty_ms == NOW_MS - 980
    assert found.is_due(SETTINGS._replace(max_lag_ms=979), NOW_MS)
    assert not found.is_due(SETTINGS._replace(max_lag_ms=980), NOW_MS)


@pytest.mark.parametrize("cleaned_to", [-1, 41, 10**9])
def test_a_stop_outside_of_the_log_counts_as_none(cleaned_to: int) -> None:
    assert choose(cleaned_to=cleaned_to).first_dirty == 0


def test_a_log_of_one_segment_is_never_due() -> None:
    found = cleanable(SEGMENTS[3:], SETTINGS, cleaned_to=0, protected_from=40, now_ms=NOW_MS)
    assert (found.segments, found.end_offset, found.is_due(SETTINGS, NOW_MS)) == ([], 30, False)
