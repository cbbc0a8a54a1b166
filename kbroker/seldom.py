"""Selects the few of many equal events that get a log line, and counts the others.

Clients determine how often an event happens and under how many names, and must not be able to flood
the log. Time is an argument.
"""

from __future__ import annotations

from collections.abc import Hashable


class Seldom:
    """Allows each kind one line in `interval_s`, and all kinds together at most `most`. Remembers
    at most `most` kinds."""

    __slots__ = ("_interval_s", "_most", "_said")

    def __init__(self, interval_s: float, most: int = 100) -> None:
        self._interval_s = interval_s
        self._most = most
        self._said: dict[Hashable, list[float]] = {}
        """For each kind the time of its last line and the events since; the oldest line first."""

    def __len__(self) -> int:
        """Kinds that are remembered."""
        return len(self._said)

    def times(self, kind: Hashable, now_s: float) -> int:
        """Count an event at `now_s`. Returns 0 if it gets no line, else the number of events of its
        kind since the last line, including this one."""
        said = self._said.get(kind)
        if said is None:
            if len(self._said) >= self._most and not self._forget_one(now_s):
                return 0
            happened = 1
        elif now_s - said[0] < self._interval_s:
            said[1] += 1
            return 0
        else:
            happened = int(said[1]) + 1
            del self._said[kind]
        self._said[kind] = [now_s, 0]
        return happened

    def _forget_one(self, now_s: float) -> bool:
        oldest = next(iter(self._said))
        if now_s - self._said[oldest][0] < self._interval_s:
            return False
        del self._said[oldest]
        return True
