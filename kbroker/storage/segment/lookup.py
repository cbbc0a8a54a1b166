"""What a LogReader finds in the segments of a log. Segments may begin and end with holes, and hold
nothing. This module must not know where the segments come from."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from kbroker.storage.segment.segment import Segment


def read_segments(
    segments: Sequence[Segment], offset: int, max_bytes: int, end_offset: int
) -> list[memoryview]:
    """LogReader.read over the segments of a log."""
    first = last = len(segments) - 1
    if offset < segments[first].base_offset:
        first = max(0, bisect_right(segments, offset, key=_base_offset) - 1)
    views: list[memoryview] = []
    for number in range(first, last + 1):
        segment = segments[number]
        if segment.base_offset >= end_offset:
            break
        index = segment._index
        if index is None:
            index = segment.index
        start, end = index.locate(offset, max_bytes, end_offset, first_in_any_case=not views)
        if start != end:
            views.append(segment.view(start, end))
            max_bytes -= end - start
        if number == last or (views and max_bytes <= 0) or end != index.size_bytes:
            break
    return views


def is_cached_in_segments(segments: Sequence[Segment], offset: int, max_bytes: int, end_offset: int) -> bool:
    """LogReader.is_cached over the segments of a log: of a read that stays in one segment, whose
    index has been read before."""
    segment = segments[max(0, bisect_right(segments, offset, key=_base_offset) - 1)]
    index = segment._index
    if index is None:
        return False
    start, end = index.locate(offset, max_bytes, end_offset, first_in_any_case=True)
    return start < end < index.size_bytes and segment.is_cached(start, end)


def find_in_segments(segments: Sequence[Segment], timestamp_ms: int) -> int | None:
    """LogReader.find_by_timestamp over the segments of a log."""
    for segment in segments:
        if segment.info().max_timestamp_ms >= timestamp_ms and (index := segment.index).size_bytes:
            return index.base_offsets[bisect_left(index.newest_ms, timestamp_ms, 0, len(index))]
    return None


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
