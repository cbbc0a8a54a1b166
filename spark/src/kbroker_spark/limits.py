"""How much a micro-batch takes: maxOffsetsPerTrigger, and minOffsetsPerTrigger with
maxTriggerDelay, as in Spark's Kafka source.

Offsets are counted, not records: where a log has holes a batch is smaller than its limit, never
larger. Pure: time is an argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

_Key = TypeVar("_Key")


class Span(NamedTuple):
    """Offsets of one partition that can be read: from `first` up to, but without, `end`. `end` <=
    `first`: nothing."""

    first: int
    end: int

    @property
    def size(self) -> int:
        return max(self.end - self.first, 0)


def proportional_ends(limit: int, spans: Mapping[_Key, Span]) -> dict[_Key, int]:
    """Where a batch of about `limit` offsets ends in each partition. Each takes its share of what
    there is, rounded down, but at least one offset, so that no partition starves beside a large
    one; so a batch may exceed `limit` by one offset for each partition. A partition with nothing to
    read keeps its end."""
    total = sum(span.size for span in spans.values())
    return {
        key: span.first + min(span.size, _share(limit, span.size, total)) if span.size else span.end
        for key, span in spans.items()
    }


def _share(limit: int, size: int, total: int) -> int:
    """In whole numbers: `limit * (size / total)` as a float loses offsets beyond 2^53."""
    return max(limit * size // total, 1)


class Patience:
    """minOffsetsPerTrigger: a batch waits until that many offsets are there, or until
    `max_delay_ms` have passed since the last one.

    The first batch does not wait: it may find what has lain there since a query was stopped.
    Nothing of this is in the checkpoint."""

    def __init__(self, min_offsets: int, max_delay_ms: int) -> None:
        self._min_offsets = min_offsets
        self._max_delay_ms = max_delay_ms
        self._last_batch_ms: int | None = None

    def waits(self, available: int, now_ms: int) -> bool:
        """Whether a batch of `available` offsets has to wait; where it does not, this is the moment
        from which the next one counts."""
        if available < 1:
            return False
        overdue = self._last_batch_ms is None or now_ms - self._last_batch_ms >= self._max_delay_ms
        if available < self._min_offsets and not overdue:
            return True
        self._last_batch_ms = now_ms
        return False
