"""Whether a log needs a pass, and how far the pass may go. Offsets, sizes and times only.

    ─── clean part ───┬──────── dirty part ────────┬──── not cleanable yet ────►
    log start      first_dirty                 end_offset                     end of the log

Not cleanable:
- the active segment
- segments with records younger than min.compaction.lag.ms
- all from the first open transaction on
- all that a share group has not finished, if its topic protects that
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kbroker.storage.spi import SegmentInfo


class CompactionSettings(NamedTuple):
    """The topic's settings of the same names."""

    min_cleanable_dirty_ratio: float
    min_lag_ms: int
    max_lag_ms: int
    delete_retention_ms: int


class Cleanable(NamedTuple):
    """- `segments`: the sealed ones from the log's start that a pass may rewrite, in order
    - `first_dirty`: the records from there on were in no pass yet
    - `oldest_dirty_ms`: the first time of the segments with such records, -1 without one, and if
      none can be old"""

    segments: Sequence[SegmentInfo]
    first_dirty: int
    clean_bytes: int
    dirty_bytes: int
    oldest_dirty_ms: int

    @property
    def end_offset(self) -> int:
        return self.segments[-1].end_offset if self.segments else self.first_dirty

    @property
    def dirty_ratio(self) -> float:
        """The dirty part of all bytes that a pass would read; 0 of nothing."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def is_due(self, settings: CompactionSettings, now_ms: int) -> bool:
        """Whether a pass is worth while, or required by max.compaction.lag.ms."""
        if not self.dirty_bytes:
            return False
        is_old = 0 <= self.oldest_dirty_ms < now_ms - settings.max_lag_ms
        return is_old or self.dirty_ratio > settings.min_cleanable_dirty_ratio


def cleanable(
    segments: Sequence[SegmentInfo],
    settings: CompactionSettings,
    *,
    cleaned_to: int,
    protected_from: int,
    now_ms: int,
    first_time_ms: Callable[[SegmentInfo], int],
) -> Cleanable:
    """`segments`: all of the log, the active one last. `cleaned_to`: where the last pass stopped, 0
    before the first one. `protected_from`: no record from there on may be removed. `first_time_ms`:
    the time of a segment's first batch, which is read if max.compaction.lag.ms is set."""
    start = segments[0].base_offset
    first_dirty = cleaned_to if start <= cleaned_to <= segments[-1].end_offset else start
    found: list[SegmentInfo] = []
    for segment in segments[:-1]:
        is_young = settings.min_lag_ms > 0 and (
            segment.max_timestamp_ms > now_ms - settings.min_lag_ms
            or (segment.max_timestamp_ms < 0 and segment.size_bytes > 0)  # without a time
        )
        if is_young or segment.end_offset > protected_from:
            break
        found.append(segment)
    clean = [each for each in found if each.end_offset <= first_dirty]
    dirty = found[len(clean) :]
    dated = dirty if settings.max_lag_ms < now_ms else ()
    times_ms = (time_ms for each in dated if (time_ms := first_time_ms(each)) > 0)
    return Cleanable(
        found,
        first_dirty,
        sum(each.size_bytes for each in clean),
        sum(each.size_bytes for each in dirty),
        min(times_ms, default=-1),
    )
