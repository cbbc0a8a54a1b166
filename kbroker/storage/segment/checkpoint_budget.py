"""Decides when checkpoints are written: not at every sync, but when the synced batches outside of
checkpoints exceed a budget of bytes for the whole store. The budget is about what a start after a
crash has to read.
"""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.storage.files import REFUSALS, Files
from kbroker.storage.segment.checkpoint import extend_checkpoint
from kbroker.storage.segment.segment import Segment


class Checkpoints:
    """The checkpoints of a store's segments. The owner serialises all calls."""

    def __init__(self, budget_bytes: int, files: Files) -> None:
        self._budget_bytes = budget_bytes
        self._files = files
        self._waiting: dict[Segment, int] = {}
        """Synced bytes that are not in the segment's checkpoint; the segment that has waited
        longest comes first."""
        self.waiting_bytes = 0

    def synced(self, segments: Iterable[tuple[Segment, int]]) -> None:
        """Note that of each segment the given number of batches, counted from its start, are on
        disk."""
        for segment, batches in segments:
            if segment.sealed or segment.discarded or batches <= segment.synced_batches:
                continue
            ends = segment.index.ends
            known_end = ends[segment.synced_batches - 1] if segment.synced_batches else 0
            added = ends[batches - 1] - known_end
            segment.synced_batches = batches
            self._waiting[segment] = self._waiting.get(segment, 0) + added
            self.waiting_bytes += added

    def forget(self, segment: Segment) -> None:
        """The segment was sealed or removed."""
        self.waiting_bytes -= self._waiting.pop(segment, 0)

    def write_due(self, at_most: int) -> None:
        """Extend checkpoints until the rest is within the budget, at most `at_most` of them. A lack
        of space or of open files is no error: the next sync tries again."""
        for _ in range(at_most):
            if self.waiting_bytes <= self._budget_bytes:
                return
            segment = next(iter(self._waiting))
            try:
                segment.recorded = extend_checkpoint(
                    segment.path, segment.recorded, segment.index, segment.synced_batches, self._files
                )
            except OSError as error:
                if error.errno not in REFUSALS:
                    raise
                return
            self.forget(segment)
