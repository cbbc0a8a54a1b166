"""Which of many equal events are worth a log line: each kind once in a while, with the number of those that got none.

Clients decide what happens how often, and under how many names: a log must not grow by that. Time is an argument.
"""

from __future__ import annotations

from collections.abc import Hashable


class Seldom:
    """At most one line per kind and `interval_s`, and at most `most` lines for all kinds in that time; so many are remembered."""

    __slots__ = ("_interval_s", "_most", "_said")

    def __init__(self, interval_s: float, most: int = 100) -> None:
        self._interval_s = interval_s
        self._most = most
        self._said: dict[Hashable, list[float]] = {}
        """When a kind was said, and how often it happened since; the longest ago first."""

    def times(self, kind: Hashable, now_s: float) -> int:
        """Of an event: 0 for one that gets no line; otherwise how often its kind has happened since its last line, this one included."""
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
