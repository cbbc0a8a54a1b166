"""The coordinators' clock: wall-clock milliseconds at the start, monotonic from there. Sessions must not end because somebody set the
clock."""

from __future__ import annotations

from kbroker.broker.deadlines import now_ms as monotonic_ms
from kbroker.clock import wall_clock_ms


class SessionClock:
    def __init__(self) -> None:
        self._offset_ms = wall_clock_ms() - monotonic_ms()

    def now_ms(self) -> int:
        return int(monotonic_ms() + self._offset_ms)

    def trio_time(self, deadline_ms: int) -> float:
        """A moment of this clock on trio's, in seconds; when that has come, `now_ms` is not before the moment."""
        return (deadline_ms + 1 - self._offset_ms) / 1000
