"""Times of groups and committed offsets: on the session clock in memory, on the wall clock where
they are stored.

    session clock    begins with the wall clock's time and is monotonic from there: nothing ends
                     because somebody sets the clock
    wall clock       is right again after a restart, also where it was wrong, or the machine asleep,
                     in the life before

An age within one broker life is told by the session clock alone: a step of the wall clock makes
nothing older or younger. What an earlier life has stored is as old as the wall clock says, at most:
a time to come counts as now, and a wall clock that was set back since the start was ahead at the
start, so that what was loaded then is younger than it seemed.

Whoever asks the coordinators for a decision sets `ahead_ms` first. This module knows no clock.
"""

from __future__ import annotations

from typing import Final

NEVER_MS: Final = 0
"""In the place of a time, in memory and where it is stored."""


class StoredTimes:
    """`began_ms`: when the session clock began, and agreed with the wall clock. `ahead_ms`: the
    wall clock's time minus the session clock's, now."""

    def __init__(self, began_ms: int = 0) -> None:
        self.began_ms = began_ms
        self.ahead_ms = 0

    def to_store(self, time_ms: int) -> int:
        """A moment of this broker life, or one that was loaded, as it is stored."""
        return NEVER_MS if time_ms == NEVER_MS else time_ms + self.ahead_ms

    def loaded(self, stored_ms: int, now_ms: int) -> int:
        """A moment that was stored, on the session clock, where it is `now_ms`."""
        return NEVER_MS if stored_ms == NEVER_MS else min(stored_ms - self.ahead_ms, now_ms)

    def latest(self, time_ms: int) -> int:
        """The latest that this moment can have been: what is old even so is old."""
        if time_ms >= self.began_ms or self.ahead_ms >= 0:
            return time_ms
        return min(time_ms - self.ahead_ms, self.began_ms)
