"""Rates over the last seconds, and how long a client must wait that has exceeded its quota.

As in Kafka a rate is measured over `samples` windows (quota.window.num, and
quota.window.size.seconds for the length of each). A window begins with the first value after the
end of the one before. It is forgotten when its last value is as old as all windows together. The
time that a rate refers to is that since the oldest window began, and at least `samples` - 1
windows. So a client that was idle may use ten seconds' worth at once (with 11 windows of a second),
and then waits for them.

Times are milliseconds of any clock; they must not go backwards.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

O = TypeVar("O", bound=Hashable)  # noqa: E741 - an owner
_FEW: Final = 1024
_LONGEST_MS: Final = (1 << 31) - 1
"""The largest throttle_time_ms: 24 days."""


class Windows(NamedTuple):
    samples: int
    window_ms: int

    @property
    def span_ms(self) -> int:
        """After this time without a value nothing is left of a rate."""
        return self.samples * self.window_ms


@dataclass(slots=True)
class _Sample:
    began_ms: float
    last_ms: float
    total: float


class Rate:
    """What one owner has used. Values may be negative, to take back earlier ones."""

    __slots__ = ("_samples", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._samples: deque[_Sample] = deque()

    def record(self, value: float, now_ms: float) -> None:
        samples = self._samples
        if not samples or now_ms - samples[-1].began_ms >= self._windows.window_ms:
            samples.append(_Sample(now_ms, now_ms, 0.0))
        newest = samples[-1]
        newest.total += value
        newest.last_ms = now_ms

    def total(self, now_ms: float) -> float:
        self._forget(now_ms)
        return sum(sample.total for sample in self._samples)

    def over_ms(self, now_ms: float) -> float:
        """The time that the rate refers to."""
        self._forget(now_ms)
        samples, window_ms = self._samples, self._windows.window_ms
        elapsed_ms = now_ms - samples[0].began_ms if samples else 0.0
        missing = self._windows.samples - 1 - int(elapsed_ms // window_ms)
        return max(elapsed_ms + max(0, missing) * window_ms, 1.0)

    def per_second(self, now_ms: float) -> float:
        return self.total(now_ms) / self.over_ms(now_ms) * 1000

    def is_idle(self, now_ms: float) -> bool:
        """Whether nothing is left of it, so that a new one is the same."""
        self._forget(now_ms)
        return not self._samples

    def _forget(self, now_ms: float) -> None:
        samples, span_ms = self._samples, self._windows.span_ms
        while samples and now_ms - samples[0].last_ms >= span_ms:
            samples.popleft()


def throttle_ms(rate: Rate, limit: float, now_ms: float) -> int:
    """Kafka's formula: how long a client waits whose rate is `rate` and may be `limit` per second.
    0 if it is not above that, and never more than an answer can name."""
    observed = rate.per_second(now_ms)
    if observed <= limit:
        return 0
    # Infinite for the least limits, which are numbers like 5e-324.
    return math.floor(min((observed - limit) / limit * rate.over_ms(now_ms) + 0.5, _LONGEST_MS))


class Rates(Generic[O]):
    """The rates of all owners that are not idle. Clients choose the names of owners, so idle ones
    are dropped whenever the number has doubled."""

    def __init__(self, windows: Windows) -> None:
        self.windows = windows
        self._by_owner: dict[O, Rate] = {}
        self._sweep_at = _FEW

    def __len__(self) -> int:
        return len(self._by_owner)

    def of(self, owner: O, now_ms: float) -> Rate:
        rate = self._by_owner.get(owner)
        if rate is None:
            if len(self._by_owner) >= self._sweep_at:
                self._sweep(now_ms)
            rate = self._by_owner[owner] = Rate(self.windows)
        return rate

    def _sweep(self, now_ms: float) -> None:
        self._by_owner = {owner: rate for owner, rate in self._by_owner.items() if not rate.is_idle(now_ms)}
        self._sweep_at = max(_FEW, 2 * len(self._by_owner))

    def clear(self) -> None:
        self._by_owner.clear()
