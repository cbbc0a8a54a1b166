"""Times of groups and committed offsets: on the session clock in memory, on the wall clock in
records.

    session clock    starts at the wall clock's time and is monotonic from there, so that nothing
                     expires when someone sets the clock
    wall clock       is right again after a restart, even if it was wrong or the machine was asleep
                     before

Within one run of the broker, ages are measured by the session clock alone: a step of the wall clock
changes none. Times stored by an earlier run are at most as old as the wall clock says. A time in
the future becomes now. If the wall clock was set back since the start, it was ahead at the start,
so times loaded then are more recent than they seemed.

The caller sets `ahead_ms` before each decision of a coordinator. This module knows no clock.
"""

from __future__ import annotations

from typing import Final

NEVER_MS: Final = 0
"""Used instead of a time, in memory and in records."""


class StoredTimes:
    """`began_ms`: when the session clock started, at the wall clock's time. `ahead_ms`: the wall
    clock's time minus the session clock's, at present."""

    def __init__(self, began_ms: int = 0) -> None:
        self.began_ms = began_ms
        self.ahead_ms = 0

    def to_store(self, time_ms: int) -> int:
        """Convert a session clock time for a record."""
        return NEVER_MS if time_ms == NEVER_MS else time_ms + self.ahead_ms

    def loaded(self, stored_ms: int, now_ms: int) -> int:
        """Convert a stored time to the session clock, which shows `now_ms`."""
        return NEVER_MS if stored_ms == NEVER_MS else min(stored_ms - self.ahead_ms, now_ms)

    def latest(self, time_ms: int) -> int:
        """The latest possible time of the moment, for decisions about its age."""
        if time_ms >= self.began_ms or self.ahead_ms >= 0:
            return time_ms
        return min(time_ms - self.ahead_ms, self.began_ms)
