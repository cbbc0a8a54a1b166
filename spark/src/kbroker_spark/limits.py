"""The size of a micro-batch: maxOffsetsPerTrigger, and minOffsetsPerTrigger with maxTriggerDelay,
as in Spark's Kafka source.

The limits count offsets, not records. Where a log has holes, a batch has fewer records than its
limit, never more. Pure: time is an argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

_Key = TypeVar("_Key")


class Span(NamedTuple):
    """The readable offsets of one partition: [first, end), empty if `end` <= `first`."""

    first: int
    end: int

    @property
    def size(self) -> int:
        return max(self.end - self.first, 0)


def proportional_ends(limit: int, spans: Mapping[_Key, Span]) -> dict[_Key, int]:
    """The end, in each partition, of a batch of about `limit` offsets.

    A partition's share is proportional to its span, rounded down, but at least one offset, so that
    no partition starves beside a large one. A batch may thus exceed `limit` by one offset for each
    partition. An empty span keeps its end.
    """
    total = sum(span.size for span in spans.values())
    return {
        key: span.first + min(span.size, _share(limit, span.size, total)) if span.size else span.end
        for key, span in spans.items()
    }


def _share(limit: int, size: int, total: int) -> int:
    """Integer arithmetic, since the float `limit * (size / total)` loses offsets beyond 2^53."""
    return max(limit * size // total, 1)


class Patience:
    """minOffsetsPerTrigger: a batch waits until that many offsets are available, or until
    `max_delay_ms` have passed since the last batch.

    The first batch does not wait, since its records may have been there since the query was last
    stopped. Nothing of this is stored in the checkpoint."""

    def __init__(self, min_offsets: int, max_delay_ms: int) -> None:
        self._min_offsets = min_offsets
        self._max_delay_ms = max_delay_ms
        self._last_batch_ms: int | None = None

    def waits(self, available: int, now_ms: int) -> bool:
        """Whether a batch of `available` offsets has to wait. If not, the delay of the next batch
        starts now."""
        if available < 1:
            return False
        overdue = self._last_batch_ms is None or now_ms - self._last_batch_ms >= self._max_delay_ms
        if available < self._min_offsets and not overdue:
            return True
        self._last_batch_ms = now_ms
        return False
