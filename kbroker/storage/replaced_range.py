"""What every engine checks of a Replacement: that its pieces cover the segment, in order. This
module must not know how contents are stored."""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.storage.spi import StampedBatch


class AddedRange:
    """The offsets of a segment up to `end`; `position` is where the next add() begins."""

    def __init__(self, base_offset: int, end: int) -> None:
        self.position = base_offset
        self.end = end

    def add(self, end: int, batches: Sequence[StampedBatch]) -> None:
        """ValueError unless the batches rise and lie between `position` and `end`."""
        self.check(end, batches)
        self.position = end

    def check(self, end: int, batches: Sequence[StampedBatch]) -> None:
        if not self.position <= end <= self.end:
            raise ValueError(f"{end} is not between {self.position} and {self.end}")
        least_offset = self.position
        for batch in batches:
            if not least_offset <= batch.base_offset <= batch.last_offset < end:
                raise ValueError(f"a batch at {batch.base_offset} is not between {least_offset} and {end}")
            least_offset = batch.last_offset + 1

    def check_complete(self) -> None:
        """ValueError if something was not added."""
        if self.position != self.end:
            raise ValueError(f"the new contents end at {self.position}, not at {self.end}")
