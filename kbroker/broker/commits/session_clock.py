"""The coordinators' clock: wall-clock milliseconds at the start, monotonic from there, so that
setting the wall clock ends no sessions. Stored times follow the wall clock
(groups/stored_times.py)."""

from __future__ import annotations

from kbroker.broker.commits.deadlines import now_ms as monotonic_ms
from kbroker.clock import wall_clock_ms
from kbroker.groups.stored_times import StoredTimes


class SessionClock:
    """`times` converts the times of this clock to stored times and back."""

    def __init__(self) -> None:
        began_ms = wall_clock_ms()
        self._offset_ms = began_ms - monotonic_ms()
        self.times = StoredTimes(began_ms)

    def now_ms(self) -> int:
        """The time for a decision in the same step."""
        now_ms = int(monotonic_ms() + self._offset_ms)
        self.times.ahead_ms = wall_clock_ms() - now_ms
        return now_ms

    def trio_time(self, deadline_ms: int) -> float:
        """A moment of this clock on trio's, in seconds. Once it has passed, `now_ms` is at least
        `deadline_ms`."""
        return (deadline_ms + 1 - self._offset_ms) / 1000
